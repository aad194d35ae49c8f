"""The order of an epoch, computed and not stored: a pseudorandom permutation of any range of integers.

A Feistel network over the next power of four, walked until it lands inside the range (cycle walking; Black and
Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002): at most four passes on average, whatever the range.
Compiled, since in numpy the calls of a batch cost more than its tokens.
"""

import hashlib
from collections.abc import Sequence

import numba
import numpy as np
from jaxtyping import Int

_ROUNDS = 8


def epoch_order(indices: Int[np.ndarray, "B"], size: int, seed: int, epoch: int = 0) -> Int[np.ndarray, "B"]:
    """Return the places of `indices` in a pseudorandom permutation of `range(size)`, keyed by seed and epoch.

    Args:
        indices (`np.ndarray` of shape `(B,)`):
            Integers in `[0, size)`.
        size (`int`):
            What is permuted, at most 2**62. Time and memory do not depend on it.
        seed (`int`), epoch (`int`, *optional*, defaults to 0):
            The key.

    Returns:
        `np.ndarray` of shape `(B,)`, int64.

    ```python
    >>> sorted(epoch_order(np.arange(5), 5, seed=1).tolist())
    [0, 1, 2, 3, 4]

    ```
    """
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    key = hashlib.blake2b(f"{seed}:{epoch}".encode(), digest_size=8 * _ROUNDS, person=b"epoch_order").digest()
    places = np.asarray(indices).astype(np.uint64)
    _permute(places, np.uint64(size), half, np.frombuffer(key, dtype="<u8").astype(np.uint64))
    return places.astype(np.int64)


def indices_in_epochs(indices: Sequence[int], size: int, epochs: int, seed: int | None) -> Int[np.ndarray, "B"]:
    """Which row each index is, in a data set that holds `size` rows `epochs` times over.

    Args:
        indices (sequence of `int`): negative ones count from the end.
        size (`int`): rows per epoch.
        epochs (`int`): how often each row is there.
        seed (`int`, *optional*): of the orders, one for each epoch; None keeps the order of the rows.

    Raises:
        `IndexError`: outside the data set.

    ```python
    >>> sorted(indices_in_epochs([0, 1, 2], 3, epochs=2, seed=0).tolist())
    [0, 1, 2]

    ```
    """
    wanted = np.asarray(indices)
    if wanted.size and wanted.dtype.kind not in "iu":
        raise TypeError(f"indices must be integers, found {wanted.dtype}")
    wanted, total = wanted.astype(np.int64), size * epochs
    outside = (wanted < -total) | (wanted >= total)
    if outside.any():
        raise IndexError(f"index {wanted[outside][0]} of a data set of {total} rows")
    numbers, places = np.divmod(wanted % total, size)
    if seed is not None:
        for epoch in set(numbers.tolist()):
            chosen = numbers == epoch
            places[chosen] = epoch_order(places[chosen], size, seed, epoch)
    return places


@numba.njit(cache=True, nogil=True)
def _permute(places, size, half, keys):
    """Walk a bijection of `[0, 4**half)`; its round function is the finalizer of SplitMix64 (Steele et al., 2014)."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    for number in range(len(places)):
        left, right = places[number] >> half, places[number] & mask
        while True:
            for key in keys:
                mixed = right + key
                mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
                mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
                left, right = right, left ^ ((mixed ^ (mixed >> np.uint64(31))) & mask)
            place = (left << half) | right
            if place < size:
                break
        places[number] = place
