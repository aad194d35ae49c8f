"""Mixtures of chains, of HMMs and of any processes: posteriors, beliefs, oracles."""

import math

import numpy as np
import pytest
from composed_examples import EXAMPLES, chain_probability, random_rows

from hmm_datasets import HMM, HMMMixture, MarkovChain, RandomChains
from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families.mixture import ChainMixture, ProcessMixture, random_chain_mixture
from hmm_datasets.hmm.structured.markov import random_markov_chain

PARTS = (processes.even(), processes.golden_mean(0.3), processes.random(3, 2, seed=2))
WEIGHTS = (0.5, 0.2, 0.3)


def posteriors_by_definition(parts, weights, tokens: np.ndarray) -> np.ndarray:
    """(B, T+1, C), from the likelihoods of the components."""
    rows = []
    for t in range(tokens.shape[1] + 1):
        joint = [
            weight * np.exp(part.log_likelihood(tokens[:, :t])) for part, weight in zip(parts, weights, strict=True)
        ]
        rows.append(np.stack(joint, axis=1) / np.sum(joint, axis=0)[:, None])
    return np.stack(rows, axis=1)


@pytest.mark.parametrize("kind", [HMMMixture, ProcessMixture])
def test_posteriors_are_those_of_the_definition(kind):
    mixture = kind(PARTS, WEIGHTS)
    tokens = mixture.sample(30, 8, seed=3)
    expected = posteriors_by_definition(PARTS, WEIGHTS, tokens)
    np.testing.assert_allclose(mixture.component_posteriors(tokens), expected, atol=1e-10)
    beliefs = mixture.beliefs(tokens)
    assert beliefs.shape == (30, 9, 7)
    for c, (part, where) in enumerate(zip(PARTS, mixture.belief_parts().values(), strict=True)):
        np.testing.assert_allclose(beliefs[:, :, where], expected[:, :, c : c + 1] * part.beliefs(tokens), atol=1e-10)
    np.testing.assert_allclose(beliefs.sum(axis=2), 1, atol=1e-12)


def test_the_next_token_follows_from_the_beliefs_of_a_mixture():
    mixture = HMMMixture(PARTS, WEIGHTS)
    tokens = mixture.sample(10, 9, seed=4)
    emission = np.concatenate([part.emission for part in PARTS])
    np.testing.assert_allclose(mixture.beliefs(tokens) @ emission, mixture.next_token_probs(tokens), atol=1e-12)


def test_beliefs_are_zero_after_tokens_that_no_component_emits():
    mixture = HMMMixture((processes.golden_mean(), processes.golden_mean(0.2)), (0.5, 0.5))
    beliefs = mixture.beliefs([[1, 0, 0, 1]])[0]
    assert (beliefs[3:] == 0).all()
    assert (mixture.component_posteriors([[1, 0, 0, 1]])[0, 3:] == 0).all()


def test_both_mixtures_have_the_same_law():
    tokens = HMMMixture(PARTS, WEIGHTS).sample(20, 40, seed=5)
    one, other = (kind(PARTS, WEIGHTS) for kind in (HMMMixture, ProcessMixture))
    np.testing.assert_allclose(one.next_token_probs(tokens), other.next_token_probs(tokens), atol=1e-12)
    np.testing.assert_allclose(one.log_likelihood(tokens), other.log_likelihood(tokens), atol=1e-10)


@pytest.mark.thorough
def test_long_sequences_do_not_underflow():
    mixture = ProcessMixture([MarkovChain([[0.9, 0.1], [0.1, 0.9]]), MarkovChain([[0.8, 0.2], [0.2, 0.8]])])
    tokens = np.zeros((1, 20_000), int)
    assert np.isfinite(mixture.log_likelihood(tokens)).all()
    np.testing.assert_allclose(mixture.component_posteriors(tokens)[0, -1], [1, 0], atol=1e-12)
    chains = ChainMixture([[[0.9, 0.1], [0.1, 0.9]], [[0.8, 0.2], [0.2, 0.8]]])
    np.testing.assert_allclose(chains.next_token_probs(tokens)[0, -1], [0.9, 0.1], atol=1e-12)
    # A component that seemed impossible to float64 returns when the tokens turn to it.
    turned = np.concatenate([tokens, np.arange(20_000)[None] % 2], axis=1)
    np.testing.assert_allclose(chains.component_posteriors(turned)[0, -1], [0, 1], atol=1e-12)


@pytest.mark.parametrize("short", [True, False], ids=["row by row", "all rows"])
def test_a_mixture_of_processes_draws_the_sequences_of_its_components(short):
    mixture = ProcessMixture(PARTS, WEIGHTS)
    count, length = (40, 12) if short else (200, 2000)
    tokens, chosen = mixture.sample(count, length, seed=6, first=9), mixture.components_at(count, 6, 9)
    assert set(chosen.tolist()) == {0, 1, 2}
    for row in range(0, count, 17):
        np.testing.assert_array_equal(mixture.sample(1, length, seed=6, first=9 + row)[0], tokens[row])
    oracle = mixture.oracle_next_token_probs(tokens[:20, :10], seed=6, first=9)
    for row in range(20):
        expected = PARTS[chosen[row]].next_token_probs(tokens[row : row + 1, :10])[0]
        np.testing.assert_array_equal(oracle[row], expected)


