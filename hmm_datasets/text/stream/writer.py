"""Token streams written: documents are checked, joined and cut into shards, a batch at a time.

Shards go to a folder that is called `NAME.unfinished` until the last is there; then it takes its place in one step.
A shard is written under another name, synced, renamed, and only then named in the folder's `index.json`. A run that
was killed at any moment and is started again skips the documents of the shards so named and writes the others anew:
the same documents give the same bytes, however often it was interrupted. Memory is that of a batch.
"""

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import Int, Integer

from ... import launch_environment
from ...errors import (
    InputError,
    disk_full,
    is_disk_full,
)
from ...exclusive_lock import exclusive_lock
from ...files import write_json
from ...quantities import format_bytes
from .index import (
    ENDS_DTYPE,
    ENDS_SUFFIX,
    INDEX_NAME,
    UNFINISHED_SUFFIX,
    Shard,
    TokenIndex,
    blank_index,
    with_shards,
)
from .resume import (
    PART_SUFFIX,
    check_replaceable,
    finished_part,
    remove_torn,
    replace_folder,
)

SHARD_TOKENS = 100_000_000
"""How full a shard gets by default: 200 MB in uint16."""

_BATCH_TOKENS = 1 << 16
_BATCH_DOCUMENTS = 1 << 10

_logger = logging.getLogger(__name__)

T = TypeVar("T")
Source = Iterable[T] | Callable[[int], Iterable[T]]
"""Documents in an order that never changes, or a function from a number to the documents from there on."""


@dataclass(frozen=True)
class TokenBatch:
    """Documents on their way to a shard.

    Attributes:
        tokens (`np.ndarray` of shape `(T,)`): the documents end to end; each may end in EOS.
        lengths (`np.ndarray` of shape `(B,)`): tokens of each.
        num_bytes (`np.ndarray` of shape `(B,)`, *optional*): bytes of text each stands for.
    """

    tokens: Integer[np.ndarray, "T"]
    lengths: Int[np.ndarray, "B"]
    num_bytes: Int[np.ndarray, "B"] | None = None


def write_tokens(
    documents: Source[Sequence[int]],
    folder: str | os.PathLike,
    *,
    vocab_size: int,
    eos_id: int,
    tokenizer_hash: str,
    corpus: str,
    token_bytes: Int[np.ndarray, "V"] | None = None,
    shard_tokens: int = SHARD_TOKENS,
    overwrite: bool = False,
) -> TokenIndex:
    """Write documents as a token stream. Killed and started again with the same arguments, it goes on.

    Args:
        documents (iterable of sequences of `int`, or a callable):
            Token ids of each document. EOS is appended where a document does not end in it; documents that hold
            nothing else are left out and counted. A callable takes the number of documents to skip and returns the
            others, which saves a resumed run from reading what it has.
        folder (`str` or `os.PathLike`):
            Where to; must be new or empty, or a token stream if `overwrite`.
        vocab_size (`int`):
            Size of the vocabulary, special tokens included; ids lie below it.
        eos_id (`int`):
            The token that ends a document, and stands nowhere else.
        tokenizer_hash (`str`), corpus (`str`):
            What to write in the index.
        token_bytes (`np.ndarray` of shape `(vocab_size,)`, *optional*):
            Bytes of text each token stands for, see [`token_bytes`]; without them the index
            says nothing of bytes.
        shard_tokens (`int`, *optional*, defaults to 100 million):
            A shard ends with the document that brings it to so many tokens.
        overwrite (`bool`, *optional*, defaults to `False`):
            Replace a token stream that is there, once the new one is whole.

    Returns:
        `TokenIndex`: the index written.

    Raises:
        `InputError`: for a token outside the vocabulary or an EOS inside a document (both by number of document,
            from 0), no documents, a folder that holds something else, an unfinished run with other arguments, a full
            disk. Shards finished before it are kept for the next run with the same arguments.

    ```python
    >>> import tempfile
    >>> from hmm_datasets.text.stream import TokenStream
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     index = write_tokens([[5, 6], [7]], folder, vocab_size=8, eos_id=0, tokenizer_hash="", corpus="two")
    ...     TokenStream(folder).read(0, index.num_tokens).tolist()
    [5, 6, 0, 7, 0]

    ```
    """
    blank = blank_index(corpus, tokenizer_hash, vocab_size, eos_id, shard_tokens)
    if token_bytes is not None and np.shape(token_bytes) != (vocab_size,):
        raise InputError(f"token_bytes has the shape {np.shape(token_bytes)}, expected ({vocab_size},)")

    def batches(first: int) -> Generator[TokenBatch]:
        remaining = enumerate(documents_from(documents, first), start=first)
        while arrays := _token_arrays(remaining):
            yield TokenBatch(np.concatenate(arrays), np.fromiter(map(len, arrays), np.int64, len(arrays)))

    return write_batches(batches, folder, blank, token_bytes=token_bytes, overwrite=overwrite)


