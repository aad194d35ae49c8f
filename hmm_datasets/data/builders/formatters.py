"""Fast torch and numpy formatters of `datasets` for columns of numbers.

A formatter converts the Arrow tables of a data set to tensors. Those of `datasets` 5.2 support any nesting of any
types. They convert every row of a batch separately, and make a progress bar for every row or batch (`map_nested`),
which takes 0.1 to 0.2 ms per row. Here a column is converted to one array, with one copy, if it has lists of numbers
that are equally long, nested or not. Values, types (int64 and float32) and shapes are the same. All other columns, and
formats with arguments, are passed to the formatter of `datasets`.

This module can be removed once `datasets` converts lists of equal length in one step.
"""

import numpy as np
import pyarrow as pa
import torch
from datasets import Features, LargeList, List, Value
from datasets.formatting.np_formatter import NumpyFormatter
from datasets.formatting.torch_formatter import TorchFormatter

from ...compat.datasets import replace_formatters

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
_FLOATS = ("float32", "float64")
_FORMATTED = {pa.type_for_alias(name).id: np.int64 for name in _INTEGERS}
_FORMATTED |= {pa.type_for_alias(name).id: np.float32 for name in _FLOATS}


class _NumbersAtOnce:
    """Mixin of a formatter: columns of numbers of equal shape are converted in one step, others as before."""

    def __init__(self, features: Features | None = None, token_per_repo_id: dict | None = None, **arguments):
        super().__init__(features=features, token_per_repo_id=token_per_repo_id, **arguments)
        self._at_once = not arguments
        self._others = {name for name, feature in (features or {}).items() if not _is_numbers(feature)}

    def format_row(self, pa_table: pa.Table) -> dict:
        """Convert the only row of a table."""
        arrays, others = self._split(pa_table)
        row = {name: self._tensor_of(array[0]) for name, array in arrays.items()}
        return row if others is None else _in_order(row | super().format_row(others), pa_table)

    def format_batch(self, pa_table: pa.Table) -> dict:
        """Convert all rows of a table."""
        arrays, others = self._split(pa_table)
        batch = {name: self._tensor_of(array) for name, array in arrays.items()}
        return batch if others is None else _in_order(batch | super().format_batch(others), pa_table)

    def _split(self, table: pa.Table) -> tuple[dict[str, np.ndarray], pa.Table | None]:
        """The arrays of the columns that are converted here, and a table of the others, if there are any."""
        if not self._at_once:
            return {}, table
        candidates = table
        if self._others:
            candidates = table.select([name for name in table.column_names if name not in self._others])
        arrays = number_arrays(candidates)
        if len(arrays) == table.num_columns:
            return arrays, None
        return arrays, table.drop_columns(list(arrays)) if arrays else table

    @staticmethod
    def _tensor_of(array: np.ndarray) -> np.ndarray:
        return array


class NumberNumpyFormatter(_NumbersAtOnce, NumpyFormatter):
    """Lists of integers as int64 arrays, lists of other numbers as float32 arrays."""


class NumberTorchFormatter(_NumbersAtOnce, TorchFormatter):
    """Lists of integers as int64 tensors, lists of other numbers as float32 tensors."""

    _tensor_of = staticmethod(torch.from_numpy)


def register_formatters() -> None:
    """Replace the formatters of `datasets` by these, in this process."""
    replace_formatters(numpy=NumberNumpyFormatter, torch=NumberTorchFormatter)


def _in_order(columns: dict, table: pa.Table) -> dict:
    return {name: columns[name] for name in table.column_names}


def number_arrays(table: pa.Table) -> dict[str, np.ndarray]:
    """The columns of a table that have lists of numbers of equal shape, as new int64 or float32 arrays by name."""
    arrays = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.num_chunks == 0:
            continue
        chunk = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        array = _number_array(chunk)
        if array is not None:
            arrays[name] = array
    return arrays


def _number_array(column: pa.Array) -> np.ndarray | None:
    shape = [len(column)]
    while isinstance(column, pa.ListArray | pa.LargeListArray):
        if column.null_count:
            return None
        offsets = column.offsets.to_numpy()
        start, stop = int(offsets[0]), int(offsets[-1])
        length = (stop - start) // max(1, len(column))
        if length == 0 or (len(column) > 1 and (np.diff(offsets) != length).any()):
            return None
        shape.append(length)
        column = column.values.slice(start, stop - start)  # flatten() takes ten times as long
    if len(shape) == 1 or column.type.id not in _FORMATTED or column.null_count:
        return None
    return column.to_numpy().astype(_FORMATTED[column.type.id]).reshape(shape)


def _is_numbers(feature) -> bool:
    """Whether a column has lists of numbers. Columns of other features may have to be decoded."""
    inner = feature
    while isinstance(inner, List | LargeList):
        inner = inner.feature
    return inner is not feature and isinstance(inner, Value) and inner.dtype in (*_INTEGERS, *_FLOATS)
