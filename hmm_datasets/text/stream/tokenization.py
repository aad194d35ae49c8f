"""Tokenization of corpora into token streams. Reading, encoding and writing run at once, each in a thread of its own.

[`tokenize_corpus`] writes one stream. [`tokenize_splits`] writes several streams in one pass over the source, for
example the train and the test split of a corpus that is split by hash, of texts or of conversations, which the chat
template writes. Killed runs can be started again: they read the source from its beginning, but encode only documents
that are not in finished shards.
"""

import contextlib
import hashlib
import json
import operator
import os
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from jaxtyping import Bool

from ...errors import InputError
from ...runtime import heartbeats
from ...runtime.progress import progress_bar
from ..corpora.conversations import Messages, num_characters
from ..corpora.local_files import check_text
from ..tokenizers.bpe import is_byte_level
from ..tokenizers.chat_encoding import encode_marked
from ..tokenizers.encoding import Encoder
from ..tokenizers.text_sizes import token_bytes
from ..tokenizers.unwritten_turns import print_unwritten
from .index import INDEX_NAME, TokenIndex, blank_index, read_index
from .writer import SHARD_TOKENS, Source, TokenBatch, documents_from, write_batches, writing

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

T = TypeVar("T")

_BATCH_BYTES = 1 << 22
_READ_AHEAD = 8  # batches


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
    """Tokenize documents into a token stream. A killed run resumes when it is started again with the same arguments.

    The names of special tokens in a text are encoded as text, so that a document can contain neither an EOS nor a role
    token. `RAYON_NUM_THREADS` limits the number of threads; `TOKENIZERS_PARALLELISM=false` means one thread.

    Args:
        documents (iterable of `str`, or a callable):
            The texts, for example `load_corpus(...)["text"]`. A callable takes the number of documents to skip and
            returns the others, so that a resumed run need not read documents it has written:
            `lambda first: rows.skip(first)["text"]`.
        tokenizer (`transformers.PreTrainedTokenizerFast`):
            A tokenizer with an EOS token.
        folder (`str` or `os.PathLike`), shard_tokens (`int`), overwrite (`bool`):
            See [`write_tokens`].
        corpus (`str`):
            Name of the text, for the index.
        batch_size (`int`, *optional*, defaults to 4096):
            Maximum number of documents encoded at once; fewer if they reach 4 MB.
        num_documents (`int`, *optional*):
            Total number of documents, for the time left of the progress bar, if `documents` has no length.
        show_progress (`bool`, *optional*, defaults to `True`):
            Show a progress bar, on rank 0.

    Returns:
        `TokenIndex`: the index written.

    Raises:
        `InputError`: the tokenizer has no EOS, a document is not text, or for the reasons of [`write_tokens`].
    """
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size}: expected at least 1")
    total = num_documents or operator.length_hint(documents) or None
    with _text_encoder(tokenizer) as encode:
        blank = tokenizer_index(tokenizer, corpus, shard_tokens)

        def batches(first: int) -> Generator[TokenBatch]:
            remaining = enumerate(documents_from(documents, first), start=first)
            encoded = _encoded(remaining, encode, _num_bytes, batch_size)
            with contextlib.closing(_shown(encoded, corpus, first, total, show_progress)) as shown:
                yield from (batch for _keys, batch in shown)

        return write_batches(batches, folder, blank, overwrite=overwrite)