def documents_from(documents: Source[T], first: int) -> Iterator[T]:
    """The documents of a source from number `first` on."""
    return iter(documents(first)) if callable(documents) else islice(documents, first, None)


def write_batches(
    batches: Callable[[int], Generator[TokenBatch]],
    folder: str | os.PathLike,
    blank: TokenIndex,
    *,
    token_bytes: Int[np.ndarray, "V"] | None = None,
    overwrite: bool = False,
) -> TokenIndex:
    """Write a token stream from batches of documents, as [`write_tokens`] does.

    Args:
        batches (callable): takes a number of document and returns those from there on, in batches of any size.
        folder (`str` or `os.PathLike`), token_bytes (`np.ndarray`), overwrite (`bool`): see [`write_tokens`].
        blank ([`TokenIndex`]): what holds for the whole stream, of [`blank_index`].
    """
    with (
        writing(folder, blank, token_bytes=token_bytes, overwrite=overwrite) as writer,
        contextlib.closing(batches(writer.num_read)) as source,
    ):
        for batch in source:
            writer.write(batch)
    return writer.index


@contextlib.contextmanager
def writing(
    folder: str | os.PathLike,
    blank: TokenIndex,
    *,
    token_bytes: Int[np.ndarray, "V"] | None = None,
    overwrite: bool = False,
) -> Iterator["ShardWriter"]:
    """Write a token stream by hand: batches are given to the writer, and the stream is in place at the end.

    What an earlier run with the same arguments left is kept: give the documents from number `writer.num_read` on. An
    exception inside leaves the shards that are whole for the next run.

    Args:
        folder (`str` or `os.PathLike`), blank ([`TokenIndex`]), token_bytes (`np.ndarray`), overwrite (`bool`): see
            [`write_batches`].
    """
    folder = Path(folder)
    check_replaceable(folder, INDEX_NAME, overwrite)
    unfinished = folder.with_name(folder.name + UNFINISHED_SUFFIX)
    with exclusive_lock(unfinished, folder.with_name(f".{folder.name}.lock")):
        writer = ShardWriter(unfinished, finished_part(unfinished, blank), token_bytes)
        try:
            yield writer
            writer.finish()
            replace_folder(unfinished, folder)
        except BaseException as error:
            safe = writer.abandon()
            if is_disk_full(error):
                size = format_bytes(blank.shard_tokens * blank.token_dtype.itemsize)
                advice = "; ".join(filter(None, ["start the same command again", safe]))
                raise disk_full(folder, f"up to {size} for each shard", advice) from error
            if isinstance(error, InputError | OSError | UnicodeError):
                raise InputError("; ".join(filter(None, [str(error), safe]))) from error
            if safe:
                error.add_note(safe)
            raise
    if writer.index.num_empty and launch_environment.rank() == 0:
        _logger.warning("%s: left out %s empty documents", writer.index.corpus, f"{writer.index.num_empty:,}")


