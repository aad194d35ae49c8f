"""Rows read by index, as `datasets` iterates them: what the builders of this package share.

A stream's state is the place of its next row, so resuming takes constant time. Sharding for ranks and loader workers
takes every `n`-th row, so that `W` ranks reading in step see the rows in their order; parts for `num_proc` are runs of
neighbours, so that what is prepared is in the order of the stream.

Rows come as Python lists, or where a format is set as Arrow tables, which `datasets` cuts into rows or batches and
keeps account of: a state in the middle of a table is its beginning and how much of it was read.
"""

import copy
from abc import abstractmethod
from collections.abc import Iterator
from itertools import pairwise

import datasets
import numpy as np
import pyarrow as pa
from datasets.builder import Key

from ...compat.datasets import PlacedRows, StreamedBuilder
from ..formatters import register_formatters

register_formatters()

_STREAMED = 256  # rows read at once; a stream that stops early wastes no more than this
_STREAMED_TABLE = 1 << 10  # rows of an Arrow table of a stream, which a stream that goes on reads again at most
_PREPARED = 1 << 16


class IndexedExamples(PlacedRows):
    """Rows `first, first + step, ...`, `count` of them, of something that is read by index.

    Args:
        first (`int`), step (`int`), count (`int`): which rows.
        shards (`int`): how many shards to offer to ranks and workers.
        dtype (`np.dtype`): of the tokens.
        labels (`bool`): whether rows have `labels`, equal to their `input_ids`.
    """

    def __init__(self, first: int, step: int, count: int, shards: int, dtype: np.dtype, labels: bool):
        super().__init__()
        self.first = first
        self.step = step
        self.count = count
        self.shards = shards
        self.dtype = dtype
        self.labels = labels

    @property
    def features(self) -> datasets.Features:
        """The columns and their types."""
        return features_of(self.dtype, labels=self.labels)

    @abstractmethod
    def _read(self, first: int, step: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of 1 to `count` rows end to end, and where rows begin, the end last."""

    def rows_from(self, place: int) -> Iterator[tuple[int, dict]]:
        """The rows from a place on, each with its index."""
        while place < self.count:
            tokens, offsets = self._read_from(place, _STREAMED)
            for begin, end in pairwise(offsets.tolist()):
                row = {"input_ids": tokens[begin:end].tolist()}
                if self.labels:
                    row["labels"] = row["input_ids"].copy()
                yield self.first + self.step * place, row
                place += 1

    def tables_from(self, place: int) -> Iterator[tuple[int, pa.Table]]:
        """The rows from a place on as tables, each with the index of its first row."""
        for table in self.tables(place, _STREAMED_TABLE):
            yield self.first + self.step * place, table
            place += len(table)

    def tables(self, place: int = 0, rows: int = _PREPARED) -> Iterator[pa.Table]:
        """The rows from `place` on as Arrow tables of at most so many rows, by default of a few megabytes."""
        names = list(self.features)
        while place < self.count:
            tokens, offsets = self._read_from(place, rows)
            column = pa.ListArray.from_arrays(offsets.astype(np.int32), tokens)
            yield pa.table(dict.fromkeys(names, column))
            place += len(column)

    def _read_from(self, place: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
        return self._read(self.first + self.step * place, self.step, min(rows, self.count - place))

    def parts(self) -> list["IndexedExamples"]:
        """The rows as at most `shards` runs of neighbours."""
        number = min(self.shards, max(1, self.count))
        cuts = [self.count * part // number for part in range(number + 1)]
        return [self._part(self.first + self.step * begin, self.step, end - begin, 1) for begin, end in pairwise(cuts)]

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> "IndexedExamples":
        """Every `num_shards`-th row, from `index` on."""
        count = max(0, -(-(self.count - index) // num_shards))
        return self._part(
            self.first + self.step * index, self.step * num_shards, count, max(1, self.shards // num_shards)
        )

    def _part(self, first: int, step: int, count: int, shards: int) -> "IndexedExamples":
        part = copy.copy(self)
        IndexedExamples.__init__(part, first, step, count, shards, self.dtype, self.labels)
        return part

    def shuffle_data_sources(self, generator: np.random.Generator) -> "IndexedExamples":
        """The rows in another order, or as they are where their order does not matter."""
        return self

    def reshard_data_sources(self) -> "IndexedExamples":
        return self

    @property
    def num_shards(self) -> int:
        """Shards left to hand out."""
        return min(self.shards, max(1, self.count))


class IndexedBuilder(StreamedBuilder):
    """A builder of splits that are [`IndexedExamples`]: streamed as they are, prepared part by part."""

    def _split(self, name: str, examples: IndexedExamples) -> datasets.SplitGenerator:
        self.info.features = examples.features
        # A list, since `num_proc` shares out the members of lists.
        return datasets.SplitGenerator(name=name, gen_kwargs={"whole": examples, "parts": examples.parts()})

    def _generate_tables(self, whole: IndexedExamples, parts: list[IndexedExamples]) -> Iterator[tuple[Key, pa.Table]]:
        for number, part in enumerate(parts):
            for block, table in enumerate(part.tables()):
                yield Key(number, block), table

    def examples(self, split: datasets.SplitGenerator) -> IndexedExamples:
        """The rows of a split."""
        return split.gen_kwargs["whole"]


def features_of(dtype: np.dtype, *, labels: bool) -> datasets.Features:
    """The features of a column `input_ids` of tokens, and of `labels` beside it where wanted."""
    tokens = datasets.List(datasets.Value(str(dtype)))
    return datasets.Features({"input_ids": tokens} | ({"labels": tokens} if labels else {}))
