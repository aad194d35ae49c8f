"""How much of two sequences of tokens, or of anything else, is the same from the beginning on."""

from collections.abc import Sequence
from itertools import takewhile


def num_alike(first: Sequence, other: Sequence) -> int:
    """The length of the common beginning of two sequences."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, other, strict=False)))
