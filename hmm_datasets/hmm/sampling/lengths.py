"""Sequences of random length. Length and tokens of a sequence depend on `(seed, index)` alone.

The first tokens of a sequence do not depend on how many are drawn. So a sequence of random length is a sequence of the
maximum length, cut short; its length is drawn from a separate Philox block (see `hmm_datasets.hmm.families.family`).
The tokens cut off are wasted work: at most about half of all tokens where lengths are uniform.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, UInt

from ...errors import InputError
from ..families.family import LENGTHS, first_words
from ..integers import integer
from ..process import Process
from .sequences import integer_weights, smallest_unsigned


class Ragged(NamedTuple):
    """Sequences of several lengths: `tokens` (N, L), padded, and `lengths` (N,), int64."""

    tokens: UInt[np.ndarray, "N L"]
    lengths: Int[np.ndarray, "N"]


@dataclass(frozen=True)
class RandomLengths:
    """A distribution of lengths, with which to draw sequences of a process.

    Args:
        min_length (`int`): minimum length, 0 or more.
        max_length (`int`): maximum length, less than `min_length + 2**20`.
        stop (`float`, *optional*): for truncated geometric lengths, the probability that a sequence of `min_length`
            tokens or more ends before its next token. Lengths are uniform by default.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> tokens, lengths = RandomLengths(2, 6).sample(processes.golden_mean(), 3, seed=1)
    >>> tokens.shape, bool((tokens[np.arange(6) >= lengths[:, None]] == 2).all())
    ((3, 6), True)

    ```
    """

    min_length: int
    max_length: int
    stop: float | None = None

    def __post_init__(self):
        for name in ("min_length", "max_length"):
            object.__setattr__(self, name, integer(name, getattr(self, name), 0, 32))
        if not 0 <= self.min_length <= self.max_length < min(self.min_length + (1 << 20), 1 << 32):
            raise InputError(
                f"min_length is {self.min_length}, max_length {self.max_length}; expected 0 <= min_length <= "
                "max_length < min_length + 2**20, below 2**32"
            )
        if self.stop is not None and not 0 < self.stop <= 1:
            raise InputError(f"stop is {self.stop}; expected a probability above 0, or None for uniform lengths")

    def lengths_at(self, seed: int, indices: Int[Any, "N"]) -> Int[np.ndarray, "N"]:
        """The lengths of sequences `indices` of the stream `seed`; probabilities are rounded to multiples of 2^-32."""
        seed = np.uint64(integer("seed", seed, 0, 64))
        words = first_words(LENGTHS, np.asarray(indices, dtype=np.uint64), seed)[:, 0]
        return self.min_length + np.searchsorted(self._bounds, words, side="right")

    def sample(
        self,
        source: Process,
        num_sequences: int,
        seed: int = 0,
        first: int = 0,
        *,
        step: int = 1,
        padding: int | None = None,
        num_threads: int | None = None,
    ) -> Ragged:
        """Draw sequences `first`, `first + step`, ... of the stream given by `seed`, each with its own length.

        Padding may be any symbol: next-token distributions are causal, so it changes none of those before it.

        Args:
            source ([`~hmm_datasets.hmm.process.Process`]): where tokens come from.
            num_sequences (`int`): `N`.
            seed, first, step, num_threads: as for `source.sample`.
            padding (`int`, *optional*): value after the last token of a row; by default `E`, which is not a symbol.

        Returns:
            [`Ragged`]: `tokens` of shape `(N, max_length)`, in the smallest unsigned type that can store `E - 1` and
            `padding`; and `lengths`.
        """
        padding = integer("padding", source.num_symbols if padding is None else padding, 0, 32)
        dtype = smallest_unsigned(max(padding + 1, source.num_symbols))
        num_sequences = integer("num_sequences", num_sequences, 0, 63)
        tokens = np.empty((num_sequences, self.max_length), dtype=dtype)
        source.sample(num_sequences, self.max_length, seed, first, step=step, out=tokens, num_threads=num_threads)
        with np.errstate(over="ignore"):
            indices = np.uint64(first) + np.uint64(step) * np.arange(num_sequences, dtype=np.uint64)
        lengths = self.lengths_at(seed, indices)
        tokens[np.arange(self.max_length) >= lengths[:, None]] = padding
        return Ragged(tokens, lengths)

    @cached_property
    def _bounds(self) -> np.ndarray:
        count = self.max_length - self.min_length + 1
        distribution = np.full(count, 1 / count)
        if self.stop is not None:
            remaining = 1.0
            for index in range(count - 1):
                distribution[index] = remaining * self.stop
                remaining -= distribution[index]
            distribution[-1] = remaining
        return integer_weights(distribution[None])[0].cumsum()
