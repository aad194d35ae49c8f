"""Windows of a token stream as map-style data sets. Window `i` is an offset, computed in constant time.

[`TokenWindows`] cut the stream into equal parts, for training. [`StridedWindows`] overlap, so that every token is
scored once and with enough context, for evaluation. See `packing` for windows of whole documents. A batch is read in
one call into one array, and its rows are views of that array.

Use transformers' `default_data_collator`, which stacks tensors. A `Trainer` with a tokenizer but no collator would pad
row by row in Python and add an attention mask.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int

from ..errors import InputError
from ..hmm.integers import integer
from ..shuffle import indices_in_epochs
from ..text.stream.reader import TokenStream
from .row_reading import BatchReader

IGNORED = -100
"""Label of tokens that are not counted in the loss: torch's `ignore_index`."""

_BLOCK = 1 << 20  # documents whose bounds are read at a time


class Windows(BatchReader, ABC):
    """Base class of windows: items by index, over several epochs.

    Item `i` belongs to epoch `i // num_windows`. With a seed each epoch has its own order, which is computed, not
    stored, and the same on every machine, worker and rank. A larger number of epochs adds items but changes none.

    Attributes:
        stream ([`TokenStream`]): the tokens.
        length (`int`): tokens per row.
        num_windows (`int`): windows per epoch.
        seed (`int`, *optional*): seed of the order; None keeps the order of the stream.
        epochs (`int`): number of epochs.
    """

    def __init__(self, stream: TokenStream, length: int, num_windows: int, seed: int | None, epochs: int | None):
        self.epochs = 1 if epochs is None else integer("epochs", epochs, 1, 31)
        self.seed = None if seed is None else integer("seed", seed, 0, 64)
        self.stream, self.length, self.num_windows = stream, length, num_windows

    @abstractmethod
    def _columns(self, windows: Int[np.ndarray, "B"]) -> dict[str, Int[np.ndarray, "B L"]]:
        """Return the columns of the windows with these indices, each as a separate array."""

    def __len__(self) -> int:
        return self.num_windows * self.epochs

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Int[torch.Tensor, "L"]]]:
        """Return the items at `indices`. DataLoader calls this once per batch."""
        items: list[dict[str, torch.Tensor]] = [{} for _ in indices]
        for name, column in self._columns(self.window_indices(indices)).items():
            for item, row in zip(items, torch.from_numpy(column), strict=True):
                item[name] = row
        return items

    def window_indices(self, indices: Sequence[int]) -> Int[np.ndarray, "B"]:
        """Return the index of the window of each item; negative indices of items count from the end."""
        return indices_in_epochs(indices, self.num_windows, self.epochs, self.seed)

    def fingerprint(self) -> str:
        """SHA-256 of everything that decides the rows: the stream, the kind of windows, their length and order."""
        state = {"stream": self.stream.index.sha256, "kind": type(self).__name__, **self._settings()}
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()

    def _settings(self) -> dict:
        return {"length": self.length, "seed": self.seed}


