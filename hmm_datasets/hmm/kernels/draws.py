"""The loops over tokens, compiled by numba: random blocks, alias tables and draws from them, permutations.

All kernels are in one file because of numba's cache on disk. It recompiles a kernel when the file of the kernel
changes, but not when another file changes whose functions are compiled into it. The algorithms are described in
`sampling` and `families.family`.

Sequences are drawn 16 at a time, one per lane, so that the memory look-ups of several sequences overlap, and so that
the random blocks of a step use the vector unit of the processor. The blocks of the next step are computed for half of
the lanes as soon as this half has used its own, while the other half waits for memory. Where there are fewer sequences
than lanes, the remaining lanes compute the blocks of the next positions.
"""

import numpy as np

from ...compilation import compiled
from .lanes import lanes_of, load, store

TOKENS_STREAM = np.uint64(0)
"""Philox stream of states and symbols."""

FAMILY_STREAM = np.uint64(1)
"""Philox stream of the choices of `families` (permutations, components, tables, lengths)."""

EMISSIONS_STREAM = FAMILY_STREAM | np.uint64(1 << 8)
"""Philox stream of the permutations of emission rows, which are drawn together with the tokens."""

# Purpose 1 is EMISSIONS_STREAM.
SYMBOLS, CHAINS, MIXTURE, LENGTHS, NUM_STATES, SUBSET, ZIPF, HIDDEN, PREFERENCES, TREES = (
    FAMILY_STREAM | np.uint64(purpose << 8) for purpose in (0, 2, 3, 4, 5, 6, 7, 8, 9, 10)
)

START = np.uint64(0xFFFFFFFF)  # position of the block of the start state, after every possible token

LANES = 16  # sequences drawn together


MAX_SHUFFLED = 1 << 16
"""Maximum number of elements of a permutation, because 16 random bits choose among them."""


@compiled(inline="always")
def philox_block(c0, c1, c2, c3, k0, k1):
    """Philox4x32-10 of 32-bit words in uint64 registers, or in lanes of uint64; returns four 32-bit words."""
    mask = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    for _ in range(10):
        p0 = np.uint64(0xD2511F53) * c0
        p1 = np.uint64(0xCD9E8D57) * c2
        c0 = (p1 >> shift) ^ c1 ^ k0
        c2 = (p0 >> shift) ^ c3 ^ k1
        c1 = p1 & mask
        c3 = p0 & mask
        k0 = (k0 + np.uint64(0x9E3779B9)) & mask
        k1 = (k1 + np.uint64(0xBB67AE85)) & mask
    return c0, c1, c2, c3


@compiled
def fill_blocks(counter, key, out):
    for m in range(len(out)):
        c, k = counter[m], key[m]
        out[m, 0], out[m, 1], out[m, 2], out[m, 3] = philox_block(c[0], c[1], c[2], c[3], k[0], k[1])


@compiled(inline="always")
def pick(entries, row, bits, high, low):
    # From a row of flat tables. The top bits of `high` choose the column, and `low` decides between the two categories
    # of the column. One load reads both categories, and the decision compiles to no branch, since the processor could
    # not predict it.
    column = high >> (np.uint64(32) - bits)
    entry = entries[(row << bits) + column]
    return column if low < (entry & np.uint64(0xFFFFFFFF)) else entry >> np.uint64(32)


@compiled(inline="always")
def halves(number):
    """The low and the high 32 bits of a number."""
    return number & np.uint64(0xFFFFFFFF), number >> np.uint64(32)


@compiled(inline="always")
def block_of(index, draw, stream, seed):
    """The random block of an index, and the number and the stream of a draw, from a seed."""
    (low, high), (k0, k1) = halves(index), halves(seed)
    return philox_block(low, high, draw, stream, k0, k1)


@compiled
def take_lanes(n, count, first, step, low, high):
    """Write the words of the indices of rows `n`, `n + 1`, ..., as many as there are lanes; return how many there are.

    Lanes without a row repeat the last one.
    """
    lanes = min(LANES, count - n)
    for i in range(LANES):
        index = first + step * np.uint64(n + min(i, lanes - 1))
        low[i], high[i] = halves(index)
    return lanes


