"""Leaky HMMs, mixtures of different alphabets and chains of higher order, by enumeration."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from hmm_datasets import InputError, PermutedSymbols, load_source, processes
from hmm_datasets.hmm.families import HigherOrderChains, HMMMixture
from hmm_datasets.hmm.families.mixture import ProcessMixture
from hmm_datasets.hmm.structured.markov import random_markov_chain

BASES = {
    "chain of order 2": random_markov_chain(2, 3, seed=4).to_hmm(),
    "edge-emitting": processes.golden_mean(0.3),
    "state-emitting": processes.weather(),
    "generalized": processes.moon(),
}


def words(symbols: int, length: int) -> np.ndarray:
    return np.array(list(itertools.product(range(symbols), repeat=length)), np.int64).reshape(symbols**length, length)


def by_patterns(process, epsilon: float, word) -> float:
    """The sum over all sets of interrupted tokens, between which the process begins anew."""
    total = 0.0
    for pattern in itertools.product((False, True), repeat=len(word)):
        probability, part = 1.0, []
        for symbol, leaks in zip([*word, None], [*pattern, True], strict=True):
            if not leaks:
                part.append(symbol)
                continue
            probability *= math.exp(process.log_likelihood(np.array([part], np.int64))[0]) * (1 - epsilon) ** len(part)
            probability *= epsilon / process.num_symbols if symbol is not None else 1
            part = []
        total += probability
    return total


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/Astera-org/simplexity/pull/165",
    "noise of a given probability on the symbols of any process",
    "leaky(process, epsilon) and noisy(process, channel) of HMMs and generalized ones, with their exact predictors",
)
@pytest.mark.parametrize("name", BASES)
def test_the_leaky_process_is_that_of_enumerated_interruptions(name):
    process = BASES[name]
    for epsilon in (0.0, 0.2, 1.0):
        leaky, length = processes.leaky(process, epsilon), 4 if process.num_symbols == 3 else 3
        every = words(process.num_symbols, length)
        likelihood = np.exp(leaky.log_likelihood(every))
        expected = [by_patterns(process, epsilon, word) for word in every.tolist()]
        np.testing.assert_allclose(likelihood, expected, atol=1e-10)


def test_processes_of_other_kinds_are_refused_with_what_to_give():
    for process in (random_markov_chain(1, 3), PermutedSymbols(processes.mess3())):
        for change in (processes.leaky, processes.noisy):
            with pytest.raises(
                InputError, match=r"expected an HMM or a GeneralizedHMM; its to_hmm\(\) or joint_process"
            ):
                change(process, 0.1)
    for wrong, words_of_error in ((-0.1, "epsilon is -0.1"), (1.5, "epsilon is 1.5")):
        with pytest.raises(InputError, match=words_of_error):
            processes.leaky(processes.mess3(), wrong)


def test_missing_tokens_are_summed_over():
    mixture = ProcessMixture([processes.even(), processes.mess3(0.15, 0.6)], [0.25, 0.75])
    for process in (mixture, processes.leaky(BASES["chain of order 2"], 0.2)):
        every = words(process.num_symbols, 4)
        likelihood = np.exp(process.log_likelihood(every))
        for gaps in ([1], [0, 2], [3], [0, 1, 2, 3]):
            given = every.copy()
            given[:, gaps] = -1
            alike = (given[:, None] == given[None]).all(-1)
            np.testing.assert_allclose(np.exp(process.log_likelihood(given)), alike @ likelihood, atol=1e-10)


def test_a_leaky_mess3_is_that_of_simplexity():
    leaky = processes.leaky(processes.mess3(), 0.2)
    np.testing.assert_allclose(leaky.edges, 0.8 * processes.mess3().edges + 0.2 / 9, atol=1e-15)
    # Its leaky RRXOR enters a uniform state; this one begins anew, which is uniform for Mess3 alone.
    rrxor = processes.rrxor()
    expected = 0.9 * rrxor.edges + 0.1 / 2 * rrxor.start
    np.testing.assert_allclose(processes.leaky(rrxor, 0.1).edges, expected, atol=1e-15)


@pytest.mark.outside(
    "https://github.com/Astera-org/simplexity/pull/172",
    "a nonergodic mixture of processes whose vocabularies are disjoint or overlap in part",
    "mixture(components, alphabet='names') takes the union of the vocabularies; by default that of the numbers",
)
def test_a_mixture_of_different_alphabets_is_that_of_its_components(tmp_path):
    coin = processes.noisy(processes.coin(0.3), np.eye(2), vocabulary=("b", "d"))
    letters = processes.noisy(processes.mess3(0.15, 0.6), np.eye(3), vocabulary=("a", "b", "c"))
    cases = {
        "names": (ProcessMixture([letters, coin], [0.25, 0.75], alphabet="names"), [[0, 1, 2], [1, 3]], "abcd"),
        "numbers": (ProcessMixture([processes.even(), processes.mess3(0.15, 0.6)]), [[0, 1], [0, 1, 2]], None),
        "HMMs": (HMMMixture((processes.golden_mean(), letters), (0.5, 0.5)), [[0, 1], [0, 1, 2]], None),
    }
    for name, (mixture, alphabets, names) in cases.items():
        assert mixture.vocabulary == (tuple(names) if names else None)
        components = (letters, coin) if name == "names" else mixture.components
        every = words(mixture.num_symbols, 4)
        expected = np.zeros(len(every))
        for component, alphabet, weight in zip(components, alphabets, mixture.weights, strict=True):
            inside = np.isin(every, alphabet).all(1)
            own = np.searchsorted(alphabet, every[inside])
            expected[inside] += weight * np.exp(component.log_likelihood(own))
        np.testing.assert_allclose(np.exp(mixture.log_likelihood(every)), expected, atol=1e-10)
        assert expected.sum() == pytest.approx(1, abs=1e-10)
        tokens = mixture.sample(200, 6, seed=2)
        for row, chosen in zip(tokens, mixture.components_at(200, seed=2), strict=True):
            assert set(row.tolist()) <= set(alphabets[chosen])
        oracle = mixture.oracle_next_token_probs(tokens, seed=2)
        np.testing.assert_allclose(oracle.sum(-1), 1, atol=1e-10)
        assert mixture.beliefs(tokens).shape[-1] == mixture.belief_width
        np.testing.assert_allclose(mixture.beliefs(tokens).sum(-1), 1, atol=1e-10)
        mixture.save_pretrained(tmp_path / name)
        again = load_source(tmp_path / name)
        assert again.fingerprint() == mixture.fingerprint()
        np.testing.assert_array_equal(again.sample(5, 6, seed=2), tokens[:5])
    with pytest.raises(InputError, match=r"components\[1\] has no vocabulary, and alphabet is 'names'"):
        ProcessMixture([letters, processes.even()], alphabet="names")
    with pytest.raises(InputError, match="whose names disagree; pass alphabet='names'"):
        ProcessMixture([letters, coin])


@pytest.mark.parametrize(("order", "symbols", "alpha"), [(1, 3, 1.0), (2, 2, 0.5), (2, 3, 1.0), (3, 2, 2.0)])
def test_chains_of_higher_order_have_the_distribution_of_their_prior(order, symbols, alpha):
    """A Dirichlet-multinomial distribution for every context, by its gamma functions."""
    family = HigherOrderChains(order, symbols, alpha)
    every = words(symbols, 6)
    expected = []
    for word in every.tolist():
        counts = Counter((tuple(word[t - order : t]), word[t]) for t in range(order, len(word)))
        total = -order * math.log(symbols)
        for context in {context for context, _ in counts}:
            numbers = [counts[context, symbol] for symbol in range(symbols)]
            total += math.lgamma(symbols * alpha) - math.lgamma(symbols * alpha + sum(numbers))
            total += sum(math.lgamma(alpha + number) - math.lgamma(alpha) for number in numbers)
        expected.append(math.exp(total))
    np.testing.assert_allclose(np.exp(family.log_likelihood(every)), expected, rtol=1e-10)


def test_a_chain_of_higher_order_is_drawn_for_each_group(tmp_path):
    family = HigherOrderChains(2, 3, group=2)
    tokens = family.sample(4, 400, seed=3)
    for index, row in enumerate(tokens):
        chain = family.chain_at(3, index)
        np.testing.assert_array_equal(chain.table, family.chain_at(3, index // 2 * 2).table)
        # Its own chain explains a row far better than that of another group.
        other = family.chain_at(3, (index + 2) % 4)
        assert chain.log_likelihood(row[None])[0] > other.log_likelihood(row[None])[0] + 20
        oracle = family.oracle_next_token_probs(row[None], 3, index)
        np.testing.assert_allclose(oracle, chain.next_token_probs(row[None]), atol=1e-10)
    np.testing.assert_array_equal(tokens[3], family.sample(1, 400, seed=3, first=3)[0])
    family.save_pretrained(tmp_path / "family")
    assert load_source(tmp_path / "family") == family == load_source("higher_order_chains(2, 3, group=2)")
    with pytest.raises(
        InputError, match=r"order is 4, alphabet 6: 6\*\*4 contexts; expected at most 1,024, lower one"
    ):
        HigherOrderChains(4, 6)
