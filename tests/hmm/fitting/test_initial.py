import numpy as np
import pytest
import torch

from hmm_datasets.hmm import processes
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.fitting.initial import guess_from_contexts, random_guess
from hmm_datasets.hmm.fitting.settings import FitSettings

TRUTH = processes.random(30, 50, alpha=0.1, seed=3)
TOKENS = TRUTH.sample(400, 50, seed=1).astype(int)


def guess(tokens, num_states, num_symbols, lengths=None, seed=0):
    lengths = None if lengths is None else torch.as_tensor(lengths)
    return guess_from_contexts(torch.as_tensor(tokens), lengths, num_states, num_symbols, seed=seed)


def test_contexts_that_tell_the_states_apart_give_the_tables_up_to_the_random_share():
    # After 0 comes 1, after 1 comes 2, after 2 comes 0.
    tokens = (np.arange(300) + np.arange(20)[:, None]) % 3
    found = guess(tokens, 3, 3)
    symbol = found.emission.argmax(1)
    assert sorted(symbol) == [0, 1, 2]
    assert (found.emission.max(1) >= 0.9).all()
    assert (symbol[found.transition.argmax(1)] == (symbol + 1) % 3).all()
    assert (found.transition.max(1) >= 0.9).all()


def test_the_counts_are_those_along_the_clusters():
    # One cluster: the rows are the unigram distribution, mixed with a random tenth.
    found = guess(TOKENS, 1, 50)
    random = (found.emission[0] - 0.9 * np.bincount(TOKENS.ravel(), minlength=50) / TOKENS.size) / 0.1
    assert random.min() > 0
    assert random.sum() == pytest.approx(1)


def test_a_guess_from_contexts_begins_likelier_than_a_random_one():
    random = random_guess(30, 50).log_likelihood(TOKENS).sum() / TOKENS.size
    for seed in range(3):
        assert guess(TOKENS, 30, 50, seed=seed).log_likelihood(TOKENS).sum() / TOKENS.size > random + 0.2


def test_symbols_are_distinguished_by_what_follows_them_even_if_projected():
    # After symbols 0 to 99 comes 200, after 100 to 199 comes 201.
    words = np.random.default_rng(0).integers(0, 200, (400, 20))
    tokens = np.stack([words, 200 + words // 100], axis=2).reshape(400, 40)
    found = guess(tokens, 4, 202)
    mass = np.add.reduceat(found.emission, [0, 100, 200, 201], axis=1)
    # All but the random tenth.
    assert (mass.max(1) > 0.88).all()
    kind = mass.argmax(1)
    assert sorted(kind) == [0, 1, 2, 3]
    for word in (0, 1):
        assert kind[found.transition[list(kind).index(word)].argmax()] == word + 2


def test_more_states_than_contexts_stay_apart_and_positive():
    tokens = np.array([[0, 1, 0, 1], [1, 0, 1, 0]])
    found = guess(tokens, 9, 2)
    for table in found.tables().values():
        assert (table > 0).all()
    assert len(np.unique(found.emission, axis=0)) == 9


def test_padding_counts_for_nothing():
    lengths = np.arange(400) % 51
    garbage = TOKENS.copy()
    garbage[np.arange(50) >= lengths[:, None]] = 0
    other = garbage.copy()
    other[np.arange(50) >= lengths[:, None]] = 49
    assert guess(garbage, 10, 50, lengths) == guess(other, 10, 50, lengths)
    assert guess(garbage, 10, 50, lengths) != guess(garbage, 10, 50)


def test_seeds_differ_and_each_repeats():
    assert guess(TOKENS, 10, 50, seed=4) == guess(TOKENS, 10, 50, seed=4)
    assert guess(TOKENS, 10, 50, seed=4) != guess(TOKENS, 10, 50, seed=5)
    assert random_guess(3, 4, seed=1) == random_guess(3, 4, seed=1) != random_guess(3, 4, seed=2)


def test_sequences_of_one_token_have_contexts_too():
    found = guess([[0], [1], [1]], 2, 2)
    assert np.isfinite(found.log_likelihood([[0], [1]])).all()


def test_a_fit_starts_from_the_guess_in_its_settings():
    settings = FitSettings(10, max_epochs=0, init="contexts", seed=3)
    assert fit_hmm(TOKENS, settings, num_symbols=50, show_progress=False).hmm == guess(TOKENS, 10, 50, seed=3)
