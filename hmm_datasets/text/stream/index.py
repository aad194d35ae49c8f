"""The index of a token stream: what `index.json` says of a folder of shards.

A shard is two files in the layout of datatrove (https://github.com/huggingface/datatrove): `00000.ds`, its documents
end to end, little-endian uint16, or uint32 for vocabularies above 65,536, EOS once at the end of each; and
`00000.ds.index`, little-endian uint64, for each document the token of the shard at which it ends.

`index.json` holds the SHA-256 of these files and, as `digest`, of all else that it says, so that no byte of a stream
changes unseen. Folders written before it did are read as well; of them counts, types and sizes are checked.
"""

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np

from ...errors import InputError
from ...files import read_json

FORMAT_VERSION = 2
"""Changes whenever an older folder would be read wrongly."""

INDEX_NAME = "index.json"
_DIGEST = "digest"
ENDS_SUFFIX = ".index"
"""What the file of ends is called after the file of tokens."""

UNFINISHED_SUFFIX = ".unfinished"
"""What a folder is called, after the name it will have, while shards are being written to it."""

ENDS_DTYPE = np.dtype("<u8")

_PLAIN_NAME = re.compile(r"[^/\\\0]+\.ds")


@dataclass(frozen=True)
class Shard:
    """What the index says of one shard.

    Attributes:
        name (`str`): of the file of tokens; that of ends has `.index` after it.
        num_documents (`int`), num_tokens (`int`): counts.
        num_bytes (`int`, *optional*): bytes of UTF-8 text the tokens stand for.
        num_empty (`int`): documents left out before the last one of this shard, since they held nothing.
        sha256 (`str`), ends_sha256 (`str`): of the two files, in hexadecimal.
    """

    name: str
    num_documents: int
    num_tokens: int
    num_bytes: int | None
    num_empty: int
    sha256: str
    ends_sha256: str

    @property
    def ends_name(self) -> str:
        """Name of the file of ends."""
        return self.name + ENDS_SUFFIX


@dataclass(frozen=True)
class TokenIndex:
    """What `index.json` says of a token stream.

    Attributes:
        corpus (`str`): name of the text.
        tokenizer_hash (`str`): [`~hmm_datasets.text.stream.tokenizer_hash`] of the tokenizer.
        vocab_size (`int`), eos_id (`int`): of the tokenizer, special tokens included.
        dtype (`str`): `"uint16"` or `"uint32"`, little-endian.
        shard_tokens (`int`, *optional*): a shard ends with the first document that fills it so far; None where
            datatrove cut them.
        num_documents (`int`), num_tokens (`int`): counts; `num_tokens` includes one EOS a document.
        num_bytes (`int`, *optional*): bytes of UTF-8 text the tokens stand for, which bits per byte need.
        num_empty (`int`): documents left out, since they held nothing.
        shards (tuple of [`Shard`]): in the order of the stream.
        format_version (`int`): of these files.
    """

    corpus: str
    tokenizer_hash: str
    vocab_size: int
    eos_id: int
    dtype: str
    shard_tokens: int | None
    num_documents: int
    num_tokens: int
    num_bytes: int | None
    num_empty: int
    shards: tuple[Shard, ...]
    format_version: int = FORMAT_VERSION

    @property
    def sha256(self) -> str:
        """Digest of the shards' digests: the identity of the tokens and of where documents end."""
        return hashlib.sha256("".join(s.sha256 + s.ends_sha256 for s in self.shards).encode()).hexdigest()

    @property
    def token_dtype(self) -> np.dtype:
        """The type of the tokens in the files."""
        return np.dtype(self.dtype).newbyteorder("<")

    def to_dict(self) -> dict:
        """The index as `index.json` holds it."""
        values = asdict(self)
        return values | {_DIGEST: _digest_of(values)}


