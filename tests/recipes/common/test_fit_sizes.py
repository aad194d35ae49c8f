"""Fits of several sizes compared: criteria, intervals, the best, the table and the curve."""

import numpy as np
import pytest
from fit_sizes import best_size, plot_sizes, size_row, sizes_table

from hmm_datasets import HMM, fit_hmm
from hmm_datasets.hmm import processes
from tests.hmm.brute_force import LEFT_TO_RIGHT

SOURCE = processes.dishonest_casino()
TRAIN, TEST = SOURCE.sample(40, 30, seed=0), SOURCE.sample(20, 30, seed=1)


def fits(**arguments):
    return [fit_hmm(TRAIN, num_states=h, max_epochs=6, show_progress=False, **arguments) for h in (1, 2, 4)]


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/208",
    "how many states to choose for 41 symbols; the answer was AIC or BIC, if the data are not too many",
    "`fit --num_states 2 4 8 16` prints held-out loss with interval, AIC and BIC of each, and marks the best",
)
@pytest.mark.parametrize("seed", range(3))
def test_criteria_are_those_of_hmmlearn(seed):
    pytest.importorskip("hmmlearn")
    tokens = processes.random(3, 4, alpha=0.4, seed=seed).sample(15, 12, seed=1)
    for states in (1, 2, 4):
        result = fit_hmm(tokens, num_states=states, num_symbols=4, max_epochs=3, dtype="float64", show_progress=False)
        theirs, column = result.hmm.to_hmmlearn(), tokens.reshape(-1, 1).astype(int)
        assert result.aic == pytest.approx(theirs.aic(column, [12] * 15), rel=1e-12)
        assert result.bic == pytest.approx(theirs.bic(column, [12] * 15), rel=1e-12)


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/jmschrei/pomegranate/issues/391",
    "how many parameters a model of 3 or 4 states has, to compare them",
    "`result.num_parameters`; structural zeros and fixed tables are not counted",
)
def test_zeros_and_fixed_tables_are_no_parameters():
    tokens = LEFT_TO_RIGHT.sample(10, 8, seed=0)
    known = {"initial": LEFT_TO_RIGHT, "max_epochs": 2, "show_progress": False}
    assert fit_hmm(tokens, **known).num_parameters == 0 + (1 + 1 + 0) + (1 + 1 + 1)
    assert fit_hmm(tokens, fixed=["emission"], **known).num_parameters == 2
    assert fit_hmm(tokens, num_states=4, num_symbols=3, max_epochs=1, show_progress=False).num_parameters == 3 + 12 + 8
    weighted = fit_hmm(tokens, weights=np.full(10, 2.0), **known)
    assert weighted.num_tokens == 160
    assert weighted.bic == pytest.approx(5 * np.log(160) - 320 * weighted.train_log_likelihood)


def test_the_interval_is_over_held_out_sequences():
    result = fits()[1]
    losses = -result.hmm.log_likelihood(TEST) / 30
    row = size_row(result, TEST)
    assert row["test_loss"] == pytest.approx(losses.mean(), rel=1e-12)
    half = 2.0930240544 * losses.std(ddof=1) / np.sqrt(20)  # the quantile of Student's t with 19 degrees of freedom
    assert row["test_high"] - row["test_loss"] == pytest.approx(half, rel=1e-8)
    assert row["test_loss"] - row["test_low"] == pytest.approx(half, rel=1e-8)
    assert size_row(result, TEST[:1])["test_low"] is None


@pytest.mark.parametrize("missing", [np.s_[0, :], np.s_[3, 20:], np.s_[:, 4]])
def test_missing_tokens_weigh_nothing_as_in_the_fit(missing):
    gaps = TEST.astype(np.int64)
    gaps[missing] = -1
    ends = np.where(np.arange(20) % 2 == 0, 30, 21)
    for lengths in (None, ends):
        result = fit_hmm(
            TRAIN, num_states=2, max_epochs=3, test_tokens=gaps, test_lengths=lengths, show_progress=False
        )
        row = size_row(result, gaps, lengths)
        assert row["test_loss"] == pytest.approx(-result.test_log_likelihood, rel=1e-5)  # the fit has float32
        assert row["test_low"] < row["test_loss"] < row["test_high"]


@pytest.mark.thorough
def test_the_best_has_the_lowest_held_out_loss_or_else_the_lowest_bic(tmp_path):
    rows = [size_row(result, TEST) for result in fits(test_tokens=TEST)]
    assert best_size(rows)["test_loss"] == min(row["test_loss"] for row in rows)
    text = sizes_table(rows).text()
    assert [line.split()[1] for line in text.splitlines() if " * " in line[:5]] == ["*"]
    blind = [size_row(result) for result in fits()]
    assert best_size(blind)["bic"] == min(row["bic"] for row in blind)
    assert "held out" not in sizes_table(blind).text().splitlines()[0]
    plot_sizes(rows, tmp_path / "sizes.png", title="casino")
    plot_sizes(blind, tmp_path / "blind.png", title="casino")
    assert (tmp_path / "sizes.png").stat().st_size > 10_000


def test_a_size_that_rules_held_out_sequences_out_is_not_the_best():
    tokens = [[0, 1, 0, 1]] * 4
    alternating = HMM(start=[1, 0], transition=[[0, 1], [1, 0]], emission=[[1, 0], [0, 1]])
    results = [
        fit_hmm(tokens, initial=alternating, show_progress=False),
        fit_hmm(tokens, num_states=1, show_progress=False),
    ]
    rows = [size_row(result, np.array([[0, 0, 1, 1], [0, 1, 0, 1]])) for result in results]
    assert rows[0]["test_loss"] is None
    assert best_size(rows)["num_states"] == 1
    assert sizes_table(rows).rows[0][3] == "-"
