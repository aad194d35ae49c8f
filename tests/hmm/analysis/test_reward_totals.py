"""Totals of rewards, tilted policies and the best of n, against sums over all sequences."""

import itertools
import math

import numpy as np
import pytest
from brute_force import LEFT_TO_RIGHT, random_edges

from hmm_datasets import HMM
from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.analysis.reward_totals import reward_totals
from hmm_datasets.hmm.tilted import TiltedHMM

LENGTH = 5
HMMS = {
    "state": processes.random(3, 3, seed=1),
    "zeros": LEFT_TO_RIGHT,
    "edge": random_edges(3, 2, seed=4, zeros=0.3),
    "golden mean": processes.golden_mean(0.3),
}
LATTICE, OTHER = [0.3, -0.6, 0.9], [1.0, -2.0, 0.25]
SOME = {"lattice": LATTICE, "any": [0.31, -0.77, 1.9], "equal": [0.5, 0.5, 0.5]}


@pytest.fixture(params=list(HMMS))
def hmm(request):
    return HMMS[request.param]


@pytest.fixture(params=list(SOME))
def rewards(request, hmm):
    return np.array(SOME[request.param][: hmm.num_symbols])


@pytest.fixture
def sequences(hmm, rewards):
    """The probability of every possible sequence, its reward, and its other reward."""
    tokens = np.array(list(itertools.product(range(hmm.num_symbols), repeat=LENGTH)))
    probs = np.exp(hmm.log_likelihood(tokens))
    possible = probs > 0
    gold = np.array(OTHER[: hmm.num_symbols])
    return probs[possible], rewards[tokens].sum(1)[possible], gold[tokens].sum(1)[possible]


@pytest.fixture
def totals(hmm, rewards):
    return reward_totals(hmm, rewards, LENGTH, gold=OTHER[: hmm.num_symbols])


def outcome_of(policy, sequences):
    probs, reward, gold = sequences
    seen = policy > 0
    return policy @ reward, policy @ gold, (policy[seen] * np.log(policy[seen] / probs[seen])).sum()


def tilted_of(sequences, beta):
    weights = sequences[0] * np.exp(sequences[1] / beta)
    return weights / weights.sum()


def best_of(sequences, n):
    """Each sequence's probability to be taken, by all outcomes of drawing n; one of those with most reward is."""
    probs, reward, _ = sequences
    policy = np.zeros(len(probs))
    for drawn in itertools.product(range(len(probs)), repeat=n):
        best = [one for one in drawn if reward[one] > max(reward[list(drawn)]) - 1e-9]
        np.add.at(policy, best, np.prod(probs[list(drawn)]) / len(best))
    return policy


