"""Writing token streams: documents are checked, concatenated and cut into shards, one batch at a time.

Shards are written to the folder `NAME.unfinished`, which is renamed to `NAME` in one step when the last shard is
complete. A shard is written under a temporary name, synced, renamed, and only then listed in the `index.json` of the
folder. A run that was killed at any moment and is started again skips the documents of the listed shards and writes
the others again. So the same documents give the same bytes, however often a run is interrupted. Memory is that of a
batch.
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

from ...array_input import FILL_IN, integer_array
from ...display import format_bytes
from ...errors import InputError, disk_full, is_disk_full
from ...files import check_may_write, write_json
from ...runtime import environment
from ...runtime.lock import exclusive_lock
from .index import ENDS_DTYPE, ENDS_SUFFIX, INDEX_NAME, UNFINISHED_SUFFIX, Shard, TokenIndex, blank_index, with_shards
from .unfinished import PART_SUFFIX, check_replaceable, finished_part, remove_torn, replace_folder

SHARD_TOKENS = 100_000_000
"""Default number of tokens in a shard: 200 MB in uint16."""

_BATCH_TOKENS = 1 << 16
_BATCH_DOCUMENTS = 1 << 10
_logger = logging.getLogger(__name__)
T = TypeVar("T")
Source = Iterable[T] | Callable[[int], Iterable[T]]
"""Documents in a fixed order, or a function that takes the number of documents to skip and returns the others."""


@dataclass(frozen=True)
class TokenBatch:
    """Documents to be written.

    Attributes:
        tokens (`np.ndarray` of shape `(T,)`): the concatenated documents; each may end in EOS.
        lengths (`np.ndarray` of shape `(B,)`): number of tokens of each document.
        num_bytes (`np.ndarray` of shape `(B,)`, *optional*): bytes of text of each document.
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
    """Write documents as a token stream. A killed run resumes when it is started again with the same arguments.

    Args:
        documents (iterable of sequences of `int`, or a callable):
            Token ids of each document. EOS is appended to a document that does not end in it. Empty documents are left
            out and counted. A callable takes the number of documents to skip and returns the others, so that a resumed
            run need not read documents it has written.
        folder (`str` or `os.PathLike`):
            Output folder; must be new or empty, or a token stream if `overwrite`.
        vocab_size (`int`):
            Size of the vocabulary, including special tokens; ids must be smaller.
        eos_id (`int`):
            The token that ends a document; it must not occur inside documents.
        tokenizer_hash (`str`), corpus (`str`):
            Written to the index.
        token_bytes (`np.ndarray` of shape `(vocab_size,)`, *optional*):
            Bytes of text that each token stands for, see [`token_bytes`]; without them the index has no byte counts.
        shard_tokens (`int`, *optional*, defaults to 100 million):
            A shard ends with the document that brings it to this many tokens.
        overwrite (`bool`, *optional*, defaults to `False`):
            Replace an existing token stream once the new one is complete.

    Returns:
        `TokenIndex`: the index written.

    Raises:
        `InputError`: a token is outside the vocabulary or EOS occurs inside a document (the message gives the number
            of the document, from 0), there are no documents, the folder contains something else, an unfinished run had
            other arguments, or the disk is full. Finished shards are kept for the next run with the same arguments.

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
    token_bytes = None if token_bytes is None else integer_array("token_bytes", token_bytes, FILL_IN)
    if token_bytes is not None and token_bytes.shape != (vocab_size,):
        raise InputError(f"token_bytes has the shape {np.shape(token_bytes)}, expected ({vocab_size},)")

    def batches(first: int) -> Generator[TokenBatch]:
        remaining = enumerate(documents_from(documents, first), start=first)
        while arrays := _token_arrays(remaining):
            yield TokenBatch(np.concatenate(arrays), np.fromiter(map(len, arrays), np.int64, len(arrays)))

    return write_batches(batches, folder, blank, token_bytes=token_bytes, overwrite=overwrite)


def documents_from(documents: Source[T], first: int) -> Iterator[T]:
    """The documents of a source, starting with number `first`."""
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
        batches (callable): takes the number of a document and yields the documents from it on, in batches of any size.
        folder (`str` or `os.PathLike`), token_bytes (`np.ndarray`), overwrite (`bool`): see [`write_tokens`].
        blank ([`TokenIndex`]): settings of the whole stream, from [`blank_index`].
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
    """A context in which batches are passed to a writer; at its end the token stream is in place.

    Shards of an earlier run with the same arguments are kept, so pass the documents from number `writer.num_read` on.
    If an exception is raised inside, finished shards are kept for the next run.

    Args:
        folder (`str` or `os.PathLike`), blank ([`TokenIndex`]), token_bytes (`np.ndarray`), overwrite (`bool`): see
            [`write_batches`].
    """
    folder = Path(folder)
    unfinished = folder.with_name(folder.name + UNFINISHED_SUFFIX)
    with exclusive_lock(unfinished, folder.with_name(f".{folder.name}.lock")):
        check_replaceable(folder, INDEX_NAME, overwrite)
        writer = ShardWriter(unfinished, finished_part(unfinished, blank), token_bytes)
        try:
            yield writer
            writer.finish()
            replace_folder(unfinished, folder)
        except BaseException as error:
            kept = writer.abandon()
            if is_disk_full(error):
                size = format_bytes(blank.shard_tokens * blank.token_dtype.itemsize)
                advice = "; ".join(filter(None, ["start the same command again", kept]))
                raise disk_full(folder, f"up to {size} for each shard", advice) from error
            if isinstance(error, InputError | OSError | UnicodeError):
                raise InputError("; ".join(filter(None, [str(error), kept]))) from error
            if kept:
                error.add_note(kept)
            raise
    if writer.index.num_empty and environment.rank() == 0:
        _logger.warning("%s: left out %s empty documents", writer.index.corpus, f"{writer.index.num_empty:,}")


class ShardWriter:
    """Writes batches of documents to the shards of a folder, after the shards that are there.

    Attributes:
        index ([`TokenIndex`]): index of the finished shards.
        num_read (`int`): number of documents read. When a stream is resumed, it is one less than the documents
            written, because the last one is read again and compared.
    """

    def __init__(self, folder: Path, index: TokenIndex, token_bytes: np.ndarray | None):
        self.folder, self.index = folder, index
        self.token_bytes = token_bytes
        self.shard: _OpenShard | None = None
        self.num_read = self._num_finished()
        self.last_document = None
        if index.shards:
            # The last document is read once more, to check that the source has not changed.
            self.num_read -= 1
            self.last_document = _last_document(folder, index)

    def write(self, batch: TokenBatch) -> None:
        """Append documents, leaving out empty ones."""
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
            raise InputError(_source_changed(self.folder, self.num_read, "is missing now"))
        if self.shard is not None:
            self._end_shard()
        if not self.index.shards:
            empty = f", all {self.num_read:,} read are empty" if self.num_read else ""
            raise InputError(f"{self.index.corpus}: no documents to write{empty}")
        self.index = replace(self.index, num_empty=self.num_read - self.index.num_documents)
        self._write_index()

    def abandon(self) -> str:
        """Delete unfinished shards; return a message about finished ones and how to resume."""
        if not self.folder.is_dir():
            return ""
        if self.shard is not None:
            self.shard.close()
        remove_torn(self.folder, self.index)
        if not self.index.shards:
            self.folder.rmdir()
            return ""
        return (
            f"{self.index.num_documents:,} documents in {len(self.index.shards):,} shards are kept in {self.folder}; "
            "correct the error and run the same command again to resume from there"
        )

    def _after_last_document(self, batch: TokenBatch) -> TokenBatch:
        length = int(batch.lengths[0])
        tokens = batch.tokens[:length]
        if length and tokens[-1] == self.index.eos_id:
            tokens = tokens[:-1]
        if not np.array_equal(tokens, self.last_document):
            raise InputError(_source_changed(self.folder, self.num_read, "has different tokens now"))
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
    """A shard being written, under a temporary name until it is complete."""

    def __init__(self, path: Path, num_before: int):
        self.path, self.num_before, self.num_read = path, num_before, num_before
        self.num_documents, self.num_tokens, self.num_bytes = 0, 0, 0
        self.paths = (path, path.with_name(path.name + ENDS_SUFFIX))
        self.digests = (hashlib.sha256(), hashlib.sha256())
        self.files = []
        check_may_write()
        with _as_input_error(path):
            for name in self.paths:
                self.files.append(name.with_name(name.name + PART_SUFFIX).open("wb"))

    def write(self, tokens: np.ndarray, ends: np.ndarray, num_bytes: int | None) -> None:
        """Append `tokens`, in which documents end at the positions `ends`."""
        ends = (ends + self.num_tokens).astype(ENDS_DTYPE)
        check_may_write()
        for path, file, digest, array in zip(self.paths, self.files, self.digests, (tokens, ends), strict=True):
            with _as_input_error(path):
                file.write(array.data)
            digest.update(array.data)
        self.num_documents += len(ends)
        self.num_tokens += len(tokens)
        self.num_bytes = None if num_bytes is None else self.num_bytes + num_bytes

    def finish(self) -> Shard:
        """Sync the files and rename them to their final names."""
        check_may_write()
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
        """Close the files, which can then be deleted."""
        for file in self.files:
            with contextlib.suppress(OSError):  # on a full disk the buffered bytes cannot be written
                file.close()


def _joined(
    batch: TokenBatch, first: int, index: TokenIndex
) -> tuple[Integer[np.ndarray, "T"], Int[np.ndarray, "K"], Int[np.ndarray, "K"]]:
    """Check documents, the first of which has the number `first`, and end each document that is not empty with EOS.

    Returns:
        The tokens for the file, the position at which each document ends, and the indices of the documents in the
        batch.
    """
    tokens, lengths, stops = batch.tokens, batch.lengths, np.cumsum(batch.lengths)
    _check_vocabulary(tokens, stops, first, index.vocab_size)
    positions = np.flatnonzero(tokens == index.eos_id)
    if positions.size:
        documents = np.searchsorted(stops, positions, side="right")
        inner = positions != stops[documents] - 1
        if inner.any():
            document, position = int(documents[inner][0]), int(positions[inner][0])
            position -= int(stops[document] - lengths[document])
            raise InputError(
                f"document {first + document}: EOS ({index.eos_id}) at position {position}, which is not the end; "
                "split the document there"
            )
        tokens, lengths = np.delete(tokens, positions), lengths.copy()
        lengths[documents] -= 1
    kept = np.flatnonzero(lengths)
    stops = np.cumsum(lengths[kept])
    joined = np.insert(tokens.astype(index.token_dtype), stops, index.eos_id)
    return joined, stops + np.arange(1, len(kept) + 1), kept


def _check_vocabulary(tokens: np.ndarray, stops: np.ndarray, first: int, vocab_size: int) -> None:
    if not tokens.size or (tokens.max() < vocab_size and tokens.min() >= 0):
        return
    position = int(((tokens < 0) | (tokens >= vocab_size)).argmax())
    document = int(np.searchsorted(stops, position, side="right"))
    start = int(stops[document - 1]) if document else 0
    raise InputError(
        f"document {first + document}: token {tokens[position]} at position {position - start} is outside the "
        f"vocabulary of {vocab_size}; is it from another tokenizer?"
    )


def _token_arrays(documents: Iterator[tuple[int, Sequence[int]]]) -> list[np.ndarray]:
    """The next documents of a numbered source, up to about 65,000 tokens."""
    arrays, num_tokens = [], 0
    for number, ids in documents:
        array = integer_array(f"document {number}: token ids", ids)
        if array.ndim != 1:
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
        f"document {number}: {how}, but the unfinished run in {folder} has read it before; pass the same documents, "
        "or delete the folder to start over"
    )


@contextlib.contextmanager
def _as_input_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); make room there") from error
