"""The loops of Markov chains and of factors, compiled by numba.

Draws use the Philox blocks of `draws`, with the seed as key. The counter of a token is `(index, position,
TOKENS_STREAM)`, except that one block of a Markov chain serves two tokens: its position is half that of the token, and
the token at an even position takes the first two words. Draws compare integers only (see `sampling`), so that they
are the same on every machine.

numba's cache would not notice a change in `draws`. That is safe, because the format fixes the functions imported
from there.
"""

import numpy as np

from ...compilation import compiled
from .draws import (
    FAMILY_STREAM,
    LANES,
    START,
    TOKENS_STREAM,
    block_of,
    fill_all_words,
    halves,
    philox_block,
    pick,
    take_lanes,
)

CHAIN_COMPONENTS, PROCESS_COMPONENTS, DERIVED_SEEDS, NOISE = (
    FAMILY_STREAM | np.uint64(purpose << 8) for purpose in (32, 33, 34, 35)
)
"""Philox streams: components of mixtures of chains and of processes, seeds of parts, and noise; 36 and 40 were once
used."""


@compiled
def draw_chains(start, s_bits, table, t_bits, num_symbols, num_contexts, order, component, seed, first, step, out):
    # Row `r` of `out` is sequence `first + step r` of the chain `component[r]`. Row `c` of `start` is the distribution
    # of the first context of chain `c`, row `c * num_contexts + context` of `table` that of the token after a context.
    k0, k1 = halves(seed)
    low, high, ahead = np.empty(LANES, np.uint64), np.empty(LANES, np.uint64), np.zeros(LANES, np.uint64)
    words = np.empty(4 * LANES, np.uint64)
    context, base = np.empty(LANES, np.uint64), np.empty(LANES, np.uint64)
    length = np.uint64(out.shape[1])
    for n in range(0, out.shape[0], LANES):
        lanes = take_lanes(n, out.shape[0], first, step, low, high)
        for lane in range(lanes):
            row = n + lane
            a, b, _, _ = philox_block(low[lane], high[lane], START, TOKENS_STREAM, k0, k1)
            context[lane] = pick(start, component[row], s_bits, a, b)
            base[lane] = component[row] * num_contexts
            rest = context[lane]
            for t in range(order):
                # The oldest token of a context is its most significant digit.
                digit = order - np.uint64(1) - np.uint64(t)
                if digit < length:
                    out[row, digit] = rest % num_symbols
                rest = rest // num_symbols
        for pair in range(order // np.uint64(2), (length + np.uint64(1)) // np.uint64(2)):
            if lanes > 2:
                fill_all_words(low, high, ahead, pair, k0, k1, words)
            else:
                for lane in range(lanes):
                    block = philox_block(low[lane], high[lane], pair & np.uint64(0xFFFFFFFF), TOKENS_STREAM, k0, k1)
                    words[lane], words[LANES + lane] = block[0], block[1]
                    words[2 * LANES + lane], words[3 * LANES + lane] = block[2], block[3]
            for odd in range(np.uint64(2)):
                t = np.uint64(2) * pair + odd
                if order <= t < length:
                    place = np.uint64(2 * LANES) * odd
                    for lane in range(np.uint64(lanes)):
                        upper, lower = words[place + lane], words[place + np.uint64(LANES) + lane]
                        drawn = pick(table, base[lane] + context[lane], t_bits, upper, lower)
                        out[n + lane, t] = drawn
                        if order > np.uint64(0):
                            context[lane] = (context[lane] * num_symbols + drawn) % num_contexts


@compiled
def replace_symbols(num_symbols, threshold, seed, first, step, out):
    # Each symbol is replaced by a uniform one with probability `threshold / 2^32`.
    for n in range(out.shape[0]):
        index = first + step * np.uint64(n)
        for t in range(out.shape[1]):
            a, b, _, _ = block_of(index, np.uint64(t), NOISE, seed)
            if a < threshold:
                out[n, t] = (b * num_symbols) >> np.uint64(32)


@compiled
def filter_in_order(emission, moves, tokens, belief, scales):
    # Take `belief` (H,) to that after `tokens` (P,), fill `scales` (P,), the probability of each token given its past,
    # and return the lowest belief above 0. P(emit x, go to j | in i) is `emission[x, i] * moves[x, i, j]`, or
    # `moves[0, i, j]` where moves are those of all symbols. Numbers are added in a fixed order, unlike those of
    # `filter`, where lanes and fused products make it faster; so draws from this belief are the same on every machine.
    states, lowest = len(belief), 1.0
    after = np.empty(states)
    for i in range(states):
        if belief[i] > 0:
            lowest = min(lowest, belief[i])
    for t in range(len(tokens)):
        table = moves[tokens[t] if len(moves) > 1 else 0]
        after[:] = 0.0
        for i in range(states):
            weight = belief[i] * emission[tokens[t], i]
            for j in range(states):
                after[j] += weight * table[i, j]
        scales[t] = 0.0
        for j in range(states):
            scales[t] += after[j]
        for j in range(states):
            belief[j] = after[j] / scales[t] if after[j] > 0 else 0.0
            if belief[j] > 0:
                lowest = min(lowest, belief[j])
    return lowest


@compiled
def split_codes(tokens, sizes, out):
    # Fill `out` (F, B, T) with the digits of the product codes `tokens` (B, T), the last factor the least significant.
    for n in range(tokens.shape[0]):
        for t in range(tokens.shape[1]):
            rest = np.uint64(tokens[n, t])
            for k in range(len(sizes) - 1, -1, -1):
                size = np.uint64(sizes[k])
                out[k, n, t] = rest % size
                rest = rest // size


@compiled
def draw_blocked(
    start, s_bits, enter, e_bits, leave, l_bits, symbol, begins, bits, symbols, firsts, size, seed, first, step, out,
    states,
):  # fmt: skip
    # An HMM with blocked emissions and hidden classes. Block `k` has the alias rows of its `size` states from
    # `symbol[begins[k]]` on, and the symbols from `symbols[firsts[k]]` on. A token takes 64 bits for each of state,
    # symbol and next class, two tokens the words of three blocks. `states` is None, or takes the state of every token.
    k0, k1 = halves(seed)
    low, high, ahead = np.empty(LANES, np.uint64), np.empty(LANES, np.uint64), np.zeros(LANES, np.uint64)
    words = np.empty(12 * LANES, np.uint64)
    state, moved = np.empty(LANES, np.uint64), np.empty(LANES, np.uint64)
    width, length = np.uint64(LANES), np.uint64(out.shape[1])
    for n in range(0, out.shape[0], LANES):
        lanes = take_lanes(n, out.shape[0], first, step, low, high)
        for lane in range(lanes):
            a, b, _, _ = philox_block(low[lane], high[lane], START, TOKENS_STREAM, k0, k1)
            moved[lane] = pick(start, np.uint64(0), s_bits, a, b)
        for pair in range((length + np.uint64(1)) // np.uint64(2)):
            for m in range(np.uint64(3)):
                fill_all_words(low, high, ahead, np.uint64(3) * pair + m, k0, k1, words[np.uint64(4) * width * m :])
            for odd in range(np.uint64(2)):
                t = np.uint64(2) * pair + odd
                if t < length:
                    # A draw of all lanes before the next one, so that their look-ups in large tables overlap.
                    at = np.uint64(6) * width * odd
                    for lane in range(np.uint64(lanes)):
                        state[lane] = pick(enter, moved[lane], e_bits, words[at + lane], words[at + width + lane])
                    at += width + width
                    for lane in range(np.uint64(lanes)):
                        block = state[lane] // size
                        rows, within = symbol[begins[block] :], state[lane] % size
                        column = pick(rows, within, bits[block], words[at + lane], words[at + width + lane])
                        out[n + lane, t] = symbols[firsts[block] + column]
                        if states is not None:
                            states[n + lane, t] = state[lane]
                    at += width + width
                    for lane in range(np.uint64(lanes)):
                        moved[lane] = pick(leave, state[lane], l_bits, words[at + lane], words[at + width + lane])
