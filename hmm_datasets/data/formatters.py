"""Fast torch and numpy formatters of `datasets` for columns of tokens.

A formatter converts the Arrow tables of a data set to tensors. Those of `datasets` 5.2 support any nesting of any
types. They convert every row of a batch separately, and make a progress bar for every row or batch (`map_nested`),
which takes 0.1 to 0.2 ms per row. Here a table is converted to one array per column, with one copy, if every column
has lists of integers that are equally long. Values, types (int64) and shapes are the same. All other tables, and
formats with arguments, are passed to the formatter of `datasets`.

This module can be removed once `datasets` converts lists of equal length in one step.
"""

import numpy as np
import pyarrow as pa
import torch
from datasets import Features, LargeList, List, Value
from datasets.formatting.np_formatter import NumpyFormatter
from datasets.formatting.torch_formatter import TorchFormatter

from ..compat.datasets import replace_formatters

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
_INTEGER_IDS = {pa.type_for_alias(name).id for name in _INTEGERS}


class _TokensAtOnce:
    """Mixin of a formatter: columns of integers of equal shape are converted in one step, others as before."""

    def __init__(self, features: Features | None = None, token_per_repo_id: dict | None = None, **arguments):
        super().__init__(features=features, token_per_repo_id=token_per_repo_id, **arguments)
        self._at_once = not arguments and (features is None or all(map(_is_tokens, features.values())))

    def format_row(self, pa_table: pa.Table) -> dict:
        """Convert the only row of a table."""
        arrays = token_arrays(pa_table) if self._at_once else None
        if arrays is None:
            return super().format_row(pa_table)
        return {name: self._tensor_of(array[0]) for name, array in arrays.items()}

    def format_batch(self, pa_table: pa.Table) -> dict:
        """Convert all rows of a table."""
        arrays = token_arrays(pa_table) if self._at_once else None
        if arrays is None:
            return super().format_batch(pa_table)
        return {name: self._tensor_of(array) for name, array in arrays.items()}

    @staticmethod
    def _tensor_of(array: np.ndarray) -> np.ndarray:
        return array


class TokenNumpyFormatter(_TokensAtOnce, NumpyFormatter):
    """Lists of integers as int64 arrays."""


class TokenTorchFormatter(_TokensAtOnce, TorchFormatter):
    """Lists of integers as int64 tensors."""

    _tensor_of = staticmethod(torch.from_numpy)


def register_formatters() -> None:
    """Replace the formatters of `datasets` by these, in this process."""
    replace_formatters(numpy=TokenNumpyFormatter, torch=TokenTorchFormatter)


def token_arrays(table: pa.Table) -> dict[str, np.ndarray] | None:
    """The columns of a table as new int64 arrays; None unless each has lists of integers of equal length."""
    arrays = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.num_chunks == 0:
            return None
        chunk = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        arrays[name] = _token_array(chunk)
        if arrays[name] is None:
            return None
    return arrays or None


def _token_array(column: pa.Array) -> np.ndarray | None:
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
    if len(shape) == 1 or column.type.id not in _INTEGER_IDS or column.null_count:
        return None
    return column.to_numpy().astype(np.int64).reshape(shape)


def _is_tokens(feature) -> bool:
    """Whether a column has lists of integers. Columns of other features may have to be decoded."""
    inner = feature
    while isinstance(inner, List | LargeList):
        inner = inner.feature
    return inner is not feature and isinstance(inner, Value) and inner.dtype in _INTEGERS
