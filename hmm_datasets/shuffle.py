"""The order of an epoch: a pseudorandom permutation of any range of integers, computed and not stored.

It is a Feistel network over the next power of four, applied repeatedly until the result is inside the range (cycle
walking; Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). This takes at most four passes on
average, for any range. The code is compiled, because NumPy calls for a batch would take longer than reading its
tokens.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from . import array_input
from .compilation import compiled

_ROUNDS = 8


def epoch_order(indices: Int[np.ndarray, "B"], size: int, seed: int, epoch: int = 0) -> Int[np.ndarray, "B"]:
    """Return the images of `indices` under a pseudorandom permutation of `range(size)`, keyed by seed and epoch.

    Args:
        indices (`np.ndarray` of shape `(B,)`):
            Integers in `[0, size)`.
        size (`int`):
            Number of permuted integers, at most 2**62. Time and memory do not depend on it.
        seed (`int`), epoch (`int`, *optional*, defaults to 0):
            Key of the permutation.

    Returns:
        `np.ndarray` of shape `(B,)`, int64.

    ```python
    >>> sorted(epoch_order(np.arange(5), 5, seed=1).tolist())
    [0, 1, 2, 3, 4]

    ```
    """
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    key = hashlib.blake2b(f"{seed}:{epoch}".encode(), digest_size=8 * _ROUNDS, person=b"epoch_order").digest()
    permuted = np.asarray(indices).astype(np.uint64)
    _permute(permuted, np.uint64(size), half, np.frombuffer(key, dtype="<u8").astype(np.uint64))
    return permuted.astype(np.int64)


def indices_in_epochs(indices: Sequence[int], size: int, epochs: int, seed: int | None) -> Int[np.ndarray, "B"]:
    """The row of each index, in a data set with `epochs` epochs of `size` rows.

    Args:
        indices (sequence of `int`): negative indices count from the end.
        size (`int`): rows per epoch.
        epochs (`int`): number of epochs.
        seed (`int`, *optional*): seed of the order, which differs for each epoch; None keeps the order of the rows.

    Raises:
        `IndexError`: an index is outside the data set.

    ```python
    >>> sorted(indices_in_epochs([0, 1, 2], 3, epochs=2, seed=0).tolist())
    [0, 1, 2]

    ```
    """
    wanted = array_input.indices("indices", indices)
    wanted, total = wanted.astype(np.int64), size * epochs
    outside = (wanted < -total) | (wanted >= total)
    if outside.any():
        raise IndexError(f"index {wanted[outside][0]} of a data set of {total} rows")
    numbers, rows = np.divmod(wanted % total, size)
    if seed is not None:
        for epoch in set(numbers.tolist()):
            chosen = numbers == epoch
            rows[chosen] = epoch_order(rows[chosen], size, seed, epoch)
    return rows


@compiled
def _permute(values, size, half, keys):
    """Cycle-walk a bijection of `[0, 4**half)`, in place; its rounds use the finalizer of SplitMix64 (Steele et al.,
    2014)."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    for number in range(len(values)):
        left, right = values[number] >> half, values[number] & mask
        while True:
            for key in keys:
                mixed = right + key
                mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
                mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
                left, right = right, left ^ ((mixed ^ (mixed >> np.uint64(31))) & mask)
            value = (left << half) | right
            if value < size:
                break
        values[number] = value
