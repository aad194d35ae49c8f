"""The loops that draw the episodes of `tasks`, compiled by numba.

The choices of a row are numbered in the order of its tokens. Choice `c` among `n` equally likely elements takes the
high half of the product of `n` and a 32-bit word of the Philox4x32-10 block with the seed as key and the counter
`(index, c, TASKS_STREAM | attempt << 16)`. A word that would make some elements more likely is followed by the next
one of the block, and after four words by the next attempt (Lemire, ACM Trans. Model. Comput. Simul. 29, 2019). So
choices are exactly uniform and the same on every machine, and the tokens of a row do not depend on how many are drawn.

numba's cache would not notice a change in `draws`. That is safe, because the format fixes the function imported
from there.
"""

import numpy as np

from ...compilation import compiled
from .draws import FAMILY_STREAM, block_of

TASKS_STREAM = FAMILY_STREAM | np.uint64(24 << 8)
"""Philox stream of the choices of tasks; see `families.family` for the purposes of streams."""


@compiled
def draw_bijections(num_symbols, pairs, seed, first, step, out):
    """Fill `out` with episodes of [`~hmm_datasets.hmm.families.episodic_tasks.Bijection`]."""
    inputs, outputs = np.arange(num_symbols), np.arange(num_symbols)
    for r in range(out.shape[0]):
        index = first + step * np.uint64(r)
        for t in range(out.shape[1]):
            k = (t % (2 * pairs)) // 2
            if t % (2 * pairs) == 0:
                inputs[:], outputs[:] = np.arange(num_symbols), np.arange(num_symbols)
            if t % 2 == 0:
                out[r, t] = take(inputs, k, index, t, seed)
            else:
                out[r, t] = num_symbols + take(outputs, k, index, t, seed)


@compiled
def draw_copies(num_symbols, size, seed, first, step, out):
    """Fill `out` with episodes of [`~hmm_datasets.hmm.families.episodic_tasks.Copying`]."""
    for r in range(out.shape[0]):
        index = first + step * np.uint64(r)
        for t in range(out.shape[1]):
            place = t % (2 * size + 1)
            if place < size:
                out[r, t] = below(num_symbols, index, t, seed)
            elif place == size:
                out[r, t] = num_symbols
            else:
                out[r, t] = out[r, t - size - 1]


@compiled
def draw_recalls(num_keys, num_values, pairs, queries, seed, first, step, out):
    """Fill `out` with episodes of [`~hmm_datasets.hmm.families.episodic_tasks.AssociativeRecall`]."""
    keys, order = np.arange(num_keys), np.arange(pairs)
    size = 2 * (pairs + queries)
    for r in range(out.shape[0]):
        index = first + step * np.uint64(r)
        for t in range(out.shape[1]):
            place = t % size
            begin = t - place
            k = place // 2
            if place == 0:
                keys[:], order[:] = np.arange(num_keys), np.arange(pairs)
            if place < 2 * pairs:
                if place % 2 == 0:
                    out[r, t] = take(keys, k, index, t, seed)
                else:
                    out[r, t] = num_keys + below(num_values, index, t, seed)
            elif place % 2 == 0:
                out[r, t] = out[r, begin + 2 * take(order, k - pairs, index, t, seed)]
            else:
                out[r, t] = out[r, begin + 2 * order[k - pairs] + 1]


@compiled
def take(elements, k, index, choice, seed):
    """Element `k` of a random order: one of those from `k` on, which changes places with it (Fisher and Yates)."""
    chosen = k + below(len(elements) - k, index, choice, seed)
    elements[k], elements[chosen] = elements[chosen], elements[k]
    return elements[k]


@compiled
def below(ways, index, choice, seed):
    """A uniform number in `0 .. ways - 1`, for choice number `choice` of sequence `index`."""
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    n = np.uint64(ways)
    least = (np.uint64(1) << shift) % n
    attempt = np.uint64(0)
    while True:
        stream = TASKS_STREAM | (attempt << np.uint64(16))
        for word in block_of(index, np.uint64(choice) & mask, stream, seed):
            product = word * n
            if (product & mask) >= least:
                return np.int64(product >> shift)
        attempt += np.uint64(1)