def tokenize_splits(
    documents: Iterable[tuple[str, Any]],
    tokenizer: "PreTrainedTokenizerFast",
    folders: Mapping[str, str | os.PathLike],
    corpus: str,
    *,
    conversations: bool = False,
    batch_size: int = 4096,
    shard_tokens: int = SHARD_TOKENS,
    num_documents: int | None = None,
    show_progress: bool = True,
) -> dict[str, TokenIndex]:
    """Tokenize documents into one token stream per split, in one pass; of texts each is that of [`tokenize_corpus`].

    Args:
        documents (iterable of `tuple[str, str]`, or of `tuple[str, list[dict]]` for conversations):
            The split of each document, and its text or its messages, for example from [`read_splits`]; a resumed run
            needs the same order.
        tokenizer (`transformers.PreTrainedTokenizerFast`), corpus (`str`), batch_size (`int`), shard_tokens (`int`):
            See [`tokenize_corpus`]. For conversations its chat template must write EOS only at the end, if at all, and
            bytes are counted if it is byte-level.
        folders (mapping of `str` to path):
            The folder of the stream of each split. Existing streams are not written again.
        conversations (`bool`, *optional*, defaults to `False`):
            Whether documents are conversations.
        num_documents (`int`, *optional*), show_progress (`bool`, *optional*, defaults to `True`):
            As in [`tokenize_corpus`], for all splits together.

    Returns:
        `dict[str, TokenIndex]`: the index of each split.

    Raises:
        `InputError`: for the reasons of [`tokenize_corpus`].
    """
    places = {split: Path(folder) for split, folder in folders.items()}
    with contextlib.ExitStack() as stack:
        if conversations:
            unwritten = Counter[str]()
            stack.callback(print_unwritten, corpus, unwritten)
            encode, size = partial(_encode_conversations, tokenizer, unwritten), _num_characters
        else:
            encode, size = stack.enter_context(_text_encoder(tokenizer)), _num_bytes
        blank = tokenizer_index(tokenizer, corpus, shard_tokens)
        sizes = token_bytes(tokenizer) if conversations and is_byte_level(tokenizer) else None
        writers = {
            split: stack.enter_context(writing(folder, blank, token_bytes=sizes))
            for split, folder in places.items()
            if not (folder / INDEX_NAME).is_file()
        }
        if writers:
            first = {split: writer.num_read for split, writer in writers.items()}
            encoded = _encoded(_after(documents, first), encode, size, batch_size)
            shown = _shown(encoded, blank.corpus, sum(first.values()), num_documents, show_progress)
            with contextlib.closing(shown):
                for keys, batch in shown:
                    splits = np.array(keys)
                    for split, writer in writers.items():
                        writer.write(_part(batch, splits == split))
    return {split: read_index(folder) for split, folder in places.items()}


def tokenizer_index(tokenizer: "PreTrainedTokenizerFast", corpus: str, shard_tokens: int | None) -> TokenIndex:
    """The index of an empty stream of this tokenizer; raises [`InputError`] if the tokenizer has no EOS."""
    if tokenizer.eos_token_id is None:
        raise InputError("the tokenizer has no EOS token, which ends each document; set tokenizer.eos_token")
    return blank_index(corpus, tokenizer_hash(tokenizer), len(tokenizer), tokenizer.eos_token_id, shard_tokens)


