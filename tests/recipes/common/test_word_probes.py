"""Probes over all words of a process: the words, their probabilities, and the weighted fit."""

import itertools

import numpy as np
import pytest
import torch
from word_probes import (
    CUTOFFS,
    all_words,
    best_of_order,
    fit_words,
    hidden_states,
    markov_states,
    mean_excess,
)

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families import RandomChains
from hmm_datasets.training.model_configs import model_config, new_model

PROCESSES = {
    "mess3": processes.mess3(x=0.05, a=0.85),
    "golden_mean": processes.golden_mean(),
    "bloch_walk": processes.bloch_walk(),
    "moon": processes.moon(),
}


@pytest.fixture(params=PROCESSES)
def words(request):
    return all_words(PROCESSES[request.param], 4)


@pytest.mark.thorough
def test_words_are_those_the_process_can_emit_with_their_probabilities(words):
    process, found = words.process, {}
    for row, length, weight in zip(words.rows, words.lengths, words.weights, strict=True):
        found[tuple(words.tokens[row, :length].tolist())] = 4 * weight
    every = [word for length in range(1, 5) for word in itertools.product(range(process.num_symbols), repeat=length)]
    exact = {word: float(np.exp(process.log_likelihood(np.array([word]))[0])) for word in every}
    assert found.keys() == {word for word, chance in exact.items() if chance > 1e-12}
    assert found == pytest.approx({word: exact[word] for word in found}, abs=1e-12)


@pytest.mark.thorough
def test_beliefs_and_next_token_probabilities_are_those_after_each_word(words):
    for index in np.random.default_rng(0).integers(len(words.rows), size=8):
        word = words.tokens[words.rows[index], : words.lengths[index]][None]
        np.testing.assert_allclose(words.beliefs[index], words.process.beliefs(word)[0, -1], atol=1e-12)
        np.testing.assert_allclose(
            words.next_token_probs[index], words.process.next_token_probs(word)[0, -1], atol=1e-12
        )


def test_states_of_the_markov_approximation_are_certain_after_as_many_symbols(words):
    found = markov_states(words, 2)
    assert found.shape[1] == ((words.lengths == 2).sum())
    np.testing.assert_allclose(found.sum(1), 1)
    assert (np.sort(found[words.lengths >= 2], axis=1)[:, -1] == 1).all()
    # The process is stationary, so that before the first symbol there was one with the same probabilities.
    single = found[words.lengths == 1]
    pairs = words.tokens[words.rows[words.lengths == 2], :2]
    for symbol, state in zip(words.tokens[words.rows[words.lengths == 1], 0], single, strict=True):
        assert (state[pairs[:, 1] != symbol] == 0).all()


def test_last_symbols_tell_beliefs_of_a_markov_chain_and_no_others():
    assert best_of_order(all_words(processes.golden_mean(), 4), 1) < 1e-12
    errors = [best_of_order(all_words(PROCESSES["mess3"], 4), order) for order in (1, 2, 3, 4)]
    assert errors == sorted(errors, reverse=True)
    assert errors[2] > 0.01 > 1e-12 > errors[3]


def test_an_affine_image_is_found_and_noise_is_not(words):
    generator = np.random.default_rng(0)
    image = words.beliefs @ generator.normal(size=(words.beliefs.shape[1], 6)) + 3
    fit = fit_words(words, image, words.beliefs)
    assert fit.r2 > 1 - 1e-9
    assert fit.rmse < 1e-5
    assert fit.held_out_rmse < 1e-5
    np.testing.assert_allclose(fit.predictions, words.beliefs, atol=1e-4)
    noise = fit_words(words, generator.normal(size=(len(image), 2)), words.beliefs)
    assert noise.r2 < 0.5
    assert noise.held_out_rmse > noise.rmse


