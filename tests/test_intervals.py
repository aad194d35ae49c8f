"""Confidence intervals cover the truth as often as they say; simulations with fixed seeds."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from hmm_datasets import intervals
from hmm_datasets.intervals import (
    half_width,
    influence_interval,
    mean_of_changes,
    mean_of_shares,
    t_quantile,
    wilson,
)
from hmm_datasets.paired_differences import paired_difference, ratio_interval

_SIMULATION = Path(__file__).parents[1] / "benchmarks" / "interval_coverage.py"
_SPEC = importlib.util.spec_from_file_location("interval_coverage", _SIMULATION)
simulation = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(simulation)


@pytest.mark.thorough
@pytest.mark.parametrize("count", [5, 10, 40])
@pytest.mark.parametrize("spread", [0.5, 1.0])
def test_a_ratio_of_a_few_documents_is_covered_and_equal_models_differ_rarely(count, spread):
    """The percentile bootstrap covers 80% at five documents, and finds a difference of equals in 20%. 600 repeats have
    a standard error of 0.9%."""
    covered, different = simulation.of_documents(count, spread, 600)
    assert 0.93 <= covered <= 0.97
    assert different <= 0.07


@pytest.mark.thorough
@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
@pytest.mark.parametrize("count", [3, 5, 8, 60])
def test_rare_losses_are_covered_or_have_no_interval(count, share):
    """Losses of 0 but in a share of the documents: intervals covered 59% to 75% at three to eight documents."""
    generator, covered, intervals = np.random.default_rng([count, round(10 * share)]), 0, 0
    for _ in range(400):
        losses = generator.exponential(1, count) * (generator.random(count) < share)
        low, high = ratio_interval(losses, np.ones(count))
        if low is not None:
            intervals, covered = intervals + 1, covered + (low <= share <= high)
    assert covered >= 0.89 * intervals - 3 * (0.0475 * intervals) ** 0.5
    assert count == 60 or intervals < 0.75 * 400
    if share == 0.5 and count == 60:
        assert intervals > 390


@pytest.mark.thorough
@pytest.mark.parametrize("chance", [0.02, 0.5, 0.99, None])
@pytest.mark.parametrize(("tasks", "items"), [(3, 40), (22, 10), (22, 60)])
def test_a_mean_of_accuracies_is_covered_near_0_and_1_too(tasks, items, chance):
    """The bootstrap within tasks covers 21% to 71% near 0 and 1."""
    covered, different = simulation.of_questions(tasks, items, chance, 1000)
    assert 0.93 <= covered <= 0.98, "counts of few questions move in steps"
    assert different <= 0.07


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_a_mean_over_a_few_sequences_is_covered(count):
    """1.96 standard errors cover 70% at two sequences and 91% at ten."""
    assert 0.93 <= simulation.of_sequences(count, 20_000) <= 0.97


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 30, 199, 200, 5000])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.999])
def test_quantiles_of_students_distribution_are_those_of_scipy(degrees, level):
    assert t_quantile(level, degrees) == pytest.approx(stats.t.ppf((1 + level) / 2, degrees), rel=1e-5)


@pytest.mark.outside(
    "https://github.com/EleutherAI/lm-evaluation-harness/issues/4070",
    "an interval where all answers are right or all wrong, for a standard error of exactly 0",
    "Wilson's interval has a width: 25 of 25 is 86.7% .. 100%",
)
@pytest.mark.outside(
    "https://github.com/NVIDIA/garak/issues/2033",
    "an interval at pass rates of 0% and 100%, where the bootstrap has no width",
    "Wilson's interval: 10 of 10 is 72.2% .. 100%",
)
@pytest.mark.parametrize(("right", "total"), [(0, 10), (10, 10), (25, 25), (3, 7), (999, 1000)])
def test_the_interval_of_a_share_is_wilsons(right, total):
    expected = stats.binomtest(right, total).proportion_ci(method="wilson")
    assert wilson(right, total) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert mean_of_shares([right], [total], [3]) == pytest.approx(wilson(right, total), abs=0.02)


@pytest.mark.parametrize("shares", [[0.5, 0.3, 0.2], [0.6, 0.1, 0.1, 0.1, 0.1], [0.25, 0.25, 0.2, 0.15, 0.1, 0.05]])
def test_the_statistic_of_unequal_documents_has_its_simulated_quantile(shares):
    """Squared residuals are a quadratic form `e' A e` of normal ones, with `2 tr(A)^2 / tr(2 A^2)` degrees of freedom
    by Satterthwaite (Biometrics 2, 1946); the quantile is that of 200,000 other draws."""
    shares = np.array(shares)
    beyond = np.eye(len(shares)) - shares  # residuals of residuals
    form = beyond.T @ np.diag(shares**2 / (1 - shares)) @ beyond
    degrees = 2 * np.trace(form) ** 2 / (2 * np.trace(form @ form))
    assert intervals._effective_degrees(shares) == pytest.approx(degrees, rel=1e-10)
    drawn = np.random.default_rng(5).normal(size=(200_000, len(shares)))
    ratios = np.abs(drawn @ shares) / np.sqrt(np.einsum("ni,ij,nj->n", drawn, form, drawn))
    for level in (0.8, 0.95):
        critical = intervals._critical(shares, 20_000, level, 0)
        assert critical == pytest.approx(np.quantile(ratios, level), rel=0.04)
    assert intervals._critical(np.full(5, 0.2), 1, 0.95, 0) == pytest.approx(stats.t.ppf(0.975, 4))


def test_from_200_effective_documents_on_the_quantile_is_that_of_student():
    shares = np.random.default_rng(0).dirichlet(np.full(2000, 2.0))
    degrees = intervals._effective_degrees(shares)
    assert 200 < degrees < 2000
    assert intervals._critical(shares, 1, 0.95, 0) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-8)


@pytest.mark.parametrize("count", [2, 3, 6])
def test_the_variance_of_a_mean_of_shares_is_that_of_its_tasks(count):
    """By enumeration of all answers of a task: with one question more, answered like the mean, and `n - 1` in the
    place of `n`, the variance is not underestimated; with `n` it would be."""
    tasks, share = 40, 0.3
    chances = stats.binom.pmf(np.arange(count + 1), count, share)
    answers = (np.arange(count + 1) + share) / (count + 1)
    expected = tasks * float(chances @ (answers * (1 - answers))) / max(count - 1, 1) / tasks**2
    assert expected >= share * (1 - share) / count / tasks > expected * max(count - 1, 1) / count * 0.99
    # As many tasks with each answer as there are on average.
    right = np.repeat(np.arange(count + 1), np.round(chances * 1000).astype(int))
    low, high = mean_of_shares(right, np.full(len(right), count), np.ones(len(right)))
    mean = right.mean() / count
    answers = (right + mean) / (count + 1)
    variance = (answers * (1 - answers) / max(count - 1, 1)).mean() / len(right)
    assert (low, high) == pytest.approx(
        wilson(mean**2 * (1 - mean) / variance, mean * (1 - mean) / variance), rel=1e-9
    )


def test_documents_of_one_size_have_the_interval_of_student():
    losses = np.random.default_rng(0).normal(5, 1, 6)
    expected = stats.t.interval(0.95, 5, loc=losses.mean(), scale=losses.std(ddof=1) / 6**0.5)
    assert ratio_interval(losses, np.ones(6)) == pytest.approx(expected)
    assert half_width(losses.std(ddof=1) / 6**0.5, 6) == pytest.approx((expected[1] - expected[0]) / 2)


def test_many_documents_need_no_simulation():
    """From 200 degrees of freedom on the quantile has a closed form; both are within the noise of 4,000 draws."""
    generator = np.random.default_rng(1)
    sizes = generator.integers(1, 9, 400)
    losses = sizes + generator.normal(0, 1, 400)
    whole = ratio_interval(losses, sizes)
    drawn = ratio_interval(losses[:250], sizes[:250], resamples=4000)
    assert whole[1] - whole[0] == pytest.approx((drawn[1] - drawn[0]) * (250 / 400) ** 0.5, rel=0.15)


@pytest.mark.outside(
    "https://github.com/scipy/scipy/pull/14351",
    "BCa intervals of data that are all equal, which are NaN",
    "a difference of 0 and no interval, of which no spread is known; no NaN",
)
def test_where_there_is_no_interval_there_is_none():
    assert ratio_interval(np.full(35, 1e4), np.ones(35)) == (None, None), "an interval of no width covers nothing"
    assert ratio_interval(np.array([1.1e7, 1.1, 1.1]), np.array([1e7, 1, 1])) == (None, None), "one document"
    assert ratio_interval(np.array([990.0, 6, 4]), np.array([990, 5, 5]))[0] < 1, "one of 99%"
    assert ratio_interval(np.array([1.0, 2.0]), np.array([0, 3])) == (None, None), "one document of a size"
    assert ratio_interval(np.array([1.0, np.inf]), np.array([1, 3])) == (None, None)
    assert influence_interval(1.0, np.zeros(1), np.ones(1)) is None
    assert (wilson(0, 0), half_width(None, 9), half_width(0.1, 1)) == (None, None, None)
    found = paired_difference([1.0, np.inf], [1.0, 2.0], [1, 1])
    assert (found.low, found.high) == (None, None)


def test_two_runs_that_agree_on_every_question_may_still_differ():
    low, high = mean_of_changes([0, 0], [0, 0], [10, 20], [0.5, 0.5])
    assert -0.2 < low < 0 < high < 0.2
    low, high = mean_of_changes([30], [5], [100], [1.0])
    assert 0 < low < 0.25 < high
