"""Corpora to token streams: texts are read by one thread while the others encode those before."""

import hashlib
import json
import operator
import os
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError
from .rows import check_text
from .shard_writing import SHARD_TOKENS, Source, TokenBatch, documents_from, write_batches
from .token_index import TokenIndex, blank_index

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_BATCH_BYTES = 1 << 20
_DELAY = 2  # seconds


def tokenize_corpus(
    documents: Source[str],
    tokenizer: "PreTrainedTokenizerFast",
    folder: str | os.PathLike,
    corpus: str,
    *,
    batch_size: int = 4096,
    shard_tokens: int = SHARD_TOKENS,
    num_documents: int | None = None,
    overwrite: bool = False,
    show_progress: bool = True,
) -> TokenIndex:
    """Tokenize documents into a token stream. Killed and started again with the same arguments, it goes on.

    The names of special tokens in a text are read as text, so that a document can neither end early nor speak out of
    turn. `RAYON_NUM_THREADS` limits the threads, `TOKENIZERS_PARALLELISM=false` leaves one.

    Args:
        documents (iterable of `str`, or a callable):
            The texts, such as `load_corpus(...)["text"]`. A callable takes the number of documents to skip and
            returns the others, which saves a resumed run from reading what it has:
            `lambda first: rows.skip(first)["text"]`.
        tokenizer (`transformers.PreTrainedTokenizerFast`):
            A tokenizer with an EOS token.
        folder (`str` or `os.PathLike`), shard_tokens (`int`), overwrite (`bool`):
            See [`write_tokens`].
        corpus (`str`):
            Name of the text, for the index.
        batch_size (`int`, *optional*, defaults to 4096):
            Documents encoded at once, fewer where they come to 1 MB.
        num_documents (`int`, *optional*):
            How many documents there are, for the time left, where `len(documents)` does not say.
        show_progress (`bool`, *optional*, defaults to `True`):
            Show a progress bar, on rank 0.

    Returns:
        `TokenIndex`: the index written.

    Raises:
        `InputError`: for a tokenizer without EOS, a document that is no text, and as [`write_tokens`].
    """
    from .encoding import Encoder

    blank = tokenizer_index(tokenizer, corpus, shard_tokens)
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size}: expected at least 1")
    encoder = Encoder(tokenizer)
    total = num_documents or operator.length_hint(documents) or None

    def batches(first: int) -> Generator[TokenBatch]:
        remaining = enumerate(documents_from(documents, first), start=first)
        with _progress(corpus, first, total, show_progress) as bar, ThreadPoolExecutor(1) as reader:
            num_tokens = 0
            pending = reader.submit(_texts, remaining, batch_size)
            while texts := pending.result()[0]:
                num_bytes = np.array(pending.result()[1], dtype=np.int64)
                pending = reader.submit(_texts, remaining, batch_size)
                tokens, lengths = encoder.encode_batch(texts)
                yield TokenBatch(tokens, lengths, num_bytes)
                num_tokens += len(tokens)
                _advance(bar, len(texts), num_tokens)

    return write_batches(batches, folder, blank, overwrite=overwrite)


def tokenizer_index(tokenizer: "PreTrainedTokenizerFast", corpus: str, shard_tokens: int | None) -> TokenIndex:
    """The index of a stream of this tokenizer's ids that holds nothing yet; refuses one without EOS."""
    if tokenizer.eos_token_id is None:
        raise InputError("the tokenizer has no EOS token, which ends each document; set tokenizer.eos_token")
    return blank_index(corpus, tokenizer_hash(tokenizer), len(tokenizer), tokenizer.eos_token_id, shard_tokens)


def tokenizer_hash(tokenizer: "PreTrainedTokenizerFast") -> str:
    """SHA-256 of what turns text into tokens: vocabulary, merges, normalizer, pre-tokenizer, added tokens.

    Padding, truncation and the chat template leave it as it is.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    for name in ("version", "truncation", "padding", "post_processor"):
        state.pop(name, None)
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _texts(documents: Iterator[tuple[int, str]], batch_size: int) -> tuple[list[str], list[int]]:
    """The next texts of a numbered source, and the bytes of each."""
    texts, sizes, num_bytes = [], [], 0
    for number, text in documents:
        # Of ASCII a byte a character, which Python knows without looking.
        ascii_only = isinstance(text, str) and text.isascii()
        size = len(text) if ascii_only else len(check_text(text, f"document {number}").encode())
        texts.append(text)
        sizes.append(size)
        num_bytes += size
        if len(texts) == batch_size or num_bytes >= _BATCH_BYTES:
            break
    return texts, sizes


def _progress(corpus: str, first: int, total: int | None, show_progress: bool):
    from tqdm.auto import tqdm

    quiet = not show_progress or os.environ.get("RANK", "0") != "0"
    return tqdm(
        desc=f"tokenizing {corpus}",
        unit=" documents",
        unit_scale=True,
        delay=_DELAY,
        initial=first,
        total=total,
        disable=quiet,
    )


def _advance(bar, num_documents: int, num_tokens: int) -> None:
    if not bar.disable:
        rate = num_tokens / max(bar.format_dict["elapsed"], 1e-9)
        bar.set_postfix_str(f"{bar.format_sizeof(rate)} tokens/s", refresh=False)
        bar.update(num_documents)
