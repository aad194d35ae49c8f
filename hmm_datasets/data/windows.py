"""Windows of a token stream as map-style data sets: window `i` is an offset, had in constant time.

[`TokenWindows`] cut the stream in equal parts, for training; [`StridedWindows`] overlap, so that every token is scored
once with much context before it, for evaluation. See `packing` for windows that hold whole documents. A batch is read
in one call into one array, and its rows are views of that array.

Give them to transformers' `default_data_collator`, which stacks tensors. A `Trainer` that was given a tokenizer and no
collator pads row by row in Python instead, and adds an attention mask.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int

from ..errors import InputError
from ..shuffle import indices_in_epochs
from ..text.stream.reader import TokenStream

IGNORED = -100
"""The label of what no loss counts: torch's `ignore_index`."""

_BLOCK = 1 << 20  # documents whose bounds are read at once


class Windows(ABC):
    """What all kinds of windows share: items by index, over several epochs.

    Item `i` belongs to epoch `i // num_windows`; with a seed each epoch has an order of its own, the same on every
    machine, worker and rank, and computed, not stored. More epochs change no item.

    Attributes:
        stream ([`TokenStream`]): the tokens.
        length (`int`): tokens per row.
        num_windows (`int`): windows per epoch.
        seed (`int`, *optional*): of the orders; None keeps that of the stream.
        epochs (`int`): how often the data set holds each window.
    """

    def __init__(self, stream: TokenStream, length: int, num_windows: int, seed: int | None, epochs: int | None):
        self.epochs = 1 if epochs is None else epochs
        if self.epochs < 1:
            raise InputError(f"epochs={epochs}: expected at least 1")
        self.stream, self.length, self.num_windows, self.seed = stream, length, num_windows, seed

    @abstractmethod
    def _columns(self, places: Int[np.ndarray, "B"]) -> dict[str, Int[np.ndarray, "B L"]]:
        """Return the columns of the windows at `places`, each one array of its own."""

    def __len__(self) -> int:
        return self.num_windows * self.epochs

    def __getitem__(self, index: int) -> dict[str, Int[torch.Tensor, "L"]]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Int[torch.Tensor, "L"]]]:
        """Return the items at `indices`, which DataLoader asks for a batch at a time."""
        items: list[dict[str, torch.Tensor]] = [{} for _ in indices]
        for name, column in self._columns(self.places(indices)).items():
            for item, row in zip(items, torch.from_numpy(column), strict=True):
                item[name] = row
        return items

    def places(self, indices: Sequence[int]) -> Int[np.ndarray, "B"]:
        """Return which window of an epoch each item is; negative indices count from the end."""
        return indices_in_epochs(indices, self.num_windows, self.epochs, self.seed)

    def fingerprint(self) -> str:
        """SHA-256 of what fixes every row: the stream, the kind of windows, their length and order."""
        state = {"stream": self.stream.index.sha256, "kind": type(self).__name__, **self._settings()}
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()

    def _settings(self) -> dict:
        return {"length": self.length, "seed": self.seed}


