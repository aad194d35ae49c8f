"""The fast formatters give the same results as those of `datasets`."""

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets.formatting import NumpyFormatter, TorchFormatter

from hmm_datasets.data.builders.formatters import NumberNumpyFormatter, NumberTorchFormatter, number_arrays

RAGGED = [[1, 2, 3], [4], []]
EQUAL = [[1, 2], [3, 255], [0, 9]]
TABLES = {
    **{f"equal lists of {t}": pa.table({"a": pa.array(EQUAL, pa.list_(t))}) for t in (pa.uint8(), pa.uint16())},
    "int64, which shares no memory": pa.table({"a": pa.array(EQUAL, pa.list_(pa.int64()))}),
    "large lists": pa.table({"a": pa.array(EQUAL, pa.large_list(pa.uint32()))}),
    "two columns of unlike lengths": pa.table({"a": EQUAL, "b": [[1], [2], [3]]}),
    "a slice": pa.table({"a": [[7, 7], *EQUAL, [8, 8]]}).slice(1, 3),
    "several chunks": pa.concat_tables([pa.table({"a": EQUAL}), pa.table({"a": EQUAL[::-1]})]),
    "batches as rows": pa.table({"a": [EQUAL, EQUAL[::-1]]}),
    "batches of unlike size": pa.table({"a": [EQUAL, EQUAL[:1]]}),
    "lists of lists of lists": pa.table({"a": [[EQUAL, EQUAL]]}),
    "fractions": pa.table({"a": [[0.5, 1.5], [float("nan"), float("inf")]]}),
    "lists of lists of float32": pa.table({"a": pa.array([[[0.1], [2.0]]] * 3, pa.list_(pa.list_(pa.float32())))}),
    "fractions beside tokens": pa.table({"a": EQUAL, "b": [[0.5], [1.5], [2.5]]}),
    "text beside tokens": pa.table({"b": ["x", "y", "z"], "a": EQUAL}),
    "ragged lists": pa.table({"a": RAGGED}),
    "empty lists": pa.table({"a": pa.array([[], []], pa.list_(pa.uint8()))}),
    "a missing row": pa.table({"a": [[1, 2], None, [3, 4]]}),
    "a missing number": pa.table({"a": [[1, 2], [None, 4]]}),
    "unsigned numbers of 64 bits": pa.table({"a": pa.array([[1, 2], [3, 4]], pa.list_(pa.uint64()))}),
    "half precision": pa.table({"a": pa.array([[np.float16(0.5)]], pa.list_(pa.float16()))}),
    "truth values": pa.table({"a": [[True, False]]}),
    "single numbers": pa.table({"a": [1, 2, 3]}),
    "structs": pa.table({"a": [{"b": [1, 2]}, {"b": [3, 4]}]}),
    "lists of a fixed size": pa.table({"a": pa.array(EQUAL, pa.list_(pa.uint8(), 2))}),
}


def same(found, expected) -> bool:
    """Whether two values are equal in type, shape and content, through lists and arrays of objects."""
    if isinstance(expected, torch.Tensor | np.ndarray) and expected.dtype != object:
        equal_nan = expected.dtype in (np.float32, torch.float32)
        return found.dtype == expected.dtype and np.array_equal(found, expected, equal_nan=equal_nan)
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same(found[name], expected[name]) for name in expected)
    if isinstance(expected, list | np.ndarray):
        return type(found) is type(expected) and all(map(same, found, expected)) and len(found) == len(expected)
    return found == expected


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize(
    ("ours", "theirs"), [(NumberTorchFormatter, TorchFormatter), (NumberNumpyFormatter, NumpyFormatter)]
)
def test_rows_and_batches_are_those_of_datasets(table, ours, theirs):
    features = datasets.Features.from_arrow_schema(table.schema)
    for name in ("format_row", "format_batch"):
        part = table.slice(0, 1) if name == "format_row" else table
        try:
            expected = getattr(theirs(features=features), name)(part)
        except Exception as error:
            with pytest.raises(type(error)):
                getattr(ours(features=features), name)(part)
            continue
        found = getattr(ours(features=features), name)(part)
        assert list(found) == list(expected)
        assert all(same(found[column], expected[column]) for column in expected), (found, expected)


def test_lists_of_equal_length_are_converted_at_once_and_nothing_else():
    at_once = [name for name, table in TABLES.items() if list(number_arrays(table))[:1] == ["a"]]
    left = list(TABLES)[list(TABLES).index("ragged lists") :]
    assert at_once == [name for name in TABLES if name not in left and name != "batches of unlike size"]


def test_arrays_are_the_callers_own():
    table = TABLES["int64, which shares no memory"]
    found = NumberNumpyFormatter().format_batch(table)["a"]
    found[:] = 0
    assert table["a"].to_pylist() == EQUAL


def test_a_format_with_arguments_or_a_column_to_decode_is_left_to_datasets():
    table = TABLES["batches as rows"]
    assert NumberTorchFormatter(dtype=torch.float64).format_batch(table)["a"].dtype == torch.float64
    labels = datasets.Features({"a": datasets.List(datasets.ClassLabel(num_classes=300))})
    assert NumberTorchFormatter(features=labels)._others == {"a"}