def test_the_fit_is_weighted_least_squares():
    words = all_words(PROCESSES["mess3"], 3)
    features = np.random.default_rng(0).normal(size=(len(words.rows), 4))
    fit = fit_words(words, features, words.beliefs)
    roots = np.sqrt(words.weights)[:, None]
    design = np.concatenate([np.ones((len(features), 1)), features], axis=1)
    exact = np.linalg.lstsq(design * roots, words.beliefs * roots)[0]
    np.testing.assert_allclose(fit.predictions, design @ exact, atol=1e-9)
    np.testing.assert_allclose(fit.slope, exact[1:], atol=1e-9)
    residuals = words.beliefs - design @ exact
    assert fit.rmse == pytest.approx((words.weights @ np.square(residuals).sum(1)) ** 0.5, abs=1e-9)
    assert fit.cutoff in CUTOFFS


def test_held_out_errors_are_those_of_maps_that_have_not_seen_the_word():
    words = all_words(PROCESSES["mess3"], 3)
    features = np.random.default_rng(0).normal(size=(len(words.rows), 4))
    found = fit_words(words, features, words.beliefs, folds=3).held_out_rmse
    which, error = np.random.default_rng(0).permutation(len(features)) % 3, 0.0
    design = np.concatenate([np.ones((len(features), 1)), features], axis=1)
    for fold in range(3):
        others, own = which != fold, which == fold
        roots = np.sqrt(words.weights[others])[:, None]
        fitted = np.linalg.lstsq(design[others] * roots, words.beliefs[others] * roots)[0]
        error += words.weights[own] @ np.square(words.beliefs[own] - design[own] @ fitted).sum(1)
    assert found == pytest.approx(error**0.5, abs=1e-8)


def test_hidden_states_are_those_after_each_word():
    words = all_words(PROCESSES["moon"], 3)
    torch.manual_seed(0)
    model = new_model(model_config("d1", vocab_size=4, max_length=4)).eval()
    layers, predicted = hidden_states(model, words, 3, batch_size=4)
    assert len(layers) == 2
    for index in (0, 1, 5, len(words.rows) - 1):
        word = [3, *words.tokens[words.rows[index], : words.lengths[index]].tolist()]
        with torch.inference_mode():
            output = model(torch.tensor([word]), output_hidden_states=True)
        for layer, exact in zip(layers, output.hidden_states, strict=True):
            np.testing.assert_allclose(layer[index], exact[0, -1].numpy(), atol=1e-5)
        np.testing.assert_allclose(predicted[index], output.logits[0, -1, :3].softmax(-1).numpy(), atol=1e-6)


def test_a_very_confident_model_is_not_infinitely_far():
    words = all_words(processes.coin(0.5), 2)
    model = new_model(model_config("d1", vocab_size=3, max_length=3)).eval()
    model.lm_head = torch.nn.Linear(model.config.hidden_size, 3)
    torch.nn.init.zeros_(model.lm_head.weight)
    model.lm_head.bias.data = torch.tensor([0.0, -200.0, 0.0])
    _, predicted = hidden_states(model, words, 2)
    assert mean_excess(words, predicted) == pytest.approx(100 - np.log(2), rel=1e-6)


def test_excess_is_the_divergence_from_the_process(words):
    assert mean_excess(words, words.next_token_probs) == pytest.approx(0, abs=1e-12)
    uniform = np.full_like(words.next_token_probs, 1 / words.process.num_symbols)
    exact = words.next_token_probs
    terms = np.where(exact > 1e-12, exact * np.log(np.maximum(exact, 1e-300) / uniform), 0).sum(1)
    assert mean_excess(words, uniform) == pytest.approx(words.weights @ terms, abs=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: all_words(RandomChains(3, alpha=1.0), 2), "RandomChains has no beliefs"),
        (lambda: all_words(processes.mess3(0.15, 0.6), 13), r"3\*\*13 words; expected 1,048,576 at most"),
        (lambda: markov_states(all_words(processes.mess3(0.15, 0.6), 2), 3), "order is 3; expected between 1 and 2"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()
