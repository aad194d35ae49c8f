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
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.analysis import predictors

SOURCES = {
    "states": processes.random(3, 4, alpha=0.5, seed=1),
    "mess3": processes.mess3(0.15, 0.6),
    "golden mean": processes.golden_mean(),
    "edges": random_edges(3, 4, seed=2),
}


def tensor(tokens) -> torch.Tensor:
    return torch.as_tensor(np.asarray(tokens, dtype=np.int64))


def unigram_by_loop(word, num_symbols, alpha):
    distributions, counts = [], [alpha] * num_symbols
    for symbol in [*word, None]:
        distributions.append([count / sum(counts) for count in counts])
        if symbol is not None:
            counts[symbol] += 1
    return distributions


def bigram_by_loop(word, num_symbols, alpha, strength):
    distributions = []
    for t, backing in enumerate(unigram_by_loop(word, num_symbols, alpha)):
        pairs = [0] * num_symbols
        for before, after in itertools.pairwise(word[:t]):
            if before == word[t - 1]:
                pairs[after] += 1
        distributions.append(
            [(count + strength * b) / (sum(pairs) + strength) for count, b in zip(pairs, backing, strict=True)]
        )
    return distributions


def ngram_by_loop(word, num_symbols, order, alpha, strength):
    """One distribution after the other, each order's counts from the definition."""
    distributions = unigram_by_loop(word, num_symbols, alpha)
    for width in range(1, order):
        for t in range(width, len(word) + 1):
            context = word[t - width : t]
            counts = [0] * num_symbols
            for position in range(width, t):
                if word[position - width : position] == context:
                    counts[word[position]] += 1
            total = sum(counts) + strength
            distributions[t] = [
                (count + strength * b) / total for count, b in zip(counts, distributions[t], strict=True)
            ]
    return distributions


@pytest.mark.thorough
@given(
    word=st.lists(st.integers(0, 1), max_size=20),
    order=st.integers(1, 6),
    alpha=st.sampled_from([0.5, 1.0]),
    strength=st.sampled_from([0.5, 4.0]),
)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_the_ngram_is_that_of_counting_token_by_token(word, order, alpha, strength):
    tokens = tensor([word, word[::-1]]).reshape(2, len(word))
    for row, letters in zip(predictors.ngram(tokens, 2, order, alpha, strength), (word, word[::-1]), strict=True):
        np.testing.assert_allclose(row, ngram_by_loop(letters, 2, order, alpha, strength), rtol=1e-12)


@given(
    word=st.lists(st.integers(0, 3), max_size=14),
    alpha=st.sampled_from([0.5, 1.0, 3.0]),
    strength=st.sampled_from([0.5, 4.0]),
)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_in_context_distributions_are_those_of_counting_token_by_token(word, alpha, strength):
    tokens = tensor([word, word]).reshape(2, len(word))
    for row in predictors.unigram(tokens, 4, alpha):
        np.testing.assert_allclose(row, unigram_by_loop(word, 4, alpha), rtol=1e-13)
    for row in predictors.bigram(tokens, 4, alpha, strength):
        np.testing.assert_allclose(row, bigram_by_loop(word, 4, alpha, strength), rtol=1e-13)


def test_the_bigram_of_a_long_row_is_that_of_the_loop():
    word = processes.mess3(0.15, 0.6).sample(1, 200, seed=1)[0].tolist()
    found = predictors.bigram(tensor([word]), 3)[0]
    np.testing.assert_allclose(found, bigram_by_loop(word, 3, 1.0, 4.0), rtol=1e-12)


def test_in_context_distributions_do_not_see_the_future():
    tokens = tensor(processes.mess3(0.15, 0.6).sample(2, 30, seed=1))
    other = tokens.clone()
    other[:, 10:] = (other[:, 10:] + 1) % 3
    for name, distribution in predictors.predictors_of(processes.mess3(0.15, 0.6)).items():
        torch.testing.assert_close(distribution(tokens)[:, :11], distribution(other)[:, :11], rtol=0, atol=0, msg=name)


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


