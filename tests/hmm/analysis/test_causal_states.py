"""Excess entropy, and epsilon machines and what an observer knows of them, by enumeration and closed forms."""

import itertools
import math

import brute_force
import numpy as np
import pytest

from hmm_datasets import HMM, GeneralizedHMM, InputError, processes
from hmm_datasets.hmm.arrays import operators

BIT = math.log(2)


def random_unifilar(states: int, symbols: int, seed: int) -> HMM:
    """A random unifilar HMM, irreducible since symbol 0 leads around all states."""
    generator = np.random.default_rng(seed)
    edges = np.zeros((symbols, states, states))
    probs = generator.dirichlet(np.ones(symbols), states)
    for state, symbol in itertools.product(range(states), range(symbols)):
        after = (state + 1) % states if symbol == 0 else generator.integers(states)
        edges[symbol, state, after] = probs[state, symbol]
    return HMM(edges=edges)


def with_copies(hmm: HMM, seed: int) -> HMM:
    """The same process with two copies of each state, between which every move chooses at random."""
    shares = np.random.default_rng(seed).dirichlet(np.ones(2), hmm.num_states)
    split = np.zeros((hmm.num_states, 2 * hmm.num_states))
    for state, share in enumerate(shares):
        split[state, [state, hmm.num_states + state]] = share
    return HMM(edges=np.concatenate([hmm.edges @ split] * 2, axis=1))


def words(symbols: int, length: int) -> np.ndarray:
    return np.array(list(itertools.product(range(symbols), repeat=length)), np.int64).reshape(symbols**length, length)


def probability(hmm: HMM, word, start: np.ndarray | None = None) -> float:
    """A product of matrices, which no function of the package computes."""
    vector = hmm.stationary() if start is None else start
    for symbol in word:
        vector = vector @ operators(hmm)[symbol]
    return float(vector.sum())


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(12))
def test_the_epsilon_machine_of_a_process_with_copies_of_states_is_the_one_without(seed):
    states, symbols = 2 + seed % 4, 2 + seed % 2
    plain = random_unifilar(states, symbols, seed)
    doubled = with_copies(plain, seed)
    machine = doubled.epsilon_machine()
    assert machine.is_unifilar()
    assert machine.num_states == plain.epsilon_machine().num_states == states
    for word in words(symbols, 5):
        assert probability(machine, word) == pytest.approx(probability(doubled, word), abs=1e-10)
    # No two states have the same future.
    futures = np.array([[probability(machine, word, row) for word in words(symbols, 4)] for row in np.eye(states)])
    assert min(np.abs(a - b).max() for a, b in itertools.combinations(futures, 2)) > 1e-6
    shares = np.sort(plain.stationary())
    np.testing.assert_allclose(np.sort(machine.start), shares, atol=1e-10)
    complexity = doubled.statistical_complexity()
    assert complexity.value == pytest.approx(-(shares * np.log(shares)).sum(), abs=1e-10)
    assert complexity.error == 0


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["golden_mean", "even", "rrxor", "zero_one_random", "mr_name"])
def test_mixed_states_of_the_machine_have_how_an_observer_finds_out_its_state(name):
    machine = getattr(processes, name)().epsilon_machine()
    observer = machine.mixed_states(4)
    unknown = -(observer.beliefs * np.log(np.where(observer.beliefs > 0, observer.beliefs, 1))).sum(1)
    is_certain = observer.beliefs.max(1) > 1 - 1e-9
    for length in range(5):
        uncertainty = synchronized = 0.0
        for word in words(machine.num_symbols, length):
            weight = probability(machine, word)
            if weight > 0:
                belief = brute_force.beliefs(machine, list(word))[-1]
                uncertainty -= weight * sum(p * math.log(p) for p in belief if p > 0)
                synchronized += weight * (belief.max() > 1 - 1e-9)
        assert observer.distribution[length] @ unknown == pytest.approx(uncertainty, abs=1e-10)
        assert observer.distribution[length] @ is_certain == pytest.approx(synchronized, abs=1e-10)


