"""Shards that datatrove wrote, read as a token stream: the index they lack is written beside them.

`DocumentTokenizer` and `DocumentTokenizerMerger` of datatrove leave a `.ds` file of tokens and a `.ds.index` file of
ends for each task or part. Both stay as they are. Every token is read once, in constant memory.
"""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ... import launch_environment
from ...errors import InputError
from ...files import write_json
from ..tokenizers.bpe import is_byte_level, token_bytes
from .index import (
    ENDS_DTYPE,
    ENDS_SUFFIX,
    INDEX_NAME,
    Shard,
    TokenIndex,
    with_shards,
)
from .reader import map_file, verify_ends
from .tokenization import tokenizer_index

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_READ_AT_ONCE = 1 << 22


def adopt_datatrove(
    folder: str | os.PathLike, tokenizer: "PreTrainedTokenizerFast", corpus: str, *, show_progress: bool = True
) -> TokenIndex:
    """Write the `index.json` that makes datatrove's shards a token stream, which [`TokenStream`] opens.

    Shards come in the order of their names; those of tasks that had no documents are left out.

    Args:
        folder (`str` or `os.PathLike`):
            Holds the `.ds` and `.ds.index` files; nothing in deeper folders is read.
        tokenizer (`transformers.PreTrainedTokenizerFast`):
            What the tokens are of. Bytes are counted if it is byte-level.
        corpus (`str`):
            Name of the text, for the index.
        show_progress (`bool`, *optional*, defaults to `True`):
            Show a progress bar, on rank 0.

    Returns:
        `TokenIndex`: the index written.

    Raises:
        `InputError`: for no shards, a file without its ends or cut, tokens outside the vocabulary, documents that do
            not end in EOS or have it inside.
    """
    folder = Path(folder)
    index = tokenizer_index(tokenizer, corpus, shard_tokens=None)
    sizes = token_bytes(tokenizer) if is_byte_level(tokenizer) else None
    paths = [path for path in sorted(folder.glob("*.ds")) if path.stat().st_size]
    if not paths:
        raise InputError(f"{folder}: no shards (*.ds) that hold tokens; expected the output of DocumentTokenizer")
    with _progress(paths, corpus, show_progress) as bar:
        index = with_shards(index, tuple(_shard(path, index, sizes, bar) for path in paths))
    write_json(folder / INDEX_NAME, index.to_dict())
    return index


def _shard(path: Path, index: TokenIndex, sizes: np.ndarray | None, bar) -> Shard:
    """Check one shard and say what it holds."""
    ends_path = path.with_name(path.name + ENDS_SUFFIX)
    if not ends_path.is_file() or not ends_path.stat().st_size:
        raise InputError(f"{ends_path}: missing or empty; let its task finish, with save_index=True")
    ends = map_file(ends_path, ENDS_DTYPE)
    expected = int(ends[-1]) * index.token_dtype.itemsize
    if path.stat().st_size != expected:
        raise InputError(
            f"{path}: {path.stat().st_size} bytes, but {ends_path.name} and {index.vocab_size} token ids of "
            f"{index.dtype} say {expected}; pass the tokenizer it was written with, or let its task finish"
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


_SAME_EOS = "tokenizer.eos_token, from texts in which no special token stands (PlainTextTokenizer reads them as text)"


def _progress(paths: list[Path], corpus: str, show_progress: bool):
    from tqdm.auto import tqdm

    quiet = not show_progress or launch_environment.rank() != 0
    return tqdm(desc=f"reading shards of {corpus}", unit=" tokens", unit_scale=True, delay=2, disable=quiet)