def word_distribution(hmm, position: int, context: tuple[int, ...]) -> np.ndarray:
    """Brute force: distribution of the symbol at `position`, given that `context` stands just before it."""
    distribution = np.zeros(hmm.num_symbols)
    for word in itertools.product(range(hmm.num_symbols), repeat=position + 1):
        if word[position - len(context) : position] == context:
            distribution[word[position]] += brute_force.likelihood(hmm, word)
    return distribution / distribution.sum() if distribution.sum() > 0 else distribution


@pytest.mark.parametrize("name", SOURCES)
def test_process_distributions_are_those_of_all_words_of_the_stationary_process(name):
    hmm = SOURCES[name]
    stationary = processes.HMM(**{**hmm.tables(), "start": hmm.stationary()})
    symbols = range(hmm.num_symbols)
    tokens = tensor([list(symbols)])
    distributions = predictors.stationary_distributions(hmm)
    unigram, bigram = (
        predictors.process_unigram(tokens, distributions)[0],
        predictors.process_bigram(tokens, distributions)[0],
    )
    assert unigram.shape == bigram.shape == (hmm.num_symbols + 1, hmm.num_symbols)
    np.testing.assert_allclose(unigram, np.tile(word_distribution(stationary, 1, ()), (len(unigram), 1)), atol=1e-12)
    np.testing.assert_allclose(bigram[0], word_distribution(stationary, 2, ()), atol=1e-12)
    for symbol in symbols:
        np.testing.assert_allclose(bigram[symbol + 1], word_distribution(stationary, 2, (symbol,)), atol=1e-12)


@pytest.mark.parametrize("name", SOURCES)
def test_all_distributions_sum_to_one_and_have_one_shape(name):
    hmm = SOURCES[name]
    tokens = tensor(hmm.sample(3, 17, seed=5))
    distributions = {key: distribution(tokens) for key, distribution in predictors.predictors_of(hmm).items()}
    for key, distribution in distributions.items():
        assert distribution.shape == (3, 18, hmm.num_symbols), key
        assert distribution.dtype == torch.float64, key
        assert (distribution >= 0).all(), key
        np.testing.assert_allclose(distribution.sum(-1), 1, atol=1e-12, err_msg=key)


def cross_entropies(hmm, count=400, length=64) -> dict[str, float]:
    tokens = tensor(hmm.sample(count, length, seed=9))
    return {
        name: float(-distribution(tokens)[:, :-1].gather(-1, tokens.unsqueeze(-1)).log().mean())
        for name, distribution in predictors.predictors_of(hmm).items()
    }


def test_the_ladder_of_a_markov_process_has_its_order():
    found = cross_entropies(processes.mess3(0.05, 0.85))
    assert list(found) == ["uniform", "unigram", "bigram", "process_unigram", "process_bigram", "bayes"]
    assert found["bayes"] < found["bigram"] < found["unigram"]
    assert found["bayes"] < found["process_bigram"] < found["process_unigram"]
    assert found["process_bigram"] < found["bigram"], "who knows the process need not learn it"
    assert found["uniform"] == pytest.approx(math.log(3), abs=1e-12)


def test_a_longer_context_learns_what_shorter_ones_cannot():
    # After 1, 1 comes 0; after 0, 1 comes 1: the last symbol alone does not tell.
    tokens = tensor([[0, 1, 1] * 40])
    distributions = [predictors.ngram(tokens, 2, order)[0, -2, 1] for order in (1, 2, 3)]
    assert distributions[0] == pytest.approx(2 / 3, abs=0.01)
    assert distributions[1] == pytest.approx(1 / 2, abs=0.05)
    assert distributions[2] > 0.9
    with pytest.raises(InputError, match="order is 0; expected an integer in"):
        predictors.ngram(tokens, 2, 0)


def test_the_ladder_has_ngrams_up_to_the_order_asked_for():
    hmm = processes.mess3(0.05, 0.85)
    names = list(predictors.predictors_of(hmm))
    longer = predictors.predictors_of(hmm, order=4)
    assert list(longer) == [*names[:3], "3-gram", "4-gram", *names[3:]]
    tokens = tensor(hmm.sample(3, 30, seed=1))
    torch.testing.assert_close(longer["4-gram"](tokens), predictors.ngram(tokens, 3, 4), rtol=0, atol=0)


# Many sequences