def test_components_are_drawn_by_their_weights():
    chains = ChainMixture(random_rows(3, 2, 2, seed=1), WEIGHTS)
    for mixture in (ProcessMixture(PARTS, WEIGHTS), HMMMixture(PARTS, WEIGHTS), chains):
        shares = np.bincount(mixture.components_at(100_000, seed=7)) / 100_000
        np.testing.assert_allclose(shares, WEIGHTS, atol=5 * math.sqrt(0.25 / 100_000))


def test_sequences_of_a_group_share_their_component_and_its_oracle():
    mixture = HMMMixture(PARTS, WEIGHTS, group=3)
    last = (1 << 64) - 7  # indices wrap within the rows
    chosen = mixture.components_at(40, 5, last, step=2)
    indices = [(last + 2 * row) % (1 << 64) for row in range(40)]
    assert chosen.tolist() == [mixture.components_at(1, 5, index)[0] for index in indices]
    assert chosen.tolist() == [mixture.components_at(1, 5, index // 3 * 3)[0] for index in indices]
    tokens = mixture.sample(40, 12, seed=5, first=last, step=2)
    oracle = mixture.oracle_next_token_probs(tokens, 5, last, step=2)
    for row, index in enumerate(indices):
        np.testing.assert_allclose(oracle[row], mixture.hmm_at(5, index).next_token_probs(tokens[row : row + 1])[0])


def test_many_chains_have_the_law_of_their_definition():
    mixture = random_chain_mixture(64, 4, alpha=0.5, seed=3)
    np.testing.assert_array_equal(mixture.tables[9], random_markov_chain(1, 4, alpha=0.5, seed=3, index=9).table)
    tokens = mixture.sample(5, 6, seed=1)
    found = mixture.next_token_probs(tokens)
    for row, word in enumerate(tokens.tolist()):
        for t in range(7):
            chains = list(zip(mixture.weights, mixture.tables, mixture.start, strict=True))
            joint = [
                sum(w * chain_probability(table, start, (*word[:t], x)) for w, table, start in chains)
                for x in range(4)
            ]
            np.testing.assert_allclose(found[row, t], np.array(joint) / sum(joint), atol=1e-10)


def test_a_mixture_of_chains_agrees_with_a_mixture_of_their_hmms():
    mixture = EXAMPLES["chains"]
    assert isinstance(mixture, ChainMixture)
    hmms = [mixture.chain(c).to_hmm() for c in range(mixture.num_chains)]
    other = HMMMixture(tuple(hmms), tuple(mixture.weights))
    tokens = mixture.sample(30, 20, seed=2)
    np.testing.assert_allclose(mixture.next_token_probs(tokens), other.next_token_probs(tokens), atol=1e-10)
    np.testing.assert_allclose(mixture.log_likelihood(tokens), other.log_likelihood(tokens), atol=1e-10)
    np.testing.assert_allclose(mixture.component_posteriors(tokens), other.component_posteriors(tokens), atol=1e-10)


def test_the_oracle_knows_the_chain():
    mixture = random_chain_mixture(16, 5, seed=8)
    tokens = mixture.sample(50, 30, seed=3, first=2, step=2)
    chosen = mixture.components_at(50, 3, 2, step=2)
    oracle = mixture.oracle_next_token_probs(tokens, 3, 2, step=2)
    for row in (0, 7, 49):
        expected = mixture.chain(chosen[row]).next_token_probs(tokens[row : row + 1])[0]
        np.testing.assert_allclose(oracle[row], expected, atol=1e-15)


def test_posteriors_in_blocks_are_those_of_all_rows(monkeypatch):
    mixture = random_chain_mixture(16, 5, seed=8)
    tokens = mixture.sample(50, 30)
    whole = mixture.next_token_probs(tokens)
    monkeypatch.setattr("hmm_datasets.hmm.families.mixture._BLOCK", 1)
    np.testing.assert_allclose(mixture.next_token_probs(tokens), whole, atol=1e-14)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ProcessMixture([]), "no components"),
        (lambda: ProcessMixture([processes.even()], alphabet="words"), "alphabet is 'words'; expected 'numbers'"),
        (lambda: ProcessMixture([processes.even()], [0.5, 0.5]), r"weights has shape \(2,\)"),
        (lambda: ProcessMixture([processes.even()], [0.5]), "weights sums to 0.5"),
        (lambda: ProcessMixture([RandomChains(2, alpha=1.0)]).beliefs([[0]]), "without beliefs"),
        (lambda: ProcessMixture([RandomChains(2, zipf=1.0)]).next_token_probs([[0]]), "closed form"),
        (lambda: ChainMixture(np.ones((2, 2, 3)) / 3), r"expected \(N, E, E\)"),
        (lambda: ChainMixture([np.eye(2)], [0.5, 0.5]), "weights has shape"),
        (lambda: random_chain_mixture(0, 3), "num_chains is 0"),
        (lambda: random_chain_mixture(2, 3, alpha=0), "alpha is 0"),
    ],
)
def test_what_cannot_be_mixed_is_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_an_hmm_of_one_component_is_itself():
    hmm = HMM(start=[1, 0], transition=[[0.5, 0.5], [0, 1]], emission=np.eye(2))
    mixture = ProcessMixture([hmm])
    tokens = mixture.sample(3, 5)
    np.testing.assert_array_equal(mixture.beliefs(tokens), hmm.beliefs(tokens))


def test_a_token_rarer_than_any_sum_keeps_its_logarithm():
    mixture = ProcessMixture([MarkovChain([1 - 1e-305, 1e-305])])
    np.testing.assert_allclose(mixture.log_likelihood([[1, 1]]), [2 * math.log(1e-305)], rtol=1e-12)
