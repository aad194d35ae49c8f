"""Sequences of uneven lengths are kept one after the other, in the memory of their tokens, with the same results."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmm_datasets import HMM, InputError, fit_hmm
from hmm_datasets.hmm import arrays
from hmm_datasets.hmm.analysis.fit_metrics import FitMetrics
from hmm_datasets.hmm.analysis.losses import mean_losses, window_losses
from hmm_datasets.hmm.fitting import state as fit_state
from hmm_datasets.hmm.token_files import TokenRows, read_token_rows

EMITTING = HMM(transition=[[0.9, 0.1], [0.2, 0.8]], emission=[[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]])
OPTIONS = {
    "plain": {},
    "stochastic": {"update_every": 2, "batch_size": 7},
    "weights": {},
    "states": {},
    "all states": {},
    "held out": {},
}
PROGRAM = """
import sys, tracemalloc
from pathlib import Path
from hmm_datasets import HMM
from hmm_datasets.hmm.analysis.losses import window_losses
from hmm_datasets.hmm.token_files import read_token_rows
path = Path(sys.argv[1])
tracemalloc.start()
rows = read_token_rows(path)
held, peak = tracemalloc.get_traced_memory()
tracemalloc.reset_peak()
window_losses(HMM(transition=[[0.9, 0.1], [0.2, 0.8]], emission=[[1 / 90] * 90] * 2), *rows)
print(path.stat().st_size, held, peak, *rows.shape, tracemalloc.get_traced_memory()[1])
"""


def uneven(seed: int, *, gaps: bool = True):
    """Tokens in one column, their lengths, and the same as rows."""
    generator = np.random.default_rng(seed)
    lengths = generator.permutation(np.concatenate([[300, 40], generator.integers(2, 6, 60)]))
    column = generator.integers(0, 4, lengths.sum())
    if gaps:
        column[generator.random(len(column)) < 0.1] = -1
    return column, lengths, padded(column, lengths)


def padded(column, lengths, fill=0):
    rows = np.full((len(lengths), lengths.max()), fill)
    for row, part in zip(rows, np.split(column, np.cumsum(lengths)[:-1]), strict=True):
        row[: len(part)] = part
    return rows


@pytest.fixture(autouse=True)
def little_padding(monkeypatch):
    """No data are so small that they are padded whatever their lengths."""
    monkeypatch.setattr(arrays, "_LITTLE", 0)


@pytest.mark.thorough
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.outside(
    "https://github.com/jmschrei/pomegranate/issues/1023",
    "fit to sequences of uneven lengths, whose first guess failed",
    "a column with lengths, or a line for each; the result is that of padded rows, without their memory",
)
def test_a_fit_to_a_column_is_the_fit_to_its_rows(name, monkeypatch):
    column, lengths, rows = uneven(1)
    common = {"num_states": 2, "max_epochs": 3, "tolerance": 0.0, "show_progress": False, "num_symbols": 4}
    common |= {"dtype": "float64"}
    of_column, of_rows = dict(OPTIONS[name]), dict(OPTIONS[name])
    generator = np.random.default_rng(2)
    if name == "weights":
        of_column["weights"] = of_rows["weights"] = generator.integers(0, 3, len(lengths))
    if "states" in name:
        states = generator.integers(0 if name == "all states" else -1, 2, len(column))
        of_column["states"], of_rows["states"] = states[:, None], padded(states, lengths, -1)
    if name == "held out":
        of_column |= {"test_tokens": column[:, None], "test_lengths": lengths}
        of_rows |= {"test_tokens": rows, "test_lengths": lengths}
    one = fit_hmm(column[:, None], lengths=lengths, **common, **of_column)
    other = fit_hmm(rows, lengths=lengths, **common, **of_rows)
    for table, same in zip(one.hmm.tables().values(), other.hmm.tables().values(), strict=True):
        assert np.allclose(table, same, atol=1e-10)
    assert (one.num_tokens, one.epoch) == (other.num_tokens, other.epoch)
    assert abs(one.train_log_likelihood - other.train_log_likelihood) < 1e-10


def test_a_fit_that_padded_its_rows_is_resumed_from_a_column(tmp_path, monkeypatch):
    column, lengths, rows = uneven(3)
    common = {"num_states": 2, "tolerance": 0.0, "show_progress": False, "num_symbols": 4, "dtype": "float64"}
    fit_hmm(rows, lengths=lengths, max_epochs=2, checkpoint_dir=tmp_path, **common)
    resumed = fit_hmm(column[:, None], lengths=lengths, max_epochs=4, checkpoint_dir=tmp_path, **common)
    assert [row["epoch"] for row in resumed.history] == [0, 1, 2, 3]
    monkeypatch.setattr(fit_state, "_MOST_PADDED", 0)  # of what never was padded
    for _ in range(2):
        again = fit_hmm(column[:, None], lengths=lengths, max_epochs=4, checkpoint_dir=tmp_path / "new", **common)
    assert np.allclose(again.hmm.emission, resumed.hmm.emission, atol=1e-12)


@pytest.mark.thorough
@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=30), st.integers(0, 9))
def test_losses_and_metrics_of_a_column_are_those_of_its_rows(lengths, seed):
    generator, lengths = np.random.default_rng(seed), np.array([200, *lengths])
    column = generator.integers(0, 4, lengths.sum())
    column[1 + np.flatnonzero(generator.random(len(column) - 1) < 0.1)] = -1
    table, rows = TokenRows(column.reshape(-1, 1), lengths), TokenRows(padded(column, lengths), lengths)
    assert table.is_column
    assert not rows.is_column
    assert table.shape == rows.shape
    assert table.num_tokens == rows.num_tokens
    assert np.array_equal(table.row_counts, rows.row_counts)
    for one, other in zip(window_losses(EMITTING, *table), window_losses(EMITTING, *rows), strict=True):
        assert np.allclose(one, other, equal_nan=True)
    assert mean_losses(EMITTING, *table) == pytest.approx(mean_losses(EMITTING, *rows))
    assert FitMetrics(table, {"test": table})(EMITTING) == pytest.approx(FitMetrics(rows, {"test": rows})(EMITTING))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(-1, 2), min_size=1, max_size=3), min_size=1, max_size=12), st.booleans())
def test_identical_sequences_are_counted_once(lines, has_long):
    lines = [*lines, *([[0] * 99] * 2 if has_long else [])]
    column, lengths = np.concatenate(lines), np.array([len(line) for line in lines])
    for rows in (TokenRows.of_column(column, lengths), TokenRows(padded(column, lengths), lengths)):
        unique = rows.distinct()
        parts = (zip(part.tokens, part.ends, strict=True) for _, part in unique.parts(1))
        ends = [row[:end].tolist() for row, end in itertools.chain(*parts)]
        assert sorted(ends) == sorted(map(list, {tuple(line): None for line in lines}))
        assert rows.distinct(rows.part([0])).shape[0] == len({tuple(line) for line in lines} - {tuple(lines[0])})


def test_a_wrong_token_of_a_column_is_named_by_its_sequence():
    column, lengths, _ = uneven(4)
    row = 17
    column[lengths[:row].sum() + 1] = 9
    with pytest.raises(InputError, match=rf"tokens\[{row}, 1\] is 9; the symbols of this HMM are 0\.\.3"):
        fit_hmm(column[:, None], lengths=lengths, num_states=2, num_symbols=4, show_progress=False)


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/300",
    "a data set of sequences, each of another length",
    "`fit` reads a line for each, in memory of the order of the file",
)
def test_reading_takes_less_than_ten_times_the_file_however_uneven_its_lines_are(tmp_path):
    generator = np.random.default_rng(0)
    for name, longest in (("spread", 200_000), ("one line", 700_000)):
        lines = [generator.integers(0, 90, longest)]
        if name == "spread":
            lines += [generator.integers(0, 90, length) for length in generator.integers(1, 6, 20_000)]
        path = tmp_path / f"{name}.txt"
        path.write_text("".join(" ".join(map(str, line)) + "\n" for line in lines))
        result = subprocess.run([sys.executable, "-c", PROGRAM, path], capture_output=True, text=True, check=True)
        size, held, peak, count, length, of_losses = map(int, result.stdout.split())
        assert (count, length) == (len(lines), longest)
        assert peak < 10 * size
        assert held < 3 * size
        assert of_losses < 2e8  # the predictions of all tokens of the one line are 5e8


def test_rows_that_would_be_much_larger_than_their_column_are_refused_before_they_are_made():
    lengths = np.concatenate([[200_000], np.ones(20_000, int)])
    column = np.zeros(lengths.sum(), int)
    with pytest.raises(InputError, match="rows of 200,000 tokens for each of 20,001 sequences would be over 64 times"):
        arrays.rows_of_column(column, lengths)
    rows = TokenRows.of_column(column, lengths)
    assert rows.is_column
    fit_hmm(*rows[:1], lengths=rows.lengths, num_states=2, num_symbols=2, max_epochs=1, show_progress=False)


def test_a_file_of_uneven_lines_is_read_as_a_column(tmp_path):
    path = tmp_path / "a.txt"
    column, lengths, _ = uneven(5)
    lines = np.split(column, np.cumsum(lengths)[:-1])
    path.write_text("".join(" ".join(map(str, line)) + "\n" for line in lines))
    rows = read_token_rows(path)
    assert rows.is_column
    assert np.array_equal(rows.tokens.ravel(), column)
    assert np.array_equal(rows.lengths, lengths)
