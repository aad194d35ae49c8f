"""Token streams on disk: documents end to end in one memory-mapped file.

A folder holds `tokens.bin` (little-endian uint16, or uint32 for vocabularies above 65,536), `offsets.bin` (uint64, the
token at which each document begins, and the end) and `index.json`. Every document ends in EOS, once.
"""

import hashlib
import json
import operator
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Integer

from ..errors import InputError
from ..files import atomic_folder, read_json, write_json
from .corpora import check_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

FORMAT_VERSION = 1
"""Changes whenever an older folder would be read wrongly."""

TOKENS_NAME = "tokens.bin"
OFFSETS_NAME = "offsets.bin"
INDEX_NAME = "index.json"


@dataclass(frozen=True)
class TokenIndex:
    """What `index.json` says of a token stream.

    Attributes:
        num_documents (`int`), num_tokens (`int`): counts; `num_tokens` includes one EOS a document.
        num_bytes (`int`, *optional*): bytes of UTF-8 text the tokens stand for, which bits per byte need.
        vocab_size (`int`), eos_id (`int`): of the tokenizer, special tokens included.
        tokenizer_hash (`str`): [`tokenizer_hash`] of the tokenizer.
        corpus (`str`): name of the text.
        dtype (`str`): `"uint16"` or `"uint32"`, little-endian.
        sha256 (`str`): of `tokens.bin`, in hexadecimal.
        format_version (`int`): of these files.
    """

    num_documents: int
    num_tokens: int
    num_bytes: int | None
    vocab_size: int
    eos_id: int
    tokenizer_hash: str
    corpus: str
    dtype: str
    sha256: str
    format_version: int = FORMAT_VERSION


def write_tokens(
    documents: Iterable[Sequence[int]],
    folder: str | os.PathLike,
    *,
    vocab_size: int,
    eos_id: int,
    tokenizer_hash: str,
    corpus: str,
    num_bytes: int | Callable[[], int] | None = None,
    overwrite: bool = False,
) -> TokenIndex:
    """Write documents as a token stream: the whole folder, or on any error nothing.

    Args:
        documents (iterable of sequences of `int`):
            Token ids of each document. EOS is appended where a document does not end in it.
        folder (`str` or `os.PathLike`):
            Where to; must be new or empty, or a token stream if `overwrite`.
        vocab_size (`int`):
            Size of the vocabulary, special tokens included; ids lie below it.
        eos_id (`int`):
            The token that ends a document, and stands nowhere else.
        tokenizer_hash (`str`), corpus (`str`):
            What to write in the index.
        num_bytes (`int` or callable, *optional*):
            Bytes of text the documents stand for; a callable is asked when the last document has been read.
        overwrite (`bool`, *optional*, defaults to `False`):
            Replace a token stream that is there.

    Returns:
        `TokenIndex`: the index written.

    Raises:
        `InputError`: for a token outside the vocabulary or an EOS inside a document (both by number of document,
            from 0), no documents, or a folder that holds something else.

    ```python
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     index = write_tokens([[5, 6], [7]], folder, vocab_size=8, eos_id=0, tokenizer_hash="", corpus="two")
    ...     TokenStream(folder).tokens.tolist()
    [5, 6, 0, 7, 0]

    ```
    """
    if not 0 <= eos_id < vocab_size <= 1 << 32:
        raise InputError(f"eos_id={eos_id} and vocab_size={vocab_size}: expected 0 <= eos_id < vocab_size <= 2**32")
    check_replaceable(folder, INDEX_NAME, overwrite)
    dtype = np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
    sha256, offsets = hashlib.sha256(), array("Q", [0])
    with atomic_folder(folder) as temporary:
        with (temporary / TOKENS_NAME).open("wb") as file:
            for number, ids in enumerate(documents):
                tokens = _checked(ids, number, vocab_size, eos_id).astype(dtype)
                file.write(tokens.data)
                sha256.update(tokens.data)
                offsets.append(offsets[-1] + len(tokens))
        if len(offsets) == 1:
            raise InputError(f"{corpus}: no documents to write to {folder}")
        np.array(offsets, dtype="<u8").tofile(temporary / OFFSETS_NAME)
        index = TokenIndex(
            num_documents=len(offsets) - 1,
            num_tokens=offsets[-1],
            num_bytes=num_bytes() if callable(num_bytes) else num_bytes,
            vocab_size=vocab_size,
            eos_id=eos_id,
            tokenizer_hash=tokenizer_hash,
            corpus=corpus,
            dtype=dtype.newbyteorder("=").name,
            sha256=sha256.hexdigest(),
        )
        write_json(temporary / INDEX_NAME, asdict(index))
    return index