def test_published_values_of_named_processes():
    """Crutchfield and Feldman, Chaos 13, 2003, sections V and VI: in bits."""
    third = math.log2(3) - 2 / 3  # of the distribution (1/3, 2/3)
    for name, complexity, excess in (
        ("golden_mean", third, third - 2 / 3),
        ("even", third, third),
        ("rrxor", 2.2516, 2.2516),
    ):
        hmm = getattr(processes, name)()
        assert hmm.statistical_complexity().value / BIT == pytest.approx(complexity, abs=1e-4), name
        assert hmm.excess_entropy().value / BIT == pytest.approx(excess, abs=1e-4), name


@pytest.mark.thorough
def test_the_complexity_of_the_simple_nonunifilar_source_is_that_of_a_renewal_process():
    """Its causal states count the ones since a zero: shares are survival probabilities over their sum."""
    hmm = processes.simple_nonunifilar()
    survival, vector = [], np.array([1.0, 0.0])
    for _ in range(200):
        survival.append(vector.sum())
        vector = vector @ operators(hmm)[1]
    shares = np.array(survival) / sum(survival)
    complexity = hmm.statistical_complexity()
    assert complexity.value == pytest.approx(-(shares * np.log(shares)).sum(), abs=1e-8)
    assert complexity.value / BIT == pytest.approx(2.71, abs=0.005)  # Crutchfield, Physica D 75, 1994
    assert complexity.error < 1e-6
    assert processes.mess3().statistical_complexity().error == math.inf
    with pytest.raises(InputError, match="has more than 1,024 causal states within 6 symbols, and perhaps no finite"):
        processes.mess3().epsilon_machine()


@pytest.mark.thorough
def test_mixed_states_of_a_generalized_hmm_are_its_predictive_vectors():
    hmm = processes.rrxor()
    same = GeneralizedHMM(operators(hmm), initial=hmm.start, final=np.ones(5)).mixed_states(20)
    expected = hmm.mixed_states(20)
    assert (len(same.beliefs), same.closed, same.words) == (36, True, expected.words)
    np.testing.assert_allclose(same.distribution, expected.distribution, atol=1e-10)
    np.testing.assert_array_equal(same.following, expected.following)
    for process in (processes.bloch_walk(), processes.moon()):
        tree = process.mixed_states(4)
        for number, word in enumerate(tree.words):
            tokens = np.array([word], np.int64)
            np.testing.assert_allclose(tree.beliefs[number], process.beliefs(tokens)[0, -1], atol=1e-10)
            np.testing.assert_allclose(tree.next_token_probs[number], process.next_token_probs(tokens)[0, -1])
        odds = [math.exp(process.log_likelihood([word])[0]) for word in words(process.num_symbols, 4).tolist()]
        assert tree.distribution[4].max() >= max(odds) - 1e-10


@pytest.mark.outside(
    "https://github.com/ELIFE-ASU/Inform/issues/14",
    "the excess entropy of a process, in line with Feldman and Crutchfield",
    "excess_entropy, exact for the process; optimal_loss gives the entropies that it sums",
)
def test_the_excess_entropy_of_a_period_of_three_is_the_entropy_of_its_phase():
    """The example of the report is the series 0, 0, 1 repeated."""
    period = HMM(transition=np.roll(np.eye(3), 1, axis=1), emission=[[1, 0], [1, 0], [0, 1]])
    assert period.excess_entropy().value == pytest.approx(math.log(3), abs=1e-10)
    generalized = GeneralizedHMM(operators(period), initial=np.full(3, 1 / 3), final=np.ones(3))
    assert generalized.excess_entropy().value == pytest.approx(math.log(3), abs=1e-9)


@pytest.mark.outside(
    "https://github.com/jsboige/CoursIA/issues/5100",
    "causal states, statistical complexity and excess entropy of a process",
    "epsilon_machine, statistical_complexity and excess_entropy, exact from the tables",
)
def test_excess_entropy_is_at_most_the_complexity():
    for seed in range(3):
        hmm = random_unifilar(3, 2, seed)
        excess = hmm.excess_entropy()
        assert excess.value <= hmm.statistical_complexity().value + excess.error + 1e-9
