"""Sequences of a process as a data set: row `i` is computed when it is read, so nothing is stored.

The data set has any length, or is endless; its only state is an index. When it is read in order, a run with global
batch `G` trains on rows `[t G, (t + 1) G)` at optimizer step `t`, on any number of processes, and a resumed run
continues with the next row.

The endless data set is iterable-style. A `Trainer` reads a map-style data set in random order by default, and its
`RandomSampler` would store a permutation of all indices. A bounded default length would avoid this too, but silently
repeat rows once the end is reached.
"""

import operator
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from ..errors import InputError
from ..hmm.families.episodic_tasks import EpisodicTask
from ..hmm.integers import integer
from ..hmm.process import Process
from ..hmm.tokenizer import hmm_tokenizer
from .row_reading import BatchReader
from .windows import IGNORED

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ENDLESS = 1 << 40
"""Number of rows of an endless data set: about 10^12 sequences."""

TEST_FIRST = 1 << 63
"""Index of the first held-out sequence. The seed is the same, but training never reaches these indices."""

_BLOCK_ROWS = 256
_BLOCK_TOKENS = 1 << 20  # maximum number of tokens drawn at once


class HMMSequences(BatchReader, Dataset):
    """Sequences of a process as a data set for language models.

    Row `i` is sequence `first + i` of the stream `seed`, computed from `i` alone. It has `input_ids` and `labels`,
    int64 tensors of shape `(L,)`, or `(L + 1,)` with a beginning token of id `E` in front. Labels are the tokens,
    which models shift themselves, but for the first one, which nothing predicts. It is -100, because some models
    (GPT-2) would divide the loss by it too. A process whose sequences end ([`ended`]) has padding after the end, with
    the label -100, and an `attention_mask`.

    With `num_sequences` it is a map-style data set of that length ([`FiniteSequences`]). Without, it is endless and
    iterable-style ([`EndlessSequences`]): a `Trainer` reads it in order and requires `max_steps`. For a map-style data
    set of that length a `Trainer` would draw a permutation before its first step.

    Args:
        source ([`~hmm_datasets.hmm.process.Process`]): an [`~hmm_datasets.HMM`], a family or another process.
        length (`int`): `L`, symbols per sequence.
        seed (`int`, *optional*, defaults to 0): seed of the stream.
        num_sequences (`int`, *optional*): number of rows; endless by default.
        first (`int`, *optional*, defaults to 0): index of row 0.
        bos (`bool`, *optional*, defaults to `True`): put the beginning token in front.
        only_scored (`bool`, *optional*, defaults to `False`): labels are -100, which losses leave out, but for those
            tokens that an [`~hmm_datasets.hmm.families.episodic_tasks.EpisodicTask`] scores, as papers on recall
            train their models.

    Raises:
        `InputError`: a number is out of range, or `only_scored` of a process that scores no tokens.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> from hmm_datasets.hmm.families import episodic_tasks
    >>> view = HMMSequences(processes.golden_mean(), length=6)
    >>> view[10**9]["input_ids"].shape, next(iter(view))["input_ids"].shape, view.vocab_size
    (torch.Size([7]), torch.Size([7]), 3)
    >>> len(HMMSequences(processes.golden_mean(), length=6, num_sequences=500))
    500
    >>> HMMSequences(episodic_tasks.Copying(4, 3), length=7, only_scored=True)[0]["labels"].tolist()[:5]
    [-100, -100, -100, -100, -100]

    ```
    """

    def __new__(cls, *args, num_sequences: int | None = None, **kwargs):
        if cls is HMMSequences:
            cls = EndlessSequences if num_sequences is None else FiniteSequences
        return super().__new__(cls)

    def __init__(
        self,
        source: Process,
        length: int,
        *,
        seed: int = 0,
        num_sequences: int | None = None,
        first: int = 0,
        bos: bool = True,
        only_scored: bool = False,
    ):
        num_sequences = ENDLESS if num_sequences is None else integer("num_sequences", num_sequences, 1, 64)
        length = integer("length", length, 1, 32)
        seed, first = integer("seed", seed, 0, 64), integer("first", first, 0, 64)
        if first > (1 << 64) - num_sequences:
            raise InputError(
                f"first is {first}, num_sequences {num_sequences}; expected first + num_sequences - 1 in [0, 2**64)"
            )
        if only_scored and not isinstance(source, EpisodicTask):
            raise InputError(
                f"only_scored of {source.describe()}, which scores no tokens; expected a task such as "
                "associative_recall, or leave only_scored out"
            )
        self.source = source
        self.length = length
        self.seed = seed
        self.num_sequences = num_sequences
        self.first = first
        self.bos_token_id = source.num_symbols if bos else None
        self.only_scored = only_scored

    def __repr__(self) -> str:
        count = "endless" if isinstance(self, EndlessSequences) else f"{self.num_sequences:,} sequences"
        return f"HMMSequences({self.source!r}, length={self.length}, seed={self.seed}, {count})"

    @cached_property
    def tokenizer(self) -> "PreTrainedTokenizerFast":
        """The tokenizer of the rows, symbols by name, for trainers that want one as `processing_class`."""
        bos = self.bos_token_id is not None
        return hmm_tokenizer(self.source.vocabulary, self.source.num_symbols, bos=bos, prepend_bos=bos)

    @property
    def vocab_size(self) -> int:
        """`V`: the symbols, and the beginning token if there is one."""
        return self.source.num_symbols + (self.bos_token_id is not None)

    @property
    def tokens_per_row(self) -> float:
        """Tokens per row, including the beginning token; without padding, on average over 4096 rows."""
        count = min(4096, self.num_sequences)
        return self.tokens_of(count) / count

    def tokens_of(self, num_rows: int) -> int:
        """Number of tokens in the first `num_rows` rows, with the beginning tokens and without padding.

        If there is padding, the rows are drawn to count them.
        """
        if self.source.padding is None:
            return num_rows * (self.length + (self.bos_token_id is not None))
        total, block = num_rows * (self.bos_token_id is not None), max(1, _BLOCK_TOKENS // self.length)
        for first in range(0, num_rows, block):
            count = min(block, num_rows - first)
            drawn = self.source.sample(count, self.length, seed=self.seed, first=self.first + first)
            total += int((drawn != self.source.padding).sum())
        return total

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        """The rows of a whole batch; consecutive indices are drawn in one call."""
        tokens = torch.empty(len(indices), self.length + (self.bos_token_id is not None), dtype=torch.int64)
        if self.bos_token_id is not None:
            tokens[:, 0] = self.bos_token_id
        for row, index, count in _runs(indices, self.num_sequences):
            drawn = self.source.sample(count, self.length, seed=self.seed, first=self.first + index)
            tokens[row : row + count, -self.length :] = torch.from_numpy(drawn.astype(np.int64))
        labels = tokens.masked_fill(~self._scored(), IGNORED) if self.only_scored else tokens.clone()
        labels[:, 0] = IGNORED
        if self.source.padding is None:
            return [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]
        mask = tokens != self.source.padding
        rows = zip(tokens, labels.masked_fill(~mask, IGNORED), mask.long(), strict=True)
        return [{"input_ids": row, "labels": label, "attention_mask": kept} for row, label, kept in rows]

    def _scored(self) -> torch.Tensor:
        scored = torch.from_numpy(cast(EpisodicTask, self.source).scored(self.length))
        return scored if self.bos_token_id is None else torch.nn.functional.pad(scored, (1, 0))


class FiniteSequences(HMMSequences):
    """[`HMMSequences`] with `num_sequences`: a map-style data set."""

    def __len__(self) -> int:
        return self.num_sequences


class EndlessSequences(HMMSequences, IterableDataset):
    """[`HMMSequences`] without `num_sequences`: read in order, or at any index below 2**40.

    The order of the rows is the same for any number of workers of a `DataLoader`: the first one draws all, ahead of
    the training, and the others end at once, since none knows which rows the batches of the others have. For the ranks
    of a `Trainer`, accelerate distributes whole batches in order. In your own training loop over several ranks, give
    each rank a different `first`, or use [`by_index`][EndlessSequences.by_index] and a sampler, with which all workers
    draw.
    """

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        worker = get_worker_info()
        if worker is not None and worker.id > 0:
            return
        block = max(1, min(_BLOCK_ROWS, _BLOCK_TOKENS // self.length))
        for first in range(0, self.num_sequences, block):
            yield from self.__getitems__(range(first, min(first + block, self.num_sequences)))

    def by_index(self) -> FiniteSequences:
        """The same rows as a map-style data set of 2**40 rows, for samplers that visit indices in order.

        [`~hmm_datasets.training.trainer.Pretrainer`] uses it, so that resuming at any step takes constant time. A
        sampler that permutes indices, such as the default of a `Trainer`, would need 8.8 TB of memory.
        """
        return FiniteSequences(
            self.source,
            self.length,
            seed=self.seed,
            num_sequences=self.num_sequences,
            first=self.first,
            bos=self.bos_token_id is not None,
            only_scored=self.only_scored,
        )


def _runs(indices: Sequence[int], length: int) -> list[tuple[int, int, int]]:
    """Cut indices into runs of consecutive ones: row in the batch, first index, count."""
    runs: list[tuple[int, int, int]] = []
    for row, index in enumerate(map(operator.index, indices)):
        if not 0 <= index < length:
            raise IndexError(f"index {index} is outside a data set of {length} rows")
        if runs and index == runs[-1][1] + runs[-1][2]:
            runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
        else:
            runs.append((row, index, 1))
    return runs
