import itertools
import math

import brute_force
import numpy as np
import pytest
import torch
from brute_force import random_edges
from hypothesis import given, settings
from hypothesis import strategies as st

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import predictors, processes

SOURCES = {
    "states": processes.random(3, 4, alpha=0.5, seed=1),
    "mess3": processes.mess3(),
    "golden mean": processes.golden_mean(),
    "edges": random_edges(3, 4, seed=2),
}


def tensor(tokens) -> torch.Tensor:
    return torch.as_tensor(np.asarray(tokens, dtype=np.int64))


def unigram_by_loop(word, num_symbols, alpha):
    laws, counts = [], [alpha] * num_symbols
    for symbol in [*word, None]:
        laws.append([count / sum(counts) for count in counts])
        if symbol is not None:
            counts[symbol] += 1
    return laws


def bigram_by_loop(word, num_symbols, alpha, strength):
    laws = []
    for t, backing in enumerate(unigram_by_loop(word, num_symbols, alpha)):
        pairs = [0] * num_symbols
        for before, after in itertools.pairwise(word[:t]):
            if before == word[t - 1]:
                pairs[after] += 1
        laws.append(
            [(count + strength * b) / (sum(pairs) + strength) for count, b in zip(pairs, backing, strict=True)]
        )
    return laws


@given(
    word=st.lists(st.integers(0, 3), max_size=14),
    alpha=st.sampled_from([0.5, 1.0, 3.0]),
    strength=st.sampled_from([0.5, 4.0]),
)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_in_context_laws_are_those_of_counting_token_by_token(word, alpha, strength):
    tokens = tensor([word, word]).reshape(2, len(word))
    for row in predictors.unigram(tokens, 4, alpha):
        np.testing.assert_allclose(row, unigram_by_loop(word, 4, alpha), rtol=1e-13)
    for row in predictors.bigram(tokens, 4, alpha, strength):
        np.testing.assert_allclose(row, bigram_by_loop(word, 4, alpha, strength), rtol=1e-13)


def test_the_bigram_of_a_long_row_is_that_of_the_loop():
    word = processes.mess3().sample(1, 200, seed=1)[0].tolist()
    found = predictors.bigram(tensor([word]), 3)[0]
    np.testing.assert_allclose(found, bigram_by_loop(word, 3, 1.0, 4.0), rtol=1e-12)


def test_in_context_laws_do_not_see_the_future():
    tokens = tensor(processes.mess3().sample(2, 30, seed=1))
    other = tokens.clone()
    other[:, 10:] = (other[:, 10:] + 1) % 3
    for name, law in predictors.predictors_of(processes.mess3()).items():
        torch.testing.assert_close(law(tokens)[:, :11], law(other)[:, :11], rtol=0, atol=0, msg=name)


def test_the_bigram_learns_a_rule_that_the_unigram_cannot():
    tokens = tensor([[0, 1] * 50])
    assert predictors.bigram(tokens, 2)[0, -1, 0] > 0.95
    assert predictors.unigram(tokens, 2)[0, -1, 0] == pytest.approx(0.5)


@pytest.mark.parametrize("name", SOURCES)
def test_the_bayes_predictor_is_the_filter_of_the_hmm(name):
    hmm = SOURCES[name]
    tokens = hmm.sample(4, 25, seed=3)
    found = predictors.predictors_of(hmm)["bayes"](tensor(tokens))
    np.testing.assert_array_equal(found.numpy(), hmm.next_token_probs(tokens))


def word_law(hmm, place: int, context: tuple[int, ...]) -> np.ndarray:
    """Brute force: law of the symbol at `place`, given that `context` stands just before it."""
    law = np.zeros(hmm.num_symbols)
    for word in itertools.product(range(hmm.num_symbols), repeat=place + 1):
        if word[place - len(context) : place] == context:
            law[word[place]] += brute_force.likelihood(hmm, word)
    return law / law.sum() if law.sum() > 0 else law


@pytest.mark.parametrize("name", SOURCES)
def test_process_laws_are_those_of_all_words_of_the_stationary_process(name):
    hmm = SOURCES[name]
    stationary = processes.HMM(**{**hmm.tables(), "start": hmm.stationary()})
    symbols = range(hmm.num_symbols)
    tokens = tensor([list(symbols)])
    laws = predictors.stationary_laws(hmm)
    unigram, bigram = predictors.process_unigram(tokens, laws)[0], predictors.process_bigram(tokens, laws)[0]
    assert unigram.shape == bigram.shape == (hmm.num_symbols + 1, hmm.num_symbols)
    np.testing.assert_allclose(unigram, np.tile(word_law(stationary, 1, ()), (len(unigram), 1)), atol=1e-12)
    np.testing.assert_allclose(bigram[0], word_law(stationary, 2, ()), atol=1e-12)
    for symbol in symbols:
        np.testing.assert_allclose(bigram[symbol + 1], word_law(stationary, 2, (symbol,)), atol=1e-12)


@pytest.mark.parametrize("name", SOURCES)
def test_all_laws_sum_to_one_and_have_one_shape(name):
    hmm = SOURCES[name]
    tokens = tensor(hmm.sample(3, 17, seed=5))
    laws = {key: law(tokens) for key, law in predictors.predictors_of(hmm).items()}
    for key, law in laws.items():
        assert law.shape == (3, 18, hmm.num_symbols), key
        assert law.dtype == torch.float64, key
        assert (law >= 0).all(), key
        np.testing.assert_allclose(law.sum(-1), 1, atol=1e-12, err_msg=key)


def cross_entropies(hmm, count=400, length=64) -> dict[str, float]:
    tokens = tensor(hmm.sample(count, length, seed=9))
    return {
        name: float(-law(tokens)[:, :-1].gather(-1, tokens.unsqueeze(-1)).log().mean())
        for name, law in predictors.predictors_of(hmm).items()
    }


def test_the_ladder_of_a_markov_process_has_its_order():
    found = cross_entropies(processes.mess3(0.05, 0.85))
    assert list(found) == ["uniform", "unigram", "bigram", "process_unigram", "process_bigram", "bayes"]
    assert found["bayes"] < found["bigram"] < found["unigram"]
    assert found["bayes"] < found["process_bigram"] < found["process_unigram"]
    assert found["process_bigram"] < found["bigram"], "who knows the process need not learn it"
    assert found["uniform"] == pytest.approx(math.log(3), abs=1e-12)


def test_tokens_outside_the_alphabet_are_refused_by_place():
    for law in predictors.predictors_of(processes.mess3()).values():
        with pytest.raises(InputError, match=r"tokens\[0, 2\] is 3; the symbols of this HMM are 0\.\.2"):
            law(tensor([[0, 1, 3]]))
