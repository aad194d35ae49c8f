"""Reading token streams: the concatenated documents of all shards, memory-mapped, by position or by document.

Memory hardly grows with size: there are two integers per shard, while tokens and ends stay in their files. The shard
of a position is found by binary search; the bounds of a document take two reads; the document at a position is found
by binary search in the ends of its shard. Shards are mapped when first read, and at most 128 of them are mapped at a
time; the least recently used are unmapped. Opening a stream checks its files, see `verification`.
"""

import mmap
import operator
import os
from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from pathlib import Path

import numpy as np
from jaxtyping import Int, Integer

from ...array_input import indices
from ...errors import InputError, path_errors
from ...hub.download import Repository, download_file, is_address
from .index import ENDS_DTYPE, ENDS_SUFFIX, INDEX_NAME, UNFINISHED_SUFFIX, TokenIndex, read_index
from .remote_files import remote_stream
from .verification import check_if_small, differing_files

_LONG_WINDOW = 512
"""Windows of this length or more are copied one by one, which avoids a second copy in the type of the files."""

_VERIFIED_AT_ONCE = 1 << 22  # tokens
_MAX_MAPPED = 128
"""Maximum number of mapped files of either kind. Each takes a file descriptor, and 1,024 per process are common."""


class TokenStream:
    """A token stream on disk, memory-mapped.

    Positions count the tokens of the whole stream from 0, documents likewise; both are int64.

    Args:
        folder (`str` or `os.PathLike`):
            Written by [`~hmm_datasets.text.stream.write_tokens`], [`~hmm_datasets.text.stream.tokenize_corpus`] or
            [`~hmm_datasets.text.stream.adopt_datatrove`]; or the address of such a folder on the Hub, as
            `hf://datasets/USER/NAME@REVISION/train`, whose shards are downloaded when they are first read.
        verify (`bool`, *optional*, defaults to `True`):
            Compare the SHA-256 of the files with the index if they have up to 256 MB; those on the Hub are compared
            shard by shard, when they are first read, and larger ones by [`TokenStream.verify`].

    Attributes:
        index ([`TokenIndex`]): counts and origin.
        name (`str`): the folder, or the address on the Hub with the commit.
        num_tokens (`int`), num_documents (`int`): counts.

    Raises:
        `InputError`: the folder is not a token stream, is unfinished or has another version, or its files do not match
            the sizes and digests of the index.
    """

    def __init__(self, folder: str | os.PathLike, *, verify: bool = True):
        remote = remote_stream(str(folder)) if is_address(folder) else None
        with path_errors(folder):
            self.folder = Path(folder).resolve() if remote is None else download_file(remote / INDEX_NAME).parent
        self.name = str(self.folder if remote is None else remote)
        if self.folder.name.endswith(UNFINISHED_SUFFIX):
            raise InputError(f"{self.folder}: this token stream is unfinished; run the same command again")
        self.index: TokenIndex = read_index(self.folder, check_files=remote is None)
        if verify and remote is None:
            check_if_small(self.folder, self.index)
        self.num_tokens = self.index.num_tokens
        self.num_documents = self.index.num_documents
        # The position and the document at which each shard begins; the last entry is the total.
        self._tokens_before = np.cumsum([0, *(shard.num_tokens for shard in self.index.shards)])
        self._documents_before = np.cumsum([0, *(shard.num_documents for shard in self.index.shards)])
        find = self.folder.joinpath if remote is None else cache(partial(_downloaded, remote, self.index.digests))
        self._tokens = _mapped(find, [shard.name for shard in self.index.shards], self.index.token_dtype)
        self._ends = _mapped(find, [shard.ends_name for shard in self.index.shards], ENDS_DTYPE)

    def __repr__(self) -> str:
        return f"TokenStream({self.name!r}, documents={self.num_documents}, tokens={self.num_tokens})"

    def __reduce__(self) -> tuple:
        return _reopened, (self.name,)

    def read(self, start: int, stop: int) -> Integer[np.ndarray, "T"]:
        """Return the tokens from `start` to `stop`, as a read-only view if they are in one shard.

        Raises:
            `IndexError`: unless `0 <= start <= stop <= num_tokens`.
        """
        start, stop = operator.index(start), operator.index(stop)
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens {start} to {stop} of {self.num_tokens}")
        first, last = (np.searchsorted(self._tokens_before[1:-1], [start, stop - 1], side="right")).tolist()
        parts = []
        for shard in range(first, max(first, last) + 1):
            before = int(self._tokens_before[shard])
            parts.append(self._tokens(shard)[max(0, start - before) : stop - before])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def gather(
        self, starts: Integer[np.ndarray, "B"], length: int, out: Int[np.ndarray, "B T"] | None = None
    ) -> Int[np.ndarray, "B T"]:
        """Return the windows of `length` tokens that begin at `starts`, as int64.

        Args:
            starts (`np.ndarray` of shape `(B,)`): positions.
            length (`int`): `T`, tokens per window.
            out (`np.ndarray` of shape `(B, T)`, int64, *optional*): array to fill instead of a new one.

        Raises:
            `IndexError`: a window is not within the stream.
        """
        starts = _checked(starts, 0, self.num_tokens - length, f"windows of {length} tokens", self.num_tokens)
        if out is None:
            out = np.empty((len(starts), length), dtype=np.int64)
        elif out.shape != (len(starts), length):
            raise ValueError(f"out has the shape {out.shape}, expected {(len(starts), length)}")
        shards = np.searchsorted(self._tokens_before[1:-1], starts, side="right")
        whole = starts + length <= self._tokens_before[shards + 1]
        for shard, rows in _groups(shards, np.flatnonzero(whole)):
            tokens, offsets = self._tokens(shard), starts[rows] - self._tokens_before[shard]
            if length >= _LONG_WINDOW:
                for row, offset in zip(rows.tolist(), offsets.tolist(), strict=True):
                    out[row] = tokens[offset : offset + length]
            else:
                # Row `i` of this view of the shard is the window that starts at token `i`.
                windows = np.lib.stride_tricks.as_strided(
                    tokens, (len(tokens) - length + 1, length), tokens.strides * 2, writeable=False
                )
                out[rows] = windows[offsets]
        for row in np.flatnonzero(~whole).tolist():
            out[row] = self.read(starts[row], starts[row] + length)
        return out

    def bounds(self, documents: Integer[np.ndarray, "B"]) -> tuple[Int[np.ndarray, "B"], Int[np.ndarray, "B"]]:
        """Return the positions at which documents start and stop, including their EOS.

        Raises:
            `IndexError`: there is no such document.
        """
        documents = _checked(documents, 0, self.num_documents - 1, "documents", self.num_documents)
        shards = np.searchsorted(self._documents_before[1:-1], documents, side="right")
        starts, stops = np.empty_like(documents), np.empty_like(documents)
        for shard, rows in _groups(shards, np.arange(len(documents))):
            ends, local = self._ends(shard), documents[rows] - self._documents_before[shard]
            before = self._tokens_before[shard]
            stops[rows] = before + ends[local].astype(np.int64)
            starts[rows] = before + np.where(local > 0, ends[local - 1].astype(np.int64), 0)
        return starts, stops

    def document(self, number: int) -> Integer[np.ndarray, "T"]:
        """Return the tokens of a document, including its EOS."""
        (start,), (stop,) = self.bounds(np.array([operator.index(number)]))
        return self.read(start, stop)

    def verify(self) -> None:
        """Read all files; raise [`InputError`] unless digests, tokens, ends and every EOS agree with the index."""
        for problem in self.problems():
            raise InputError(problem)

    def problems(self) -> Iterator[str]:
        """Read all files; yield an error message for each shard or file that differs from the index."""
        for number, shard in enumerate(self.index.shards):
            tokens, ends = self._tokens(number), self._ends(number)
            path = self.folder / shard.name
            digests = {shard.name: shard.sha256, shard.ends_name: shard.ends_sha256}
            differ = list(differing_files(self.folder, digests))
            yield from differ
            if not differ:
                try:
                    verify_vocabulary(path, tokens, self.index.vocab_size)
                    verify_ends(path, tokens, ends, self.index.eos_id)
                except InputError as error:
                    yield str(error)


