from fractions import Fraction

import numpy as np
import pytest
from mixture_predictors import independent_mixture

from hmm_datasets import HMM, FactoredProcess, GeneralizedHMM, MarkovChain
from hmm_datasets.hmm.analysis.predictors import stationary_distributions
from hmm_datasets.hmm.analysis.stationary import cesaro_limit, eliminate
from hmm_datasets.hmm.families.mixture import ChainMixture

RARE = np.array([[1 - 1e-15, 1e-15], [3e-15, 1 - 3e-15]])
SHARES = np.array([0.75, 0.25])


def two_blocks(size=3, rate=1e-13):
    """Two irreducible blocks; the first is left three times as often as the second, by one entry each."""
    generator = np.random.default_rng(0)
    transition = np.zeros((2 * size, 2 * size))
    for block in (slice(0, size), slice(size, None)):
        transition[block, block] = generator.dirichlet(np.ones(size), size)
    transition[0, size], transition[size, 0] = 3 * rate, rate
    return transition


def in_fractions(transition):
    """The stationary distribution of an irreducible chain, exactly; what stays is not used."""
    moves = [[Fraction(float(x)) for x in row] for row in transition]
    for last in reversed(range(1, len(moves))):
        leaving = sum(moves[last][:last])
        for i in range(last):
            moves[i][last] /= leaving
            for j in range(last):
                moves[i][j] += moves[i][last] * moves[last][j]
    shares = [Fraction(1)]
    for k in range(1, len(moves)):
        shares.append(sum(shares[i] * moves[i][k] for i in range(k)))
    return np.array([float(share / sum(shares)) for share in shares])


def test_rates_below_rounding_have_their_shares_in_every_process():
    look = np.eye(2)
    hmm = HMM(transition=RARE, emission=look)
    np.testing.assert_allclose(hmm.start, SHARES, rtol=1e-12)
    np.testing.assert_allclose(HMM(start=[1, 0], transition=RARE, emission=look).stationary(), SHARES, rtol=1e-12)
    np.testing.assert_allclose(stationary_distributions(hmm).symbol.numpy(), SHARES, rtol=1e-12)
    np.testing.assert_allclose(MarkovChain(RARE).start, SHARES, rtol=1e-12)
    chains = ChainMixture([RARE, RARE[::-1, ::-1]])
    np.testing.assert_allclose(chains.start, [SHARES, SHARES[::-1]], rtol=1e-12)
    np.testing.assert_allclose(independent_mixture(chains).start, chains.start, rtol=1e-12)
    general = GeneralizedHMM(look[:, :, None] * RARE)
    np.testing.assert_allclose(general.initial, SHARES, rtol=1e-12)
    pair = FactoredProcess([hmm, hmm]).joint_process()
    np.testing.assert_allclose(pair.stationary(), np.kron(SHARES, SHARES), rtol=1e-12)


def test_transient_states_have_a_share_of_exactly_0():
    """Powers only approach it: sequences of impossible beginnings had a likelihood of -106."""
    moves = np.array([[0.9, 0.1, 0], [0, 0.25, 0.75], [0, 0.5, 0.5]])
    expected = [0, 0.4, 0.6]
    look = np.eye(3)
    hmm = HMM(transition=moves, emission=look)
    assert hmm.log_likelihood([[0, 0, 1]])[0] == -np.inf
    general = GeneralizedHMM(look[:, :, None] * moves)
    chains = ChainMixture([moves, moves])
    pair = FactoredProcess([hmm, hmm])
    for start in (
        hmm.start,
        hmm.stationary(),
        MarkovChain(moves).start,
        general.initial,
        chains.start[0],
    ):
        np.testing.assert_allclose(start, expected, rtol=1e-12)
        assert start[0] == 0
    joint = pair.joint_process().start
    assert (joint == 0).tolist() == [bool(0 in divmod(state, 3)) for state in range(9)]
    for size in (30, 600):  # by powers, and by steps
        table = np.zeros((size, size))
        table[0, :2], table[1:, 1:] = 0.5, np.random.default_rng(0).dirichlet(np.ones(size - 1), size - 1)
        assert (MarkovChain(table).start == 0).tolist() == [True] + [False] * (size - 1)


@pytest.mark.parametrize("rate", [1e-3, 1e-13, 1e-18])
def test_blocks_with_few_moves_between_them_have_the_shares_of_fractions(rate):
    transition = two_blocks(rate=rate)
    start = np.full(6, 1 / 6)
    np.testing.assert_allclose(cesaro_limit(start, transition), in_fractions(transition), rtol=1e-10)


def test_every_entry_keeps_its_digits():
    generator = np.random.default_rng(1)
    for size in (1, 2, 3, 6):
        for _ in range(20):
            transition = 10 ** generator.uniform(-30, 0, (size, size))
            transition /= transition.sum(axis=1, keepdims=True)
            start = generator.dirichlet(np.ones(size))
            found, lasts = eliminate(start, transition)
            np.testing.assert_allclose(found, in_fractions(transition), rtol=1e-14)
            assert len(lasts) == 1


def test_closed_classes_have_the_probabilities_of_being_caught():
    # Transient states among three closed classes, one of them with a period, in an order that tells nothing.
    generator = np.random.default_rng(2)
    size, order = 130, np.random.default_rng(3).permutation(130)
    transition = generator.dirichlet(np.ones(size), size)
    for begin, end in ((0, 50), (50, 53), (53, 54)):
        transition[begin:end] = 0
        own = slice(begin, end)
        transition[own, own] = np.roll(np.eye(3), 1, axis=1) if end == 53 else np.full((end - begin,) * 2, 0.02)
    transition[53, 53] = 1
    caught = np.linalg.solve(np.eye(76) - transition[54:, 54:], transition[54:, :54])
    start = generator.dirichlet(np.ones(size))
    weights = start[:54] + start[54:] @ caught
    expected = np.zeros(size)
    for begin, end in ((0, 50), (50, 53), (53, 54)):
        expected[begin:end] = weights[begin:end].sum() / (end - begin)
    found, lasts = eliminate(start[order], transition[np.ix_(order, order)])
    np.testing.assert_allclose(found, expected[order], atol=1e-14)
    assert len(lasts) == 3


def test_transient_states_and_moves_that_underflow_leave_no_nan():
    tiny = np.array([[1 - 1e-200, 1e-200, 0], [1, 0, 1e-200], [0, 0, 1]])
    np.testing.assert_array_equal(cesaro_limit(np.array([1.0, 0, 0]), tiny), [0, 0, 1])
    smallest = np.array([[1.0, 5e-324, 0], [0, 1.0, 5e-324], [5e-324, 0, 1.0]])
    np.testing.assert_allclose(cesaro_limit(np.array([1.0, 0, 0]), smallest), np.full(3, 1 / 3), rtol=1e-12)


@pytest.mark.thorough
def test_many_contexts_that_hardly_mix_are_eliminated(monkeypatch):
    table = two_blocks(size=2)
    monkeypatch.setattr("hmm_datasets.hmm.structured.markov._DENSE_CONTEXTS", 1)
    np.testing.assert_allclose(MarkovChain(table).start, in_fractions(table), rtol=1e-10)


def test_a_process_that_hardly_moves_away_from_its_start_is_not_stationary():
    hmm = HMM(start=[1, 0], transition=RARE, emission=[[0.5, 0.5], [1, 0]])
    assert not GeneralizedHMM.from_hmm(hmm).is_stationary
    assert GeneralizedHMM.from_hmm(HMM(transition=RARE, emission=hmm.emission)).is_stationary