class TokenWindows(Windows):
    """A map-style data set of windows of a token stream, as trainers of causal language models take it.

    Window `i` is tokens `i * length` to `(i + 1) * length` of the stream; windows cross documents. What is left after
    the last whole window, `dropped_tokens`, is never seen. A row has `input_ids` and equal `labels`, int64 tensors of
    shape `(L,)`: models of transformers shift labels inside.

    Args:
        stream ([`TokenStream`]):
            The tokens.
        length (`int`):
            Tokens per window, at least 2.
        seed (`int`, *optional*):
            Seed of the order; None keeps the order of the stream.
        epochs (`int`, *optional*, defaults to 1):
            How often the data set holds each window.

    Attributes:
        num_windows (`int`): windows per epoch.
        dropped_tokens (`int`): tokens after the last whole window.

    Raises:
        `InputError`: for a length below 2 or above the stream's, or fewer than one epoch.
    """

    def __init__(self, stream: TokenStream, length: int, seed: int | None = None, epochs: int | None = None):
        check_length(length)
        _check_room(stream, length)
        super().__init__(stream, length, stream.num_tokens // length, seed, epochs)

    @property
    def dropped_tokens(self) -> int:
        return self.stream.num_tokens % self.length

    @property
    def stride(self) -> int:
        """Tokens from one window's beginning to the next's."""
        return self.length

    @property
    def tokens_per_row(self) -> float:
        """Tokens per row that are not padding."""
        return float(self.length)

    def tokens(self, indices: Sequence[int]) -> Int[np.ndarray, "B L"]:
        """The tokens of the items at `indices`, int64."""
        return self.stream.gather(self.places(indices) * self.length, self.length)

    def _columns(self, places):
        tokens = self.stream.gather(places * self.length, self.length)
        return {"input_ids": tokens, "labels": tokens.copy()}


class StridedWindows(Windows):
    """Overlapping windows for evaluation: every token is scored once, with the context a user chooses.

    A text of `N` tokens has windows that end at `length`, `length + stride`, ... and at last at `N`. A window sees the
    `length` tokens before its end, and scores those no window before it scored: the first window all its tokens but
    the first, which has nothing to be predicted from, every other its last `stride`, the last one what is left. So a
    token is predicted from at least `length - stride` tokens, or from all there are before it. `labels` are -100 where
    nothing is scored. By document, a text begins with the EOS that stands before the document in a stream, so that all
    tokens of the document are scored. A text shorter than a window is padded behind with EOS, which is not scored and
    which, in a causal model, no scored token sees.

    Cost: `length / stride` times the tokens of [`TokenWindows`]. By document 8 bytes of memory per document.

    Args:
        stream ([`TokenStream`]):
            The tokens.
        length (`int`):
            Tokens per window, at least 2.
        stride (`int`):
            Tokens a window scores, from 1 to `length - 1`.
        by_document (`bool`, *optional*, defaults to `False`):
            Take every document as a text of its own, so that none is context of another. Otherwise the whole stream is
            one text.

    Attributes:
        num_windows (`int`): windows in all.
        num_scored (`int`): tokens scored in all.

    Raises:
        `InputError`: for a length below 2, a stride outside `[1, length)`, or a stream shorter than one window.
    """

    def __init__(self, stream: TokenStream, length: int, stride: int, by_document: bool = False):
        check_length(length)
        _check_room(stream, 2 if by_document else length)
        if not 1 <= stride < length:
            raise InputError(f"stride={stride}: expected 1 to {length - 1}, one less than the window of {length}")
        self.stride, self.by_document = stride, by_document
        if by_document:
            counts = [_strided_counts(stops - starts + 1, length, stride) for starts, stops in _bounds(stream)]
            self._first = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
        else:
            self._first = np.array([0, *_strided_counts(np.array([stream.num_tokens]), length, stride)])
        self.num_scored = stream.num_tokens - (0 if by_document else 1)
        super().__init__(stream, length, int(self._first[-1]), None, None)

    def _settings(self) -> dict:
        return {"length": self.length, "stride": self.stride, "by_document": self.by_document}

    def texts(self, places: Int[np.ndarray, "B"]) -> Int[np.ndarray, "B"]:
        """Return which text each window is of: by document the document, else 0."""
        return np.searchsorted(self._first, places, side="right") - 1

    def _columns(self, places):
        texts = self.texts(places)
        if self.by_document:
            begins, limits = self.stream.bounds(texts)
            begins = begins - 1
        else:
            begins, limits = np.zeros_like(texts), np.full_like(texts, self.stream.num_tokens)
        numbers = places - self._first[texts]
        ends = np.minimum(begins + self.length + numbers * self.stride, limits)
        starts = np.maximum(begins, ends - self.length)
        scored = begins + np.where(numbers == 0, 1, self.length + (numbers - 1) * self.stride)
        tokens = self._read(starts, ends)
        positions = starts[:, None] + np.arange(self.length)
        counted = (positions >= scored[:, None]) & (positions < ends[:, None])
        return {"input_ids": tokens, "labels": np.where(counted, tokens, IGNORED)}

    def _read(self, starts, ends):
        """Return the tokens from `starts` to `ends`, padded behind; before the stream, at -1, stands EOS."""
        tokens = np.full((len(starts), self.length), self.stream.index.eos_id, dtype=np.int64)
        whole = (ends - starts == self.length) & (starts >= 0)
        tokens[whole] = self.stream.gather(starts[whole], self.length)
        for row in np.flatnonzero(~whole).tolist():
            start, end = max(0, int(starts[row])), int(ends[row])
            begin = start - int(starts[row])
            tokens[row, begin : begin + end - start] = self.stream.read(start, end)
        return tokens


def check_length(length: int) -> None:
    """Raise [`InputError`] for windows in which there is nothing to predict."""
    if length < 2:
        raise InputError(f"length={length}: a window needs at least 2 tokens, one to see and one to predict")


def _check_room(stream: TokenStream, length: int) -> None:
    if length > stream.num_tokens:
        raise InputError(f"length={length}, but {stream.folder} has only {stream.num_tokens} tokens")


def _strided_counts(sizes: np.ndarray, length: int, stride: int) -> np.ndarray:
    """Return how many windows texts of these sizes take: one, and one more for every stride begun beyond it."""
    more = -(-np.maximum(sizes - length, 0) // stride)
    return 1 + more


def _bounds(stream: TokenStream):
    """Yield where documents begin and end, a block at a time."""
    for first in range(0, stream.num_documents, _BLOCK):
        yield stream.bounds(np.arange(first, min(first + _BLOCK, stream.num_documents)))
