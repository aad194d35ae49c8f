"""The recurrence of generalized HMMs, compiled by numba: drawing sequences, and filtering given ones.

What is known of a sequence is a vector `v` (H,) with `v @ final = 1`. The probability of symbol `x` is
`v @ operators[x] @ final`, computed as `v @ columns[x]`, and after it the vector is `v @ operators[x]`, divided so
that its product with `final` is one again. A token costs `O(E H + H^2)`.

Operators have negative entries, so a probability is a sum of terms that may cancel. A probability of at most
`ROUNDING` times the sum of the absolute terms is rounding and counts as zero, for drawing as for filtering; so does
one of at most `floor`, to which the operators determine probabilities (`predictive_vectors` estimates it). One below
`-REFUSED` times that sum, and below `-BEYOND` times the floor, is none: the operators do not define a process, and
the kernels report it.

The code uses only additions, products and quotients of float64, in a fixed order, which IEEE 754 defines to the last
bit and which numba neither reorders nor fuses. A token is the first symbol at which the sum of the probabilities so
far exceeds their total times a number of 52 bits, from the block of `sampling` for this sequence and
position. So equal operators give equal sequences on every machine that follows IEEE 754.

Loops over lanes become vector instructions because quotients are those of NumPy (`error_model`), without a test for
zero. numba's cache would not notice a change in `draws`. That is safe, because the format fixes what is imported
from there.
"""

import numpy as np

from ...compilation import compiled
from .draws import LANES, fill_all_words, halves, take_lanes

ROUNDING = 1e-12
REFUSED = 1e-9
BEYOND = 1e3  # after rare symbols probabilities are known less well than in the words that were looked at

GATHERED = 2048
"""Entries of operators from each of which lanes gather their own; larger ones do not fit into the nearest cache."""