def tokenize_corpus(
    documents: Iterable[str],
    tokenizer: "PreTrainedTokenizerFast",
    folder: str | os.PathLike,
    corpus: str,
    *,
    batch_size: int = 256,
    overwrite: bool = False,
    show_progress: bool = True,
) -> TokenIndex:
    """Tokenize documents into a token stream, a batch at a time, on the threads `tokenizers` takes.

    The names of special tokens in a text are read as text, so that a document can neither end early nor speak out of
    turn. `RAYON_NUM_THREADS` limits the threads, `TOKENIZERS_PARALLELISM=false` leaves one.

    Args:
        documents (iterable of `str`):
            The texts, such as `load_corpus(...)["text"]`.
        tokenizer (`transformers.PreTrainedTokenizerFast`):
            A tokenizer with an EOS token.
        folder (`str` or `os.PathLike`), overwrite (`bool`, *optional*, defaults to `False`):
            See [`write_tokens`].
        corpus (`str`):
            Name of the text, for the index.
        batch_size (`int`, *optional*, defaults to 256):
            Documents given to `tokenizers` at once.
        show_progress (`bool`, *optional*, defaults to `True`):
            Show a progress bar, on rank 0.

    Returns:
        `TokenIndex`: the index written.

    Raises:
        `InputError`: for a tokenizer without EOS, a document that is no text, and as [`write_tokens`].
    """
    from tokenizers import Tokenizer

    if tokenizer.eos_token_id is None:
        raise InputError("the tokenizer has no EOS token, which ends each document; set tokenizer.eos_token")
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size}: expected at least 1")
    # A copy, so that the caller's tokenizer goes on reading special tokens, cutting and padding as it did.
    encoder = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    encoder.encode_special_tokens = True
    encoder.no_truncation()
    encoder.no_padding()
    num_bytes = 0

    def encoded() -> Iterator[list[int]]:
        nonlocal num_bytes
        first, remaining = 0, iter(_with_progress(documents, corpus, show_progress))
        while texts := list(islice(remaining, batch_size)):
            for number, text in enumerate(texts, start=first):
                num_bytes += len(check_text(text, f"document {number}").encode())
            first += len(texts)
            for encoding in encoder.encode_batch_fast(texts, add_special_tokens=False):
                yield encoding.ids

    return write_tokens(
        encoded(),
        folder,
        vocab_size=len(tokenizer),
        eos_id=tokenizer.eos_token_id,
        tokenizer_hash=tokenizer_hash(tokenizer),
        corpus=corpus,
        num_bytes=lambda: num_bytes,
        overwrite=overwrite,
    )


def tokenizer_hash(tokenizer: "PreTrainedTokenizerFast") -> str:
    """SHA-256 of what turns text into tokens: vocabulary, merges, normalizer, pre-tokenizer, added tokens.

    Padding, truncation and the chat template leave it as it is.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    for name in ("version", "truncation", "padding", "post_processor"):
        state.pop(name, None)
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


class TokenStream:
    """A token stream on disk, memory-mapped.

    Args:
        folder (`str` or `os.PathLike`):
            Written by [`write_tokens`] or [`tokenize_corpus`].

    Attributes:
        index (`TokenIndex`): counts and origin.
        tokens (`np.memmap` of shape `(num_tokens,)`): the documents end to end.
        offsets (`np.memmap` of shape `(num_documents + 1,)`, uint64): document `d` is
            `tokens[offsets[d]:offsets[d + 1]]`, its EOS included.

    Raises:
        `InputError`: where the folder is no token stream, of another version, or its files are not the size the index
            says.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder).resolve()
        self.index = _read_index(self.folder / INDEX_NAME)
        dtype = np.dtype(self.index.dtype).newbyteorder("<")
        self.tokens = _map(self.folder / TOKENS_NAME, dtype, self.index.num_tokens)
        self.offsets = _map(self.folder / OFFSETS_NAME, np.dtype("<u8"), self.index.num_documents + 1)

    def __repr__(self) -> str:
        index = self.index
        return f"TokenStream({str(self.folder)!r}, documents={index.num_documents}, tokens={index.num_tokens})"

    def __reduce__(self) -> tuple:
        return TokenStream, (str(self.folder),)  # a worker maps the files anew

    def document(self, number: int) -> Integer[np.ndarray, "T"]:
        """Return the tokens of a document, EOS last."""
        number = operator.index(number)
        if not 0 <= number < self.index.num_documents:
            raise IndexError(f"document {number} of {self.index.num_documents}")
        return np.asarray(self.tokens[int(self.offsets[number]) : int(self.offsets[number + 1])])

    def verify(self) -> None:
        """Read all tokens; raise [`InputError`] unless checksum, offsets and every EOS agree with the index."""
        digest = hashlib.sha256()
        eos_places = []
        step = 1 << 24
        for start in range(0, self.index.num_tokens, step):
            part = np.asarray(self.tokens[start : start + step])
            digest.update(part.tobytes())
            eos_places.append(np.flatnonzero(part == self.index.eos_id) + start)
        if digest.hexdigest() != self.index.sha256:
            raise InputError(
                f"{self.folder / TOKENS_NAME}: SHA-256 is {digest.hexdigest()}, but {INDEX_NAME} says "
                f"{self.index.sha256}; the file changed since it was written, write it again"
            )
        ends = np.concatenate([[0], np.concatenate(eos_places) + 1]).astype(np.uint64)
        if not np.array_equal(ends, self.offsets):
            raise InputError(f"{self.folder / OFFSETS_NAME}: documents do not end where EOS stands; write it again")


