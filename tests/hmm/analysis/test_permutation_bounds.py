"""Bounds on the optimal loss of permuted emissions, beside the sum over all permutations."""

import itertools

import numpy as np
import pytest

from hmm_datasets import InputError, PermutedEmissions, PermutedSymbols, processes
from hmm_datasets.hmm.analysis.permutation_bounds import optimal_loss_bounds, particle_losses

FAMILY = PermutedEmissions(processes.random(4, 3, alpha=0.3, seed=2))


def exact_losses(tokens: np.ndarray) -> np.ndarray:
    probs = FAMILY.next_token_probs(tokens)[:, :-1]
    return -np.log(np.take_along_axis(probs, tokens[..., None], 2)[..., 0])


@pytest.mark.outside(
    "https://github.com/baggepinnen/LowLevelParticleFilters.jl/issues/134",
    "a log-likelihood of a particle filter that is right with and without resampling",
    "optimal_loss_bounds resamples at every token; its losses are above the sum over all permutations",
)
def test_the_bounds_enclose_the_sum_over_all_permutations():
    bounds = optimal_loss_bounds(FAMILY, 12, num_sequences=300, num_particles=48, seed=1)
    exact = exact_losses(FAMILY.sample(300, 12, seed=1).astype(np.int64)).mean(0)
    # All three are means over the same sequences, so that little of their errors is in the differences.
    assert (bounds.lower <= exact + 2 * bounds.width_error).all()
    assert (exact <= bounds.upper + 2 * bounds.width_error).all()
    assert bounds.lower[3:].sum() < exact[3:].sum() < bounds.upper[3:].sum()
    assert (bounds.width_error < bounds.upper_error).all()


def test_more_particles_come_close_to_the_exact_losses():
    (row,) = FAMILY.sample(1, 12, seed=5).astype(np.int64)
    losses = particle_losses(FAMILY.hmm, row, 40_000, np.random.default_rng(0))
    np.testing.assert_allclose(losses, exact_losses(row[None])[0], atol=0.02)


@pytest.mark.outside(
    "https://github.com/singhharsh1708/Assay.jl/issues/71",
    "a test of an unbiased likelihood that a wrong filter fails, with few particles",
    "with two particles the mean of 400 estimates is the sum over all permutations, for each of 27 sequences",
)
def test_the_first_loss_is_exact_and_estimates_of_likelihoods_are_unbiased():
    for symbol in range(3):
        loss = particle_losses(FAMILY.hmm, np.array([symbol]), 1, np.random.default_rng(0))
        np.testing.assert_allclose(loss, exact_losses(np.array([[symbol]]))[0], atol=1e-12)
    for word in itertools.product(range(3), repeat=3):
        row = np.array(word)
        estimates = np.array(
            [np.exp(-particle_losses(FAMILY.hmm, row, 2, np.random.default_rng(run)).sum()) for run in range(400)]
        )
        error = estimates.std() / 20
        assert abs(estimates.mean() - np.exp(-exact_losses(row[None]).sum())) < 4.5 * error


def test_the_bounds_are_the_same_for_a_seed_and_wrong_families_are_refused():
    first, second = (optimal_loss_bounds(FAMILY, 5, num_sequences=3, num_particles=8, seed=4) for _ in range(2))
    np.testing.assert_array_equal(first.upper, second.upper)
    for wrong in (PermutedSymbols(processes.mess3()), PermutedEmissions(processes.weather(), group=2)):
        with pytest.raises(InputError, match="expected PermutedEmissions with groups of one sequence"):
            optimal_loss_bounds(wrong, 5)
    with pytest.raises(InputError, match="num_sequences is 1"):
        optimal_loss_bounds(FAMILY, 5, num_sequences=1)
