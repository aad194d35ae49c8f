"""The index of a token stream: the file `index.json`, which describes a folder of shards.

A shard is two files in the layout of datatrove (https://github.com/huggingface/datatrove). `00000.ds` has the
concatenated documents, each with one EOS at its end, as little-endian uint16, or uint32 for vocabularies above 65,536.
`00000.ds.index` has for each document the position after its last token in the shard, as little-endian uint64.

`index.json` has the SHA-256 of these files and, as `digest`, that of its own other fields, so that any changed byte of
a stream is noticed. An older `index.json` without `digest` is read too; its counts, types and sizes are checked.
"""

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError, path_errors
from ...files import inside, restored
from ...records import Count, as_record, read_record
from ...runtime.credentials import masked

FORMAT_VERSION = 2
"""Version of the format. It must change when older folders would be read wrongly."""

INDEX_NAME = "index.json"
_DIGEST = "digest"
ENDS_SUFFIX = ".index"
"""Suffix of the file of ends, after the name of the file of tokens."""

UNFINISHED_SUFFIX = ".unfinished"
"""Suffix of the name of a folder while shards are being written to it."""

ENDS_DTYPE = np.dtype("<u8")

_PLAIN_NAME = re.compile(r"[^/\\\0]+\.ds")


@dataclass(frozen=True)
class Shard:
    """The entry of one shard in the index.

    Attributes:
        name (`str`): name of the file of tokens; the file of ends has `.index` after it.
        num_documents (`int`), num_tokens (`int`): counts.
        num_bytes (`int`, *optional*): bytes of UTF-8 text that the tokens stand for.
        num_empty (`int`): number of empty documents that were left out before the last one of this shard.
        sha256 (`str`), ends_sha256 (`str`): SHA-256 of the two files, in hexadecimal.
    """

    name: str
    num_documents: Count
    num_tokens: Count
    num_bytes: Count | None
    num_empty: Count
    sha256: str
    ends_sha256: str

    @property
    def ends_name(self) -> str:
        """Name of the file of ends."""
        return self.name + ENDS_SUFFIX


@dataclass(frozen=True)
class TokenIndex:
    """The content of `index.json`.

    Attributes:
        corpus (`str`): name of the text.
        tokenizer_hash (`str`): [`~hmm_datasets.text.stream.tokenizer_hash`] of the tokenizer.
        vocab_size (`int`), eos_id (`int`): vocabulary size of the tokenizer, including special tokens; and its EOS.
        dtype (`str`): `"uint16"` or `"uint32"`, little-endian.
        shard_tokens (`int`, *optional*): a shard ends with the first document that brings it to this many tokens; None
            for shards of datatrove.
        num_documents (`int`), num_tokens (`int`): counts; `num_tokens` includes one EOS per document.
        num_bytes (`int`, *optional*): bytes of UTF-8 text that the tokens stand for, needed for bits per byte.
        num_empty (`int`): number of empty documents, which were left out.
        shards (tuple of [`Shard`]): the shards in the order of the stream.
        format_version (`int`): version of the format.
    """

    corpus: str
    tokenizer_hash: str
    vocab_size: Count
    eos_id: Count
    dtype: str
    shard_tokens: Count | None
    num_documents: Count
    num_tokens: Count
    num_bytes: Count | None
    num_empty: Count
    shards: tuple[Shard, ...]
    format_version: int = FORMAT_VERSION

    @property
    def sha256(self) -> str:
        """Digest of the digests of all shards, which identifies the tokens and the document ends."""
        return hashlib.sha256("".join(s.sha256 + s.ends_sha256 for s in self.shards).encode()).hexdigest()

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of each file of the stream by its name, in the order of the shards."""
        pairs = [((s.name, s.sha256), (s.ends_name, s.ends_sha256)) for s in self.shards]
        return {name: digest for pair in pairs for name, digest in pair}

    @property
    def token_dtype(self) -> np.dtype:
        """The type of the tokens in the files."""
        return np.dtype(self.dtype).newbyteorder("<")

    def to_dict(self) -> dict:
        """The index as written to `index.json`."""
        values = asdict(self)
        return values | {_DIGEST: _digest_of(values)}


def blank_index(
    corpus: str, tokenizer_hash: str, vocab_size: int, eos_id: int, shard_tokens: int | None
) -> TokenIndex:
    """The index of an empty token stream; checks its settings."""
    if not 0 <= eos_id < vocab_size <= 1 << 32:
        raise InputError(f"eos_id={eos_id} and vocab_size={vocab_size}: expected 0 <= eos_id < vocab_size <= 2**32")
    if shard_tokens is not None and shard_tokens < 1:
        raise InputError(f"shard_tokens={shard_tokens}: expected at least 1")
    return TokenIndex(
        corpus=masked(corpus, secrets=()),
        tokenizer_hash=tokenizer_hash,
        vocab_size=vocab_size,
        eos_id=eos_id,
        dtype=dtype_of(vocab_size),
        shard_tokens=shard_tokens,
        num_documents=0,
        num_tokens=0,
        num_bytes=None,
        num_empty=0,
        shards=(),
    )


def dtype_of(vocab_size: int) -> str:
    """Name of the type of the tokens in the files, for a vocabulary size."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def with_shards(index: TokenIndex, shards: tuple[Shard, ...]) -> TokenIndex:
    """The index with these shards and their total counts."""
    sizes = [shard.num_bytes for shard in shards]
    return replace(
        index,
        num_documents=sum(shard.num_documents for shard in shards),
        num_tokens=sum(shard.num_tokens for shard in shards),
        num_bytes=None if None in sizes else sum(sizes),
        num_empty=sum(shard.num_empty for shard in shards),
        shards=shards,
    )


