"""When a fit ends and what it says of it, and what of a first guess a fit keeps."""

import numpy as np
import pytest

from hmm_datasets import HMM
from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.fitting.baum_welch import log_prior
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.fitting.initial import random_guess
from hmm_datasets.hmm.fitting.settings import FitSettings

SOURCE = processes.random(3, 4, alpha=0.4, seed=7)
TOKENS = SOURCE.sample(60, 20, seed=1).astype(int)
LEFT_TO_RIGHT = HMM(
    start=[1, 0, 0],
    transition=[[0.5, 0.5, 0], [0, 0.5, 0.5], [0, 0, 1]],
    emission=[[0.4, 0.3, 0.2, 0.1], [0.1, 0.4, 0.3, 0.2], [0.25, 0.25, 0.5, 0.0]],
)


def fit(tokens=TOKENS, initial=None, **settings):
    settings = FitSettings(**({"num_states": 3, "dtype": "float64", "max_epochs": 400} | settings))
    return fit_hmm(tokens, settings, initial=initial, show_progress=False)


def left_by_aitken(values, update_every):
    """The limit by Aitken's formula from three values five epochs apart, less the last of them."""
    if len(values) < 11:
        return np.inf
    first, second, third = values[-11], values[-6], values[-1]
    if update_every:
        return abs(third - second)
    if abs(third - second) >= abs(second - first):
        return 0.0 if third == second else np.inf
    limit = (first * third - second**2) / (first + third - 2 * second)
    return max(abs(limit - third), abs(third - second))


@pytest.mark.thorough
def test_a_fit_on_a_plateau_has_not_converged():
    """From seed 9 a fit ended after 20 epochs with 29 nats left; from seed 3 gains fall to 4e-5 and grow to 5e-2."""
    tokens, common = processes.mess3().sample(2000, 100, seed=1).astype(int), {"num_states": 3, "show_progress": False}
    plateau, slow = (fit_hmm(tokens, seed=seed, **common) for seed in (3, 9))
    gains = np.diff([row["objective"] for row in plateau.history])
    least = int(gains[:25].argmin())
    assert gains[least] < 1e-3 * gains[least:].max()
    for result in (plateau, slow):
        assert result.converged
        assert result.reason.endswith("left to gain from this first guess, less than tolerance=1e-05")
    longer = fit_hmm(tokens, seed=9, max_epochs=200, tolerance=0, **common)
    assert 0 < (longer.train_log_likelihood - slow.train_log_likelihood) * tokens.size < 5
    cut = fit_hmm(tokens, seed=3, max_epochs=30, tolerance=1.5e-4, **common)
    assert np.diff([row["objective"] for row in cut.history]).min() < 5e-5
    assert (cut.converged, "left to gain" in cut.reason) == (False, False), "gains grow again"


@pytest.mark.thorough
def test_first_guesses_find_the_maximum_that_one_in_two_misses():
    """https://github.com/hmmlearn/hmmlearn/issues/162: half of the fits of this model, of knowledge that is gained
    once and for all, end in a lower maximum, however many sequences there are."""
    source = HMM(start=[0.7, 0.3], transition=[[0.9, 0.1], [0, 1]], emission=[[0.75, 0.25], [0.05, 0.95]])
    tokens = source.sample(1000, 20, seed=1).astype(int)
    settings = {"num_states": 2, "show_progress": False, "max_epochs": 300}
    for seed in range(0, 30, 10):
        result = fit_hmm(tokens, seed=seed, num_restarts=10, **settings)
        assert result.train_log_likelihood * tokens.size > source.log_likelihood(tokens).sum() - 1, seed


@pytest.mark.thorough
@pytest.mark.parametrize("pseudocount", [0.0, 1.0, 10.0, 100.0])
@pytest.mark.parametrize(("update_every", "tolerance"), [(None, 1e-5), (1, 3e-4)])
def test_a_fit_stops_where_the_log_posterior_no_longer_rises(pseudocount, update_every, tolerance):
    """Where it stopped by the likelihood alone, 10 pseudocounts cost it 12.8 nats here."""
    options = {"pseudocount": pseudocount, "update_every": update_every, "tolerance": tolerance}
    options["seed"] = 3 if pseudocount else 0  # from others the likelihood still rises after 400 epochs
    result = fit(**options)
    whole = fit(**options | {"tolerance": 0.0})
    assert result.converged
    assert f"tolerance={tolerance:g}" in result.reason
    assert ("posterior" in result.reason) == (pseudocount > 0)
    priors = FitSettings(3, pseudocount=pseudocount).pseudocounts
    reached, most = (
        found.train_log_likelihood * TOKENS.size + log_prior(found.hmm, priors) for found in (result, whole)
    )
    assert update_every is not None or reached > most - 1.0
    objectives = [row["objective"] for row in result.history]
    estimates = [left_by_aitken(objectives[:count], update_every) for count in range(1, len(objectives) + 1)]
    assert estimates[-1] < tolerance <= min(estimates[:-1])
    gains = np.diff(objectives)
    if update_every is None:
        assert gains.min() > -1e-12
        row = result.history[-1]
        assert row["objective"] == pytest.approx(row["log_posterior"] / TOKENS.size, rel=1e-12)


