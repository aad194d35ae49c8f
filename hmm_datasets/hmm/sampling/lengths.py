"""Sequences of random length: a cut of the fixed-length stream, as pure a function of `(seed, index)` as the tokens.

The first tokens of a sequence do not depend on how many are drawn, so a sequence of random length is one of the
greatest length, cut; its length comes from a Philox block of its own (see `hmm_datasets.hmm.families.family`). The
tokens cut off are drawn in vain, at most about half of them where lengths are uniform.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, UInt

from ...errors import InputError
from ..checks import integer
from ..families.family import LENGTHS, Family, first_words
from ..model import HMM
from .sequences import integer_weights, smallest_unsigned


class Ragged(NamedTuple):
    """Sequences of several lengths: `tokens` (N, L), padded, and `lengths` (N,), int64."""

    tokens: UInt[np.ndarray, "N L"]
    lengths: Int[np.ndarray, "N"]


@dataclass(frozen=True)
class RandomLengths:
    """A distribution of lengths, and what it makes of an HMM or a family of them.

    Args:
        least (`int`): the shortest, 0 or more.
        most (`int`): the longest, less than `least + 2**20`.
        stop (`float`, *optional*): a sequence that has `least` tokens or more ends with this probability before every
            further one, and at `most` at the latest: geometric lengths, truncated. Uniform ones by default.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> tokens, lengths = RandomLengths(2, 6).sample(processes.golden_mean(), 3, seed=1)
    >>> tokens.shape, bool((tokens[np.arange(6) >= lengths[:, None]] == 2).all())
    ((3, 6), True)

    ```
    """

    least: int
    most: int
    stop: float | None = None

    def __post_init__(self):
        if not 0 <= self.least <= self.most < min(self.least + (1 << 20), 1 << 32):
            raise InputError(
                f"least is {self.least}, most {self.most}; expected 0 <= least <= most < least + 2**20, below 2**32"
            )
        if self.stop is not None and not 0 < self.stop <= 1:
            raise InputError(f"stop is {self.stop}; expected a probability above 0, or None: uniform lengths")

    def lengths_at(self, seed: int, indices: Int[Any, "N"]) -> Int[np.ndarray, "N"]:
        """The lengths of sequences `indices` of the stream `seed`, in multiples of 2^-32 by their distribution."""
        seed = np.uint64(integer("seed", seed, 0, 64))
        words = first_words(LENGTHS, np.asarray(indices, dtype=np.uint64), seed)[:, 0]
        return self.least + np.searchsorted(self._bounds, words, side="right")

    def sample(
        self,
        source: HMM | Family,
        num_sequences: int,
        seed: int = 0,
        first: int = 0,
        *,
        step: int = 1,
        padding: int | None = None,
        num_threads: int | None = None,
    ) -> Ragged:
        """Draw sequences `first`, `first + step`, ... of the stream named by `seed`, each of its own length.

        Distributions of the next token are causal: padding changes none before it, and may be any symbol.

        Args:
            source ([`~hmm_datasets.hmm.model.HMM`] or [`~hmm_datasets.hmm.families.Family`]): what draws the tokens.
            num_sequences (`int`): `N`.
            seed, first, step, num_threads: as of the source's own `sample`.
            padding (`int`, *optional*): stands after the last token of a row; `E` by default, which is no symbol.

        Returns:
            [`Ragged`]: `tokens` of shape `(N, most)`, in the smallest unsigned type that holds `E - 1` and `padding`;
            and `lengths`.
        """
        padding = integer("padding", source.num_symbols if padding is None else padding, 0, 32)
        dtype = smallest_unsigned(max(padding + 1, source.num_symbols))
        num_sequences = integer("num_sequences", num_sequences, 0, 63)
        tokens = np.empty((num_sequences, self.most), dtype=dtype)
        source.sample(num_sequences, self.most, seed, first, step=step, out=tokens, num_threads=num_threads)
        with np.errstate(over="ignore"):
            indices = np.uint64(first) + np.uint64(step) * np.arange(num_sequences, dtype=np.uint64)
        lengths = self.lengths_at(seed, indices)
        tokens[np.arange(self.most) >= lengths[:, None]] = padding
        return Ragged(tokens, lengths)

    @cached_property
    def _bounds(self) -> np.ndarray:
        count = self.most - self.least + 1
        distribution = np.full(count, 1 / count)
        if self.stop is not None:
            left = 1.0
            for place in range(count - 1):
                distribution[place] = left * self.stop
                left -= distribution[place]
            distribution[-1] = left
        return integer_weights(distribution[None])[0].cumsum()
