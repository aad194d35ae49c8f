"""Reading token streams: the concatenated documents of all shards, memory-mapped, by position or by document.

Memory hardly grows with size: there are two integers per shard, while tokens and ends stay in their files. The shard
of a position is found by binary search; the bounds of a document take two reads; the document at a position is found
by binary search in the ends of its shard. Shards are mapped when first read, and at most 128 of them are mapped at a
time; the least recently used are unmapped. Opening a stream starts the check of its files, see `verification`.

Token streams on the Hub: each shard is downloaded when it is first read, and kept in huggingface_hub's cache.

The address is pinned to one commit when the stream is opened, so a stream does not change under a reader. Every
process compares a shard with the SHA-256 in the index before it first reads it. A download that breaks off continues
where it stopped.

Verification of the files of a token stream: their SHA-256 must be that in `index.json`.

Opening a stream checks its files. Up to 256 MB are checked immediately, which takes half a second or less. Larger
streams are checked in a background thread, so that reading can begin. When a file differs, the error is printed, every
later read of the stream in this process raises it as an [`InputError`], and so does [`check_streams`], which a
training run calls at each step. Of several processes on a machine only the first one checks (`LOCAL_RANK` 0); loader
workers do not check.
"""

import mmap
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Int, Integer

from ...array_input import indices
from ...errors import InputError, path_errors
from ...files import file_digest
from ...hub.download import Repository, download_file, is_address
from ...runtime import environment
from .index import ENDS_DTYPE, ENDS_SUFFIX, INDEX_NAME, UNFINISHED_SUFFIX, TokenIndex, read_index

_DEFAULT_SPLIT = "train"


AT_ONCE = 256 * 10**6
"""Maximum size in bytes of a stream that is checked before it is read."""

_running: list["Verification"] = []
_VERIFIED_AT_ONCE = 1 << 22
_LONG_WINDOW = 512
"""Windows of this length or more are copied one by one, which avoids a second copy in the type of the files."""

_MAX_MAPPED = 128
"""Maximum number of mapped files of either kind. Each takes a file descriptor, and 1,024 per process are common."""


class RemoteFiles:
    """The files of one token stream on the Hub.

    Args:
        address (`str`): `hf://datasets/USER/NAME`, with an optional `@REVISION`, and the folder of the stream in the
            repository after it. Without such a folder the stream is the one at the top, or else `train`.

    Attributes:
        address (`str`): the same with the folder and the commit.
        index ([`TokenIndex`]): the index of the stream.
        folder (`Path`): folder of the files in the cache.

    Raises:
        `InputError`: there is no such repository or no token stream in it, or the Hub refuses or cannot be reached.
    """

    def __init__(self, address: str):
        repository, path = _find_index(Repository.parse(address))
        self.folder = path.parent
        self._repository = repository.at(repository.commit_of(path))
        self.address = str(self._repository)
        self.index: TokenIndex = read_index(self.folder, check_files=False)
        self._digests = self.index.digests
        self._verified: set[str] = set()
        self._lock = threading.Lock()

    def fetch(self, name: str) -> Path:
        """Download a file of the stream unless the cache has it, and compare it with the index.

        Raises:
            `InputError`: the Hub refuses or cannot be reached, or its file is not the one that the index describes.
        """
        with self._lock:
            path = download_file(self._repository / name)
            if name in self._verified:
                return path
            if file_digest(path) != self._digests[name]:  # damaged on this disk, or wrong on the Hub
                path = download_file(self._repository / name, again=True)
                found = file_digest(path)
                if found != self._digests[name]:
                    raise InputError(
                        f"{self._repository / name}: SHA-256 is {found}, but {INDEX_NAME} says {self._digests[name]}; "
                        "the repository is damaged, push the stream to it again"
                    )
            self._verified.add(name)
            return path