def test_totals_are_those_of_all_sequences(totals, sequences):
    probs, reward, gold = sequences
    assert (np.diff(totals.totals) > 1e-9).all()
    place = np.abs(reward[:, None] - totals.totals).argmin(1)
    assert np.abs(reward - totals.totals[place]).max() < 1e-12
    mass = np.bincount(place, probs)
    np.testing.assert_allclose(np.exp(totals.log_probs), mass, rtol=1e-10)
    np.testing.assert_allclose(totals.gold, np.bincount(place, probs * gold) / mass, atol=1e-10)
    np.testing.assert_allclose(totals.reference, outcome_of(probs / probs.sum(), sequences), atol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("beta", [30.0, 1.0, 0.05])
def test_tilted_policies_are_those_of_all_sequences_and_of_the_tilted_hmm(hmm, rewards, totals, sequences, beta):
    found = totals.tilted(beta)
    np.testing.assert_allclose(found, outcome_of(tilted_of(sequences, beta), sequences), rtol=1e-9, atol=1e-11)
    tilted = TiltedHMM(hmm, rewards, beta, LENGTH)
    assert found.reward == pytest.approx(tilted.expected_reward, abs=1e-10)
    assert found.divergence == pytest.approx(tilted.kl_to_reference, abs=1e-8)


@pytest.mark.thorough
@pytest.mark.parametrize("n", [1, 2])
def test_the_best_of_n_is_that_of_all_draws(totals, sequences, n):
    np.testing.assert_allclose(totals.best_of(n), outcome_of(best_of(sequences, n), sequences), rtol=1e-9, atol=1e-10)


def test_the_best_of_three_is_that_of_all_draws():
    hmm = processes.golden_mean(0.3)
    tokens = np.array(list(itertools.product(range(2), repeat=4)))
    reward = tokens @ [1.0, 1.0, 1.0, 1.0]
    probs = np.exp(hmm.log_likelihood(tokens))
    every = probs[probs > 0], reward[probs > 0], -2 * reward[probs > 0]
    totals = reward_totals(hmm, [0.0, 1.0], 4, gold=[0.0, -2.0])
    np.testing.assert_allclose(totals.best_of(3), outcome_of(best_of(every, 3), every), rtol=1e-10)


@pytest.mark.thorough
def test_the_divergence_of_the_best_of_n_is_below_its_bound_and_comes_near_it():
    """arXiv 2401.01879: never above log n - (n - 1) / n, and near it where no two sequences have the same reward."""
    hmm = processes.random(4, 3, seed=2, alpha=0.7)
    sizes = [1, 2, 3, 10, 100, 10_000, 10**15]
    for rewards, near in (([1.0, 2.0, 3.0], False), ([0.0, 1.0, math.sqrt(2)], True)):
        totals = reward_totals(hmm, rewards, 200)
        for n in sizes:
            bound = math.log(n) - (n - 1) / n
            found = totals.best_of(n).divergence
            assert -1e-12 <= found <= bound + 1e-9
            assert not near or n < 2 or n > 100 or found > 0.9 * bound


def test_the_gain_is_beta_times_the_divergences_in_both_directions(totals, sequences):
    """arXiv 2605.07105: the most that a reward can gain, by Jeffreys' divergence."""
    probs = sequences[0]
    for beta in (2.0, 0.4):
        policy = tilted_of(sequences, beta)
        backward = (probs * np.log(probs / policy)).sum()
        found = totals.tilted(beta)
        gain = found.reward - totals.reference.reward
        assert gain == pytest.approx(beta * (found.divergence + backward), abs=1e-9)


@pytest.mark.thorough
def test_no_policy_of_the_same_divergence_has_more_reward(totals, sequences):
    probs, reward, _ = sequences
    generator = np.random.default_rng(0)
    for _ in range(50):
        policy = generator.dirichlet(probs * generator.uniform(1, 60))
        policy = policy * np.exp(generator.uniform(0, 3) * reward)
        policy /= policy.sum()
        mean, _, nats = outcome_of(policy, sequences)
        assert mean <= totals.at_divergence(nats).reward + 1e-9
    for n in (2, 5, 40):
        best = totals.best_of(n)
        there = totals.at_divergence(best.divergence)
        assert best.reward <= there.reward + 1e-9
        assert there.divergence == pytest.approx(best.divergence, abs=1e-10)
    assert totals.at_divergence(0.0) == totals.reference
    # Nothing is left to gain once only the highest reward is left.
    for more in (totals.max_divergence, 100.0, math.inf):
        assert totals.at_divergence(more) == (totals.totals[-1], totals.gold[-1], totals.max_divergence)


def test_turning_points_are_where_the_other_reward_is_highest():
    hmm = processes.mess3(0.05, 0.85)
    totals = reward_totals(hmm, [0, 1, 2], 12, gold=[0.0, 1.5, 0.5])
    beta, outcome = totals.turning_point()
    near = [totals.tilted(beta * factor).gold for factor in np.geomspace(0.01, 100, 4001)]
    assert outcome.gold == pytest.approx(max(near), abs=1e-6)
    assert min(near) < outcome.gold - 1
    assert reward_totals(hmm, [0, 1, 2], 12).turning_point() is None
    falls = reward_totals(hmm, [0, 1, 2], 12, gold=[0, -1, -2])
    assert falls.turning_point() == (math.inf, falls.reference)
    assert reward_totals(hmm, [1, 1, 1], 12, gold=[0, -1, -2]).turning_point() is None


@pytest.mark.outside(
    "https://github.com/flatironinstitute/nemos/pull/447",
    "a forward pass over long sequences without underflow",
    "the totals of a reward keep probabilities such as 1e-800",
)
def test_totals_too_rare_for_floats_keep_their_probability():
    """A sequence of probability 0.01 ** 400 = 1e-800."""
    hmm = HMM(start=[1.0], transition=[[1.0]], emission=[[0.99, 0.01]])
    totals = reward_totals(hmm, [0, 1], 400, gold=[0, -3])
    assert totals.max_divergence == pytest.approx(400 * math.log(100))
    ones = np.arange(401)
    binomial = [math.lgamma(401) - math.lgamma(k + 1) - math.lgamma(401 - k) for k in ones]
    np.testing.assert_allclose(
        totals.log_probs, binomial + ones * math.log(0.01) + (400 - ones) * math.log(0.99), rtol=1e-11
    )
    beta = 0.05  # each symbol is tilted on its own
    share = 1 / (1 + 99 * math.exp(-1 / beta))
    assert totals.tilted(beta).reward == pytest.approx(400 * share)
    assert totals.tilted(beta).gold == pytest.approx(-1200 * share)
    nats = share * math.log(share / 0.01) + (1 - share) * math.log((1 - share) / 0.99)
    assert totals.tilted(beta).divergence == pytest.approx(400 * nats)


@pytest.mark.outside(
    "https://github.com/huggingface/trl/issues/140",
    "the best of n samples, to compare with other methods",
    "both of its rewards and its divergence are exact for every n",
)
def test_pools_of_samples_estimate_the_best_of_n():
    """The estimator of WebGPT (arXiv 2112.09332, appendix I): all subsets of n of a pool, by their ranks."""
    hmm, pool, length = processes.mess3(0.05, 0.85), 64, 12
    totals = reward_totals(hmm, [0, 1, 2], length, gold=[0, 1.5, 0.5])
    tokens = hmm.sample(1000 * pool, length, seed=5)
    reward = np.array([0, 1, 2])[tokens].sum(1).reshape(1000, pool)
    gold = np.array([0, 1.5, 0.5])[tokens].sum(1).reshape(1000, pool)
    order = np.argsort(reward, axis=1, kind="stable")
    for n in (2, 8, 32):
        weights = np.array([math.comb(rank, n - 1) / math.comb(pool, n) for rank in range(pool)])
        for values, exact in ((reward, totals.best_of(n).reward), (gold, totals.best_of(n).gold)):
            found = np.take_along_axis(values, order, 1) @ weights
            assert abs(found.mean() - exact) < 4 * found.std(ddof=1) / math.sqrt(len(found))


@pytest.mark.outside(
    "https://arxiv.org/abs/2401.01879",
    "log n - (n - 1) / n is taken for the divergence of the best of n",
    "exact, and 2.3 nats where the formula says 8.2",
)
def test_the_best_of_many_by_a_reward_that_is_right_or_wrong():
    hmm = HMM(start=[1.0], transition=[[1.0]], emission=[[0.9, 0.1]])
    totals = reward_totals(hmm, [0, 1], 1)
    for n in (1, 4, 100, 10_000):
        right = 1 - 0.9**n
        expected = sum(q * math.log(q / p) for q, p in ((right, 0.1), (1 - right, 0.9)) if q > 0)
        assert totals.best_of(n) == pytest.approx((right, right, expected), abs=1e-12)
    assert totals.best_of(10_000).divergence == pytest.approx(math.log(10))
    assert math.log(10_000) - 0.9999 > 8


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/trl/issues/463",
    "a divergence from the reference that is estimated to be negative",
    "the exact one is not, and is what the estimates are on average",
)
def test_estimates_of_the_divergence_may_be_negative_and_are_right_on_average():
    hmm = processes.mess3(0.05, 0.85)
    tilted = TiltedHMM(hmm, [0, 1, 2], 20.0, 12)
    tokens = tilted.sample(64 * 16, seed=0)
    estimates = (tilted.log_likelihood(tokens) - hmm.log_likelihood(tokens)).reshape(64, 16).mean(1)
    exact = reward_totals(hmm, [0, 1, 2], 12).tilted(20.0).divergence
    assert estimates.min() < 0 < exact
    assert abs(estimates.mean() - exact) < 4 * estimates.std(ddof=1) / 8