@pytest.mark.parametrize("batch_size", [None, 1, 7, 100])
def test_a_stream_gives_every_sequence_once_whatever_the_batch(batch_size):
    hmm = processes.mess3(0.15, 0.6)
    distribution = predictors.predictors_of(hmm)["bayes"]
    tokens = hmm.sample(25, 12, seed=1)
    batches = list(predictors.stream(distribution, tokens, batch_size=batch_size, show_progress=False))
    assert [len(batch.tokens) for batch in batches][:-1] == [batch_size or 25] * (len(batches) - 1)
    np.testing.assert_array_equal(torch.cat([batch.tokens for batch in batches]), tokens)
    torch.testing.assert_close(
        torch.cat([batch.distributions for batch in batches]), distribution(tensor(tokens)), rtol=0, atol=1e-15
    )


def test_a_stream_stays_within_its_memory(monkeypatch):
    hmm = processes.mess3(0.15, 0.6)
    monkeypatch.setattr(predictors, "_BATCH_BYTES", 10 * 13 * 3 * 8)
    batches = predictors.stream(predictors.predictors_of(hmm)["uniform"], hmm.sample(25, 12), show_progress=False)
    assert [len(batch.distributions) for batch in batches] == [10, 10, 5]


@pytest.mark.parametrize("name", ["bigram", "process_bigram", "bayes"])
def test_the_cross_entropy_is_the_mean_over_sequences_and_its_error_that_of_a_mean(name):
    hmm = processes.random(3, 4, alpha=0.5, seed=1)
    tokens = hmm.sample(101, 9, seed=4)
    distribution = predictors.predictors_of(hmm)[name]
    found = predictors.cross_entropy(distribution, tokens, batch_size=8, show_progress=False)
    loss = -distribution(tensor(tokens))[:, :-1].gather(-1, tensor(tokens).unsqueeze(-1)).squeeze(-1).log().numpy()
    np.testing.assert_allclose(found.nats, loss.mean(0), rtol=1e-13)
    np.testing.assert_allclose(found.standard_error, loss.std(0, ddof=1) / np.sqrt(101), rtol=1e-10, atol=1e-15)


def test_a_token_of_probability_zero_costs_infinity_at_its_place_and_spoils_no_other():
    hmm = processes.golden_mean()
    tokens = np.array([[1, 1, 1, 1]] * 3 + [[1, 0, 0, 1]] + [[1, 0, 1, 1]] * 3)
    found = predictors.cross_entropy(predictors.predictors_of(hmm)["process_bigram"], tokens, batch_size=2)
    assert np.isinf(found.nats).tolist() == [False, False, True, False]
    assert np.isinf(found.standard_error).tolist() == [False, False, True, False]
    # No Bayesian goes on after what cannot be.
    found = predictors.cross_entropy(predictors.predictors_of(hmm)["bayes"], tokens, batch_size=2)
    assert np.isinf(found.nats).tolist() == [False, False, True, True]


def test_a_memory_mapped_array_and_a_tensor_are_streamed_in_the_same_way(tmp_path):
    hmm = processes.golden_mean()
    tokens = hmm.sample(40, 6, seed=1)
    mapped = np.memmap(tmp_path / "tokens.bin", dtype=np.uint8, mode="w+", shape=tokens.shape)
    mapped[:] = tokens
    distribution = predictors.predictors_of(hmm)["bayes"]
    found = [predictors.cross_entropy(distribution, x, batch_size=16).nats for x in (tokens, mapped, tensor(tokens))]
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([0, 1], r"tokens have shape \(2,\); expected \(N, T\)"),
        ([[0, 1]], "tokens hold 1 sequences; expected 2 or more"),
        (np.zeros((0, 3), int), "tokens hold 0 sequences; expected 2 or more"),
        ([[0, 1], [0, 3]], r"tokens\[1, 1\] is 3"),
    ],
)
def test_tokens_that_cannot_be_measured_are_refused(tokens, message):
    with pytest.raises(InputError, match=message):
        predictors.cross_entropy(predictors.predictors_of(processes.mess3(0.15, 0.6))["bayes"], tokens)


def test_tokens_outside_the_alphabet_are_refused_by_place():
    for distribution in predictors.predictors_of(processes.mess3(0.15, 0.6)).values():
        with pytest.raises(InputError, match=r"tokens\[0, 2\] is 3; the symbols of this HMM are 0\.\.2"):
            distribution(tensor([[0, 1, 3]]))