def tokenizer_hash(tokenizer: "PreTrainedTokenizerFast") -> str:
    """SHA-256 of everything that decides the tokens of a text: vocabulary, merges, normalizer, pre-tokenizer, added
    tokens.

    Padding, truncation and the chat template do not change it.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    for name in ("version", "truncation", "padding", "post_processor"):
        state.pop(name, None)
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class _Read:
    """Documents read together, with the key (split or number) and the size of each."""

    keys: list
    documents: list
    sizes: list[int]


@contextlib.contextmanager
def _text_encoder(tokenizer: "PreTrainedTokenizerFast") -> Generator[Callable[[_Read], TokenBatch]]:
    """What encodes texts; a thread prepares it, which takes a third of a second for 50,000 tokens."""
    with ThreadPoolExecutor(1) as thread:
        encoder = thread.submit(Encoder, tokenizer)

        def encode(read: _Read) -> TokenBatch:
            tokens, lengths = encoder.result().encode_batch(read.documents)
            return TokenBatch(tokens, lengths, np.array(read.sizes, dtype=np.int64))

        yield encode


def _encode_conversations(tokenizer: "PreTrainedTokenizerFast", unwritten: Counter[str], read: _Read) -> TokenBatch:
    encoded = [encode_marked(tokenizer, messages, None) for messages in read.documents]
    for conversation in encoded:
        unwritten.update(conversation.unwritten)
    ids = [np.array(conversation.tokens, dtype=np.int64) for conversation in encoded]
    return TokenBatch(np.concatenate(ids), np.fromiter(map(len, ids), np.int64, len(ids)))


def _encoded(
    documents: Iterator[tuple[Any, Any]],
    encode: Callable[[_Read], TokenBatch],
    size: Callable[[Any, Any], int],
    batch_size: int,
) -> Generator[tuple[list, TokenBatch]]:
    """Documents in batches of tokens, each with the keys of its documents.

    While the caller uses a batch, one thread encodes the next, and another reads those after that, so that they are at
    hand when the encoder is ready. So at most ten batches are in memory. If reading or encoding fails, the error is
    raised after the batches before it.
    """

    def batches() -> Generator[_Read]:
        while (read := _read(documents, size, batch_size)).documents:
            yield read

    def encoded() -> Generator[tuple[list, TokenBatch]]:
        with contextlib.closing(_ahead(batches(), _READ_AHEAD)) as read_ahead:
            for read in read_ahead:
                yield read.keys, encode(read)

    return _ahead(encoded(), 1)


def _ahead(items: Generator[T], count: int) -> Generator[T]:
    """The items of a generator; a thread computes the next `count` of them while the caller uses one."""

    def following() -> list[T]:
        return list(islice(items, 1))

    with contextlib.closing(items), ThreadPoolExecutor(1) as thread:
        pending = deque(thread.submit(following) for _ in range(count))
        try:
            while item := pending.popleft().result():
                pending.append(thread.submit(following))
                yield item[0]
        finally:
            thread.shutdown(cancel_futures=True)


def _read(documents: Iterator[tuple[Any, Any]], size: Callable[[Any, Any], int], batch_size: int) -> _Read:
    read, total = _Read([], [], []), 0
    for key, document in documents:
        read.keys.append(key)
        read.documents.append(document)
        read.sizes.append(size(key, document))
        total += read.sizes[-1]
        if len(read.documents) == batch_size or total >= _BATCH_BYTES:
            break
    return read


def _num_bytes(key: Any, text: str) -> int:
    # ASCII text has one byte per character, and Python knows that a string is ASCII without scanning it.
    if isinstance(text, str) and text.isascii():
        return len(text)
    return len(check_text(text, f"document {key}").encode())


def _num_characters(_key: Any, messages: Messages) -> int:
    return num_characters({"messages": messages})


def _after(documents: Iterable[tuple[str, Any]], first: Mapping[str, int]) -> Iterator[tuple[str, Any]]:
    """The documents of the splits in `first`, without the given number of first documents of each."""
    passed = Counter()
    for split, document in documents:
        if split in first:
            passed[split] += 1
            if passed[split] > first[split]:
                yield split, document


def _part(batch: TokenBatch, chosen: Bool[np.ndarray, "B"]) -> TokenBatch:
    """Some documents of a batch; those that follow one another are copied together."""
    starts = np.concatenate([[0], np.cumsum(batch.lengths)])
    runs = starts[np.flatnonzero(np.diff(chosen, prepend=False, append=False))].reshape(-1, 2).tolist()
    tokens = [batch.tokens[first:stop] for first, stop in runs]
    num_bytes = None if batch.num_bytes is None else batch.num_bytes[chosen]
    return TokenBatch(np.concatenate([batch.tokens[:0], *tokens]), batch.lengths[chosen], num_bytes)


def _shown(
    encoded: Generator[tuple[list, TokenBatch]], corpus: str, first: int, total: int | None, show_progress: bool
) -> Generator[tuple[list, TokenBatch]]:
    """The same batches, with a progress bar that counts their documents once they have been used."""
    num_tokens = 0
    bar = progress_bar(total, " documents", shown=show_progress, desc=f"tokenizing {corpus}", initial=first)
    with bar, contextlib.closing(encoded):
        for number, (keys, batch) in enumerate(encoded, start=1):
            heartbeats.enter("working", number)
            yield keys, batch
            num_tokens += len(batch.tokens)
            if not bar.disable:
                rate = num_tokens / max(bar.format_dict["elapsed"], 1e-9)
                bar.set_postfix_str(f"{bar.format_sizeof(rate)} tokens/s", refresh=False)
                bar.update(len(batch.lengths))