@pytest.mark.outside(
    "https://arxiv.org/abs/2605.07105",
    "the gain that alignment can reach, estimated from samples of the base model",
    "a covariance of samples agrees with the exact gain",
)
def test_the_gain_is_a_covariance_of_samples_of_the_reference():
    hmm, beta = processes.mess3(0.05, 0.85), 5.0
    totals = reward_totals(hmm, [0, 1, 2], 12)
    reward = np.array([0, 1, 2])[hmm.sample(200_000, 12, seed=1)].sum(1)
    tilt = np.exp(reward / beta)
    gain = np.cov(reward, tilt)[0, 1] / tilt.mean()
    assert gain == pytest.approx(totals.tilted(beta).reward - totals.reference.reward, rel=0.02)


def test_an_alphabet_of_words_costs_what_its_different_rewards_do():
    hmm = processes.random(5, 300, seed=3)
    rewards = np.zeros(300)
    rewards[:20], rewards[20:30] = 1.0, -1.0
    found = reward_totals(hmm, rewards, 64)
    assert len(found.totals) == 129
    tilted = TiltedHMM(hmm, rewards, 0.7, 64)
    assert found.tilted(0.7).reward == pytest.approx(tilted.expected_reward, rel=1e-12)


@pytest.mark.parametrize(
    ("rewards", "settings", "message"),
    [
        ([0, 1], {}, r"rewards has shape \(2,\); expected \(3,\)"),
        ([0, 1, math.nan], {}, r"rewards\[2\] is nan; expected a finite number"),
        (np.eye(3), {}, r"rewards has shape \(3, 3\); expected \(3,\)"),
        ([0, 1, 2], {"gold": [0, math.inf, 1]}, r"gold\[1\] is inf"),
        ([0, 1, 2], {"length": 0}, "length is 0"),
    ],
)
def test_wrong_arguments_are_refused(rewards, settings, message):
    with pytest.raises(InputError, match=message):
        reward_totals(processes.mess3(), rewards, **{"length": 4, **settings})


@pytest.mark.thorough
def test_too_many_totals_are_refused_and_rounding_mends_it():
    hmm = processes.random(2, 1000, seed=0)
    rewards = np.random.default_rng(0).normal(size=1000)
    with pytest.raises(InputError, match=r"after 2 of 64 symbols there are [\d,]+ different totals; .*np\.round"):
        reward_totals(hmm, rewards, 64)
    assert len(reward_totals(hmm, np.round(rewards, 1), 64).totals) < 5000


def test_policies_that_do_not_exist_are_refused():
    totals = reward_totals(processes.mess3(), [0, 1, 2], 4)
    for beta in (0, -1.0, math.inf, math.nan):
        with pytest.raises(InputError, match="expected a number above 0"):
            totals.tilted(beta)
    for nats in (-0.1, math.nan):
        with pytest.raises(InputError, match="expected nats per sequence, 0 or more"):
            totals.at_divergence(nats)
    with pytest.raises(InputError, match="n is 0"):
        totals.best_of(0)