def _find_index(repository: Repository) -> tuple[Repository, Path]:
    """The folder of a stream and its index: the given folder, or at the top of a repository also `train`."""
    try:
        return repository, download_file(repository / INDEX_NAME)
    except InputError:
        if repository.path:
            raise
    repository = repository / _DEFAULT_SPLIT
    return repository, download_file(repository / INDEX_NAME)


class Verification:
    """The check of one stream, finished or running.

    Args:
        folder (`Path`), index ([`TokenIndex`]): the stream.

    Raises:
        `InputError`: a file of a small stream differs.
    """

    def __init__(self, folder: Path, index: TokenIndex):
        self.folder, self.index = folder, index
        self.error: InputError | None = None
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        size = sum(path.stat().st_size for path, _ in self._files())
        if size <= AT_ONCE:
            _raise_first(differing_files(self._files()))
            return
        print(
            f"{folder}: {size / 1e9:.1f} GB are checked against {INDEX_NAME} in the background; a changed file will "
            "end the run",
            file=sys.stderr,
        )
        self._thread = threading.Thread(target=self._run, name=f"verify {folder.name}", daemon=True)
        _running.append(self)
        self._thread.start()

    def check(self) -> None:
        """Raise the error of a file that differs, if one has been found.

        A forked worker raises nothing, since its error would appear as a traceback in the main process, which checks
        too.
        """
        if self.error is not None and os.getpid() == self._process:
            raise self.error

    def wait(self) -> None:
        """Wait until all files are checked; raise the error of a file that differs."""
        if self._thread is not None:
            self._thread.join()
        self.check()

    def _run(self) -> None:
        try:
            _raise_first(differing_files(self._files()))
        except InputError as error:
            self.error = error
        except OSError as error:
            self.error = InputError(f"{self.folder}: cannot be read ({error.strerror}); copy the folder again")
        else:
            _running.remove(self)
            return
        print(self.error, file=sys.stderr, flush=True)

    def _files(self) -> Iterator[tuple[Path, str]]:
        return ((self.folder / name, digest) for name, digest in self.index.digests.items())


def begin_verification(folder: Path, index: TokenIndex) -> Verification | None:
    """Check the files of a stream in the first process of this machine; return `None` in the others."""
    return Verification(folder, index) if environment.local_rank() == 0 else None


def check_streams() -> None:
    """Raise the error of the first stream with a changed file in this process."""
    for verification in list(_running):
        verification.check()


def differing_files(files: Iterable[tuple[Path, str]]) -> Iterator[str]:
    """Yield an error message for each file whose SHA-256 differs from the expected one."""
    for path, expected in files:
        found = file_digest(path)
        if found != expected:
            yield (
                f"{path}: SHA-256 is {found}, but {INDEX_NAME} says {expected}; "
                "the file changed since it was written, copy or write it again"
            )


def _raise_first(problems: Iterator[str]) -> None:
    for problem in problems:
        raise InputError(problem)


