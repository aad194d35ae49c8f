import json

import numpy as np
import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.paired_differences import paired_difference, ratio_interval
from hmm_datasets.statistics import clustered_mean


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution():
    """With sizes of one the ratio is a mean, whose error is known: 1.96 standard deviations over the root of D."""
    generator = np.random.default_rng(0)
    first = generator.normal(5.0, 10.0, 4000)
    second = first + generator.normal(0.3, 2.0, 4000)
    found = paired_difference(first, second, np.ones(4000), resamples=4000)
    change = second - first
    error = 1.96 * change.std(ddof=1) / np.sqrt(4000)
    assert found.value == pytest.approx(change.mean())
    # The quantiles of 4,000 resamples are themselves within some hundredths of the width.
    assert found.high - found.value == pytest.approx(error, rel=0.08)
    assert found.value - found.low == pytest.approx(error, rel=0.08)


def test_an_interval_covers_the_truth_as_often_as_it_says():
    """Ratios of sums of unequal documents; 300 repeats at 90%: within three standard errors of it, 5.2%."""
    covered = 0
    for seed in range(300):
        generator = np.random.default_rng(seed)
        sizes = generator.integers(1, 50, 150)
        first = sizes * 2.0
        second = sizes * 2.1 + generator.normal(0, 3, 150)
        found = paired_difference(first, second, sizes, resamples=300, level=0.9, seed=seed)
        covered += found.low <= 0.1 <= found.high
    assert 0.9 - 0.06 < covered / 300 < 0.9 + 0.05


def test_a_model_beside_itself_differs_by_nothing():
    losses = np.array([3.0, 1.0, 4.0])
    found = paired_difference(losses, losses, np.array([3, 0, 2]))
    assert (found.value, found.low, found.high) == (0.0, None, None)


@pytest.mark.parametrize(
    ("arguments", "settings", "said"),
    [
        (([1.0, 2.0], [1.0], [1, 1]), {}, "2 and 1 losses of 2 documents"),
        (([1.0], [1.0], [1]), {}, "the same two or more documents"),
        (([1.0, 1.0], [1.0, 1.0], [0, 0]), {}, "not all empty"),
        (([1.0, 1.0], [1.0, 1.0], [1, 1]), {"resamples": 0}, "resamples=0"),
        (([1.0, 1.0], [1.0, 1.0], [1, 1]), {"level": 1.0}, "level=1.0"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments, settings, said):
    with pytest.raises(InputError, match=said):
        paired_difference(*map(np.array, arguments), **settings)


def test_the_interval_of_a_ratio_is_that_of_a_difference_from_nothing():
    generator = np.random.default_rng(0)
    losses, sizes = generator.normal(5.0, 1.0, 40), generator.integers(0, 9, 40)
    found = paired_difference(np.zeros(40), losses, sizes)
    assert ratio_interval(losses, sizes) == (found.low, found.high)
    assert found.low < losses.sum() / sizes.sum() < found.high
    assert ratio_interval(losses[:1], sizes[:1]) == (None, None), "one document tells nothing of others"


@pytest.mark.parametrize("values", [[[1.0, 2.0, 4.0]], [[1.0, np.inf], [1.0, 2.0]]], ids=["one sequence", "infinite"])
def test_an_error_that_cannot_be_estimated_is_absent(values):
    found = clustered_mean(np.array(values)).report("kl")
    assert found["standard_error"] is None
    assert None in found["by_position_error"]
    assert "NaN" not in json.dumps(found)


def test_errors_of_padded_sequences_are_those_of_a_ratio_and_of_each_position():
    """By hand: three sequences of 3, 2 and 1 tokens with the mean 2, whose sums are 0, 1 and -1 beyond it."""
    values = np.array([[1.0, 2.0, 3.0], [2.0, 3.0, np.nan], [1.0, np.nan, np.nan]])
    found = clustered_mean(values, padded=True)
    assert found.mean == 2.0
    beyond = np.array([6 - 3 * 2, 5 - 2 * 2, 1 - 2], float)
    variance = (beyond**2).sum() / 2  # an unbiased one, of three sequences
    assert found.standard_error == pytest.approx((3 * variance) ** 0.5 / 6, rel=1e-14)
    np.testing.assert_allclose(found.by_position_error[:2], [(2 / 3 / 2 / 3) ** 0.5, (0.5 / 2) ** 0.5], rtol=1e-14)
    assert np.isnan(found.by_position_error[2])


def test_errors_without_padding_are_those_of_sequence_means():
    values = np.random.default_rng(0).normal(size=(7, 5))
    found = clustered_mean(values)
    assert found.standard_error == pytest.approx(values.mean(axis=1).std(ddof=1) / 7**0.5, rel=1e-12)
    np.testing.assert_allclose(found.by_position_error, values.std(axis=0, ddof=1) / 7**0.5, rtol=1e-12)