def read_index(folder: str | os.PathLike, *, check_files: bool = True) -> TokenIndex:
    """Read and check `index.json`, and check that the files of the shards have the sizes it gives.

    Args:
        folder (path): folder of the stream.
        check_files (`bool`, *optional*, defaults to `True`): whether the files of the shards must be there.

    Raises:
        `InputError`: the folder is missing, unfinished, not a token stream or of another version, or files are missing
            or truncated.
    """
    with path_errors(folder):
        folder = restored(folder)
        path = folder / INDEX_NAME
        is_there = path.is_file()
    if not is_there:
        raise InputError(f"{path}: no such file; {_why_missing(folder)}")
    values = read_record(path, dict[str, Any], "write the tokens again")
    version = values.get("format_version")
    if version != FORMAT_VERSION:
        raise InputError(
            f"{path}: format_version is {version}, expected {FORMAT_VERSION}; write the tokens with "
            "write_tokens or tokenize_corpus again"
        )
    digest = values.pop(_DIGEST, None)
    index = as_record(values, TokenIndex, path, "write the tokens again")
    _check_counts(index, path)
    _check_names(index, path)
    _check_vocabulary(index, path)
    for shard in index.shards if check_files else ():
        _check_size(folder / shard.name, shard.num_tokens * index.token_dtype.itemsize)
        _check_size(folder / shard.ends_name, shard.num_documents * ENDS_DTYPE.itemsize)
    if digest is not None and digest != _digest_of(values):
        raise InputError(
            f"{path}: its {_DIGEST} is {digest!r}, but its other fields have {_digest_of(values)!r}; the file has "
            "changed since it was written, copy the folder or write the tokens again"
        )
    return index


def _why_missing(folder: Path) -> str:
    unfinished = folder.with_name(folder.name + UNFINISHED_SUFFIX)
    if unfinished.is_dir():
        return f"this stream is unfinished ({unfinished}); run the same command again"
    if folder.is_dir() and any(folder.glob("*.ds")):
        return "if datatrove wrote the shards there, write their index with adopt_datatrove"
    return "expected the folder of a token stream, as written by tokenize_corpus"


def _check_counts(index: TokenIndex, path: Path) -> None:
    for name in ("num_documents", "num_tokens"):
        counts = [getattr(index, name), *(getattr(shard, name) for shard in index.shards)]
        if not all(counts):
            raise InputError(f"{path}: {name} is {counts!r}, expected positive integers; write the tokens again")
        if counts[0] != sum(counts[1:]):
            raise InputError(
                f"{path}: {name} is {counts[0]}, but {sum(counts[1:])} over the shards; write the tokens again"
            )


def _check_names(index: TokenIndex, path: Path) -> None:
    names = [shard.name for shard in index.shards]
    for name in names:
        if not _PLAIN_NAME.fullmatch(name) or names.count(name) > 1:
            raise InputError(
                f"{path}: shard {name!r} is not the plain name of one .ds file here; write the tokens again"
            )
        inside(path.parent, name, path)


def _check_vocabulary(index: TokenIndex, path: Path) -> None:
    eos_id, size = index.eos_id, index.vocab_size
    if not 0 <= eos_id < size <= 1 << 32:
        raise InputError(
            f"{path}: eos_id is {eos_id!r} and vocab_size {size!r}, expected 0 <= eos_id < vocab_size <= 2**32; write "
            "the tokens again"
        )
    if index.dtype != dtype_of(size):
        raise InputError(
            f"{path}: dtype is {index.dtype!r}, expected {dtype_of(size)} for {size} tokens; write the tokens again"
        )


def _digest_of(values: dict) -> str:
    """SHA-256 of all fields of an index except its digest, as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _check_size(path: Path, expected: int) -> None:
    num_bytes = path.stat().st_size if path.is_file() else None
    if num_bytes != expected:
        what = "no such file" if num_bytes is None else f"{num_bytes} bytes"
        raise InputError(f"{path}: {what}, but {INDEX_NAME} says {expected} bytes; copy or write the folder again")
