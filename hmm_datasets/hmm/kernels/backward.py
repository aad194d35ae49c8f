"""The loop of backward sampling, compiled by numba.

The counter of the Philox block of position `t` of draw `i` is `(i, t, POSTERIOR_STREAM)`, with the seed as key: 64
bits for the state before token `t`, 64 for the token if it is missing. A category is the first at which the sum of the
weights so far exceeds their total times a number of 52 bits. Products and sums of float64 are taken in a fixed order,
as in the filters of `structured` that give the beliefs, so that draws are the same on every machine.

numba's cache would not notice a change in `draws`. That is safe, because the format fixes the functions imported
from there.
"""

import numpy as np

from ...compilation import compiled
from .draws import FAMILY_STREAM, halves, philox_block
from .tilted import log_of, normalize_logs

POSTERIOR_STREAM = FAMILY_STREAM | np.uint64(40 << 8)
"""Philox stream of states and missing tokens given the others."""


@compiled
def draw_backward(beliefs, in_logs, emission, moves, tokens, ends, seed, first, states, symbols):
    # Fill `states` (B, S, T) with paths given `tokens` (B, T) up to `ends` (B,), and `symbols` (B, S, T) with the
    # tokens and with what the missing ones, symbol E, may have been. Draw `s` of row `n` has index `first + n S + s`.
    # `beliefs` (B, T+1, H) are those of the filter, in rows that are `in_logs` (B,) their logarithms. `emission` is
    # (E+1, H) and `moves` (1, H, H); or `emission` is None and `moves` (E+1, H, H).
    k0, k1 = halves(seed)
    count, size = states.shape[1], moves.shape[1]
    missing = (len(moves) if emission is None else len(emission)) - 1
    weights, chances = np.empty(size), np.empty(missing)
    for n in range(len(tokens)):
        for s in range(count):
            low, high = halves(first + np.uint64(n * count + s))
            end = ends[n]
            words = philox_block(low, high, np.uint64(end), POSTERIOR_STREAM, k0, k1)
            for i in range(size):
                weights[i] = beliefs[n, end, i]
            if in_logs[n]:
                normalize_logs(weights, weights)
            after = choose(weights, words[0], words[1])
            for t in range(end - 1, -1, -1):
                x = tokens[n, t]
                for i in range(size):
                    if emission is None:
                        weights[i] = beliefs[n, t, i] * moves[x, i, after]
                    else:
                        weights[i] = beliefs[n, t, i] * emission[x, i] * moves[0, i, after]
                if in_logs[n]:
                    for i in range(size):
                        emitted = 1.0 if emission is None else emission[x, i]
                        moved = moves[x if emission is None else 0, i, after]
                        weights[i] = beliefs[n, t, i] + log_of(emitted) + log_of(moved)
                    normalize_logs(weights, weights)
                words = philox_block(low, high, np.uint64(t), POSTERIOR_STREAM, k0, k1)
                here = choose(weights, words[0], words[1])
                if x == missing:
                    for y in range(missing):
                        chances[y] = moves[y, here, after] if emission is None else emission[y, here]
                    x = choose(chances, words[2], words[3])
                states[n, s, t], symbols[n, s, t] = here, x
                after = here


@compiled
def choose(weights, upper, lower):
    """The category that 52 of the bits of two words choose; one whose weight is 0 is never chosen."""
    total = 0.0
    for weight in weights:
        total += weight
    bits = (upper << np.uint64(20)) ^ (lower >> np.uint64(12))
    target, so_far, chosen = np.float64(bits) * 2.0**-52 * total, 0.0, 0
    for i in range(len(weights)):
        so_far += weights[i]
        if weights[i] > 0:
            chosen = i
        if so_far > target:
            break
    return chosen
