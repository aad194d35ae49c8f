import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hmm_datasets.hmm.families import RandomChains
from hmm_datasets.hmm.kernels.dirichlet import exp, log, make_doubly_stochastic, stationary_distribution


@pytest.mark.thorough
@pytest.mark.parametrize("alpha", [0.3, 1.0, 2.5])
def test_rows_of_random_chains_have_the_moments_of_a_dirichlet_distribution(alpha):
    size, count = 3, 2000
    rows = np.concatenate([RandomChains(size, alpha).hmm_at(5, i).transition for i in range(count)])
    variance = (1 / size) * (1 - 1 / size) / (size * alpha + 1)
    error = 4 * math.sqrt(variance / len(rows))
    np.testing.assert_allclose(rows.mean(axis=0), 1 / size, atol=error)
    np.testing.assert_allclose(rows.var(axis=0), variance, rtol=0.08)
    np.testing.assert_allclose(np.cov(rows.T)[0, 1:], -variance / (size - 1), rtol=0.1)
    np.testing.assert_allclose(rows.sum(axis=1), 1, atol=1e-15 * 4)


@pytest.mark.thorough
def test_a_row_of_two_at_alpha_one_is_uniform():
    rows = np.concatenate([RandomChains(2, 1.0).hmm_at(6, i).transition[:, 0] for i in range(2500)])
    observed, _ = np.histogram(rows, bins=10, range=(0, 1))
    assert ((observed - 500) ** 2 / 500).sum() < 27.9  # 99.9th percentile at 9 degrees of freedom


def test_very_small_alpha_gives_rows_that_are_nearly_certain_and_no_nan():
    transition = RandomChains(20, 1e-3).hmm_at(0, 0).transition
    assert np.isfinite(transition).all()
    assert (transition > 0).all()
    assert np.median(transition.max(axis=1)) > 0.999


def test_logarithm_and_exponential_are_exact_to_a_few_units_in_the_last_place():
    x = np.concatenate([np.random.default_rng(0).random(10_000), 2.0 ** -np.arange(60), [0.7071067811865476, 3.7]])
    reference = np.array([math.log(v) for v in x])
    np.testing.assert_allclose([log(v) for v in x], reference, rtol=1e-15, atol=1e-16)
    y = -np.linspace(0, 690, 10_000)
    np.testing.assert_allclose([exp(v) for v in y], [math.exp(v) for v in y], rtol=2e-13)
    assert exp(-1e9) > 0


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_zipf_rows_hold_the_powers_of_the_ranks(exponent):
    transition = RandomChains(40, zipf=exponent).hmm_at(3, 5).transition
    distribution = np.arange(1, 41, dtype=float) ** -exponent
    np.testing.assert_allclose(
        -np.sort(-transition, axis=1), np.tile(distribution / distribution.sum(), (40, 1)), rtol=1e-13
    )
    if exponent > 0:
        assert len({tuple(np.argsort(row)) for row in transition}) == 40, "rows share their order"


def test_every_state_is_as_likely_to_be_the_first_of_a_zipf_row():
    best = np.concatenate([RandomChains(5, zipf=1.0).hmm_at(2, i).transition.argmax(axis=1) for i in range(800)])
    observed = np.bincount(best, minlength=5)
    assert ((observed - 800) ** 2 / 800).sum() < 18.5  # 99.9th percentile at 4 degrees of freedom


@given(
    size=st.integers(1, 12),
    alpha=st.floats(1e-3, 10),
    index=st.integers(0, 2**40),
)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_rows_and_columns_of_doubly_stochastic_tables_sum_to_one_however_peaked(size, alpha, index):
    transition = RandomChains(size, alpha, doubly_stochastic=True).hmm_at(1, index).transition
    assert (transition >= 0).all()
    np.testing.assert_allclose(transition.sum(axis=0), 1, atol=1e-14)
    np.testing.assert_allclose(transition.sum(axis=1), 1, atol=1e-14)