def blank_index(
    corpus: str, tokenizer_hash: str, vocab_size: int, eos_id: int, shard_tokens: int | None
) -> TokenIndex:
    """The index of a token stream that holds nothing yet; checks what it says."""
    if not 0 <= eos_id < vocab_size <= 1 << 32:
        raise InputError(f"eos_id={eos_id} and vocab_size={vocab_size}: expected 0 <= eos_id < vocab_size <= 2**32")
    if shard_tokens is not None and shard_tokens < 1:
        raise InputError(f"shard_tokens={shard_tokens}: expected at least 1")
    return TokenIndex(
        corpus=corpus,
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
    """Name of the type of the tokens in the files."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def with_shards(index: TokenIndex, shards: tuple[Shard, ...]) -> TokenIndex:
    """The index with these shards, and counts that fit them."""
    sizes = [shard.num_bytes for shard in shards]
    return replace(
        index,
        num_documents=sum(shard.num_documents for shard in shards),
        num_tokens=sum(shard.num_tokens for shard in shards),
        num_bytes=None if None in sizes else sum(sizes),
        num_empty=sum(shard.num_empty for shard in shards),
        shards=shards,
    )


def read_index(folder: str | os.PathLike) -> TokenIndex:
    """Read and check `index.json`, and that the shards' files have the sizes it says.

    Raises:
        `InputError`: where the folder is missing, unfinished, no token stream or of another version, or files are
            missing or cut.
    """
    folder = Path(folder)
    path = folder / INDEX_NAME
    if not path.is_file():
        raise InputError(f"{path}: no such file; {_why_missing(folder)}")
    values = read_json(path)
    version = values.get("format_version") if isinstance(values, dict) else None
    if version != FORMAT_VERSION:
        raise InputError(f"{path}: format_version is {version}, expected {FORMAT_VERSION}; write the tokens again")
    digest = values.pop(_DIGEST, None)
    _check_fields(values, TokenIndex, path)
    if values["dtype"] not in ("uint16", "uint32"):
        raise InputError(f"{path}: dtype is {values['dtype']!r}, expected uint16 or uint32; write the tokens again")
    shards = values["shards"]
    if not isinstance(shards, list) or not shards:
        raise InputError(f"{path}: shards is {shards!r}, expected a list of at least one; write the tokens again")
    for number, shard in enumerate(shards):
        _check_fields(shard, Shard, f"{path}: shards[{number}]")
    index = TokenIndex(**values | {"shards": tuple(Shard(**shard) for shard in shards)})
    _check_counts(index, path)
    _check_names(index, path)
    for shard in index.shards:
        _check_size(folder / shard.name, shard.num_tokens * index.token_dtype.itemsize)
        _check_size(folder / shard.ends_name, shard.num_documents * ENDS_DTYPE.itemsize)
    _check_vocabulary(index, path)
    if digest is not None and digest != _digest_of(values):
        raise InputError(
            f"{path}: its {_DIGEST} is {digest!r}, but that of all else in it is {_digest_of(values)!r}; the file "
            "changed since it was written, copy the folder or write the tokens again"
        )
    return index


def _why_missing(folder: Path) -> str:
    unfinished = folder.with_name(folder.name + UNFINISHED_SUFFIX)
    if unfinished.is_dir():
        return f"the writing of this stream is unfinished ({unfinished}): run the same command again"
    if folder.is_dir() and any(folder.glob("*.ds")):
        return "the shards beside it may be of datatrove: adopt_datatrove writes the index they lack"
    return "expected the folder of a token stream, which tokenize_corpus writes"


def _check_fields(values: object, kind: type, where: str | Path) -> None:
    if not isinstance(values, dict):
        raise InputError(f"{where}: expected an object with named fields, found {values!r}; write the tokens again")
    expected = {field.name for field in fields(kind)}
    if set(values) != expected:
        names = ", ".join(sorted(set(values) ^ expected))
        raise InputError(f"{where}: missing or unknown fields: {names}; write the tokens again")


def _check_counts(index: TokenIndex, path: Path) -> None:
    for name in ("num_documents", "num_tokens"):
        counts = [getattr(index, name), *(getattr(shard, name) for shard in index.shards)]
        if not all(isinstance(count, int) and count > 0 for count in counts):
            raise InputError(f"{path}: {name} is {counts!r}, expected positive integers; write the tokens again")
        if counts[0] != sum(counts[1:]):
            raise InputError(
                f"{path}: {name} is {counts[0]}, but {sum(counts[1:])} over the shards; write the tokens again"
            )


def _check_names(index: TokenIndex, path: Path) -> None:
    names = [shard.name for shard in index.shards]
    for name in names:
        if not (isinstance(name, str) and _PLAIN_NAME.fullmatch(name)) or names.count(name) > 1:
            raise InputError(
                f"{path}: shard {name!r} is not the plain name of one .ds file here; write the tokens again"
            )


def _check_vocabulary(index: TokenIndex, path: Path) -> None:
    eos_id, size = index.eos_id, index.vocab_size
    if not (type(eos_id) is type(size) is int and 0 <= eos_id < size <= 1 << 32):
        raise InputError(
            f"{path}: eos_id is {eos_id!r} and vocab_size {size!r}, expected 0 <= eos_id < vocab_size <= 2**32; write "
            "the tokens again"
        )
    if index.dtype != dtype_of(size):
        raise InputError(
            f"{path}: dtype is {index.dtype!r}, that of {size} tokens is {dtype_of(size)}; write them again"
        )


def _digest_of(values: dict) -> str:
    """SHA-256 of all that an index says but its own digest, as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _check_size(path: Path, expected: int) -> None:
    found = path.stat().st_size if path.is_file() else None
    if found != expected:
        what = "no such file" if found is None else f"{found} bytes"
        raise InputError(f"{path}: {what}, but {INDEX_NAME} says {expected} bytes; copy or write the folder again")
