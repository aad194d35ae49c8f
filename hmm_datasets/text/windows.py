"""Windows of a token stream as map-style data sets: window `i` is an offset, had in constant time."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from ..errors import InputError
from .permutation import epoch_order
from .shards import TokenStream


class TokenWindows:
    """A map-style data set of windows of a token stream, as trainers of causal language models take it.

    Window `i` is `tokens[i * length : (i + 1) * length]`; windows cross documents. What is left after the last whole
    window, `dropped_tokens`, is never seen. `labels` equal `input_ids`: models of transformers shift them inside.
    Item `i` belongs to epoch `i // num_windows`; with a seed each epoch has an order of its own, the same on every
    machine, worker and rank.

    Args:
        stream ([`TokenStream`]):
            The tokens.
        length (`int`):
            Tokens a window, at least 2.
        seed (`int`, *optional*):
            Seed of the order; None keeps the order of the stream.
        epochs (`int`, *optional*, defaults to 1):
            How often the data set holds each window.

    Attributes:
        num_windows (`int`): windows an epoch.
        dropped_tokens (`int`): tokens after the last whole window.

    Raises:
        `InputError`: for a length below 2 or above the stream's, or fewer than one epoch.
    """

    def __init__(self, stream: TokenStream, length: int, seed: int | None = None, epochs: int | None = None):
        if length < 2:
            raise InputError(f"length={length}: a window needs at least 2 tokens, one to see and one to predict")
        if length > stream.index.num_tokens:
            raise InputError(f"length={length}, but {stream.folder} has only {stream.index.num_tokens} tokens")
        self.epochs = 1 if epochs is None else epochs
        if self.epochs < 1:
            raise InputError(f"epochs={epochs}: expected at least 1")
        self.stream, self.length, self.seed = stream, length, seed
        self.num_windows, self.dropped_tokens = divmod(stream.index.num_tokens, length)

    def __len__(self) -> int:
        return self.num_windows * self.epochs

    def __getitem__(self, index: int) -> dict[str, Int[np.ndarray, "L"]]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Int[np.ndarray, "L"]]]:
        """Return the items at `indices`, which DataLoader asks for a batch at a time."""
        items = []
        for place in self.places(indices).tolist():
            tokens = self.stream.tokens[place * self.length : (place + 1) * self.length].astype(np.int64)
            items.append({"input_ids": tokens, "labels": tokens.copy()})
        return items

    def places(self, indices: Sequence[int]) -> Int[np.ndarray, "B"]:
        """Return which window of the stream each item is; negative indices count from the end."""
        indices = np.asarray(indices)
        if indices.size and indices.dtype.kind not in "iu":
            raise TypeError(f"indices must be integers, found {indices.dtype}")
        indices = indices.astype(np.int64)
        outside = (indices < -len(self)) | (indices >= len(self))
        if outside.any():
            raise IndexError(f"index {indices[outside][0]} of a data set of {len(self)} windows")
        epochs, places = np.divmod(indices % len(self), self.num_windows)
        if self.seed is not None:
            for epoch in np.unique(epochs).tolist():
                chosen = epochs == epoch
                places[chosen] = epoch_order(places[chosen], self.num_windows, self.seed, epoch)
        return places
