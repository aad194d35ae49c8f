"""The order of an epoch, computed and not stored: a pseudorandom permutation of any range of integers.

A Feistel network over the next power of four, walked until it lands inside the range (cycle walking; Black and
Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002): at most four passes on average, whatever the range.
"""

import hashlib

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
    keys = np.frombuffer(key, dtype="<u8").astype(np.uint64)
    places = np.asarray(indices).astype(np.uint64)
    walking = np.arange(len(places))
    while walking.size:
        places[walking] = _feistel(places[walking], half, keys)
        walking = walking[places[walking] >= size]
    return places.astype(np.int64)


def _feistel(values: np.ndarray, half: np.uint64, keys: np.ndarray) -> np.ndarray:
    """A bijection of `[0, 4**half)`; the round function is the finalizer of SplitMix64 (Steele et al., 2014)."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys:
        mixed = right + key
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        left, right = right, left ^ ((mixed ^ (mixed >> np.uint64(31))) & mask)
    return (left << half) | right