def _downloaded(stream: Repository, digests: dict[str, str], name: str) -> Path:
    """A file of a stream on the Hub; it must be the one that the index describes."""
    path = download_file(stream / name)
    for problem in differing_files(path.parent, {name: digests[name]}):
        raise InputError(f"{problem}, or delete it, and it is downloaded again")
    return path


def _reopened(folder: str) -> TokenStream:
    """The stream in a worker process, which maps the files again. The process that opened it has checked them."""
    return TokenStream(folder, verify=False)


def verify_vocabulary(path: Path, tokens: Integer[np.ndarray, "T"], vocab_size: int) -> None:
    """Raise [`InputError`] if a token is outside the vocabulary."""
    for start in range(0, len(tokens), _VERIFIED_AT_ONCE):
        largest = int(tokens[start : start + _VERIFIED_AT_ONCE].max())
        if largest >= vocab_size:
            raise InputError(f"{path}: token {largest} is outside the vocabulary of {vocab_size}; write it again")


def verify_ends(path: Path, tokens: Integer[np.ndarray, "T"], ends: Integer[np.ndarray, "D"], eos_id: int) -> None:
    """Raise [`InputError`] unless the positions of EOS in a shard are exactly the ends of its documents."""
    document = 0
    for start in range(0, len(tokens), _VERIFIED_AT_ONCE):
        eos_ends = np.flatnonzero(tokens[start : start + _VERIFIED_AT_ONCE] == eos_id) + (start + 1)
        expected = ends[document : document + len(eos_ends)].astype(np.int64)
        if len(expected) != len(eos_ends) or (expected != eos_ends).any():
            same = min(len(expected), len(eos_ends))
            wrong = int(np.append(expected[:same] != eos_ends[:same], True).argmax())
            raise InputError(_ends_differ(path, document + wrong, ends, int(eos_ends[wrong])))
        document += len(eos_ends)
    if document != len(ends):
        raise InputError(_ends_differ(path, document, ends, None))


