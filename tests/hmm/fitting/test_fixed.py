"""Tables and zeros of the first guess that a fit keeps."""

import itertools

import numpy as np
import pytest

from hmm_datasets.hmm import processes
from hmm_datasets.hmm.fitting.baum_welch import log_prior, maximize
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.fitting.initial import random_guess, redrawn
from hmm_datasets.hmm.fitting.settings import TABLES, FitSettings
from hmm_datasets.hmm.model import HMM
from tests.hmm.brute_force import LEFT_TO_RIGHT

GUESS = random_guess(3, 4, seed=2)
TOKENS = processes.random(3, 4, alpha=0.4, seed=7).sample(60, 20, seed=1).astype(int)


def fit(**arguments):
    return fit_hmm(TOKENS, tolerance=0, seed=5, dtype="float64", show_progress=False, **arguments)


def held_tables():
    return [held for count in (1, 2) for held in itertools.combinations(TABLES, count)]


@pytest.mark.outside(
    "https://github.com/lindermanlab/ssm-jax/issues/36",
    "a flag for fit that keeps the emissions and optimizes the transitions, or the other way round",
    '`fit_hmm(x, initial=hmm, fixed=("emission",))`; the table is the same to the last bit',
)
@pytest.mark.outside(
    "https://github.com/jmschrei/pomegranate/issues/976",
    "distributions of states that stay, so that only transitions are fitted",
    '`fixed=("emission",)`',
)
@pytest.mark.parametrize("held", held_tables())
def test_tables_that_are_fixed_keep_every_bit_and_the_posterior_of_the_others_never_falls(held):
    result = fit(initial=GUESS, fixed=held, max_epochs=6)
    for name, table in GUESS.tables().items():
        assert np.array_equal(result.hmm.tables()[name], table) == (name in held), name
    assert np.diff([row["log_posterior"] for row in result.history]).min() > -1e-9
    free = sum(0.01 * np.log(table).sum() for name, table in GUESS.tables().items() if name not in held)
    expected = GUESS.log_likelihood(TOKENS).sum() + free
    assert result.history[0]["log_posterior"] == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("held", held_tables())
def test_free_tables_are_the_maximum_beside_those_that_are_fixed(held):
    settings = FitSettings(3, pseudocount=0.7, fixed=held)
    counts = GUESS.expected_counts(TOKENS[:5])
    hmm = maximize(_statistics(counts), GUESS, settings.pseudocounts, settings.fixed)

    def objective(hmm: HMM) -> float:  # what a step of EM maximizes, in nats
        terms = [(getattr(counts, name) * np.log(table)).sum() for name, table in hmm.tables().items()]
        return sum(terms) + log_prior(hmm, settings.pseudocounts)

    for seed in range(20):
        other = redrawn(hmm, held, seed=seed)
        near = HMM(**{name: 0.99 * table + 0.01 * other.tables()[name] for name, table in hmm.tables().items()})
        assert objective(near) < objective(hmm)


def _statistics(counts):
    from hmm_datasets.hmm.fitting.baum_welch import Statistics

    return Statistics({name: getattr(counts, name) for name in GUESS.tables()})


@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/386",
    "a start distribution of [0, 0, 1] that the fit leaves alone",
    '`fixed="start"` keeps it, and so do its zeros alone',
)
def test_a_fixed_start_is_the_one_that_was_set():
    initial = HMM(start=[0, 0, 1], transition=GUESS.transition, emission=GUESS.emission)
    assert fit(initial=initial, fixed="start", max_epochs=3).hmm.start.tolist() == [0, 0, 1]
    assert fit(initial=initial, max_epochs=3).hmm.start.tolist() == [0, 0, 1]


@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/525",
    "a transition matrix of which the row [0, 1, 0] stays while others are learned",
    "zeros of `initial` stay zero, so that a row with a single 1 stays too; other entries cannot be set apart",
)
def test_a_row_of_zeros_and_one_stays_while_other_rows_are_fitted():
    transition = np.array([[0, 1, 0], [0.2, 0.3, 0.5], [0.4, 0.3, 0.3]])
    hmm = fit(initial=HMM(transition=transition, emission=GUESS.emission, start=GUESS.start), max_epochs=3).hmm
    assert hmm.transition[0].tolist() == [0, 1, 0]
    assert (np.abs(hmm.transition[1:] - transition[1:]) > 1e-3).any()


@pytest.mark.thorough
@pytest.mark.parametrize("more", [{}, {"update_every": 1, "batch_size": 20}, {"fixed": ["emission"]}])
def test_a_left_right_model_stays_left_right_when_a_fit_is_resumed(more, tmp_path):
    initial = redrawn(LEFT_TO_RIGHT, seed=3)
    tokens = initial.sample(40, 12, seed=1)
    known = {"initial": initial, "tolerance": 0, "show_progress": False, **more}
    for epochs in (2, 4):
        result = fit_hmm(tokens, checkpoint_dir=tmp_path, max_epochs=epochs, **known)
    assert result.hmm == fit_hmm(tokens, max_epochs=4, **known).hmm
    for name, table in initial.tables().items():
        assert np.array_equal(result.hmm.tables()[name] == 0, table == 0), name


def test_further_guesses_draw_what_is_neither_zero_nor_fixed():
    drawn = redrawn(LEFT_TO_RIGHT, ["emission"], seed=4)
    assert np.array_equal(drawn.emission, LEFT_TO_RIGHT.emission)
    assert np.array_equal(drawn.transition == 0, LEFT_TO_RIGHT.transition == 0)
    assert drawn.transition[0, 0] != LEFT_TO_RIGHT.transition[0, 0]
    tokens = LEFT_TO_RIGHT.sample(40, 12, seed=1)
    known = {"fixed": ["emission"], "tolerance": 0, "max_epochs": 3, "seed": 4, "show_progress": False}
    result = fit_hmm(tokens, initial=LEFT_TO_RIGHT, num_restarts=2, restart_epochs=3, **known)
    alone = [
        fit_hmm(tokens, initial=hmm, **known).train_log_likelihood
        for hmm in (LEFT_TO_RIGHT, redrawn(LEFT_TO_RIGHT, ["emission"], seed=5))
    ]
    assert result.train_log_likelihood == max(alone)
