import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.arrays import rows_of_column
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.fitting.initial import random_guess
from hmm_datasets.hmm.fitting.settings import FitSettings
from hmm_datasets.hmm.fitting.state import STEP_EXPONENT, FitState
from hmm_datasets.hmm.model import HMM

GUESS = random_guess(3, 4, seed=2)
TOKENS = processes.random(3, 4, alpha=0.4, seed=7).sample(60, 20, seed=1).astype(int)
SHORT_OF_TOLERANCE = FitSettings(num_states=3, tolerance=1e-6)
# Stops for nothing but max_epochs.
SHORT = FitSettings(num_states=3, max_epochs=4, tolerance=0, seed=5, dtype="float64")


def fit(tokens=TOKENS, settings=SHORT, **arguments):
    return fit_hmm(tokens, settings, show_progress=False, **arguments)


def error(*arguments, **settings) -> str:
    with pytest.raises(InputError) as caught:
        fit(*arguments, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Many steps


@pytest.mark.thorough
@given(
    seed=st.integers(0, 1000),
    states=st.integers(1, 4),
    pseudocount=st.sampled_from([1e-3, 0.01, 1.0, 20.0]),
    data=st.integers(0, 3),
    dtype=st.sampled_from(["float32", "float64"]),
)
@settings(deadline=None, derandomize=True, max_examples=30)
def test_no_step_lowers_the_log_posterior(seed, states, pseudocount, data, dtype):
    tokens = processes.random(3, 4, alpha=0.4, seed=data).sample(10, 12, seed=seed).astype(int)
    found = fit(
        tokens, FitSettings(states, max_epochs=10, tolerance=0, pseudocount=pseudocount, seed=seed, dtype=dtype)
    )
    values = [row["log_posterior"] for row in found.history]
    assert len(values) == 10
    # Rounding of a sum of a hundred logarithms.
    assert np.diff(values).min() > (-1e-9 if dtype == "float64" else -1e-4)
    assert max(np.diff(values)) > 0 or states == 1


def test_no_step_lowers_the_likelihood_without_a_prior():
    found = fit(settings=replace(SHORT, max_epochs=15, pseudocount=0))
    values = [row["log_posterior"] for row in found.history]
    assert np.diff(values).min() > -1e-9
    assert values[3] == pytest.approx(found.history[3]["train_log_likelihood"] * TOKENS.size, rel=1e-14)


def test_the_log_posterior_is_the_likelihood_and_the_dirichlet_prior():
    found = fit(settings=replace(SHORT, max_epochs=1, pseudocount=0.7), initial=GUESS)
    prior = 0.7 * sum(np.log(table).sum() for table in GUESS.tables().values())
    expected = GUESS.log_likelihood(TOKENS).sum() + prior
    assert found.history[0]["log_posterior"] == pytest.approx(expected, rel=1e-13)


def test_a_symbol_that_never_comes_keeps_a_positive_probability():
    found = fit(settings=replace(SHORT, max_epochs=30), num_symbols=6).hmm
    assert (TOKENS < 4).all()
    assert (found.emission > 0).all()
    assert (found.emission[:, 4:] < 1e-3).all()
    assert np.isfinite(found.log_likelihood([[0, 5, 4, 1]])).all()
    for table in found.tables().values():
        assert (table > 0).all()


@pytest.mark.thorough
def test_a_fit_recovers_the_likelihood_of_the_hmm_that_drew_the_data():
    truth = HMM(start=[0.5, 0.5], transition=[[0.9, 0.1], [0.2, 0.8]], emission=[[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]])
    train, held_out = truth.sample(400, 50, seed=1), truth.sample(400, 50, seed=2)
    found = fit(train, FitSettings(2, max_epochs=200, tolerance=1e-7, seed=3))
    here, optimum = found.hmm.log_likelihood(held_out).mean() / 50, truth.log_likelihood(held_out).mean() / 50
    # Seven free parameters cost some 7 / (2 N) nats per token; one state is 0.05 worse.
    assert abs(here - optimum) < 1e-3
    assert fit(train, FitSettings(1)).hmm.log_likelihood(held_out).mean() / 50 < optimum - 0.02
    order = np.argsort(-found.hmm.emission[:, 0])
    np.testing.assert_allclose(found.hmm.emission[order], truth.emission, atol=0.04)
    np.testing.assert_allclose(found.hmm.transition[order][:, order], truth.transition, atol=0.04)


@pytest.mark.outside(
    "https://github.com/probml/dynamax/issues/99",
    "learning from series of different lengths, with only the observed part counted",
    "`lengths=`; padding of any value changes nothing",
)
def test_ragged_rows_fit_as_the_tokens_that_count_whatever_the_padding():
    lengths = np.arange(60) % 21
    garbage = TOKENS.copy()
    garbage[np.arange(20) >= lengths[:, None]] = -100
    expected, found = fit(lengths=lengths), fit(garbage, lengths=torch.as_tensor(lengths))
    assert found.hmm == expected.hmm
    assert found.train_log_likelihood == pytest.approx(
        expected.hmm.log_likelihood(TOKENS, lengths=lengths).sum() / lengths.sum(), rel=1e-12
    )


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/455",
    "a fit to a sequence given twice, which had other tables than that to it once",
    "the tables are the same, and those of the sequence with weight 2",
)
def test_a_sequence_given_twice_has_the_fit_of_one():
    row = [0, 1, 2, 2, 2, 2, 2, 1, 0, 2, 0, 1, 0, 1, 0, 0, 2, 0, 1, 2, 0, 1, 1, 2]
    emission = np.array([[1, 3, 5], [2, 4, 6]])
    guess = HMM(transition=np.full((2, 2), 0.5), emission=emission / emission.sum(1, keepdims=True), start=[0.5, 0.5])
    options = {"initial": guess, "pseudocount": 0, "max_epochs": 100, "tolerance": 0, "show_progress": False}
    once, twice = (fit_hmm([row] * count, dtype="float64", **options).hmm for count in (1, 2))
    weighted = fit_hmm([row], dtype="float64", weights=[2.0], **options).hmm
    for other in (twice, weighted):
        for name, table in once.tables().items():
            np.testing.assert_allclose(other.tables()[name], table, atol=1e-10, err_msg=name)


