"""Integers in tables and lists as other tools write them: gaps are gaps, and nothing else is taken for a symbol."""

import gzip
import itertools
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jaxtyping import Int

from hmm_datasets import InputError
from hmm_datasets.hmm.token_files import is_token_file, read_token_rows

SPELLINGS = ["", " ", "NA", "N/A", "<NA>", "NaN", "nan", "None", "null", '""']
WORDS = ["x", "A1", "1.5", "1e30", "1_0", "inf", "True", "１", "1 2", "--1", "9" * 30]


def read(path) -> list[list[int]]:
    assert is_token_file(path)
    rows = read_token_rows(path)
    ends = rows.ends
    if rows.is_column:
        return [row.tolist() for row in np.split(rows.tokens.ravel(), np.cumsum(ends)[:-1])]
    return [row[:end].tolist() for row, end in zip(rows.tokens, ends, strict=True)]


def refused(path) -> str:
    with pytest.raises(InputError) as caught:
        read_token_rows(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


grids = st.integers(2, 5).flatmap(
    lambda width: st.lists(
        st.lists(st.one_of(st.integers(0, 300).map(str), st.sampled_from(SPELLINGS)), min_size=width, max_size=width),
        min_size=1,
        max_size=6,
    )
)


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(grids, st.sampled_from([",", ";", "\t"]), st.sampled_from([".csv", ".tsv", ".txt", ".csv.gz"]))
@pytest.mark.outside(
    "https://github.com/pandas-dev/pandas/issues/28335",
    "a blank among integers, which makes floats of the column",
    "a blank is a missing symbol (-1), and whole floats beside one are integers",
)
@pytest.mark.outside(
    "https://github.com/emmekeaarts/mHMMbayes/issues/33",
    "NA among the categories of an HMM",
    "NA in a table is a missing symbol, which is summed over",
)
def test_a_table_is_what_pandas_reads_of_it(tmp_path_factory, grid, mark, suffix):
    path = tmp_path_factory.mktemp("tables") / f"a{suffix}"
    lines = [mark.join(row) for row in grid]
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    table = pd.read_csv(path, sep=mark, header=None, skipinitialspace=True, skip_blank_lines=False)
    expected = table.fillna(-1).astype(int).to_numpy()
    assume((expected >= 0).any() and not looks_numbered(expected))
    assert read(path) == expected.tolist()


def looks_numbered(table: Int[np.ndarray, "N L"]) -> bool:
    """Whether the first line or column of a table counts from 0."""
    return any(np.array_equal(side[1:], np.arange(len(side) - 1) + (side[0] == 0)) for side in (table[0], table[:, 0]))


tables = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=5, max_size=9)


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(tables, st.sampled_from([{}, {"index": False}, {"header": False}, {"index": False, "header": False}]))
def test_what_pandas_writes_of_rows_is_read_or_its_numbers_are_refused(tmp_path_factory, rows, options):
    path = tmp_path_factory.mktemp("tables") / "a.csv"
    frame = pd.DataFrame(rows)
    frame.to_csv(path, **options)
    expected = frame.fillna(-1).astype(int).to_numpy()
    if options == {"index": False, "header": False}:
        assume(not looks_numbered(expected))
        assert read(path) == expected.tolist()
    elif len(frame.columns) > 4:
        assert "as pandas numbers a table; write it with index=False, header=False" in refused(path)


@pytest.mark.parametrize(("suffix", "word"), itertools.product([".csv", ".tsv", ".txt", ".jsonl"], WORDS))
def test_what_is_no_integer_is_named_with_its_line(suffix, word, tmp_path):
    path = tmp_path / f"a{suffix}"
    mark = {".csv": ",", ".tsv": "\t"}.get(suffix, " ")
    rows = [["1", "2", "3"]] * 4
    rows.insert(2, ["1", word, "3"])
    if suffix == ".jsonl":
        value = {"1e30": 1e30, "1.5": 1.5, "inf": float("inf"), "True": True, "9" * 30: int("9" * 30)}.get(word, word)
        path.write_text("".join(json.dumps([1, value if cell == word else int(cell)]) + "\n" for _, cell, _ in rows))
    else:
        path.write_text("".join(mark.join(row) + "\n" for row in rows))
    assert is_token_file(path)
    if word == "1 2" and suffix == ".txt":
        assert read(path)[2] == [1, 1, 2, 3]
    else:
        assert ", line 3: '" in refused(path)


