"""Shards written by datatrove, made readable as a token stream by writing an index beside them.

`DocumentTokenizer` and `DocumentTokenizerMerger` of datatrove write a `.ds` file of tokens and a `.ds.index` file of
document ends for each task or part. These files are not changed. Every token is read once, in constant memory.
"""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...errors import InputError
from ...files import write_json
from ...runtime.progress import progress_bar
from ..tokenizers.bpe import is_byte_level
from ..tokenizers.text_sizes import token_bytes
from .index import ENDS_DTYPE, ENDS_SUFFIX, INDEX_NAME, Shard, TokenIndex, with_shards
from .reader import map_file, verify_ends
from .tokenization import tokenizer_index

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_READ_AT_ONCE = 1 << 22


_SAME_EOS = "tokenizer.eos_token, with names of special tokens encoded as text (as PlainTextTokenizer does)"


def adopt_datatrove(folder: str | os.PathLike, tokenizer: "PreTrainedTokenizerFast", corpus: str) -> TokenIndex:
    """Write the `index.json` with which [`TokenStream`] opens shards of datatrove.

    Shards are in the order of their names; empty ones, of tasks without documents, are left out.

    Args:
        folder (`str` or `os.PathLike`):
            Folder of the `.ds` and `.ds.index` files; its subfolders are not read.
        tokenizer (`transformers.PreTrainedTokenizerFast`):
            Tokenizer of the shards. Bytes are counted if it is byte-level.
        corpus (`str`):
            Name of the text, for the index.

    Returns:
        `TokenIndex`: the index written.

    Raises:
        `InputError`: there are no shards, a file of ends is missing, a file is truncated, tokens are outside the
            vocabulary, or documents do not have exactly one EOS, at the end.
    """
    folder = Path(folder)
    index = tokenizer_index(tokenizer, corpus, shard_tokens=None)
    sizes = token_bytes(tokenizer) if is_byte_level(tokenizer) else None
    paths = [path for path in sorted(folder.glob("*.ds")) if path.stat().st_size]
    if not paths:
        raise InputError(f"{folder}: no shards (*.ds) with tokens; expected the output of DocumentTokenizer")
    with progress_bar(None, " tokens", desc=f"reading shards of {corpus}") as bar:
        index = with_shards(index, tuple(_shard(path, index, sizes, bar) for path in paths))
    write_json(folder / INDEX_NAME, index.to_dict())
    return index


def _shard(path: Path, index: TokenIndex, sizes: np.ndarray | None, bar) -> Shard:
    """Check one shard and return its entry for the index."""
    ends_path = path.with_name(path.name + ENDS_SUFFIX)
    if not ends_path.is_file() or not ends_path.stat().st_size:
        raise InputError(f"{ends_path}: missing or empty; let its task finish, with save_index=True")
    ends = map_file(ends_path, ENDS_DTYPE)
    expected = int(ends[-1]) * index.token_dtype.itemsize
    if path.stat().st_size != expected:
        raise InputError(
            f"{path}: {path.stat().st_size} bytes, expected {expected} by {ends_path.name} and {index.vocab_size} "
            f"token ids of {index.dtype}; pass the tokenizer it was written with, or let its task finish"
        )
    tokens = map_file(path, index.token_dtype)
    digest, num_bytes = hashlib.sha256(), 0
    for start in range(0, len(tokens), _READ_AT_ONCE):
        part = tokens[start : start + _READ_AT_ONCE]
        if part.max() >= index.vocab_size:
            raise InputError(
                f"{path}: token {part.max()} is outside the vocabulary of {index.vocab_size}; pass the tokenizer it "
                "was written with"
            )
        digest.update(part.data)
        num_bytes += 0 if sizes is None else int(sizes[part].sum())
        bar.update(len(part))
    try:
        verify_ends(path, tokens, ends, index.eos_id)
    except InputError as error:
        raise InputError(f"{error} with eos_token={_SAME_EOS}") from None
    return Shard(
        name=path.name,
        num_documents=len(ends),
        num_tokens=len(tokens),
        num_bytes=None if sizes is None else num_bytes,
        num_empty=0,
        sha256=digest.hexdigest(),
        ends_sha256=hashlib.sha256(ends.data).hexdigest(),
    )