@pytest.mark.thorough
def test_no_epoch_has_the_time_of_compiling(child_environment, tmp_path):
    code = """
from hmm_datasets import fit_hmm, processes
tokens = processes.mess3().sample(50, 20)
fit = fit_hmm(tokens, num_states=3, test_tokens=tokens[:10], max_epochs=2, show_progress=False)
print(*(row["seconds"] for row in fit.history))
"""
    environment = {**child_environment, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    first, second = map(float, done.stdout.split())
    assert first < 2 + second, "seconds; compiling the loops takes ten"


def test_free_parameters_are_what_a_fit_can_move():
    """Each row sums to one; zeros of the first guess stay; what is fixed is no parameter."""
    assert fit(settings=replace(SHORT, max_epochs=1)).num_parameters == (3 - 1) + 3 * (3 - 1) + 3 * (4 - 1)
    assert fit(settings=replace(SHORT, max_epochs=1, fixed=["emission"]), initial=GUESS).num_parameters == 2 + 6
    chain = HMM(start=[1, 0, 0], transition=np.eye(3) / 2 + np.roll(np.eye(3), 1, 1) / 2, emission=GUESS.emission)
    found = fit(settings=replace(SHORT, max_epochs=1), initial=chain)
    assert found.num_parameters == 0 + 3 * 1 + 3 * 3
    size = found.train_log_likelihood * TOKENS.size
    assert found.aic == pytest.approx(2 * 12 - 2 * size, rel=1e-12)
    assert found.bic == pytest.approx(12 * np.log(TOKENS.size) - 2 * size, rel=1e-12)


def test_the_best_hmm_on_held_out_data_is_returned():
    # Few tokens and many states: what is gained in training is lost on others.
    truth = processes.random(3, 4, alpha=0.4, seed=7)
    train, held_out = truth.sample(5, 10, seed=1), truth.sample(100, 20, seed=2)
    chosen = FitSettings(8, max_epochs=60, tolerance=0, patience=4, pseudocount=1e-3, dtype="float64")
    found = fit(train, chosen, num_symbols=4, test_tokens=held_out)
    scores = [row["test_log_likelihood"] for row in found.history]
    assert len(scores) < 60
    assert found.epoch == int(np.argmax(scores)) == len(scores) - 1 - 4
    assert found.test_log_likelihood == scores[found.epoch]
    assert found.hmm.log_likelihood(held_out).sum() / held_out.size == pytest.approx(max(scores), rel=1e-12)
    assert found.hmm.log_likelihood(train).sum() / train.size == pytest.approx(found.train_log_likelihood, rel=1e-12)
    assert fit(train, chosen, num_symbols=4).test_log_likelihood is None


def test_the_same_seed_gives_the_same_fit_and_another_seed_another():
    assert fit().hmm == fit().hmm
    assert fit(settings=replace(SHORT, seed=6)).hmm != fit().hmm


def test_no_steps_give_the_first_guess_and_its_likelihood():
    found = fit(settings=replace(SHORT, max_epochs=0), initial=GUESS)
    assert found.hmm == GUESS
    assert found.history == []
    assert found.train_log_likelihood == pytest.approx(GUESS.log_likelihood(TOKENS).sum() / TOKENS.size, rel=1e-13)


def test_the_vocabulary_is_kept():
    for initial in (None, GUESS):
        assert fit(initial=initial, vocabulary="abcd").hmm.vocabulary == tuple("abcd")
    named = HMM(**GUESS.tables(), vocabulary="wxyz")
    assert fit(initial=named).hmm.vocabulary == tuple("wxyz")


def test_structural_zeros_of_the_first_guess_survive_without_a_prior():
    left_to_right = HMM(start=[1, 0, 0], transition=[[0.5, 0.5, 0], [0, 0.5, 0.5], [0, 0, 1]], emission=GUESS.emission)
    found = fit(initial=left_to_right, settings=replace(SHORT, pseudocount=0)).hmm
    np.testing.assert_array_equal(found.transition == 0, left_to_right.transition == 0)
    assert found.start.tolist() == [1, 0, 0]


def test_emissions_have_a_pseudocount_of_their_own():
    chosen = replace(SHORT, max_epochs=1, pseudocount=1e9, emission_pseudocount=2.0)
    found = fit(settings=chosen, initial=GUESS, num_symbols=6 - 2)
    plain = fit(settings=replace(SHORT, max_epochs=1, pseudocount=0), initial=GUESS)
    np.testing.assert_allclose(found.hmm.transition, 1 / 3, rtol=1e-5)
    np.testing.assert_allclose(found.hmm.start, 1 / 3, rtol=1e-5)
    counts = plain.hmm.emission * GUESS.posteriors(TOKENS).sum((0, 1))[:, None] + 2
    np.testing.assert_allclose(found.hmm.emission, counts / counts.sum(1, keepdims=True), rtol=1e-10)


# Stochastic EM

ONLINE = replace(SHORT, update_every=2, batch_size=10, max_epochs=3)


def test_updates_follow_the_equation_of_online_em():
    found = fit(settings=ONLINE, initial=GUESS)
    hmm, statistics, update = GUESS, [0, 0, 0], 0
    for epoch in range(3):
        order = np.random.default_rng([5, epoch]).permutation(60)
        for rows in order.reshape(3, 20):  # six batches of ten, two an update
            update += 1
            counts = hmm.expected_counts(TOKENS[rows])
            scaled = [3 * getattr(counts, name) for name in ("start", "transition", "emission")]
            size = update**-STEP_EXPONENT
            statistics = [s + size * (c - s) for s, c in zip(statistics, scaled, strict=True)]
            tables = [table + 0.01 for table in statistics]
            hmm = HMM(**dict(zip(GUESS.tables(), [t / t.sum(-1, keepdims=True) for t in tables], strict=True)))
    for name, table in hmm.tables().items():
        np.testing.assert_allclose(found.hmm.tables()[name], table, rtol=1e-11, err_msg=name)
    assert [row["updates"] for row in found.history] == [3, 6, 9]
    assert "log_posterior" not in found.history[0]


def test_online_em_is_ahead_of_full_batches_after_the_same_epochs():
    tokens = processes.random(5, 8, alpha=0.3, seed=4).sample(2000, 20, seed=1).astype(int)
    common = {"num_states": 5, "max_epochs": 3, "tolerance": 0, "batch_size": 50, "seed": 1}
    full = fit(tokens, FitSettings(**common)).train_log_likelihood
    online = fit(tokens, FitSettings(**common, update_every=2)).train_log_likelihood
    assert online > full + 0.02


def test_one_update_an_epoch_of_all_batches_begins_as_full_batch_em():
    whole = fit(settings=replace(ONLINE, update_every=6, max_epochs=1), initial=GUESS)
    expected = fit(settings=replace(SHORT, max_epochs=1), initial=GUESS)
    for name, table in expected.hmm.tables().items():
        np.testing.assert_allclose(whole.hmm.tables()[name], table, rtol=1e-11)


# Restarts


def test_the_most_likely_first_guess_continues_as_if_alone():
    chosen = replace(SHORT, max_epochs=8, num_restarts=4, restart_epochs=3, seed=0)
    found = fit(settings=chosen)
    alone = [fit(settings=replace(SHORT, max_epochs=8, seed=seed)) for seed in range(4)]
    after_three = [result.history[2]["train_log_likelihood"] for result in alone]
    best = int(np.argmax(after_three))
    assert best != 0, "or the first would do"
    assert found.hmm == alone[best].hmm
    assert [(row["restart"], row["epoch"]) for row in found.history] == [
        *((restart, epoch) for restart in range(4) for epoch in range(3)),
        *((best, epoch) for epoch in range(3, 8)),
    ]
    assert all(row["seed"] == row["restart"] for row in found.history)


def test_a_first_guess_is_not_over_because_another_did_as_well():
    rows = [{"restart": restart, "train_log_likelihood": -1.0} for restart in range(2)]
    assert FitState(GUESS, restart=0, epoch=1, history=rows).ending(SHORT_OF_TOLERANCE) is None
    rows = [{"restart": 0, "train_log_likelihood": -1.0} for _ in range(11)]
    assert FitState(GUESS, restart=0, epoch=11, history=rows).ending(SHORT_OF_TOLERANCE).converged


def test_held_out_data_choose_among_restarts():
    chosen = replace(SHORT, max_epochs=3, num_restarts=4, restart_epochs=3, seed=2, num_states=6)
    held_out = processes.random(3, 4, alpha=0.4, seed=7).sample(60, 20, seed=2)
    found = fit(TOKENS[:6], settings=chosen, test_tokens=held_out, num_symbols=4)
    last = [row for row in found.history if row["epoch"] == 2]
    by_test = max(last, key=lambda row: row["test_log_likelihood"])["restart"]
    by_train = max(last, key=lambda row: row["train_log_likelihood"])["restart"]
    assert by_test != by_train, "or they could not be told apart"
    single = replace(chosen, num_restarts=1, restart_epochs=FitSettings.restart_epochs, seed=2 + by_test)
    expected = fit(TOKENS[:6], single, test_tokens=held_out, num_symbols=4)
    assert found.hmm == expected.hmm


# Errors


def test_the_least_of_every_setting_is_accepted():
    ones = dict.fromkeys(("patience", "update_every", "batch_size", "restart_epochs", "save_every"), 1)
    least = FitSettings(num_states=1, max_epochs=0, seed=0, tolerance=0, pseudocount=0, num_restarts=2, **ones)
    assert least.restart_epochs == FitSettings(num_states=1, num_restarts=1).num_restarts == 1
    assert FitSettings(num_states=1).seed == 0, "a fit that names no seed is always the same"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_states": 0}, "num_states is 0; expected an integer in [1"),
        ({"num_states": 2, "max_epochs": -1}, "max_epochs is -1; expected an integer in [0"),
        ({"num_states": 2, "batch_size": 0}, "batch_size is 0; expected an integer in [1"),
        ({"num_states": 2, "patience": 0}, "patience is 0"),
        ({"num_states": 2, "save_every": 0}, "save_every is 0"),
        ({"num_states": 2, "pseudocount": -0.1}, "pseudocount is -0.1; expected a finite number, 0 or more"),
        ({"num_states": 2, "pseudocount": math.nan}, "pseudocount is nan"),
        ({"num_states": 2, "tolerance": math.inf}, "tolerance is inf"),
        ({"num_states": 2, "emission_pseudocount": -1.0}, "emission_pseudocount is -1.0; expected a finite number"),
        ({"num_states": 2, "update_every": 0}, "update_every is 0; expected an integer in [1"),
        ({"num_states": 2, "num_restarts": 0}, "num_restarts is 0; expected an integer in [1"),
        ({"num_states": 2, "dtype": "bfloat16"}, "dtype is 'bfloat16'; expected float32 or float64"),
        (
            {"num_states": 2, "fixed": ["edges"]},
            "fixed has 'edges', which is no table; expected start, transition, em",
        ),
        ({"num_states": 2, "fixed": ["start", "emission", "transition"]}, "fixed names all three tables"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(arguments, message):
    with pytest.raises(InputError, match="expected") as caught:
        FitSettings(**arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": np.zeros((0, 5), int)}, "there is no token to fit an HMM to"),
        ({"tokens": np.zeros((3, 5), int), "lengths": [0, 0, 0]}, "there is no token to fit an HMM to"),
        ({"num_symbols": 3}, "is 3; the symbols of this HMM are 0..2"),
        ({"tokens": [[0, 1], [2]]}, "tokens are ragged"),
        ({"tokens": [[0.5, math.nan]]}, "tokens have type float64; expected integers"),
        ({"tokens": [["a"]]}, "expected integers"),
        ({"tokens": [[0, -2]]}, "tokens[0, 1] is -2"),
        ({"test_tokens": np.zeros((0, 5), int)}, "test_tokens hold no token"),
        ({"initial": random_guess(2, 4)}, "initial is HMM(2 states, 4 symbols, state-emitting); expected a state-"),
        ({"initial": random_guess(3, 5), "num_symbols": 4}, "expected a state-emitting HMM of 3 states and 4 symbols"),
        ({"initial": random_guess(3, 3)}, "is 3; the symbols of this HMM are 0..2"),
        ({"settings": replace(SHORT, fixed=["start"])}, "fixed is start, but no HMM has these tables; give initial"),
        ({"initial": processes.even()}, "edge-emitting); expected a state-emitting HMM"),
        ({"vocabulary": "abc"}, "is 3; the symbols of this HMM are 0..2"),
        ({"vocabulary": "abc", "num_symbols": 4}, "vocabulary has 3 names; expected 4"),
        ({"num_symbols": 0}, "num_symbols is 0; expected an integer in [1"),
        ({"device": "cuda:99"}, "device is 'cuda:99', and cannot be used: "),
    ],
)
def test_what_cannot_be_fitted_is_refused(arguments, message):
    assert message in error(**arguments)


def test_sequences_in_one_column_are_fitted_as_their_rows():
    lengths = [5, 1, 4]
    column = np.random.default_rng(0).integers(0, 3, (sum(lengths), 1))
    rows, counts = rows_of_column(column, lengths)
    assert [row[:count].tolist() for row, count in zip(rows, counts, strict=True)] == [
        part.ravel().tolist() for part in np.split(column, np.cumsum(lengths)[:-1])
    ]
    as_hmmlearn = fit_hmm(column, num_states=2, lengths=lengths, show_progress=False)
    as_rows = fit_hmm(rows, FitSettings(num_states=2), lengths=counts, num_symbols=3, show_progress=False)
    assert as_hmmlearn.hmm.fingerprint() == as_rows.hmm.fingerprint()


def test_settings_are_given_in_one_way():
    by_name = fit_hmm(TOKENS, num_states=3, max_epochs=2, fixed="start", initial=GUESS, show_progress=False)
    assert by_name.hmm == fit(settings=FitSettings(3, max_epochs=2, fixed=["start"]), initial=GUESS).hmm
    with pytest.raises(InputError, match="maxepochs is no argument and no field of FitSettings; did you mean max_epo"):
        fit_hmm([[0, 1]], num_states=2, maxepochs=3)
    for chosen in ({}, {"settings": FitSettings(num_states=2), "num_states": 2}):
        with pytest.raises(InputError, match="give settings, or num_states"):
            fit_hmm([[0, 1]], **chosen)
    with pytest.raises(InputError, match="lengths sum to 3; expected 4"):
        rows_of_column([0, 1, 0, 1], [1, 2])


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/jmschrei/pomegranate/issues/234",
    "Baum-Welch on two protein sequences of 7 and 9 letters from an alphabet of 20, which gave NaN",
    "`fit_hmm` takes the letters with `vocabulary=` and `lengths=`; its tables are finite, with a prior and without",
)
@pytest.mark.parametrize("pseudocount", [0.05, 0.0])
def test_two_short_sequences_of_letters_are_fitted(pseudocount):
    rows, letters = [[*"CAEFDDH", None, None], [*"CDAEFPDDH"]], "ARNDCEQGHILKMFPSTWYV"
    common = {"num_states": 4, "lengths": [7, 9], "pseudocount": pseudocount, "show_progress": False}
    result = fit_hmm(rows, vocabulary=letters, max_epochs=30, **common)
    assert all(np.isfinite(table).all() for table in result.hmm.tables().values())
    values = [row["objective"] for row in result.history]
    assert (np.diff(values) > -1e-5).all()
    assert (result.hmm.emission[:, letters.index("W")] > 0).all() == (pseudocount > 0)


@pytest.mark.outside(
    "https://github.com/probml/pmtk3/issues/12",
    "models of classes that never saw some symbols, which ended in an error on sequences of other classes",
    "without `num_symbols` the symbol is refused by its place; `num_symbols=8` gives it a small probability",
)
def test_a_class_that_never_saw_a_symbol_scores_it_if_the_number_of_symbols_is_given():
    tokens = processes.random(2, 6, seed=3).sample(50, 20)
    six, eight = (fit_hmm(tokens, num_states=2, show_progress=False, max_epochs=3, num_symbols=n).hmm for n in (6, 8))
    with pytest.raises(InputError, match=r"tokens\[0, 0\] is 7; the symbols of this HMM are 0..5"):
        six.log_likelihood([[7, 0]])
    seldom, often = eight.log_likelihood([[7, 0], [0, 0]])
    assert -np.inf < seldom < often - 5
