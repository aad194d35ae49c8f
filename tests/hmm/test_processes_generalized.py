"""The named generalized HMMs have the laws that their sources define."""

import itertools
import math

import numpy as np
import pytest

from hmm_datasets import GeneralizedHMM, processes
from hmm_datasets.errors import InputError

PAULI = {"x": np.array([[0, 1], [1, 0]]), "z": np.array([[1, 0], [0, -1]])}


@pytest.mark.thorough
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, math.sqrt(51)), (1.0, 1.0), (2.0, -0.7)])
def test_the_bloch_walk_measures_a_qubit(alpha, beta):
    process = processes.bloch_walk(alpha, beta)
    weight = 1 / (2 * math.sqrt(alpha**2 + beta**2))
    signs = (("z", 1), ("z", -1), ("x", 1), ("x", -1))
    kraus = [weight * (alpha * np.eye(2) + sign * beta * PAULI[axis]) for axis, sign in signs]
    np.testing.assert_allclose(sum(k.T @ k for k in kraus), np.eye(2), atol=1e-15)
    for word in itertools.product(range(4), repeat=4):
        state = np.eye(2) / 2
        for symbol in word:
            state = kraus[symbol] @ state @ kraus[symbol].T
        assert math.exp(process.log_likelihood([word])[0]) == pytest.approx(np.trace(state), abs=1e-15)
        if np.trace(state) < 1e-12:
            continue
        vector = process.beliefs([word])[0, -1]
        expected = [1, *(np.trace(state @ PAULI[axis]) / np.trace(state) for axis in "xz")]
        np.testing.assert_allclose(vector, expected, atol=1e-12)


def lengths_of_runs(alpha: float, lam: float, count: int = 2000) -> np.ndarray:
    lengths = np.arange(1, count)
    found = lam**lengths * np.sin(lengths * alpha / 2) ** 2
    return np.array([1 - found.sum(), *found])


@pytest.mark.parametrize(("alpha", "lam"), [(2000.0, 0.49), (0.7, 0.5), (math.pi, 0.3), (-1.0, 0.2)])
def test_the_runs_of_frdn_have_the_lengths_of_its_definition(alpha, lam):
    process = processes.frdn(alpha, lam)
    expected = lengths_of_runs(alpha, lam)
    mean = (np.arange(1, len(expected) + 1) * expected).sum()
    for length in (0, 1, 2, 5, 20):
        found = process.log_likelihood([[0] + [1] * length + [0], [0] + [0] * (length + 1)])
        assert math.exp(found[0]) == pytest.approx(expected[length] / mean, abs=1e-15)
        assert found[1] == pytest.approx(math.log(expected[0] ** (length + 1) / mean), rel=1e-12)
    # A run is longer than n with the probability that is left over.
    survival = np.exp(process.log_likelihood([[0] + [1] * 12]))[0]
    assert survival == pytest.approx(expected[12:].sum() / mean, rel=1e-12)


@pytest.mark.parametrize(("alpha", "lam"), [(2000.0, 0.49), (0.7, 0.5), (math.pi, 0.3)])
def test_the_entropy_rate_of_frdn_is_that_of_its_runs(alpha, lam):
    lengths = lengths_of_runs(alpha, lam)
    logs = np.log(np.where(lengths > 0, lengths, 1))
    expected = -(lengths * logs).sum() / (np.arange(1, len(lengths) + 1) * lengths).sum()
    rate = processes.frdn(alpha, lam).entropy_rate()
    assert rate.value == pytest.approx(expected, abs=1e-12)
    assert rate.standard_error == 0