def check_replaceable(folder: str | os.PathLike, marker: str, overwrite: bool) -> None:
    """Raise [`InputError`] unless `folder` is new, empty, or to be overwritten and of our making (holds `marker`)."""
    folder = Path(folder)
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / marker).is_file():
        raise InputError(f"{folder}: is there and holds something else (no {marker}); choose another folder")
    if not overwrite:
        raise InputError(f"{folder}: is there already; pass overwrite=True to replace it, or choose another folder")


def _checked(ids: Sequence[int], number: int, vocab_size: int, eos_id: int) -> np.ndarray:
    """Return a document's tokens with EOS at the end and nowhere else."""
    tokens = np.asarray(ids) if len(ids) else np.array([eos_id])
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise InputError(f"document {number}: expected a list of token ids, found {tokens.dtype} {tokens.shape}")
    outside = (tokens < 0) | (tokens >= vocab_size)
    if outside.any():
        place = int(outside.argmax())
        where = f"document {number}: token {tokens[place]} at position {place}"
        raise InputError(f"{where} is outside the vocabulary of {vocab_size}; is it of another tokenizer?")
    inner = np.flatnonzero(tokens[:-1] == eos_id)
    if inner.size:
        raise InputError(f"document {number}: EOS ({eos_id}) at position {inner[0]}, not the end; split it there")
    return tokens if tokens[-1] == eos_id else np.append(tokens, eos_id)


def _read_index(path: Path) -> TokenIndex:
    values = read_json(path)
    version = values.get("format_version") if isinstance(values, dict) else None
    if version != FORMAT_VERSION:
        raise InputError(f"{path}: format_version is {version}, expected {FORMAT_VERSION}; write the tokens again")
    expected = {field.name for field in fields(TokenIndex)}
    if set(values) != expected:
        raise InputError(f"{path}: missing or unknown fields: {', '.join(sorted(set(values) ^ expected))}")
    if values["dtype"] not in ("uint16", "uint32"):
        raise InputError(f"{path}: dtype is {values['dtype']!r}, expected uint16 or uint32")
    for name in ("num_documents", "num_tokens"):
        if not isinstance(values[name], int) or values[name] < 1:
            raise InputError(f"{path}: {name} is {values[name]!r}, expected a positive integer")
    return TokenIndex(**values)


def _map(path: Path, dtype: np.dtype, length: int) -> np.memmap:
    expected = length * dtype.itemsize
    found = path.stat().st_size if path.is_file() else None
    if found != expected:
        what = "no such file" if found is None else f"{found} bytes"
        raise InputError(f"{path}: {what}, but {INDEX_NAME} says {expected} bytes; copy or write the folder again")
    return np.memmap(path, dtype=dtype, mode="r", shape=(length,))


def _with_progress(documents: Iterable[str], corpus: str, show_progress: bool) -> Iterable[str]:
    from tqdm.auto import tqdm

    quiet = not show_progress or os.environ.get("RANK", "0") != "0"
    return tqdm(documents, desc=f"tokenizing {corpus}", unit=" documents", unit_scale=True, delay=2, disable=quiet)
