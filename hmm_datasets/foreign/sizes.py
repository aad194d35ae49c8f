"""How large a foreign file may become when it is decompressed or decoded: a few hundred bytes can stand for gigabytes.

What is limited is the ratio: text and tables that somebody wanted to keep shrink by far less than this.
"""

import os

from ..errors import InputError

MOST_EXPANSION = 300
"""Maximum number of bytes that a byte of a file may stand for, once they are more than fit into memory with ease."""

HARMLESS_BYTES = 1 << 28
"""Bytes that are never too many."""


def most_bytes(stored: int, harmless: int | None = None) -> int:
    """The bytes that a file of `stored` bytes may stand for, see [`check_expansion`]."""
    return max(HARMLESS_BYTES if harmless is None else harmless, MOST_EXPANSION * stored)


def check_expansion(where: str | os.PathLike, stored: int, expanded: int, harmless: int | None = None) -> None:
    """Refuse content that is out of proportion to the file that it is from.

    Args:
        where (`str` or path): the file, for the error.
        stored (`int`): bytes of the file.
        expanded (`int`): bytes of what has been read of it so far, or is about to be.
        harmless (`int`, *optional*, defaults to `HARMLESS_BYTES`): bytes that are never refused.

    Raises:
        `InputError`: it is more than 300 times as large, and larger than `harmless`.
    """
    if expanded > most_bytes(stored, harmless):
        raise InputError(
            f"{where}: {stored:,} bytes that stand for {expanded:,} or more, over {MOST_EXPANSION} times as many; "
            "expected data that are not made to fill memory; write them uncompressed if they are what you want"
        )