@compiled(error_model="numpy")
def draw_words(operators, columns, initial, final, floor, seed, first, step, out):
    """Fill row `r` of `out` (N, L) with sequence `first + step r`; return -1, or a row near a negative probability.

    `operators` (E H H) and `columns` (E H) are flat. `LANES` sequences are drawn together, and entry `i` of lane `l`
    is at `i * LANES + l`, so that loops over lanes use the vector unit of the processor.
    """
    k0, k1 = halves(seed)
    low, high, ahead = np.empty(LANES, np.uint64), np.empty(LANES, np.uint64), np.zeros(LANES, np.uint64)
    words, drawn = np.empty(4 * LANES, np.uint64), np.empty(LANES, np.uint64)
    states = np.uint64(len(initial))
    vectors, after = np.empty(LANES * len(initial)), np.empty(LANES * len(initial))
    probs = np.empty(LANES * (len(columns) // len(initial)))
    found, size, total = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    for n in range(0, out.shape[0], LANES):
        lanes = np.uint64(take_lanes(n, out.shape[0], first, step, low, high))
        fill_lanes(vectors, initial)
        for t in range(np.uint64(out.shape[1])):
            fill_all_words(low, high, ahead, t, k0, k1, words)
            if not fill_probs(vectors, columns, states, floor, found, size, total, probs):
                return n
            draw_lanes(words, total, probs, found, size, drawn)
            for lane in range(lanes):
                out[np.uint64(n) + lane, t] = drawn[lane]
            advance_lanes(vectors, operators, drawn, final, found, total, after)
    return -1


@compiled(forceinline=True, error_model="numpy")
def fill_lanes(vectors, initial):
    for i in range(np.uint64(len(initial))):
        for lane in range(np.uint64(LANES)):
            vectors[i * np.uint64(LANES) + lane] = initial[i]


@compiled(forceinline=True, error_model="numpy")
def fill_probs(vectors, columns, states, floor, found, size, total, probs):
    """Fill `probs` (E LANES) with the probabilities of the next symbol, and `total` with their sums; return whether
    none is negative. `found` and `size` are overwritten."""
    width = np.uint64(LANES)
    negative = 0
    for lane in range(width):
        total[lane] = 0.0
    for x in range(np.uint64(len(probs)) // width):
        for lane in range(width):
            found[lane] = 0.0
            size[lane] = 0.0
        for i in range(states):
            column = columns[x * states + i]
            for lane in range(width):
                term = vectors[i * width + lane] * column
                found[lane] += term
                size[lane] += abs(term)
        for lane in range(width):
            negative += found[lane] < -max(REFUSED * size[lane], BEYOND * floor)
            probs[x * width + lane] = found[lane] if found[lane] > max(ROUNDING * size[lane], floor) else 0.0
            total[lane] += probs[x * width + lane]
    return negative == 0


@compiled(forceinline=True, error_model="numpy")
def draw_lanes(words, total, probs, target, so_far, drawn):
    """Fill `drawn` with the number of symbols up to which the sum of the probabilities does not exceed the target of
    the lane; `target` and `so_far` are overwritten."""
    # Numbers of 52 bits, so that their products with the total are always rounded to less than the total. With the
    # exponent of one before them they are floats in [1, 2), for which there are vector instructions.
    width = np.uint64(LANES)
    for lane in range(width):
        bits = (words[lane] << np.uint64(20)) ^ (words[width + lane] >> np.uint64(12))
        drawn[lane] = bits | np.uint64(0x3FF0000000000000)
    number = drawn.view(np.float64)
    for lane in range(width):
        target[lane] = (number[lane] - 1.0) * total[lane]
        so_far[lane] = 0.0
    for lane in range(width):
        drawn[lane] = np.uint64(0)
    for x in range(np.uint64(len(probs)) // width):
        for lane in range(width):
            so_far[lane] += probs[x * width + lane]
            drawn[lane] += np.uint64(so_far[lane] <= target[lane])


@compiled(forceinline=True, error_model="numpy")
def advance_lanes(vectors, operators, drawn, final, found, scale, after):
    """Replace the vector of each lane by that after its symbol; `found`, `scale` and `after` are overwritten."""
    width, states = np.uint64(LANES), np.uint64(len(final))
    square = states * states
    if len(operators) <= GATHERED:
        for j in range(states):
            for lane in range(width):
                found[lane] = 0.0
            for i in range(states):
                for lane in range(width):
                    found[lane] += vectors[i * width + lane] * operators[drawn[lane] * square + i * states + j]
            for lane in range(width):
                after[j * width + lane] = found[lane]
    else:
        room = np.empty(states)
        for lane in range(width):
            room[:] = 0.0
            for i in range(states):
                entry, row = vectors[i * width + lane], drawn[lane] * square + i * states
                for j in range(states):
                    room[j] += entry * operators[row + j]
            for j in range(states):
                after[j * width + lane] = room[j]
    for lane in range(width):
        scale[lane] = 0.0
    for j in range(states):
        for lane in range(width):
            scale[lane] += after[j * width + lane] * final[j]
    for j in range(states):
        for lane in range(width):
            vectors[j * width + lane] = after[j * width + lane] / scale[lane]


@compiled(forceinline=True, error_model="numpy")
def clear_lanes(vectors, found):
    """Zeros for the lanes whose token was impossible."""
    width = np.uint64(LANES)
    for lane in range(width):
        if not found[lane] > 0:
            for i in range(np.uint64(len(vectors)) // width):
                vectors[i * width + lane] = 0.0


@compiled(forceinline=True, error_model="numpy")
def add_logs(probs, read, total, likelihood, logs):
    """Multiply the likelihoods by the probabilities of the tokens read, and take logarithms where they get small."""
    width = np.uint64(LANES)
    for lane in range(np.uint64(len(logs))):
        # Logarithms are slow: one is taken before the product would become too small.
        if probs[read[lane] * width + lane] > 0:
            factor = probs[read[lane] * width + lane] / total[lane]
            if likelihood[lane] * factor < 1e-150:
                logs[lane] += np.log(likelihood[lane])
                likelihood[lane] = 1.0
            likelihood[lane] *= factor
        else:
            logs[lane] = -np.inf


@compiled(error_model="numpy")
def filter_words(operators, columns, initial, final, floor, tokens, vectors, distributions, logs):
    """Read the rows of `tokens` (B, T); return -1, or a row near one with a negative probability.

    Fills those of `vectors` (B, T+1, H), `distributions` (B, T+1, E) and `logs` (B,), the log-likelihoods, that are
    not None. After an impossible token vectors and distributions are zeros, and the log-likelihood is -inf.
    """
    width, states = np.uint64(LANES), np.uint64(len(initial))
    symbols, length = np.uint64(len(columns)) // states, np.uint64(tokens.shape[1])
    own, after = np.empty(LANES * len(initial)), np.empty(LANES * len(initial))
    probs, read = np.empty(LANES * (len(columns) // len(initial))), np.empty(LANES, np.uint64)
    found, size, total = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    likelihood = np.empty(LANES)
    for n in range(0, tokens.shape[0], LANES):
        lanes = np.uint64(min(LANES, tokens.shape[0] - n))
        fill_lanes(own, initial)
        likelihood[:] = 1.0
        if logs is not None:
            logs[n : n + LANES] = 0.0
        for t in range(length + np.uint64(1)):
            if not fill_probs(own, columns, states, floor, found, size, total, probs):
                return n
            for lane in range(lanes):
                row = np.uint64(n) + lane
                if vectors is not None:
                    for i in range(states):
                        vectors[row, t, i] = own[i * width + lane]
                if distributions is not None:
                    scale = total[lane] if total[lane] > 0 else 1.0
                    for x in range(symbols):
                        distributions[row, t, x] = probs[x * width + lane] / scale
            if t == length:
                break
            for lane in range(width):
                read[lane] = tokens[np.uint64(n) + min(lane, lanes - np.uint64(1)), t]
            if logs is not None:
                add_logs(probs, read, total, likelihood, logs[n : n + LANES])
            for lane in range(width):
                found[lane] = probs[read[lane] * width + lane]
            advance_lanes(own, operators, read, final, size, total, after)
            clear_lanes(own, found)
        if logs is not None:
            for lane in range(lanes):
                logs[np.uint64(n) + lane] += np.log(likelihood[lane])
    return -1