def test_the_doubly_stochastic_table_is_the_positive_one_with_rows_and_columns_scaled():
    # Sinkhorn's theorem: there is one such table, so products around any four corners tell it.
    plain = RandomChains(6, 1.0).hmm_at(4, 0).transition
    table = plain.copy()
    make_doubly_stochastic(table)
    ratio = table / plain
    np.testing.assert_allclose(ratio * ratio[0, 0], np.outer(ratio[:, 0], ratio[0]), rtol=1e-10)
    np.testing.assert_array_equal(table, RandomChains(6, 1.0, doubly_stochastic=True).hmm_at(4, 0).transition)


def test_a_table_sinkhorn_never_ends_on_is_still_made_doubly_stochastic():
    # Nearly triangular: the limit has a zero that the iteration reaches as one over the number of rounds.
    table = np.array([[1 - 1e-290, 1e-290], [0.5, 0.5]])
    make_doubly_stochastic(table)
    np.testing.assert_allclose(table.sum(axis=0), 1, atol=1e-15)
    np.testing.assert_allclose(table, np.eye(2), atol=0.01)


@pytest.mark.parametrize(("size", "alpha"), [(1, 1.0), (2, 0.01), (7, 0.3), (30, 1.0), (20, 1e-3)])
def test_the_stationary_start_is_a_fixed_point_of_the_chain(size, alpha):
    hmm = RandomChains(size, alpha, start="stationary").hmm_at(9, 1)
    assert hmm.start.sum() == pytest.approx(1, abs=1e-14)
    np.testing.assert_allclose(hmm.start @ hmm.transition, hmm.start, atol=1e-14)
    np.testing.assert_array_equal(hmm.transition, RandomChains(size, alpha).hmm_at(9, 1).transition)


def test_the_stationary_distribution_keeps_its_digits_where_a_linear_solver_has_none():
    # Two states that hardly ever meet: the distribution is that of the rates between them, to full relative precision.
    distribution = stationary_distribution(np.array([[1.0, 1e-200], [3e-200, 1.0]]))
    np.testing.assert_allclose(distribution, [0.75, 0.25], rtol=1e-15)


def test_the_stationary_start_of_a_doubly_stochastic_chain_is_uniform():
    hmm = RandomChains(7, 0.5, doubly_stochastic=True, start="stationary").hmm_at(0, 3)
    np.testing.assert_allclose(hmm.start @ hmm.transition, hmm.start, atol=1e-15)


@pytest.mark.thorough
def test_numbers_of_states_are_uniform_in_their_range_and_subsets_uniform_too():
    family = RandomChains((2, 4), 1.0, alphabet=6)
    shown = [np.flatnonzero(family.hmm_at(7, i).emission.sum(0)) for i in range(3000)]
    sizes = np.bincount(list(map(len, shown)), minlength=5)
    assert sizes[:2].sum() == 0
    assert ((sizes[2:] - 1000) ** 2 / 1000).sum() < 13.8  # 99.9th percentile at 2 degrees of freedom
    pairs = [tuple(symbols) for symbols in shown if len(symbols) == 2]
    observed = np.array([pairs.count((a, b)) for a in range(6) for b in range(a + 1, 6)])
    assert observed.sum() == len(pairs)
    assert ((observed - len(pairs) / 15) ** 2 / (len(pairs) / 15)).sum() < 36.1  # 14 degrees of freedom


def test_a_chain_shows_the_symbols_of_its_subset_alone():
    family = RandomChains((2, 5), 1.0, alphabet=30)
    tokens = family.sample(50, 200, seed=3)
    for index, row in enumerate(tokens):
        emission = family.hmm_at(3, index).emission
        assert set(row) == set(np.flatnonzero(emission.sum(0)))
        assert len(emission) == len(set(row))


def test_emissions_of_hidden_chains_follow_the_dirichlet_distribution_of_their_own():
    family = RandomChains(3, 1.0, emission_alpha=0.4, alphabet=5)
    rows = np.concatenate([family.hmm_at(5, i).emission for i in range(1500)])
    for column in rows.T:
        assert stats.kstest(column, stats.beta(0.4, 4 * 0.4).cdf).pvalue > 1e-3 / 5  # five tests
    assert stats.kstest(rows[:, 0], stats.beta(0.5, 4 * 0.5).cdf).pvalue < 1e-6, "notices another concentration"
    plain = RandomChains(3, 1.0).hmm_at(5, 1)
    np.testing.assert_array_equal(family.hmm_at(5, 1).transition, plain.transition)