class TokenStream:
    """A token stream on disk, memory-mapped.

    Positions count the tokens of the whole stream from 0, documents likewise; both are int64.

    Args:
        folder (`str` or `os.PathLike`):
            Written by [`~hmm_datasets.text.stream.write_tokens`], [`~hmm_datasets.text.stream.tokenize_corpus`] or
            [`~hmm_datasets.text.stream.adopt_datatrove`]; or the address of such a folder on the Hub, as
            `hf://datasets/USER/NAME@REVISION/train`, whose shards are downloaded when they are first read.
        verify (`bool`, *optional*, defaults to `True`):
            Compare the SHA-256 of the files with the index: up to 256 MB immediately, larger streams in the
            background, and those on the Hub shard by shard, when they are first read.

    Attributes:
        index ([`TokenIndex`]): counts and origin.
        name (`str`): the folder, or the address on the Hub with the commit.
        num_tokens (`int`), num_documents (`int`): counts.

    Raises:
        `InputError`: the folder is not a token stream, is unfinished or has another version, or its files do not match
            the sizes and digests of the index. If the background check finds a changed file, the next read raises the
            error.
    """

    def __init__(self, folder: str | os.PathLike, *, verify: bool = True):
        remote = RemoteFiles(str(folder)) if is_address(folder) else None
        with path_errors(folder):
            self.folder = remote.folder if remote is not None else Path(folder).resolve()
        self.name = remote.address if remote is not None else str(self.folder)
        if self.folder.name.endswith(UNFINISHED_SUFFIX):
            raise InputError(f"{self.folder}: this token stream is unfinished; run the same command again")
        self.index: TokenIndex = remote.index if remote is not None else read_index(self.folder)
        self.verification = begin_verification(self.folder, self.index) if verify and remote is None else None
        self.num_tokens = self.index.num_tokens
        self.num_documents = self.index.num_documents
        # The position and the document at which each shard begins; the last entry is the total.
        self._tokens_before = np.cumsum([0, *(shard.num_tokens for shard in self.index.shards)])
        self._documents_before = np.cumsum([0, *(shard.num_documents for shard in self.index.shards)])
        find = remote.fetch if remote is not None else self.folder.joinpath
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
        self._check()
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
        self._check()
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
        self._check()
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

    def document_at(self, positions: Integer[np.ndarray, "B"]) -> Int[np.ndarray, "B"]:
        """Return the number of the document at each position.

        Raises:
            `IndexError`: a position is outside the stream.
        """
        self._check()
        positions = _checked(positions, 0, self.num_tokens - 1, "positions", self.num_tokens)
        shards = np.searchsorted(self._tokens_before[1:-1], positions, side="right")
        documents = np.empty_like(positions)
        for shard, rows in _groups(shards, np.arange(len(positions))):
            # In the type of the ends, because for another type numpy would copy them all.
            local = (positions[rows] - self._tokens_before[shard]).astype(ENDS_DTYPE)
            found = np.searchsorted(self._ends(shard), local, side="right")
            documents[rows] = self._documents_before[shard] + found
        return documents

    def verify(self) -> None:
        """Read all files; raise [`InputError`] unless digests, tokens, ends and every EOS agree with the index."""
        for problem in self.problems():
            raise InputError(problem)

    def problems(self) -> Iterator[str]:
        """Read all files; yield an error message for each shard or file that differs from the index."""
        for number, shard in enumerate(self.index.shards):
            tokens, ends = self._tokens(number), self._ends(number)
            path = self.folder / shard.name
            files = ((path, shard.sha256), (self.folder / shard.ends_name, shard.ends_sha256))
            differ = list(differing_files(files))
            yield from differ
            if not differ:
                try:
                    verify_vocabulary(path, tokens, self.index.vocab_size)
                    verify_ends(path, tokens, ends, self.index.eos_id)
                except InputError as error:
                    yield str(error)

    def _check(self) -> None:
        if self.verification is not None:
            self.verification.check()


def _reopened(folder: str) -> TokenStream:
    """The stream in a worker process, which maps the files again. The process that opened it first checks them."""
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
        found = np.flatnonzero(tokens[start : start + _VERIFIED_AT_ONCE] == eos_id) + (start + 1)
        expected = ends[document : document + len(found)].astype(np.int64)
        if len(expected) != len(found) or (expected != found).any():
            same = min(len(expected), len(found))
            wrong = int(np.append(expected[:same] != found[:same], True).argmax())
            raise InputError(_ends_differ(path, document + wrong, ends, int(found[wrong])))
        document += len(found)
    if document != len(ends):
        raise InputError(_ends_differ(path, document, ends, None))


def _ends_differ(path: Path, document: int, ends: np.ndarray, eos: int | None) -> str:
    expected = f"end at token {ends[document]}" if document < len(ends) else "not exist"
    found = "no further EOS" if eos is None else f"the next EOS before token {eos}"
    return f"{path}: by its {ENDS_SUFFIX} file document {document} should {expected}, found {found}; write it again"


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