@pytest.mark.parametrize("header", ["a,b,c", "x y z", "t0\tt1\tt2", "token,token,token", '"s 1","s 2","s 3"'])
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".txt"])
@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/74",
    "lines of categories between commas, in a file with other columns",
    "lines of integers are sequences; a header or a name is named with its line",
)
def test_a_header_is_named_and_makes_no_words_of_integers(header, suffix, tmp_path):
    path = tmp_path / f"a{suffix}"
    path.write_text(f"{header}\n1,2,3\n3,1,2\n")
    assert is_token_file(path)
    assert "line 1: '" in (error := refused(path))
    assert "without a header" in error


def test_whole_floats_are_integers_only_beside_a_symbol_that_is_missing(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("1,2.0,3\n1,,2.0\n")
    assert read(path) == [[1, 2, 3], [1, -1, 2]]
    np.savetxt(path, [[1, 2], [3, 4]], delimiter=",")
    assert "line 1: 1.0 is a float, and no symbol of the file is missing" in refused(path)
    np.savetxt(path, [[1, 2], [3, 4]], delimiter=",", fmt="%d")  # the remedy of the error
    assert read(path) == [[1, 2], [3, 4]]
    np.savetxt(path, [[1, np.nan], [3, 4]])
    assert read(path) == [[1, -1], [3, 4]]


def test_missing_symbols_are_counted_with_those_at_the_ends_of_lines(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("1,,2\n1,2,\n")
    assert read(tmp_path / "a.csv") == [[1, -1, 2], [1, 2, -1]]
    assert "missing symbols, which are summed over: 2, 1 of them at the end of a line" in capsys.readouterr().err


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.one_of(st.integers(0, 300), st.none()), min_size=1, max_size=5), min_size=1, max_size=5),
    st.sampled_from([".jsonl", ".ndjson", ".json", ".jsonl.gz"]),
    st.sampled_from([None, "tokens", "input_ids"]),
)
def test_lists_of_json_are_sequences(tmp_path_factory, rows, suffix, column):
    path = tmp_path_factory.mktemp("lists") / f"a{suffix}"
    values = rows if column is None else [{column: row} for row in rows]
    content = (json.dumps(values) if suffix == ".json" else "\n".join(map(json.dumps, values))).encode()
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    if any(value is not None for value in rows[0]):
        assert read(path) == [[-1 if value is None else value for value in row] for row in rows]


@pytest.mark.parametrize(
    "line",
    [
        *('["a", "b"]', '[{"role": "user"}]', '{"text": "1"}', '{"tokens": ["EU", "rejects"]}', "[[1, 2]]", "[]", "3"),
        *('{"input_ids": [1, 2, 0], "attention_mask": [1, 1, 0]}', '{"text": "a", "input_ids": [1]}', "{"),
    ],
)
def test_other_json_is_no_file_of_symbols(line, tmp_path):
    (tmp_path / "a.jsonl").write_text(f"{line}\n")
    assert not is_token_file(tmp_path / "a.jsonl")
    assert "a.jsonl" in refused(tmp_path / "a.jsonl")


@pytest.mark.outside(
    "https://github.com/jmschrei/pomegranate/issues/608",
    "rows of unequal lengths in a table, filled up with NaN",
    "NaN is a missing symbol in `.npy` and `.npz`, with lengths and without",
)
@pytest.mark.parametrize("form", ["npy", "npz", "npz column", "npy column"])
def test_nan_is_a_gap_in_every_form_of_array_with_lengths(form, tmp_path):
    rows = [[0, np.nan, 2], [2, 0], [np.nan, 1, 0, 2]]
    lengths, path, beside = np.array([3, 2, 4]), tmp_path / f"x.{form[:3]}", tmp_path / "lengths.npy"
    tokens = np.concatenate(rows) if "column" in form else np.array([row + [np.nan] * (4 - len(row)) for row in rows])
    if form.startswith("npz"):
        np.savez(path, tokens=tokens, lengths=lengths)
        read_rows = read_token_rows(path)
    else:
        np.save(path, tokens)
        np.save(beside, lengths)
        read_rows = read_token_rows(path, beside)
    read_lists = [row[:end].tolist() for row, end in zip(read_rows.tokens, read_rows.ends, strict=True)]
    assert read_lists == [[0, -1, 2], [2, 0], [-1, 1, 0, 2]]
    np.savez(tmp_path / "y.npz", tokens=np.where(np.isnan(tokens), 1.5, tokens))
    assert "y.npz: " in refused(tmp_path / "y.npz")
