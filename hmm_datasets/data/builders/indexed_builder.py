"""Base classes of the builders: rows that are read by index and iterated by `datasets`.

The state of a stream is the index of its next row, so resuming takes constant time. Shards for ranks and loader
workers take every `n`-th row, so that `W` ranks reading in step see the rows in order. Workers above the number of
shards read nothing, and the others read all. Parts for `num_proc` are consecutive rows, so that prepared data are in
the order of the stream.

Rows are Python lists, or Arrow tables if a format is set. `datasets` cuts tables into rows or batches and tracks how
much of a table was read, so a state in the middle of a table is the index of its first row and the number of rows
read.
"""

import copy
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from datasets.builder import Key

from ...compat.datasets import IndexedExamplesIterable, StreamedBuilder
from ..windows import IGNORED
from .columns import TOKEN_COLUMNS

_STREAMED = 256  # rows read at a time, and the maximum number wasted when a stream stops early
_STREAMED_TABLE = 1 << 10  # rows in an Arrow table of a stream, and the maximum number read again on resuming
_PREPARED = 1 << 16  # rows in an Arrow table of a prepared data set


class IndexedExamples(IndexedExamplesIterable):
    """The `count` rows `first, first + step, ...` of a source that is read by index.

    Args:
        first (`int`), step (`int`), count (`int`): the rows.
        shards (`int`): number of shards for ranks and workers.
        dtype (`np.dtype`): type of the tokens.
        columns (sequence of `str`): names of the columns. Those of `TOKEN_COLUMNS` come from the tokens, others from
            a subclass.
    """

    def __init__(self, first: int, step: int, count: int, shards: int, dtype: np.dtype, columns: Sequence[str]):
        super().__init__()
        self.first = first
        self.step = step
        self.count = count
        self.shards = shards
        self.dtype = dtype
        self.columns = tuple(columns)

    @property
    def features(self) -> datasets.Features:
        """The columns and their types."""
        return features_of(self.dtype, self.columns)

    @abstractmethod
    def _read(self, first: int, step: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the concatenated tokens of 1 to `count` rows, and the offsets of the rows, including the end."""

    def rows_from(self, start: int) -> Iterator[tuple[int, dict]]:
        """The rows from number `start` on, each with its index in the source."""
        if not set(self.columns) <= set(TOKEN_COLUMNS):
            for table in self.tables(start, _STREAMED):
                for row in table.to_pylist():
                    yield self.first + self.step * start, row
                    start += 1
            return
        while start < self.count:  # several times as fast as rows of a table
            tokens, offsets = self._read_from(start, _STREAMED)
            for begin, end in pairwise(offsets.tolist()):
                ids = tokens[begin:end].tolist()
                yield self.first + self.step * start, {name: _entries(name, ids) for name in self.columns}
                start += 1

    def tables_from(self, start: int) -> Iterator[tuple[int, pa.Table]]:
        """The rows from number `start` on as tables, each with the index of its first row in the source."""
        for table in self.tables(start, _STREAMED_TABLE):
            yield self.first + self.step * start, table
            start += len(table)

    def tables(self, start: int = 0, rows: int = _PREPARED) -> Iterator[pa.Table]:
        """The rows from number `start` on as Arrow tables of at most `rows` rows."""
        schema = self.features.arrow_schema
        while start < self.count:
            tokens, offsets = self._read_from(start, rows)
            count = len(offsets) - 1
            extra = self._more_columns(self.first + self.step * start, self.step, count)
            for name in {*self.columns} & {*TOKEN_COLUMNS}:
                extra[name] = pa.ListArray.from_arrays(offsets.astype(np.int32), _token_column(name, tokens, offsets))
            yield pa.table([extra[name].cast(schema.field(name).type) for name in self.columns], schema=schema)
            start += count

    def _more_columns(self, first: int, step: int, count: int) -> dict[str, pa.Array]:
        """Return the columns that do not come from the tokens, for `count` rows; here none."""
        return {}

    def _read_from(self, start: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
        return self._read(self.first + self.step * start, self.step, min(rows, self.count - start))

    def parts(self) -> list["IndexedExamples"]:
        """The rows, cut into at most `shards` parts of consecutive rows."""
        number = min(self.shards, max(1, self.count))
        cuts = [self.count * part // number for part in range(number + 1)]
        return [self._part(self.first + self.step * begin, self.step, end - begin, 1) for begin, end in pairwise(cuts)]

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> "IndexedExamples":
        """Every `n`-th row, from `index` on; `n` is `num_shards`, or the number of shards there are if that is less.

        `datasets` lets a worker without a shard read nothing, so no row is for an index from `n` on.
        """
        step = min(num_shards, self.num_shards)
        count = max(0, -(-(self.count - index) // step)) if index < step else 0
        shards = len(range(index, self.num_shards, num_shards))
        return self._part(self.first + self.step * index, self.step * step, count, max(1, shards))

    def _part(self, first: int, step: int, count: int, shards: int) -> "IndexedExamples":
        part = copy.copy(self)
        IndexedExamples.__init__(part, first, step, count, shards, self.dtype, self.columns)
        return part

    def shuffle_data_sources(self, generator: np.random.Generator) -> "IndexedExamples":
        """The rows in a random order; here unchanged, for rows whose order does not matter."""
        return self

    def reshard_data_sources(self) -> "IndexedExamples":
        return self

    @property
    def num_shards(self) -> int:
        """Number of shards that these rows can be cut into."""
        return min(self.shards, max(1, self.count))


class IndexedBuilder(StreamedBuilder):
    """A builder whose splits are [`IndexedExamples`], which are streamed directly and prepared one part at a time."""

    def _split(self, name: str, examples: IndexedExamples) -> datasets.SplitGenerator:
        self.info.features = examples.features
        # A list, because `num_proc` distributes the elements of lists.
        return datasets.SplitGenerator(name=name, gen_kwargs={"whole": examples, "parts": examples.parts()})

    def _generate_tables(self, whole: IndexedExamples, parts: list[IndexedExamples]) -> Iterator[tuple[Key, pa.Table]]:
        for number, part in enumerate(parts):
            for block, table in enumerate(part.tables()):
                yield Key(number, block), table

    def examples(self, split: datasets.SplitGenerator) -> IndexedExamples:
        """The rows of a split."""
        return split.gen_kwargs["whole"]


def features_of(dtype: np.dtype, columns: Iterable[str], more: Mapping[str, Any] | None = None) -> datasets.Features:
    """The features of columns in their order: those of tokens have this type, `more` has those of others."""
    types = {"input_ids": dtype, "labels": _label_type(dtype), "attention_mask": np.int8}
    kinds = {name: datasets.List(datasets.Value(str(np.dtype(kind)))) for name, kind in types.items()} | (more or {})
    return datasets.Features({name: kinds[name] for name in columns})


def _label_type(dtype: np.dtype) -> np.dtype:
    """The smallest type of all tokens and of -100."""
    return np.promote_types(dtype, np.int8)


def _entries(name: str, ids: list[int]) -> list[int]:
    """A row of a column in `TOKEN_COLUMNS`, given its tokens."""
    if name == "attention_mask":
        return [1] * len(ids)
    if name == "labels" and ids:
        ids = ids.copy()
        ids[0] = IGNORED
    return ids


def _token_column(name: str, tokens: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The same for all rows, one after the other."""
    if name == "attention_mask":
        return np.ones(len(tokens), np.int8)
    if name == "labels":
        tokens = tokens.astype(_label_type(tokens.dtype))
        tokens[offsets[:-1][np.diff(offsets) > 0]] = IGNORED
    return tokens


def files_named(name: str, data_files: Any) -> list[str]:
    """The paths and addresses of files of this name among `data_files`, in any form that `datasets` passes."""
    lists = data_files.values() if isinstance(data_files, Mapping) else [data_files or []]
    files = [str(path) for paths in lists for path in ([paths] if isinstance(paths, str) else paths)]
    return [path for path in files if path.split("/")[-1] == name]