@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/73",
    "`converged` that is not true because the last iteration was reached",
    "`converged` is false at `max_epochs`, and `reason` says what the last epoch gained",
)
def test_the_result_says_whether_and_why_the_fit_ended():
    cut = fit(max_epochs=3)
    assert not cut.converged
    assert cut.reason.startswith("max_epochs=3 were done, the last of which gained 0.0")
    settings = FitSettings(3, patience=2, tolerance=0, max_epochs=400, pseudocount=0.0)
    stale = fit_hmm(TOKENS, settings, test_tokens=SOURCE.sample(4, 20, seed=9).astype(int), show_progress=False)
    assert not stale.converged
    assert stale.reason == "held-out data had not improved for 2 epochs, patience=2"
    assert not fit(max_epochs=0).converged


@pytest.mark.thorough
def test_a_resumed_fit_ends_for_the_same_reason(tmp_path):
    settings = FitSettings(3, pseudocount=10.0, tolerance=1e-5, max_epochs=200, save_every=2)
    first = fit_hmm(TOKENS, settings, checkpoint_dir=tmp_path, show_progress=False)
    again = fit_hmm(TOKENS, settings, checkpoint_dir=tmp_path, show_progress=False)
    assert first.converged
    assert (again.converged, again.reason) == (first.converged, first.reason)


@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/50",
    "why every posterior of a fit is 1/3 for each of three states",
    "`reason` names the states of `initial` that emit alike, which EM cannot tell apart",
)
def test_states_that_nothing_tells_apart_are_named(caplog):
    """EM has a fixed point where the states of the first guess emit alike: the rows stay equal for ever."""
    alike = HMM(start=[0.5, 0.5], transition=[[0.9, 0.1], [0.1, 0.9]], emission=[[0.1, 0.2, 0.3, 0.4]] * 2)
    result = fit(initial=alike, num_states=2)
    np.testing.assert_allclose(result.hmm.emission[0], result.hmm.emission[1], atol=1e-9)
    assert "states 0 and 1 of initial emit symbols with equal probabilities" in result.reason
    assert "start from emissions that differ" in caplog.text
    moved = HMM(start=[0.5, 0.5], transition=alike.transition, emission=[[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]])
    assert "equal" not in fit(initial=moved, num_states=2).reason


@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/77",
    "a left-to-right model, whose forbidden transitions a fit raised above zero",
    "zeros of `initial` stay zero in all tables, whatever the pseudocounts",
)
@pytest.mark.parametrize("update_every", [None, 1])
@pytest.mark.parametrize("pseudocount", [0.0, 0.01, 5.0])
def test_zeros_of_initial_stay_zero(pseudocount, update_every):
    tokens = LEFT_TO_RIGHT.sample(40, 12, seed=2).astype(int)
    result = fit(tokens, LEFT_TO_RIGHT, pseudocount=pseudocount, update_every=update_every, max_epochs=30)
    for name, table in LEFT_TO_RIGHT.tables().items():
        found = getattr(result.hmm, name)
        assert (found[table == 0] == 0).all()
        assert pseudocount == 0 or (found[table > 0] > 0).all()
    assert np.isfinite([row["objective"] for row in result.history]).all()
    assert np.diff([row["objective"] for row in result.history]).max() > 0


@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/316",
    "transitions that are known to be impossible beside others to learn",
    "entries of `initial` that are 0 are kept, the others are learned as by hmmlearn",
)
def test_zeros_and_priors_give_the_tables_of_hmmlearn():
    """hmmlearn keeps zeros of the start and of transitions beside a prior; its prior counts one more."""
    from hmmlearn.hmm import CategoricalHMM

    positive = np.where(LEFT_TO_RIGHT.emission > 0, LEFT_TO_RIGHT.emission, 0.1)
    initial = HMM(start=LEFT_TO_RIGHT.start, transition=LEFT_TO_RIGHT.transition, emission=positive, normalize=True)
    tokens = LEFT_TO_RIGHT.sample(40, 12, seed=2).astype(int)
    model = CategoricalHMM(
        3,
        n_features=4,
        init_params="",
        n_iter=15,
        tol=-np.inf,
        startprob_prior=3,
        transmat_prior=3,
        emissionprob_prior=3,
    )
    model.startprob_, model.transmat_, model.emissionprob_ = initial.start, initial.transition, initial.emission
    model.fit(tokens.reshape(-1, 1), [12] * 40)
    found = fit(tokens, initial, pseudocount=2.0, max_epochs=15, tolerance=0.0).hmm
    np.testing.assert_allclose(found.transition, model.transmat_, atol=1e-9)
    np.testing.assert_allclose(found.emission, model.emissionprob_, atol=1e-9)


def test_a_random_guess_has_no_tied_states():
    assert "equal" not in fit(initial=random_guess(3, 4, seed=1), max_epochs=5).reason


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/jmschrei/pomegranate/issues/675",
    "an error, where a fit to a sequence that the model cannot emit ends with an improvement of nan",
    "`batch 0, sequence 0: the HMM gives it probability 0; .. start from an HMM that can emit it`",
)
def test_a_sequence_that_initial_cannot_emit_is_named():
    with pytest.raises(InputError, match="batch 0, sequence 0: the HMM gives it probability 0"):
        fit([[0, 1, 3, 3]], HMM(start=[0, 0, 1], transition=LEFT_TO_RIGHT.transition, emission=LEFT_TO_RIGHT.emission))
