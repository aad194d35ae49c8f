"""The loops over tokens, compiled by numba: random blocks, alias tables and draws from them, permutations.

All stand in one file, since numba's cache on disk looks at the file that a kernel stands in, and not at those whose
functions it took in: a change to any of them recompiles them all. See `sampling` and `families` for what they compute.

Sequences are drawn side by side, so that the look-ups of one wait for memory while others go on, and so that the
random blocks of a step fill the processor's vector unit (LLVM sees to it for a plain loop over lanes, and only then).
On two cores of a Zen 3 this was three times as fast as one sequence after another. Where there are fewer sequences
than lanes, the lanes left take the blocks of the next places.
"""

import numba
import numpy as np

TOKENS_STREAM = np.uint64(0)
"""Philox stream of states and symbols."""

FAMILY_STREAM = np.uint64(1)
"""Philox stream of the choices of `families` (permutations, components, tables, lengths)."""

EMISSIONS_STREAM = FAMILY_STREAM | np.uint64(1 << 8)
"""Philox stream of the permutations of emission rows, which are drawn along with the tokens."""

START = np.uint64(0xFFFFFFFF)  # the place of the start state's block, after every possible token

LANES = 16  # drawn side by side; with 8 LLVM unrolls the loop instead of vectorizing it


@numba.njit(cache=True, nogil=True, inline="always")
def philox_block(c0, c1, c2, c3, k0, k1):
    """Philox4x32-10 on uint64 registers that hold 32-bit words; returns four 32-bit words."""
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


@numba.njit(cache=True, nogil=True)
def fill_blocks(counter, key, out):
    for m in range(len(out)):
        c, k = counter[m], key[m]
        out[m, 0], out[m, 1], out[m, 2], out[m, 3] = philox_block(c[0], c[1], c[2], c[3], k[0], k[1])


@numba.njit(cache=True, nogil=True, inline="always")
def pick(entries, bits, high, low):
    # `high` chooses the column by its top bits, `low` decides between the column's two categories. Both come with one
    # load, and the choice between them is no branch, which the processor could not foresee.
    column = high >> np.uint64(32 - bits)
    entry = entries[column]
    return column if low < (entry & np.uint64(0xFFFFFFFF)) else entry >> np.uint64(32)