class ShardWriter:
    """Cuts batches of documents into the shards of a folder, going on after those it has.

    Attributes:
        index ([`TokenIndex`]): of the shards that are whole.
        num_read (`int`): documents it has had; of an unfinished stream one less, which is read again and compared.
    """

    def __init__(self, folder: Path, index: TokenIndex, token_bytes: np.ndarray | None):
        self.folder, self.index = folder, index
        self.token_bytes = None if token_bytes is None else np.asarray(token_bytes)
        self.shard: _OpenShard | None = None
        self.num_read = self._num_finished()
        self.last_document = None
        if index.shards:
            # It is read once more, to see that the source is still the same.
            self.num_read -= 1
            self.last_document = _last_document(folder, index)

    def write(self, batch: TokenBatch) -> None:
        """Append documents, without those that hold nothing."""
        if self.last_document is not None and len(batch.lengths):
            batch = self._after_last_document(batch)
        tokens, stops, kept = _joined(batch, self.num_read, self.index)
        first = start = 0
        while first < len(kept):
            if self.shard is None:
                self.shard = _OpenShard(self.folder / f"{len(self.index.shards):05d}.ds", self._num_finished())
            full = start + self.index.shard_tokens - self.shard.num_tokens
            after = min(int(np.searchsorted(stops, full)) + 1, len(kept))
            stop = int(stops[after - 1])
            num_bytes = self._num_bytes(batch, kept[first:after], tokens[start:stop])
            self.shard.write(tokens[start:stop], stops[first:after] - start, num_bytes)
            self.shard.num_read = self.num_read + int(kept[after - 1]) + 1
            if self.shard.num_tokens >= self.index.shard_tokens:
                self._end_shard()
            first, start = after, stop
        self.num_read += len(batch.lengths)

    def finish(self) -> None:
        """End the last shard and write the index of the whole stream."""
        if self.last_document is not None:
            raise InputError(_source_changed(self.folder, self.num_read, "is no longer there"))
        if self.shard is not None:
            self._end_shard()
        if not self.index.shards:
            empty = f", all {self.num_read:,} read are empty" if self.num_read else ""
            raise InputError(f"{self.index.corpus}: no documents to write{empty}")
        self.index = replace(self.index, num_empty=self.num_read - self.index.num_documents)
        self._write_index()

    def abandon(self) -> str:
        """Delete what is not a whole shard; say what is left and how to go on."""
        if not self.folder.is_dir():
            return ""
        if self.shard is not None:
            self.shard.close()
        remove_torn(self.folder, self.index)
        if not self.index.shards:
            self.folder.rmdir()
            return ""
        return (
            f"{self.index.num_documents:,} documents in {len(self.index.shards):,} shards are safe in {self.folder}: "
            "mend this and run the same command again to go on from there"
        )

    def _after_last_document(self, batch: TokenBatch) -> TokenBatch:
        length = int(batch.lengths[0])
        found = batch.tokens[:length]
        if length and found[-1] == self.index.eos_id:
            found = found[:-1]
        if not np.array_equal(found, self.last_document):
            raise InputError(_source_changed(self.folder, self.num_read, "has other tokens now"))
        self.last_document = None
        self.num_read += 1
        num_bytes = None if batch.num_bytes is None else batch.num_bytes[1:]
        return TokenBatch(batch.tokens[length:], batch.lengths[1:], num_bytes)

    def _num_finished(self) -> int:
        return sum(shard.num_documents + shard.num_empty for shard in self.index.shards)

    def _num_bytes(self, batch: TokenBatch, documents: np.ndarray, tokens: np.ndarray) -> int | None:
        if batch.num_bytes is not None:
            return int(batch.num_bytes[documents].sum())
        return None if self.token_bytes is None else int(self.token_bytes[tokens].sum())

    def _end_shard(self) -> None:
        shard = self.shard.finish()
        self.shard = None
        self.index = with_shards(self.index, (*self.index.shards, shard))
        self._write_index()

    def _write_index(self) -> None:
        with _as_input_error(self.folder / INDEX_NAME):
            write_json(self.folder / INDEX_NAME, self.index.to_dict())


class _OpenShard:
    """A shard being written, under another name until it is whole."""

    def __init__(self, path: Path, num_before: int):
        self.path, self.num_before, self.num_read = path, num_before, num_before
        self.num_documents, self.num_tokens, self.num_bytes = 0, 0, 0
        self.paths = (path, path.with_name(path.name + ENDS_SUFFIX))
        self.digests = (hashlib.sha256(), hashlib.sha256())
        self.files = []
        with _as_input_error(path):
            for name in self.paths:
                self.files.append(name.with_name(name.name + PART_SUFFIX).open("wb"))

    def write(self, tokens: np.ndarray, ends: np.ndarray, num_bytes: int | None) -> None:
        """Append documents that end, among `tokens`, at `ends`."""
        ends = (ends + self.num_tokens).astype(ENDS_DTYPE)
        for path, file, digest, array in zip(self.paths, self.files, self.digests, (tokens, ends), strict=True):
            with _as_input_error(path):
                file.write(array.data)
            digest.update(array.data)
        self.num_documents += len(ends)
        self.num_tokens += len(tokens)
        self.num_bytes = None if num_bytes is None else self.num_bytes + num_bytes

    def finish(self) -> Shard:
        """Let the files have their names, once they are on the disk."""
        for path, file in zip(self.paths, self.files, strict=True):
            with _as_input_error(path):
                file.flush()
                os.fsync(file.fileno())
                file.close()
                os.replace(file.name, path)
        return Shard(
            name=self.path.name,
            num_documents=self.num_documents,
            num_tokens=self.num_tokens,
            num_bytes=self.num_bytes,
            num_empty=self.num_read - self.num_before - self.num_documents,
            sha256=self.digests[0].hexdigest(),
            ends_sha256=self.digests[1].hexdigest(),
        )

    def close(self) -> None:
        """Let go of the files, which are then to be deleted."""
        for file in self.files:
            with contextlib.suppress(OSError):  # what it still held had no room
                file.close()