@pytest.mark.parametrize(("alpha", "beta"), [(math.e, 0.5), (1.1, 0.95), (5.0, 0.01)])
def test_the_moon_weighs_zeros_by_its_convex_function(alpha, beta):
    process = processes.moon(alpha, beta)
    total = process.operators.sum(axis=0)
    # The sum of the operators is divided by its largest eigenvalue.
    assert np.abs(np.linalg.eigvals(total)).max() == pytest.approx(1, abs=1e-9)
    np.testing.assert_allclose(total @ process.final, process.final, rtol=1e-12)
    np.testing.assert_allclose(process.initial @ total, process.initial, rtol=1e-12, atol=1e-14)
    scale = 1 / process.operators[0, 0, 0]

    def weight(word) -> float:
        p = math.prod((alpha, beta)[symbol - 1] for symbol in word)
        return (p - 1 - math.log(p)) / scale ** (len(word) + 1)

    start = process.initial @ process.operators[0] @ process.final
    for word in itertools.product((1, 2), repeat=4):
        found = math.exp(process.log_likelihood([[0, *word, 0]])[0]) / start
        assert found == pytest.approx(weight(word), rel=1e-9)
    assert process.log_likelihood([[0, 0]])[0] == -np.inf


@pytest.mark.thorough
@pytest.mark.parametrize("make", [processes.frdn, processes.moon])
def test_bounds_meet_below_the_loss_at_every_position(make):
    process = make()
    bounds = process.entropy_rate_bounds()
    assert 0 <= bounds.upper - bounds.lower < 1e-12
    losses = process.optimal_loss(18)
    assert (losses.standard_error == 0).all()
    assert (np.diff(losses.nats) < 1e-12).all()
    assert bounds.upper < losses.nats[-1] < bounds.upper + 1e-4
    estimate = super(GeneralizedHMM, process).entropy_rate(num_sequences=64, length=600, burn_in=100)
    assert abs(estimate.value - bounds.lower) < 4 * estimate.standard_error


@pytest.mark.thorough
def test_the_entropy_rate_of_the_bloch_walk_is_estimated_below_its_losses():
    process = processes.bloch_walk(1.0, 1.3)
    rate = process.entropy_rate(num_sequences=16, length=400, burn_in=100)
    assert rate.standard_error > 0
    losses = process.optimal_loss(12, num_sequences=64)
    exact = losses.standard_error == 0
    assert exact[:6].all()
    assert not exact.all()
    assert rate.value < losses.nats[exact][-1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: processes.bloch_walk(0), "alpha is 0, beta 7.14"),
        (lambda: processes.bloch_walk(1, math.inf), "expected alpha above 0, and finite numbers"),
        (lambda: processes.frdn(lam=0.6), "lam 0.6; expected a finite angle, and lam in (0, 0.5]"),
        (lambda: processes.frdn(math.nan), "alpha is nan"),
        (lambda: processes.moon(0.9), "alpha is 0.9, beta 0.5; expected alpha > 1 > beta > 0, and a sum other than 2"),
        (lambda: processes.moon(1.5, 0.5), "a sum other than 2"),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(make, message):
    with pytest.raises(InputError) as caught:
        make()
    assert message in str(caught.value)


def test_the_entropy_rate_of_the_bloch_walk_lies_between_bounds_over_pure_states():
    """Operators take pure states, vectors (1, cos a, sin a), to pure states, and the past reveals in the end which one
    it is. So the rate is a mean over pure states of H[X_n | X_1 .. X_(n-1)] from there, for any n; here n = 7.
    """
    process = processes.bloch_walk()
    rates = []
    for angle in np.linspace(0, np.pi / 2, 33):  # the four symbols are quarters of a turn apart
        vectors = np.array([[1, np.cos(angle), np.sin(angle)]])
        for _ in range(6):
            vectors = np.einsum("ni,xij->nxj", vectors, process.operators).reshape(-1, 3)
        # Still pure, at every word.
        np.testing.assert_allclose(np.linalg.norm(vectors[:, 1:], axis=1), vectors[:, 0], atol=1e-12)
        joint = np.einsum("ni,xij,j->nx", vectors, process.operators, process.final)
        rates.append(-(joint * np.log(joint / joint.sum(axis=1, keepdims=True))).sum())
    rate = process.entropy_rate()
    assert max(rates) - min(rates) < 2e-5
    assert min(rates) < rate.value - 4 * rate.standard_error
    assert rate.value + 4 * rate.standard_error < max(rates)