@compiled
def take_lanes_ahead(n, lanes, rows, first, step, row, low, high, ahead):
    # The rows of the lanes, and for every block the words of its index and how many positions ahead it is.
    for lane in range(lanes):
        row[lane] = rows[n + lane] if len(rows) else n + lane
    per_lane = LANES // lanes
    for i in range(LANES):
        low[i], high[i] = halves(first + step * row[min(i // per_lane, lanes - 1)])
        ahead[i] = i % per_lane
    return per_lane


@compiled
def draw_sequences(
    start, s_bits, symbol, e_bits, transition, t_bits, num_symbols, group, seed, first, step, rows, count, length,
    out, row_step, t_step, states,
):  # fmt: skip
    # Row `r` of `out` is sequence `first + step r`, for `count` rows or, if `rows` has any, for those. `states` gets
    # the state that emits each symbol. For each combination of types, and of arguments that are None, numba
    # compiles a separate kernel, which takes seconds. So `out` has one dimension, and steps to the next row and token.
    k0, k1 = halves(seed)
    low, high, ahead = np.empty(LANES, np.uint64), np.empty(LANES, np.uint64), np.empty(LANES, np.uint64)
    words = np.empty(4 * LANES, np.uint64)
    state, row, begins = np.empty(LANES, np.uint64), np.empty(LANES, np.uint64), np.empty(LANES, np.uint64)
    half = lanes_of(low)
    if group is not None:
        # A ring buffer with one permutation per lane. Sequences of one group share a permutation, even with the last
        # group of the lanes before.
        size = len(symbol) >> e_bits
        permuted = np.empty(LANES * size, np.uint16)
        buffer = shuffle_buffer(size)
        row_start = np.zeros(LANES, np.uint64)
        newest = 0
        current = np.uint64(0)
    for n in range(0, count, LANES):
        lanes = min(LANES, count - n)
        per_lane = take_lanes_ahead(n, lanes, rows, first, step, row, low, high, ahead)
        for lane in range(lanes):
            i = lane * per_lane
            a, b, _, _ = philox_block(low[i], high[i], START, TOKENS_STREAM, k0, k1)
            state[lane] = pick(start, np.uint64(0), s_bits, a, b)
            begins[lane] = row[lane] * row_step
            if group is not None:
                number = (first + step * row[lane]) // group
                if n + lane == 0 or number != current:
                    current, newest = number, (newest + 1) % LANES
                    shuffle(permuted[newest * size : (newest + 1) * size], buffer, number, EMISSIONS_STREAM, seed)
                row_start[lane] = newest * size
        fill_all_words(low, high, ahead, np.uint64(0), k0, k1, words)
        if lanes == LANES:
            for t in range(length):
                after = t * t_step
                for begin in range(np.uint64(0), np.uint64(LANES), half):
                    for lane in range(begin, begin + half):
                        draw_token(
                            symbol, e_bits, transition, t_bits, num_symbols, None if group is None else permuted,
                            None if group is None else row_start, words, lane, lane, t, state, out,
                            begins[lane] + after, row, states,
                        )  # fmt: skip
                    fill_words(low, high, ahead, t + np.uint64(1), begin, k0, k1, words)
            continue
        for t in range(np.uint64(0), length, np.uint64(per_lane)):
            for lane in range(np.uint64(lanes)):
                for j in range(min(np.uint64(per_lane), length - t)):
                    draw_token(
                        symbol, e_bits, transition, t_bits, num_symbols, None if group is None else permuted,
                        None if group is None else row_start, words, lane * np.uint64(per_lane) + j, lane, t + j,
                        state, out, begins[lane] + (t + j) * t_step, row, states,
                    )  # fmt: skip
            fill_all_words(low, high, ahead, t + np.uint64(per_lane), k0, k1, words)


@compiled(forceinline=True)
def draw_token(
    symbol,
    e_bits,
    transition,
    t_bits,
    num_symbols,
    permuted,
    row_start,
    words,
    block,
    lane,
    t,
    state,
    out,
    place,
    row,
    states,
):
    # Token `t` of a lane and the state after it, from the words of a block.
    here = state[lane]
    if states is not None:
        states[row[lane], t] = here
    emits = here if permuted is None else permuted[row_start[lane] + here]
    drawn = pick(symbol, emits, e_bits, words[block], words[np.uint64(LANES) + block])
    if transition is None:
        out[place] = drawn % num_symbols
        state[lane] = drawn // num_symbols
    else:
        out[place] = drawn
        low_bits = words[np.uint64(3 * LANES) + block]
        state[lane] = pick(transition, here, t_bits, words[np.uint64(2 * LANES) + block], low_bits)


@compiled(inline="always")
def fill_words(low, high, ahead, t, begin, k0, k1, words):
    # The four words of the blocks from `begin` on, as many as there are lanes of uint64. The masks tell LLVM that the
    # numbers have 32 bits, so that their products are one instruction.
    mask, lanes = np.uint64(0xFFFFFFFF), np.uint64(LANES)
    c0, c1, c2 = load(low, begin) & mask, load(high, begin) & mask, (load(ahead, begin) + t) & mask
    blocks = philox_block(c0, c1, c2, c0 & TOKENS_STREAM, k0, k1)
    store(words, begin, blocks[0])
    store(words, lanes + begin, blocks[1])
    store(words, lanes + lanes + begin, blocks[2])
    store(words, lanes + lanes + lanes + begin, blocks[3])


@compiled(inline="always")
def fill_all_words(low, high, ahead, t, k0, k1, words):
    for begin in range(np.uint64(0), np.uint64(LANES), lanes_of(low)):
        fill_words(low, high, ahead, t, begin, k0, k1, words)


@compiled
def shuffle_buffer(size):
    return np.empty((size + 7) // 8 * 8, np.uint32)


@compiled
def shuffle(permutation, buffer, number, stream, seed):
    # Fisher and Yates's shuffle, inside out. All random numbers are drawn first, into `buffer`, in a loop that
    # vectorizes.
    mask = np.uint64(0xFFFFFFFF)
    half = np.uint64(0xFFFF)
    bits = np.uint64(16)
    blocks = len(buffer) // 8
    for block in range(blocks):
        words = block_of(number, np.uint64(block) & mask, stream & mask, seed)
        # Half a word chooses among `x + 1` elements by the high half of their product (Lemire, ACM TOMACS 29, 2019).
        for word in range(4):
            place = block + 2 * word * blocks
            buffer[place] = (words[word] & half) * np.uint64(place + 1)
            buffer[place + blocks] = (words[word] >> bits) * np.uint64(place + blocks + 1)
    for x in range(np.uint32(len(permutation))):
        product = buffer[x]
        # Products whose low half is below 2^16 mod (x + 1) are drawn again, so that all choices are equally likely.
        # The first comparison avoids the division in most cases.
        if (product & np.uint32(0xFFFF)) <= x and (product & np.uint32(0xFFFF)) < 65536 % (x + 1):
            chosen = redraw(x, number, stream, seed)
        else:
            chosen = product >> np.uint32(16)
        permutation[x] = permutation[chosen]
        permutation[chosen] = x


@compiled
def redraw(x, number, stream, seed):
    ways = np.uint64(x + 1)
    attempt = np.uint64(0)
    while True:
        attempt += np.uint64(1)
        # The first draw in `shuffle` never uses draw numbers of 2^16 or more.
        word, _, _, _ = block_of(number, np.uint64(x) + (attempt << np.uint64(16)), stream, seed)
        product = (word & np.uint64(0xFFFF)) * ways
        if (product & np.uint64(0xFFFF)) >= np.uint64(65536) % ways:
            return np.uint32(product >> np.uint64(16))


@compiled
def rename_symbols(stream, num_symbols, group, seed, first, step, out):
    permutation = np.empty(num_symbols, np.uint32)
    buffer = shuffle_buffer(num_symbols)
    current = np.uint64(0)
    for n in range(out.shape[0]):
        number = (first + step * np.uint64(n)) // group
        if n == 0 or number != current:
            shuffle(permutation, buffer, number, stream, seed)
            current = number
        for t in range(out.shape[1]):
            out[n, t] = permutation[out[n, t]]


@compiled
def share_rest(weights, order):
    # What each row lacks to 2^32 is shared evenly by its positive entries; the remainder goes to the first in `order`.
    # Where a row exceeds 2^32, no entry falls below zero: what a small one cannot give, the largest gives.
    for r in range(weights.shape[0]):
        rest, support = np.int64(1 << 32), 0
        for x in range(weights.shape[1]):
            rest -= weights[r, x]
            support += weights[r, x] > 0
        support = max(support, 1)
        share = rest // support
        extra = rest - share * support
        for rank in range(support):
            entry = order[r, rank]
            weights[r, entry] += share + (1 if rank < extra else 0)
            if weights[r, entry] < 0:
                weights[r, order[r, 0]] += weights[r, entry]
                weights[r, entry] = 0


@compiled
def fill_alias_rows(weights, bits, threshold, alias):
    # Vose's construction. Each of the 2^bits columns has 2^32 units. Weights are multiplied by the number of columns,
    # so that all numbers stay exact integers.
    one = np.int64(1 << 32)
    columns = threshold.shape[1]
    scaled = np.empty(columns, np.int64)
    small, large = np.empty(columns, np.int64), np.empty(columns, np.int64)
    for r in range(weights.shape[0]):
        num_small = num_large = 0
        for column in range(columns):
            scaled[column] = weights[r, column] << bits if column < weights.shape[1] else 0
            threshold[r, column], alias[r, column] = 0, column
            if scaled[column] < one:
                small[num_small] = column
                num_small += 1
            else:
                large[num_large] = column
                num_large += 1
        while num_small > 0:
            num_small -= 1
            low, high = small[num_small], large[num_large - 1]
            threshold[r, low], alias[r, low] = scaled[low], high
            scaled[high] -= one - scaled[low]
            if scaled[high] < one:
                num_large -= 1
                small[num_small] = high
                num_small += 1
        # The total is exact, so `large` is never empty first. The columns that remain in it are exactly full: with
        # threshold 0 and themselves as alias they always give their own category.