def _joined(
    batch: TokenBatch, first: int, index: TokenIndex
) -> tuple[Integer[np.ndarray, "T"], Int[np.ndarray, "K"], Int[np.ndarray, "K"]]:
    """Check documents, the first of which has the number `first`, and put EOS at the end of each that holds anything.

    Returns:
        The tokens as the file holds them, where each document ends among them, and which of the batch they are.
    """
    tokens, lengths, stops = batch.tokens, batch.lengths, np.cumsum(batch.lengths)
    _check_vocabulary(tokens, stops, first, index.vocab_size)
    places = np.flatnonzero(tokens == index.eos_id)
    if places.size:
        documents = np.searchsorted(stops, places, side="right")
        inner = places != stops[documents] - 1
        if inner.any():
            document, place = int(documents[inner][0]), int(places[inner][0])
            place -= int(stops[document] - lengths[document])
            raise InputError(
                f"document {first + document}: EOS ({index.eos_id}) at position {place}, not the end; split it there"
            )
        tokens, lengths = np.delete(tokens, places), lengths.copy()
        lengths[documents] -= 1
    kept = np.flatnonzero(lengths)
    stops = np.cumsum(lengths[kept])
    joined = np.insert(tokens.astype(index.token_dtype), stops, index.eos_id)
    return joined, stops + np.arange(1, len(kept) + 1), kept


def _check_vocabulary(tokens: np.ndarray, stops: np.ndarray, first: int, vocab_size: int) -> None:
    if not tokens.size or (tokens.max() < vocab_size and tokens.min() >= 0):
        return
    place = int(((tokens < 0) | (tokens >= vocab_size)).argmax())
    document = int(np.searchsorted(stops, place, side="right"))
    start = int(stops[document - 1]) if document else 0
    raise InputError(
        f"document {first + document}: token {tokens[place]} at position {place - start} is outside the vocabulary of "
        f"{vocab_size}; is it of another tokenizer?"
    )


def _token_arrays(documents: Iterator[tuple[int, Sequence[int]]]) -> list[np.ndarray]:
    """The next documents of a numbered source, up to some 65,000 tokens of them."""
    arrays, num_tokens = [], 0
    for number, ids in documents:
        array = np.asarray(ids) if len(ids) else np.zeros(0, dtype=np.int64)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise InputError(f"document {number}: expected a list of token ids, found {array.dtype} {array.shape}")
        arrays.append(array.astype(np.int64, copy=False))
        num_tokens += len(array)
        if num_tokens >= _BATCH_TOKENS or len(arrays) >= _BATCH_DOCUMENTS:
            break
    return arrays


def _last_document(folder: Path, index: TokenIndex) -> np.ndarray:
    """The tokens of the last document written, without EOS."""
    shard = index.shards[-1]
    skipped = max(0, shard.num_documents - 2)
    *start, _end = np.fromfile(folder / shard.ends_name, ENDS_DTYPE, offset=skipped * ENDS_DTYPE.itemsize).tolist()
    offset = (start[0] if start else 0) * index.token_dtype.itemsize
    return np.fromfile(folder / shard.name, index.token_dtype, offset=offset)[:-1]


def _source_changed(folder: Path, number: int, how: str) -> str:
    return (
        f"document {number}: {how}, but was read before by the unfinished run in {folder}; give the documents it had, "
        "or delete the folder to start afresh"
    )


@contextlib.contextmanager
def _as_input_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); make room there") from error