def _ends_differ(path: Path, document: int, ends: np.ndarray, eos: int | None) -> str:
    expected = f"end at token {ends[document]}" if document < len(ends) else "not exist"
    description = "no further EOS" if eos is None else f"the next EOS before token {eos}"
    return (
        f"{path}: by its {ENDS_SUFFIX} file document {document} should {expected}, found {description}; write it again"
    )


def map_file(path: Path, dtype: np.dtype) -> np.ndarray:
    """A file as a read-only, memory-mapped array; it must not be empty."""
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=dtype)


def _mapped(find: Callable[[str], Path], names: list[str], dtype: np.dtype) -> Callable[[int], np.ndarray]:
    """A function from the number of a file to its memory-mapped content, which caches the most recently used."""

    @lru_cache(maxsize=_MAX_MAPPED)
    def mapped(number: int) -> np.ndarray:
        return map_file(find(names[number]), dtype)

    return mapped


def _groups(shards: np.ndarray, rows: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """The `rows` of a batch, grouped by shard."""
    order = rows[np.argsort(shards[rows], kind="stable")]
    cuts = np.flatnonzero(np.diff(shards[order])) + 1
    return [(int(shards[part[0]]), part) for part in np.split(order, cuts) if len(part)]


def _checked(values: np.ndarray, low: int, high: int, what: str, size: int) -> Int[np.ndarray, "B"]:
    """Return integers as int64; raise an error if one is outside `low` to `high`, both inclusive."""
    values = indices(what, values)
    if values.ndim != 1:
        raise TypeError(f"{what}: expected integers of shape (B,), found {values.dtype} {values.shape}")
    values = values.astype(np.int64)
    outside = (values < low) | (values > high)
    if outside.any():
        raise IndexError(f"{what}: {values[outside][0]} is outside a stream of {size}")
    return values