class TokenWindows(Windows):
    """A map-style data set of windows of a token stream, for trainers of causal language models.

    Window `i` is tokens `i * length` to `(i + 1) * length` of the stream; windows cross the ends of documents. The
    `dropped_tokens` after the last whole window are never used. A row has `input_ids` and `labels`, int64
    tensors of shape `(L,)`. Labels are the tokens, because models of transformers shift them themselves, but for the
    first one, which is -100: nothing in the window predicts it.

    Args:
        stream ([`TokenStream`]):
            The tokens.
        length (`int`):
            Tokens per window, at least 2.
        seed (`int`, *optional*):
            Seed of the order; None keeps the order of the stream.
        epochs (`int`, *optional*, defaults to 1):
            Number of epochs.

    Attributes:
        num_windows (`int`): windows per epoch.
        dropped_tokens (`int`): tokens after the last whole window.

    Raises:
        `InputError`: `length` is below 2 or above that of the stream, or `epochs` is below 1.
    """

    def __init__(self, stream: TokenStream, length: int, seed: int | None = None, epochs: int | None = None):
        length = check_length(length)
        _check_enough_tokens(stream, length)
        super().__init__(stream, length, stream.num_tokens // length, seed, epochs)

    @property
    def dropped_tokens(self) -> int:
        return self.stream.num_tokens % self.length

    @property
    def stride(self) -> int:
        """Tokens between the beginnings of consecutive windows."""
        return self.length

    @property
    def tokens_per_row(self) -> float:
        """Tokens per row that are not padding."""
        return float(self.length)

    def tokens_between(self, first: int, last: int) -> int:
        """The number of tokens in items `first` to `last - 1`."""
        return (last - first) * self.length

    def tokens(self, indices: Sequence[int]) -> Int[np.ndarray, "B L"]:
        """The tokens of the items at `indices`, int64."""
        return self.stream.gather(self.window_indices(indices) * self.length, self.length)

    def _columns(self, windows):
        tokens = self.stream.gather(windows * self.length, self.length)
        labels = tokens.copy()
        labels[:, 0] = IGNORED
        return {"input_ids": tokens, "labels": labels}


class StridedWindows(Windows):
    """Windows for evaluation, which overlap so that every token is scored exactly once, with a minimum of context.

    A text of `N` tokens has windows that end at `length`, `length + stride`, ... and finally at `N`. A window contains
    the `length` tokens before its end, and scores those that no earlier window scored. So the first window scores all
    its tokens except the first, which has no context; the last window scores the remaining tokens; every other window
    scores its last `stride` tokens. A token is thus predicted from at least `length - stride` tokens, or from all the
    tokens before it. `labels` are -100 where nothing is scored.

    With a stride of `length` windows do not overlap, and the first token of each, which has no context, is not scored.

    By document, a text begins with the EOS before the document in the stream, so that all tokens of the document are
    scored. A text shorter than a window is padded at its end with EOS, which is not scored, and which no scored token
    of a causal model depends on.

    An evaluation processes `length / stride` times the tokens of [`TokenWindows`]. By document, memory is 8 bytes per
    document.

    Args:
        stream ([`TokenStream`]):
            The tokens.
        length (`int`):
            Tokens per window, at least 2.
        stride (`int`):
            Tokens from the end of a window to that of the next, from 1 to `length`.
        by_document (`bool`, *optional*, defaults to `False`):
            Treat every document as a separate text, so that no document is context of another. Otherwise the whole
            stream is one text.

    Attributes:
        num_windows (`int`): total number of windows.

    Raises:
        `InputError`: `length` is below 2, `stride` is outside `[1, length]`, or the stream is shorter than one
            window.
    """

    def __init__(self, stream: TokenStream, length: int, stride: int, by_document: bool = False):
        length, stride = check_length(length), integer("stride", stride, 1, 31)
        _check_enough_tokens(stream, 2 if by_document else length)
        if stride > length:
            raise InputError(f"stride={stride}: expected 1 to {length}, the window, so that no token is left out")
        self.stride, self.by_document = stride, by_document
        if by_document:
            counts = [_strided_counts(stops - starts + 1, length, stride) for starts, stops in _bounds(stream)]
            self._first = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
        else:
            self._first = np.array([0, *_strided_counts(np.array([stream.num_tokens]), length, stride)])
        super().__init__(stream, length, int(self._first[-1]), None, None)

    def _settings(self) -> dict:
        return {"length": self.length, "stride": self.stride, "by_document": self.by_document}

    def texts(self, windows: Int[np.ndarray, "B"]) -> Int[np.ndarray, "B"]:
        """Return the number of the text of each window: by document that of the document, else 0."""
        return np.searchsorted(self._first, windows, side="right") - 1

    def _columns(self, windows):
        texts = self.texts(windows)
        if self.by_document:
            begins, limits = self.stream.bounds(texts)
            begins = begins - 1
        else:
            begins, limits = np.zeros_like(texts), np.full_like(texts, self.stream.num_tokens)
        numbers = windows - self._first[texts]
        ends = np.minimum(begins + self.length + numbers * self.stride, limits)
        starts = np.maximum(begins, ends - self.length)
        scored = begins + np.where(numbers == 0, 1, self.length + (numbers - 1) * self.stride)
        tokens = self._read(starts, ends)
        positions = starts[:, None] + np.arange(self.length)
        scored = np.maximum(scored, starts + 1)
        counted = (positions >= scored[:, None]) & (positions < ends[:, None])
        return {"input_ids": tokens, "labels": np.where(counted, tokens, IGNORED)}

    def _read(self, starts, ends):
        """Return the tokens from `starts` to `ends`, padded at the end; position -1, before the stream, is EOS."""
        tokens = np.full((len(starts), self.length), self.stream.index.eos_id, dtype=np.int64)
        whole = (ends - starts == self.length) & (starts >= 0)
        tokens[whole] = self.stream.gather(starts[whole], self.length)
        for row in np.flatnonzero(~whole).tolist():
            start, end = max(0, int(starts[row])), int(ends[row])
            begin = start - int(starts[row])
            tokens[row, begin : begin + end - start] = self.stream.read(start, end)
        return tokens


def check_length(length: int) -> int:
    """The length of windows; raise [`InputError`] if they are too short to predict a token."""
    length = integer("length", length, 0, 31)
    if length < 2:
        raise InputError(f"length={length}: a window needs at least 2 tokens, one to see and one to predict")
    return length


def _check_enough_tokens(stream: TokenStream, length: int) -> None:
    if length > stream.num_tokens:
        raise InputError(f"length={length}, but {stream.folder} has only {stream.num_tokens} tokens")


def _strided_counts(sizes: np.ndarray, length: int, stride: int) -> np.ndarray:
    """Return the number of windows of texts of these sizes: one, plus one per stride or part of it beyond `length`."""
    more = -(-np.maximum(sizes - length, 0) // stride)
    return 1 + more


def _bounds(stream: TokenStream):
    """Yield the positions at which documents begin and end, one block at a time."""
    for first in range(0, stream.num_documents, _BLOCK):
        yield stream.bounds(np.arange(first, min(first + _BLOCK, stream.num_documents)))
