"""Filters of documents: by length, by other columns, and removal of duplicates.

Documents are identified by the first 8 bytes of the BLAKE2b digest (RFC 7693) of their words. The digest depends on
the words alone and not on the white space between them, so it also decides which documents are held out. The
probability that two of `n` distinct documents share a digest is `n**2 / 2**65`, or 0.0003 among a hundred million.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import InputError
from .local_files import shorten

_WIDE_SPACES = "\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
"""The white space beyond ASCII, as `str.isspace` has it."""

_NARROW_SPACES = b"\t\n\v\f\r\x1c\x1d\x1e\x1f"
_ONE_SPACE = bytes.maketrans(_NARROW_SPACES, b" " * len(_NARROW_SPACES))


@dataclass(frozen=True)
class DocumentFilter:
    """Conditions that a document must meet to be kept.

    Attributes:
        min_characters (`int`), max_characters (`int`, *optional*): bounds on its length, both inclusive. The length of
            a conversation is that of all its messages together.
        equal (mapping of `str` to a value): required values of columns, for example `{"language": "en"}`.
        at_least (mapping of `str` to `float`): minimum values of columns, for example `{"score": 3}`. A row where such
            a column is empty is dropped.
        unique (`bool`): whether to drop repeated documents; see [`FirstSeen`] for the memory.

    ```python
    >>> kept = DocumentFilter(min_characters=3, at_least={"score": 3})
    >>> kept.keeps_row({"score": 3.5}, "row 0"), kept.keeps_length(2)
    (True, False)

    ```
    """

    min_characters: int = 0
    max_characters: int | None = None
    equal: Mapping[str, Any] = field(default_factory=dict)
    at_least: Mapping[str, float] = field(default_factory=dict)
    unique: bool = False

    def __post_init__(self):
        if self.min_characters < 0 or (self.max_characters is not None and self.max_characters < self.min_characters):
            raise InputError(
                f"min_characters={self.min_characters}, max_characters={self.max_characters}: expected "
                "0 <= min_characters <= max_characters"
            )
        for name in ("equal", "at_least"):
            if not isinstance(getattr(self, name), Mapping):
                raise InputError(f"{name}={getattr(self, name)!r}: expected column names and values, {{'score': 3}}")

    def keeps_row(self, row: Mapping[str, Any], where: str) -> bool:
        """Whether the columns of a row meet the conditions; raises [`InputError`], with `where`, if one is missing."""
        if not self.equal and not self.at_least:
            return True
        for column in (*self.equal, *self.at_least):
            if column not in row:
                raise InputError(f"{where}: no column {column!r} to filter by, found {', '.join(row)}")
        return all(row[column] == value for column, value in self.equal.items()) and all(
            _reaches(row[column], value, f"{where}: {column}") for column, value in self.at_least.items()
        )

    def keeps_length(self, characters: int) -> bool:
        """Whether a document of this length is kept."""
        return self.min_characters <= characters and (self.max_characters is None or characters <= self.max_characters)


class FirstSeen:
    """A predicate that is true for a text whose words are new: `filter(FirstSeen(), sentences)`.

    Memory is about 100 bytes per distinct text, whatever its length: 1 GB for ten million.

    ```python
    >>> list(filter(FirstSeen(), ["A cat.", "A  cat.", "A dog."]))
    ['A cat.', 'A dog.']

    ```
    """

    def __init__(self):
        self._digests: set[int] = set()

    def __call__(self, text: str) -> bool:
        before = len(self._digests)
        self._digests.add(document_digest(text))
        return len(self._digests) > before


def document_digest(text: str) -> int:
    """The first 64 bits of the BLAKE2b digest of a text's words, which are joined by single spaces.

    Raises:
        `UnicodeEncodeError`: the text is not valid Unicode.

    ```python
    >>> document_digest("A cat  sat.") == document_digest("A cat sat.\\n")
    True

    ```
    """
    return int.from_bytes(hashlib.blake2b(_single_spaced(text), digest_size=8).digest(), "big")


def _single_spaced(text: str) -> bytes:
    """`" ".join(text.split()).encode()`, several times as fast."""
    if not text.isascii():
        for space in _WIDE_SPACES:
            text = text.replace(space, " ")
    words = text.encode().translate(_ONE_SPACE)
    while b"  " in words:
        words = words.replace(b"  ", b" ")
    return words.strip()


def _reaches(value: Any, minimum: float, where: str) -> bool:
    if value is None:
        return False
    if not isinstance(value, int | float):
        raise InputError(f"{where}: expected a number to filter by, found {shorten(value)}")
    return value >= minimum
