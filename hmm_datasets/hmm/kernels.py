"""The loops over tokens, compiled by numba: random blocks, alias draws, permutations.

All stand in one file, since numba's cache on disk looks at the file that a kernel stands in, and not at those whose
functions it took in: a change to any of them recompiles them all. See `sampling` and `families` for what they compute.
"""

import numba
import numpy as np

TOKENS_STREAM = np.uint64(0)
"""Philox stream of states and symbols."""

FAMILY_STREAM = np.uint64(1)
"""Philox stream of the choices of `families` (permutations, components)."""

START = np.uint64(0xFFFFFFFF)  # the place of the start state's block, after every possible token


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


@numba.njit(cache=True, nogil=True, inline="always")
def pick(threshold, alias, bits, high, low):
    # `high` chooses the column by its top bits, `low` decides between the column's two categories.
    column = high >> np.uint64(32 - bits)
    return np.uint64(column if low < threshold[column] else alias[column])


@numba.njit(cache=True, nogil=True)
def draw_sequences(
    s_thr, s_alias, s_bits, e_thr, e_alias, e_bits, t_thr, t_alias, t_bits, num_symbols, seed, first, step, out
):
    mask = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    k0 = seed & mask
    k1 = seed >> shift
    for n in range(out.shape[0]):
        index = first + step * np.uint64(n)
        i0 = index & mask
        i1 = index >> shift
        w0, w1, w2, w3 = philox_block(i0, i1, START, TOKENS_STREAM, k0, k1)
        state = pick(s_thr, s_alias, s_bits, w0, w1)
        for t in range(out.shape[1]):
            w0, w1, w2, w3 = philox_block(i0, i1, np.uint64(t), TOKENS_STREAM, k0, k1)
            drawn = pick(e_thr[state], e_alias[state], e_bits, w0, w1)
            if t_thr is None:  # known when compiled: each kind of HMM has a kernel of its own
                out[n, t] = drawn % num_symbols
                state = drawn // num_symbols
            else:
                out[n, t] = drawn
                state = pick(t_thr[state], t_alias[state], t_bits, w2, w3)


@numba.njit(cache=True, nogil=True)
def shuffle(permutation, number, stream, seed):
    mask = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    n0 = number & mask
    n1 = number >> shift
    for x in range(len(permutation)):
        permutation[x] = x
    for step in range(len(permutation) - 1):
        if step % 2 == 0:
            w0, w1, w2, w3 = philox_block(n0, n1, np.uint64(step // 2), stream, seed & mask, seed >> shift)
        else:
            w0, w1 = w2, w3
        last = len(permutation) - 1 - step
        ways = np.uint64(last + 1)
        # floor(word * ways / 2^64), word = w0 2^32 + w1, without 128-bit numbers; no term exceeds 64 bits.
        chosen = np.int64((w0 * ways + ((w1 * ways) >> shift)) >> shift)
        permutation[last], permutation[chosen] = permutation[chosen], permutation[last]


@numba.njit(cache=True, nogil=True)
def rename_symbols(stream, num_symbols, seed, first, group, out):
    permutation = np.empty(num_symbols, dtype=np.int64)
    current = np.uint64(0)
    for n in range(out.shape[0]):
        number = (first + np.uint64(n)) // group
        if n == 0 or number != current:
            shuffle(permutation, number, stream, seed)
            current = number
        for t in range(out.shape[1]):
            out[n, t] = permutation[out[n, t]]


@numba.njit(cache=True, nogil=True)
def draw_with_permuted_rows(
    s_thr, s_alias, s_bits, e_thr, e_alias, e_bits, t_thr, t_alias, t_bits, stream, seed, first, group, out
):
    # As `draw_sequences` for state-emitting HMMs, with the emission rows taken by way of a permutation.
    mask = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    k0 = seed & mask
    k1 = seed >> shift
    row = np.empty(e_thr.shape[0], dtype=np.int64)
    current = np.uint64(0)
    for n in range(out.shape[0]):
        index = first + np.uint64(n)
        number = index // group
        if n == 0 or number != current:
            shuffle(row, number, stream, seed)
            current = number
        i0 = index & mask
        i1 = index >> shift
        w0, w1, w2, w3 = philox_block(i0, i1, START, TOKENS_STREAM, k0, k1)
        state = pick(s_thr, s_alias, s_bits, w0, w1)
        for t in range(out.shape[1]):
            w0, w1, w2, w3 = philox_block(i0, i1, np.uint64(t), TOKENS_STREAM, k0, k1)
            emits = row[state]
            out[n, t] = pick(e_thr[emits], e_alias[emits], e_bits, w0, w1)
            state = pick(t_thr[state], t_alias[state], t_bits, w2, w3)
