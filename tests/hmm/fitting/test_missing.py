"""Fits to tokens of which some were not observed."""

import itertools

import brute_force
import numpy as np
import pandas as pd
import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.fitting.settings import FitSettings
from hmm_datasets.hmm.model import HMM

QUIET = {"show_progress": False}


def with_gaps(hmm: HMM, count: int, length: int, seed: int, share: float = 0.3) -> np.ndarray:
    tokens = hmm.sample(count, length, seed=seed).astype(int)
    return np.where(np.random.default_rng(seed).random(tokens.shape) < share, -1, tokens)


def test_an_epoch_is_the_step_of_the_enumerated_counts():
    hmm = processes.random(2, 3, alpha=1.0, seed=4)
    tokens, lengths = with_gaps(hmm, 6, 5, seed=1), [5, 3, 5, 4, 2, 5]
    rows = [row[:end].tolist() for row, end in zip(tokens, lengths, strict=True)]
    settings = FitSettings(num_states=2, max_epochs=1, pseudocount=0.0, dtype="float64")
    result = fit_hmm(tokens, settings, lengths=lengths, initial=hmm, **QUIET)
    counts = brute_force.expected_counts(hmm, rows)
    for name, table in zip(("start", "transition", "emission"), counts, strict=True):
        expected = table / table.sum(-1, keepdims=True)
        np.testing.assert_allclose(getattr(result.hmm, name), expected, rtol=1e-10, atol=1e-12, err_msg=name)
    observed = sum(x >= 0 for row in rows for x in row)
    score = sum(brute_force.log_likelihood(hmm, row) for row in rows) / observed
    assert result.history[0]["train_log_likelihood"] == pytest.approx(score, rel=1e-10)


def test_no_epoch_lowers_the_likelihood_of_the_observed_tokens():
    tokens = with_gaps(processes.dishonest_casino(), 40, 30, seed=2)
    settings = FitSettings(num_states=3, max_epochs=12, pseudocount=0.0, dtype="float64", tolerance=0)
    history = fit_hmm(tokens, settings, num_symbols=6, **QUIET).history
    scores = [row["train_log_likelihood"] for row in history]
    assert all(after >= before - 1e-12 for before, after in itertools.pairwise(scores))
    assert scores[-1] > scores[0] + 0.001


@pytest.mark.outside(
    "https://github.com/jmschrei/pomegranate/issues/567",
    "a fit to sequences of labels of which some are missing",
    "labels numbered by pandas.factorize, which gives -1 to what is missing, are fitted as they are",
)
def test_labels_that_pandas_numbers_are_fitted_with_their_gaps():
    source = HMM(transition=[[0.9, 0.1], [0.2, 0.8]], emission=[[0.6, 0.3, 0.1, 0.0], [0.0, 0.1, 0.3, 0.6]])
    drawn = with_gaps(source, 300, 40, seed=3)
    labels = pd.Series(np.array(["a", "b", "c", "d", None], object)[drawn.ravel()])
    codes, names = pd.factorize(labels)
    assert (codes == -1).sum() == (drawn < 0).sum()
    settings = FitSettings(num_states=2, max_epochs=60, num_restarts=3)
    result = fit_hmm(codes.reshape(drawn.shape), settings, vocabulary=names, **QUIET)
    order = [list(names).index(name) for name in "abcd"]
    emission = result.hmm.emission[:, order]
    states = min(itertools.permutations(range(2)), key=lambda s: np.abs(emission[list(s)] - source.emission).sum())
    np.testing.assert_allclose(emission[list(states)], source.emission, atol=0.05)


def test_a_fit_with_gaps_resumes_and_another_fit_does_not_resume_from_it(tmp_path):
    tokens = with_gaps(processes.dishonest_casino(), 20, 12, seed=5)
    settings = FitSettings(num_states=2, max_epochs=2, save_every=1)
    fit_hmm(tokens, settings, num_symbols=6, checkpoint_dir=tmp_path, **QUIET)
    longer = FitSettings(num_states=2, max_epochs=4, save_every=1)
    resumed = fit_hmm(
        tokens * 1.0 if (tokens >= 0).all() else np.where(tokens < 0, np.nan, tokens),
        longer,
        num_symbols=6,
        checkpoint_dir=tmp_path,
        **QUIET,
    )
    assert resumed.hmm == fit_hmm(tokens, longer, num_symbols=6, **QUIET).hmm
    with pytest.raises(InputError, match="train"):
        fit_hmm(np.maximum(tokens, 0), longer, num_symbols=6, checkpoint_dir=tmp_path, **QUIET)


def test_data_without_a_fit_are_refused_by_what_they_lack():
    with pytest.raises(InputError, match="there is no token"):
        fit_hmm([[-1, None]], num_states=2, **QUIET)
    with pytest.raises(InputError, match="test_tokens hold no token"):
        fit_hmm([[0, 1]], num_states=2, test_tokens=[[-1, -1]], **QUIET)
    with pytest.raises(InputError, match=r"tokens\[0, 1\] is -2; .* -1 stands for a missing token"):
        fit_hmm([[0, -2]], num_states=2, **QUIET)


def test_a_column_with_gaps_is_fitted_as_its_rows():
    column = np.array([[0], [np.nan], [1], [1], [0]])
    settings = FitSettings(num_states=2, max_epochs=3)
    fitted = fit_hmm(column, settings, lengths=[3, 2], **QUIET)
    assert fitted.hmm == fit_hmm([[0, -1, 1], [1, 0, 0]], settings, lengths=[3, 2], **QUIET).hmm
