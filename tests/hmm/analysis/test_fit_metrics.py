"""What the history of a fit has of an epoch: held-out losses and divergences from n-grams, by enumeration."""

import itertools
import math

import numpy as np
import pytest

from hmm_datasets.hmm import processes
from hmm_datasets.hmm.analysis.fit_metrics import FitMetrics, ngrams_of
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.fitting.initial import random_guess
from hmm_datasets.hmm.token_files import TokenRows
from tests.hmm import brute_force

TRAIN = processes.random(3, 4, alpha=0.4, seed=7).sample(30, 6, seed=1)
TEST = processes.random(3, 4, alpha=0.4, seed=7).sample(5, 6, seed=2)


def by_enumeration(hmm, tokens):
    """The mean divergences at every position from the definition, with probabilities of sums over paths."""
    symbol = np.bincount(TRAIN.ravel(), minlength=4) / TRAIN.size
    totals = np.zeros(3)
    for row in tokens.tolist():
        for t in range(len(row)):
            past = brute_force.likelihood(hmm, row[:t])
            model = [brute_force.likelihood(hmm, [*row[:t], x]) / past for x in range(4)]
            after = [b for line in TRAIN.tolist() for a, b in itertools.pairwise(line) if a == row[t - 1]]
            bigram = symbol if t == 0 else np.bincount(after, minlength=4) / len(after)
            for number, ngram in enumerate((np.full(4, 0.25), symbol, bigram)):
                totals[number] += sum(q * math.log(q / p) for q, p in zip(ngram, model, strict=True) if q > 0)
    return totals / tokens.size


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_divergences_are_those_of_the_definition(seed):
    hmm = random_guess(3, 4, seed=seed)
    values = FitMetrics(TRAIN, {"test": TEST})(hmm)
    expected = by_enumeration(hmm, TEST)
    for name, value in zip(("kl_uniform", "kl_unigram", "kl_bigram"), expected, strict=True):
        assert values[name] == pytest.approx(value, abs=1e-10), name
    assert values["test_cross_entropy"] == pytest.approx(-hmm.log_likelihood(TEST).sum() / TEST.size, rel=1e-12)
    last = hmm.log_likelihood(TEST[:, :-1]) - hmm.log_likelihood(TEST)
    assert values["test_final_token_cross_entropy"] == pytest.approx(last.mean(), abs=1e-12)


def test_n_grams_of_a_chain_are_its_own_and_nothing_after_a_symbol_is_the_unigram():
    ngrams = ngrams_of(np.array([[0, 1, 1], [0, 1, 2]]), None, 4)
    assert ngrams.symbol.tolist() == pytest.approx([2 / 6, 3 / 6, 1 / 6, 0])
    assert ngrams.following[1].tolist() == [0, 0.5, 0.5, 0]
    assert ngrams.following[2].tolist() == ngrams.following[-1].tolist() == ngrams.symbol.tolist()


def test_rows_that_end_early_count_as_far_as_they_go():
    hmm, lengths = random_guess(3, 4, seed=1), np.array([6, 2, 3, 1, 4])
    garbage = np.where(np.arange(6) < lengths[:, None], TEST, 3)
    values = FitMetrics(TRAIN, {"test": TokenRows(garbage, lengths)})(hmm)
    rows = [row[:length] for row, length in zip(TEST, lengths, strict=True)]
    parts = [by_enumeration(hmm, row[None]) * len(row) for row in rows]
    for name, value in zip(("kl_uniform", "kl_unigram", "kl_bigram"), sum(parts) / 16, strict=True):
        assert values[name] == pytest.approx(value, abs=1e-10), name
    whole = [hmm.log_likelihood(row[None])[0] for row in rows]
    before = [hmm.log_likelihood(row[None, :-1])[0] for row in rows]
    assert values["test_cross_entropy"] == pytest.approx(-sum(whole) / 16, abs=1e-12)
    assert values["test_final_token_cross_entropy"] == pytest.approx(np.mean(np.subtract(before, whole)), abs=1e-12)
    lost = TEST.astype(int)
    lost[0, 2:4] = -1
    measured = FitMetrics(TRAIN, {"test": lost})(hmm)
    with_padding = FitMetrics(TRAIN, {"test": TokenRows(np.where(lost < 0, 0, lost), np.array([2, 6, 6, 6, 6]))})(hmm)
    assert measured["test_cross_entropy"] * 28 == pytest.approx(-hmm.log_likelihood(lost).sum(), abs=1e-10)
    assert measured["kl_unigram"] != with_padding["kl_unigram"]
    ragged = ngrams_of(np.array([[0, 1, 1], [0, 1, 2]]), np.array([2, 3]), 4)
    assert ragged.following[1].tolist() == [0, 0, 1, 0]


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/jmschrei/pomegranate/issues/175",
    "for each iteration the time it took, and a history of the likelihood and what else one would like to know",
    "`result.history` has losses, tokens, seconds and time left of each epoch, and what `on_epoch` adds",
)
@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/402",
    "the whole history of likelihoods in a variable, to draw the training",
    "`result.history`, and `history.jsonl` of a checkpoint folder",
)
def test_every_epoch_has_its_tokens_time_and_what_was_added(tmp_path):
    seen = []

    def on_epoch(row, hmm):
        seen.append(hmm)
        row.update(FitMetrics(TRAIN, {"test": TEST})(hmm))

    known = {"num_states": 3, "tolerance": 0, "show_progress": False, "test_tokens": TEST}
    for epochs in (2, 4):
        result = fit_hmm(TRAIN, max_epochs=epochs, checkpoint_dir=tmp_path, on_epoch=on_epoch, **known)
    assert [row["tokens"] for row in result.history] == [180, 360, 540, 720]
    assert [row["seconds_left"] > 0 for row in result.history] == [True, False, True, False]
    for row, hmm in zip(result.history, seen, strict=True):
        assert row["kl_bigram"] == FitMetrics(TRAIN, {"test": TEST})(hmm)["kl_bigram"]
        assert row["test_cross_entropy"] == pytest.approx(-row["test_log_likelihood"], rel=1e-5)  # of float32
    assert result.hmm == fit_hmm(TRAIN, max_epochs=4, **known).hmm


@pytest.mark.thorough
def test_divergences_over_many_symbols_are_measured_on_as_many_probabilities():
    hmm = processes.random(2, 4096, alpha=0.5, seed=0)
    train, test = hmm.sample(50, 64), hmm.sample(96, 64, seed=1)
    measured = [FitMetrics(train, {"test": rows})(hmm) for rows in (test, test[:64], test[:63])]
    found = [[row[f"kl_{name}"] for name in ("uniform", "unigram", "bigram")] for row in measured]
    assert found[0] == found[1], "4,096 tokens of 4,096 probabilities"
    assert found[1] != found[2]