@numba.njit(cache=True, nogil=True)
def draw_sequences(
    start, s_bits, symbol, e_bits, transition, t_bits, num_symbols, group, seed, first, step, rows, out
):
    # Row `r` of `out` is sequence `first + step r`, for all `r` or for those in `rows`. What is None is known when
    # compiled: each kind of HMM, permuted or not, has a kernel of its own.
    mask = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    k0 = seed & mask
    k1 = seed >> shift
    low, high, ahead = np.empty(LANES, np.uint64), np.empty(LANES, np.uint64), np.empty(LANES, np.uint64)
    w0, w1 = np.empty(LANES, np.uint64), np.empty(LANES, np.uint64)
    w2, w3 = np.empty(LANES, np.uint64), np.empty(LANES, np.uint64)
    state, row = np.empty(LANES, np.uint64), np.empty(LANES, np.uint64)
    count = out.shape[0] if rows is None else len(rows)
    if group is not None:
        # Room for a permutation a lane, in a ring: lanes of one group share one, also with the last of those before.
        size = symbol.shape[0]
        permuted = np.empty(LANES * size, np.uint32)
        room = shuffle_room(size)
        row_start = np.zeros(LANES, np.uint64)
        newest = 0
        current = np.uint64(0)
    for n in range(0, count, LANES):
        lanes = min(LANES, count - n)
        places = LANES // lanes
        for lane in range(lanes):
            row[lane] = n + lane if rows is None else rows[n + lane]
        for i in range(LANES):
            index = first + step * row[min(i // places, lanes - 1)]
            low[i] = index & mask
            high[i] = index >> shift
            ahead[i] = i % places
        for lane in range(lanes):
            i = lane * places
            a, b, _, _ = philox_block(low[i], high[i], START, TOKENS_STREAM, k0, k1)
            state[lane] = pick(start, s_bits, a, b)
            if group is not None:
                number = (first + step * row[lane]) // group
                if n + lane == 0 or number != current:
                    newest = (newest + 1) % LANES
                    shuffle(permuted[newest * size : (newest + 1) * size], room, number, EMISSIONS_STREAM, seed)
                    current = number
                row_start[lane] = newest * size
        for t in range(0, out.shape[1], places):
            for i in range(LANES):
                # Masked where masked already: so LLVM knows them for 32 bits, and multiplies four at once.
                place = (np.uint64(t) + ahead[i]) & mask
                w0[i], w1[i], w2[i], w3[i] = philox_block(low[i] & mask, high[i] & mask, place, TOKENS_STREAM, k0, k1)
            for j in range(min(places, out.shape[1] - t)):
                # Unsigned indices, since numba looks whether signed ones count from the end.
                for lane in range(np.uint64(lanes)):
                    i = lane * np.uint64(places) + np.uint64(j)
                    here = state[lane]
                    emits = here if group is None else permuted[row_start[lane] + here]
                    drawn = pick(symbol[emits], e_bits, w0[i], w1[i])
                    if transition is None:
                        out[row[lane], np.uint64(t + j)] = drawn % num_symbols
                        state[lane] = drawn // num_symbols
                    else:
                        out[row[lane], np.uint64(t + j)] = drawn
                        state[lane] = pick(transition[here], t_bits, w2[i], w3[i])


MOST_SHUFFLED = 1 << 16
"""Things that a permutation can be of: 16 bits choose among them."""


@numba.njit(cache=True, nogil=True)
def shuffle_room(size):
    return np.empty((size + 7) // 8 * 8, np.uint32)


@numba.njit(cache=True, nogil=True)
def shuffle(permutation, room, number, stream, seed):
    # Fisher and Yates's, inside out. All numbers are drawn first, to `room`, in a loop that vectorizes.
    mask = np.uint64(0xFFFFFFFF)
    half = np.uint64(0xFFFF)
    bits = np.uint64(16)
    n0, n1 = number & mask, number >> np.uint64(32)
    k0, k1 = seed & mask, seed >> np.uint64(32)
    blocks = len(room) // 8
    for block in range(blocks):
        w0, w1, w2, w3 = philox_block(n0, n1, np.uint64(block) & mask, stream & mask, k0, k1)
        # Half a word chooses among `x + 1` ways by the high half of their product (Lemire, ACM TOMACS 29, 2019).
        room[block] = (w0 & half) * np.uint64(block + 1)
        room[block + blocks] = (w0 >> bits) * np.uint64(block + blocks + 1)
        room[block + 2 * blocks] = (w1 & half) * np.uint64(block + 2 * blocks + 1)
        room[block + 3 * blocks] = (w1 >> bits) * np.uint64(block + 3 * blocks + 1)
        room[block + 4 * blocks] = (w2 & half) * np.uint64(block + 4 * blocks + 1)
        room[block + 5 * blocks] = (w2 >> bits) * np.uint64(block + 5 * blocks + 1)
        room[block + 6 * blocks] = (w3 & half) * np.uint64(block + 6 * blocks + 1)
        room[block + 7 * blocks] = (w3 >> bits) * np.uint64(block + 7 * blocks + 1)
    for x in range(np.uint32(len(permutation))):
        product = room[x]
        # Products whose low half is below 2^16 mod (x + 1) are too many for equal chances; few need the division.
        if (product & np.uint32(0xFFFF)) <= x and (product & np.uint32(0xFFFF)) < 65536 % (x + 1):
            chosen = redraw(x, n0, n1, stream, k0, k1)
        else:
            chosen = product >> np.uint32(16)
        permutation[x] = permutation[chosen]
        permutation[chosen] = x


@numba.njit(cache=True, nogil=True)
def redraw(x, n0, n1, stream, k0, k1):
    ways = np.uint64(x + 1)
    attempt = np.uint64(0)
    while True:
        attempt += np.uint64(1)
        # Places from 2^16 on are no block's above.
        word, _, _, _ = philox_block(n0, n1, np.uint64(x) + (attempt << np.uint64(16)), stream, k0, k1)
        product = (word & np.uint64(0xFFFF)) * ways
        if (product & np.uint64(0xFFFF)) >= np.uint64(65536) % ways:
            return np.uint32(product >> np.uint64(16))


@numba.njit(cache=True, nogil=True)
def rename_symbols(stream, num_symbols, group, seed, first, step, out):
    permutation = np.empty(num_symbols, np.uint32)
    room = shuffle_room(num_symbols)
    current = np.uint64(0)
    for n in range(out.shape[0]):
        number = (first + step * np.uint64(n)) // group
        if n == 0 or number != current:
            shuffle(permutation, room, number, stream, seed)
            current = number
        for t in range(out.shape[1]):
            out[n, t] = permutation[out[n, t]]


@numba.njit(cache=True, nogil=True)
def share_rest(weights, order):
    # What each row lacks to 2^32 goes to its positive entries evenly, and what that leaves to the first in `order`.
    for r in range(weights.shape[0]):
        rest, support = np.int64(1 << 32), 0
        for x in range(weights.shape[1]):
            rest -= weights[r, x]
            support += weights[r, x] > 0
        support = max(support, 1)
        share = rest // support
        extra = rest - share * support
        for place in range(support):
            weights[r, order[r, place]] += share + (1 if place < extra else 0)


@numba.njit(cache=True, nogil=True)
def fill_alias_rows(weights, bits, threshold, alias):
    # Vose's construction. A column holds 2^32 units and there are 2^bits of them, so weights are scaled by their
    # number: exact integers.
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
        # The total is exact, so `large` never runs dry first. What remains in it is exactly full: threshold 0 and
        # itself as alias, the same category always.
