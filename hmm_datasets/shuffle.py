"""The order of an epoch, computed and not stored: a pseudorandom permutation of any range of integers.

A Feistel network over the next power of four, walked until it lands inside the range (cycle walking; Black and
Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002): at most four passes on average, whatever the range.
Compiled, since in numpy the calls of a batch cost more than its tokens.
"""

import hashlib

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
