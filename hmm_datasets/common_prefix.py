"""How much of two sequences of tokens, or of anything else, is the same from the beginning on."""

from collections.abc import Sequence


def num_alike(first: Sequence, other: Sequence) -> int:
    """The length of the common beginning of two sequences."""
    pairs = enumerate(zip(first, other, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(first), len(other)))
