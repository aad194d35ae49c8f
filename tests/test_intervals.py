"""Confidence intervals cover the truth as often as they say; simulations with fixed seeds."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from hmm_datasets.intervals import half_width, influence_interval, mean_of_changes, mean_of_shares, t_quantile, wilson
from hmm_datasets.paired_differences import paired_difference, ratio_interval

_SIMULATION = Path(__file__).parents[1] / "benchmarks" / "interval_coverage.py"
_SPEC = importlib.util.spec_from_file_location("interval_coverage", _SIMULATION)
simulation = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(simulation)


@pytest.mark.parametrize("count", [5, 10, 40])
@pytest.mark.parametrize("spread", [0.5, 1.0])
def test_a_ratio_of_a_few_documents_is_covered_and_equal_models_differ_rarely(count, spread):
    """The percentile bootstrap covers 80% at five documents, and finds a difference of equals in 20%. 600 repeats have
    a standard error of 0.9%."""
    covered, different = simulation.of_documents(count, spread, 600)
    assert 0.93 <= covered <= 0.97
    assert different <= 0.07


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
    "no difference, an interval of no width; no NaN",
)
def test_where_there_is_no_interval_there_is_none():
    assert ratio_interval(np.full(35, 1e4), np.ones(35)) == (1e4, 1e4)
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
