"""Views of sequences: `view[i]` is computed when asked for, so nothing is stored and any place is reached at once.

A view is as long as one likes, or has no end; an index is all the state there is. Read in order, a run of global batch
`G` sees examples `[t G, (t + 1) G)` at optimizer step `t`, on any number of processes, and a resumed one goes on at
the next.

An endless view is an iterable-style data set, since the `Trainer`'s default for a map-style one is a random order, and
its `RandomSampler` holds a permutation of all indices. A bounded default length would avoid that as well, and repeat
rows without a word once it is reached.
"""

import operator
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from jaxtyping import UInt
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from ..errors import InputError

ENDLESS = 1 << 40
"""Rows of a view that should never end: 10^12 sequences."""

TEST_FIRST = 1 << 63
"""Held-out sequences are those from here on: the same seed, indices that training never reaches."""

_BLOCK_ROWS = 256
_BLOCK_TOKENS = 1 << 20  # drawn at once, at most


class Source(Protocol):
    """What draws sequences by index: an [`~hmm_datasets.HMM`] or a family of them."""

    @property
    def num_symbols(self) -> int: ...

    def sample(
        self, num_sequences: int, length: int, seed: int = 0, first: int = 0
    ) -> UInt[np.ndarray, "num_sequences length"]: ...


class HMMSequences(Dataset):
    """Sequences of an HMM as a data set for language models.

    Row `i` is sequence `first + i` of the stream `seed`: `input_ids` and `labels`, int64 tensors of shape `(L,)`, or
    `(L + 1,)` with a beginning token of id `E` in front (its label is itself: models shift inside, so that it is
    never predicted, and the first symbol is predicted from it). `view[i]` is computed from `i` alone.

    With `num_sequences` it is a map-style data set of that length ([`FiniteSequences`]). Without, it has no end
    ([`EndlessSequences`]): a `Trainer`, which would draw a permutation of a map-style data set before its first step,
    reads it in order as an iterable-style one, and asks for `max_steps`.

    Args:
        source ([`Source`]): an [`~hmm_datasets.HMM`] or a family.
        length (`int`): `L`, symbols per sequence.
        seed (`int`, *optional*, defaults to 0): which stream.
        num_sequences (`int`, *optional*): length of the view; endless by default.
        first (`int`, *optional*, defaults to 0): index of row 0.
        bos (`bool`, *optional*, defaults to `True`): put the beginning token in front.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> view = HMMSequences(processes.golden_mean(), length=6)
    >>> view[10**9]["input_ids"].shape, next(iter(view))["input_ids"].shape, view.vocab_size
    (torch.Size([7]), torch.Size([7]), 3)
    >>> len(HMMSequences(processes.golden_mean(), length=6, num_sequences=500))
    500

    ```
    """

    def __new__(cls, *args, num_sequences: int | None = None, **kwargs):
        if cls is HMMSequences:
            cls = EndlessSequences if num_sequences is None else FiniteSequences
        return super().__new__(cls)

    def __init__(
        self,
        source: Source,
        length: int,
        *,
        seed: int = 0,
        num_sequences: int | None = None,
        first: int = 0,
        bos: bool = True,
    ):
        num_sequences = ENDLESS if num_sequences is None else num_sequences
        if length < 1 or num_sequences < 1:
            raise InputError(f"length is {length}, num_sequences {num_sequences}; expected both positive")
        if not (0 <= seed < 1 << 64 and 0 <= first <= (1 << 64) - num_sequences):
            raise InputError(
                f"seed is {seed}, first {first}; expected seed and first + num_sequences - 1 in [0, 2**64)"
            )
        self.source = source
        self.length = length
        self.seed = seed
        self.num_sequences = num_sequences
        self.first = first
        self.bos_token_id = source.num_symbols if bos else None

    @property
    def vocab_size(self) -> int:
        """`V`: the symbols, and the beginning token if there is one."""
        return self.source.num_symbols + (self.bos_token_id is not None)

    @property
    def tokens_per_row(self) -> float:
        """Tokens per row, the beginning token among them."""
        return float(self.length + (self.bos_token_id is not None))

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        """The rows of a whole batch; neighbouring indices are drawn in one call."""
        tokens = torch.empty(len(indices), self.length + (self.bos_token_id is not None), dtype=torch.int64)
        if self.bos_token_id is not None:
            tokens[:, 0] = self.bos_token_id
        for place, index, count in _runs(indices, self.num_sequences):
            drawn = self.source.sample(count, self.length, seed=self.seed, first=self.first + index)
            tokens[place : place + count, -self.length :] = torch.from_numpy(drawn.astype(np.int64))
        return [{"input_ids": row, "labels": row} for row in tokens]


class FiniteSequences(HMMSequences):
    """[`HMMSequences`] with `num_sequences`: a map-style data set."""

    def __len__(self) -> int:
        return self.num_sequences


class EndlessSequences(HMMSequences, IterableDataset):
    """[`HMMSequences`] without `num_sequences`: read in order, or at any index below 2**40.

    Workers of a `DataLoader` take turns, a block of rows each. The ranks of a `Trainer` share the rows: accelerate
    hands them out, whole batches in order. In a loop of one's own over several ranks each rank needs a `first` of its
    own, or [`by_index`][EndlessSequences.by_index] and a sampler.
    """

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        block = max(1, min(_BLOCK_ROWS, _BLOCK_TOKENS // self.length))
        for first in range(number * block, self.num_sequences, workers * block):
            yield from self.__getitems__(range(first, min(first + block, self.num_sequences)))

    def by_index(self) -> FiniteSequences:
        """The same rows as a map-style data set of 2**40 rows, for samplers that go through indices in order.

        [`~hmm_datasets.training.trainer.Pretrainer`] reads it so, which makes resuming at any step take constant
        time. A sampler that permutes, as a `Trainer`'s by default, would ask for 8.8 TB.
        """
        return FiniteSequences(
            self.source,
            self.length,
            seed=self.seed,
            num_sequences=self.num_sequences,
            first=self.first,
            bos=self.bos_token_id is not None,
        )


def _runs(indices: Sequence[int], length: int) -> list[tuple[int, int, int]]:
    """Cut indices into runs of neighbours: place in the batch, first index, count."""
    runs: list[tuple[int, int, int]] = []
    for place, index in enumerate(map(operator.index, indices)):
        if not 0 <= index < length:
            raise IndexError(f"index {index} is outside a view of {length} rows")
        if runs and index == runs[-1][1] + runs[-1][2]:
            runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
        else:
            runs.append((place, index, 1))
    return runs
