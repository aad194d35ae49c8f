"""Filters of documents: by length, by other columns, and removal of duplicates.

Documents are identified by the first 8 bytes of the BLAKE2b digest (RFC 7693) of their words. The digest depends on
the words alone and not on the white space between them, so it also decides which documents are held out. The
probability that two of `n` distinct documents share a digest is `n**2 / 2**65`, or 0.0003 among a hundred million.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from ...errors import InputError
from .local_files import shorten

T = TypeVar("T")

_BATCH_DOCUMENTS = 1024
_BATCH_CHARACTERS = 1 << 20


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
        return self.has_not(document_digest(text))

    def has_not(self, digest: int) -> bool:
        """Whether the text with this [`document_digest`] is new."""
        before = len(self._digests)
        self._digests.add(digest)
        return len(self._digests) > before


def document_digest(text: str) -> int:
    """The first 64 bits of the BLAKE2b digest of a text's words.

    ```python
    >>> document_digest("A cat  sat.") == document_digest("A cat sat.\\n")
    True

    ```
    """
    words = " ".join(text.split()).encode("utf-8")
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big")


def document_digests(texts: Sequence[str]) -> list[int]:
    """The [`document_digest`] of each text, several times as fast as one at a time."""
    from .white_space import single_spaced  # here, because it imports numba

    data, stops = single_spaced(texts)
    words, first, digests = data.data, 0, []
    for stop in stops.tolist():
        digests.append(hashlib.blake2b(words[first:stop], digest_size=8).digest())
        first = stop
    return np.frombuffer(b"".join(digests), ">u8").tolist()


def with_digests(documents: Iterable[T], text_of: Callable[[T], str]) -> Iterator[tuple[T, int]]:
    """Each document with the [`document_digest`] of its text, computed for many documents at once.

    Documents are read ahead: one, then two, and so on up to 1,024 documents or a million characters. If reading fails,
    the error is raised after the documents before it.
    """
    remaining, room, is_last, error = iter(documents), 1, False, None
    while not is_last:
        batch, texts, num_characters = [], [], 0
        is_last = True
        try:
            for document in remaining:
                texts.append(text_of(document))
                batch.append(document)
                num_characters += len(texts[-1])
                if len(batch) >= room or num_characters >= _BATCH_CHARACTERS:
                    is_last = False
                    break
        except Exception as caught:
            error = caught
        yield from zip(batch, document_digests(texts), strict=True)
        room = min(2 * room, _BATCH_DOCUMENTS)
    if error is not None:
        raise error


def _reaches(value: Any, minimum: float, where: str) -> bool:
    if value is None:
        return False
    if not isinstance(value, int | float):
        raise InputError(f"{where}: expected a number to filter by, found {shorten(value)}")
    return value >= minimum
