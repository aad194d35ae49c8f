import json
import math
from dataclasses import replace
from pathlib import Path

import brute_force
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.fitting import FitSettings, fit_hmm, random_guess
from hmm_datasets.hmm.model import HMM

ROOT = Path(__file__).parents[2]
GUESS = random_guess(3, 4, seed=2)
TOKENS = processes.random(3, 4, alpha=0.4, seed=7).sample(60, 20, seed=1).astype(int)
# Stops for nothing but max_steps.
SHORT = FitSettings(num_states=3, max_steps=4, tolerance=0, seed=5)


def fit(tokens=TOKENS, settings=SHORT, **arguments):
    return fit_hmm(tokens, settings, progress=False, **arguments)


def assert_close(found: HMM, expected: HMM, **tolerance) -> None:
    for name, table in expected.tables().items():
        np.testing.assert_allclose(found.tables()[name], table, err_msg=name, **tolerance)


def error(*arguments, **settings) -> str:
    with pytest.raises(InputError) as caught:
        fit(*arguments, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# One step


@pytest.mark.parametrize("pseudocount", [0.0, 0.3])
@pytest.mark.parametrize("lengths", [None, [5, 1, 3, 0, 2]])
def test_one_step_is_the_expected_counts_over_all_paths(pseudocount, lengths):
    tokens = np.array([[0, 1, 2, 3, 0], [3, 0, 0, 0, 0], [1, 1, 2, 0, 0], [0, 0, 0, 0, 0], [2, 3, 1, 1, 1]])
    rows = [row[:length] for row, length in zip(tokens, lengths or [5] * 5, strict=True)]
    found = fit(
        tokens, replace(SHORT, max_steps=1, pseudocount=pseudocount), initial=GUESS, lengths=lengths, num_symbols=4
    ).hmm
    counts = brute_force.expected_counts(GUESS, [row for row in rows if len(row) > 0])
    for name, count in zip(("start", "transition", "emission"), counts, strict=True):
        count = count + pseudocount
        # 3**5 paths of five factors: some hundred roundings.
        expected = count / count.sum(-1, keepdims=True)
        np.testing.assert_allclose(found.tables()[name], expected, rtol=1e-11, err_msg=name)


def test_one_step_is_that_of_hmmlearn():
    from hmmlearn.hmm import CategoricalHMM

    lengths = np.array([20, 7, 1, *[20] * 57])
    model = CategoricalHMM(n_components=3, n_features=4, n_iter=1, init_params="", params="ste")
    model.startprob_, model.transmat_, model.emissionprob_ = GUESS.start, GUESS.transition, GUESS.emission
    flat = np.concatenate([row[:length] for row, length in zip(TOKENS, lengths, strict=True)])
    model.fit(flat[:, None], lengths)
    found = fit(settings=replace(SHORT, max_steps=1, pseudocount=0), initial=GUESS, lengths=lengths, num_symbols=4)
    np.testing.assert_allclose(found.hmm.start, model.startprob_, rtol=1e-9)
    np.testing.assert_allclose(found.hmm.transition, model.transmat_, rtol=1e-9)
    np.testing.assert_allclose(found.hmm.emission, model.emissionprob_, rtol=1e-9)


# Many steps


@given(
    seed=st.integers(0, 1000),
    states=st.integers(1, 4),
    pseudocount=st.sampled_from([1e-3, 0.01, 1.0, 20.0]),
    data=st.integers(0, 3),
)
@settings(deadline=None, derandomize=True, max_examples=20)
def test_no_step_lowers_the_log_posterior(seed, states, pseudocount, data):
    tokens = processes.random(3, 4, alpha=0.4, seed=data).sample(10, 12, seed=seed).astype(int)
    found = fit(tokens, FitSettings(states, max_steps=10, tolerance=0, pseudocount=pseudocount, seed=seed))
    values = [row["log_posterior"] for row in found.history]
    assert len(values) == 10
    # Rounding of a sum of a hundred logarithms.
    assert np.diff(values).min() > -1e-9
    assert max(np.diff(values)) > 0 or states == 1


def test_no_step_lowers_the_likelihood_without_a_prior():
    found = fit(settings=replace(SHORT, max_steps=15, pseudocount=0))
    values = [row["log_posterior"] for row in found.history]
    assert np.diff(values).min() > -1e-9
    assert values[3] == pytest.approx(found.history[3]["train_log_likelihood"] * TOKENS.size, rel=1e-14)


def test_the_log_posterior_is_the_likelihood_and_the_dirichlet_prior():
    found = fit(settings=replace(SHORT, max_steps=1, pseudocount=0.7), initial=GUESS)
    prior = 0.7 * sum(np.log(table).sum() for table in GUESS.tables().values())
    expected = GUESS.log_likelihood(TOKENS).sum() + prior
    assert found.history[0]["log_posterior"] == pytest.approx(expected, rel=1e-13)


def test_the_result_does_not_depend_on_the_batch_size():
    lengths = np.arange(60) % 21
    whole = fit(lengths=lengths)
    for batch_size in (1, 7, 59):
        parts = fit(settings=replace(SHORT, batch_size=batch_size), lengths=lengths)
        # Sums of some 600 counts in another order, over four steps.
        assert_close(parts.hmm, whole.hmm, rtol=1e-10)
        assert parts.train_log_likelihood == pytest.approx(whole.train_log_likelihood, rel=1e-12)


def test_a_symbol_that_never_comes_keeps_a_positive_probability():
    found = fit(settings=replace(SHORT, max_steps=30), num_symbols=6).hmm
    assert (TOKENS < 4).all()
    assert (found.emission > 0).all()
    assert (found.emission[:, 4:] < 1e-3).all()
    assert np.isfinite(found.log_likelihood([[0, 5, 4, 1]])).all()
    for table in found.tables().values():
        assert (table > 0).all()


def test_a_fit_recovers_the_likelihood_of_the_hmm_that_drew_the_data():
    truth = HMM(start=[0.5, 0.5], transition=[[0.9, 0.1], [0.2, 0.8]], emission=[[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]])
    train, held_out = truth.sample(400, 50, seed=1), truth.sample(400, 50, seed=2)
    found = fit(train, FitSettings(2, max_steps=200, tolerance=1e-7, seed=3))
    here, optimum = found.hmm.log_likelihood(held_out).mean() / 50, truth.log_likelihood(held_out).mean() / 50
    # Seven free parameters cost some 7 / (2 N) nats a token; one state is 0.05 worse.
    assert abs(here - optimum) < 1e-3
    assert fit(train, FitSettings(1)).hmm.log_likelihood(held_out).mean() / 50 < optimum - 0.02
    order = np.argsort(-found.hmm.emission[:, 0])
    np.testing.assert_allclose(found.hmm.emission[order], truth.emission, atol=0.04)
    np.testing.assert_allclose(found.hmm.transition[order][:, order], truth.transition, atol=0.04)


def test_ragged_rows_fit_as_the_tokens_that_count_whatever_the_padding():
    lengths = np.arange(60) % 21
    garbage = TOKENS.copy()
    garbage[np.arange(20) >= lengths[:, None]] = -100
    expected, found = fit(lengths=lengths), fit(garbage, lengths=torch.as_tensor(lengths))
    assert found.hmm == expected.hmm
    assert found.train_log_likelihood == pytest.approx(
        expected.hmm.log_likelihood(TOKENS, lengths=lengths).sum() / lengths.sum(), rel=1e-12
    )


def test_a_fit_stops_when_a_step_gains_less_than_the_tolerance():
    found = fit(settings=replace(SHORT, max_steps=500, tolerance=1e-4))
    values = [row["train_log_likelihood"] for row in found.history]
    assert 3 < len(values) < 500
    assert abs(values[-1] - values[-2]) < 1e-4
    assert (np.abs(np.diff(values))[:-1] >= 1e-4).all()
    assert found.step == len(values)


def test_the_best_hmm_on_held_out_data_is_returned():
    # Few tokens and many states: what is gained in training is lost on others.
    truth = processes.random(3, 4, alpha=0.4, seed=7)
    train, held_out = truth.sample(5, 10, seed=1), truth.sample(100, 20, seed=2)
    chosen = FitSettings(8, max_steps=60, tolerance=0, patience=4, pseudocount=1e-3)
    found = fit(train, chosen, num_symbols=4, test_tokens=held_out)
    scores = [row["test_log_likelihood"] for row in found.history]
    assert len(scores) < 60
    assert found.step == int(np.argmax(scores)) == len(scores) - 1 - 4
    assert found.test_log_likelihood == scores[found.step]
    assert found.hmm.log_likelihood(held_out).sum() / held_out.size == pytest.approx(max(scores), rel=1e-12)
    assert found.hmm.log_likelihood(train).sum() / train.size == pytest.approx(found.train_log_likelihood, rel=1e-12)
    assert fit(train, chosen, num_symbols=4).test_log_likelihood is None


def test_the_same_seed_gives_the_same_fit_and_another_seed_another():
    assert fit().hmm == fit().hmm
    assert fit(settings=replace(SHORT, seed=6)).hmm != fit().hmm


def test_no_steps_give_the_first_guess_and_its_likelihood():
    found = fit(settings=replace(SHORT, max_steps=0), initial=GUESS)
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


# Checkpoints


def test_a_resumed_fit_is_the_undisturbed_one_to_the_last_bit(tmp_path):
    held_out = {"test_tokens": TOKENS[:9], "vocabulary": "abcd"}
    undisturbed = fit(settings=replace(SHORT, max_steps=9), **held_out)
    # Stopped at steps 5 and 7; the newest checkpoints are of steps 4 and 6.
    for max_steps in (5, 7, 9):
        found = fit(settings=replace(SHORT, max_steps=max_steps, save_every=2), checkpoint_dir=tmp_path, **held_out)
    assert found.hmm == undisturbed.hmm
    assert found.hmm.vocabulary == tuple("abcd")
    assert (found.step, found.train_log_likelihood) == (undisturbed.step, undisturbed.train_log_likelihood)
    assert found.test_log_likelihood == undisturbed.test_log_likelihood
    values = ("step", "train_log_likelihood", "log_posterior", "test_log_likelihood")
    rows = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert rows == found.history, "steps done twice stand there once"
    assert [[row[k] for k in values] for row in rows] == [[row[k] for k in values] for row in undisturbed.history]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["history.jsonl", *(f"step-{n}" for n in (2, 4, 6, 8))]


def test_a_resumed_fit_starts_at_the_newest_checkpoint(tmp_path):
    fit(settings=replace(SHORT, max_steps=6, save_every=2), checkpoint_dir=tmp_path)
    # A later state left by hand, as if from step 6: it has to be what goes on.
    HMM(**GUESS.tables()).save_pretrained(tmp_path / "step-6" / "hmm")
    found = fit(settings=replace(SHORT, max_steps=7, save_every=2), checkpoint_dir=tmp_path)
    assert found.hmm == fit(settings=replace(SHORT, max_steps=1), initial=GUESS).hmm


def test_a_finished_fit_is_not_fitted_again(tmp_path):
    first = fit(settings=replace(SHORT, save_every=2), checkpoint_dir=tmp_path)
    again = fit(settings=replace(SHORT, save_every=2), checkpoint_dir=tmp_path)
    assert again.hmm == first.hmm
    assert again.history == first.history


def test_batch_size_and_length_of_the_fit_may_change_on_resuming(tmp_path):
    fit(settings=replace(SHORT, max_steps=2, save_every=2), checkpoint_dir=tmp_path)
    found = fit(settings=replace(SHORT, batch_size=11, save_every=3, patience=9), checkpoint_dir=tmp_path)
    assert_close(found.hmm, fit().hmm, rtol=1e-10)
    assert len(found.history) == 4


@pytest.mark.parametrize(
    ("arguments", "differs"),
    [
        ({"settings": replace(SHORT, seed=6)}, "settings"),
        ({"settings": replace(SHORT, pseudocount=0.5)}, "settings"),
        ({"settings": replace(SHORT, num_states=2)}, "settings"),
        ({"tokens": TOKENS[::-1]}, "data"),
        ({"tokens": TOKENS[:-1]}, "data"),
        ({"lengths": np.full(60, 19)}, "data"),
        ({"test_tokens": TOKENS}, "test data"),
        ({"initial": GUESS}, "initial"),
        ({"num_symbols": 5}, "num_symbols"),
    ],
)
def test_the_folder_of_another_fit_is_refused_and_left_alone(tmp_path, arguments, differs):
    fit(settings=replace(SHORT, save_every=2), checkpoint_dir=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    message = error(**{"settings": SHORT, **arguments}, checkpoint_dir=tmp_path)
    assert message.startswith(f"{tmp_path / 'step-4'}: a fit with {differs} ")
    assert message.endswith("choose another folder or delete that one")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_torn_history_does_not_stop_a_fit(tmp_path):
    fit(settings=replace(SHORT, max_steps=3, save_every=2), checkpoint_dir=tmp_path)
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"step": 3, "train_l')
    found = fit(settings=replace(SHORT, save_every=2), checkpoint_dir=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert rows == found.history


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_states": 0}, "num_states is 0; expected 1 or more"),
        ({"num_states": 2, "max_steps": -1}, "max_steps is -1; expected 0 or more"),
        ({"num_states": 2, "batch_size": 0}, "batch_size is 0; expected 1 or more"),
        ({"num_states": 2, "patience": 0}, "patience is 0"),
        ({"num_states": 2, "save_every": 0}, "save_every is 0"),
        ({"num_states": 2, "pseudocount": -0.1}, "pseudocount is -0.1; expected a finite number, 0 or more"),
        ({"num_states": 2, "pseudocount": math.nan}, "pseudocount is nan"),
        ({"num_states": 2, "tolerance": math.inf}, "tolerance is inf"),
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
        ({"tokens": [[0, -1]]}, "tokens[0, 1] is -1"),
        ({"test_tokens": np.zeros((0, 5), int)}, "test_tokens hold no token"),
        ({"initial": random_guess(2, 4)}, "initial is HMM(2 states, 4 symbols, state-emitting); expected a state-"),
        ({"initial": random_guess(3, 5)}, "expected a state-emitting HMM of 3 states and 4 symbols"),
        ({"initial": brute_force.random_edges(3, 4, seed=1)}, "edge-emitting); expected a state-emitting HMM"),
        ({"vocabulary": "abc"}, "vocabulary has 3 names; expected 4"),
    ],
)
def test_what_cannot_be_fitted_is_refused(arguments, message):
    assert message in error(**arguments)


def test_a_sequence_that_the_hmm_cannot_emit_is_named():
    cannot = HMM(transition=GUESS.transition, emission=[[0.5, 0.5, 0, 0]] * 3)
    tokens = np.zeros((30, 8), dtype=int)
    tokens[17, 3] = 2
    message = error(tokens, replace(SHORT, batch_size=5, pseudocount=0), initial=cannot, num_symbols=4)
    assert message.startswith("batch 3, sequence 17: the HMM gives it probability 0")


# Several processes

SCRIPT = """
import sys
import numpy as np
import torch
from accelerate import PartialState
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.fitting import FitSettings, fit_hmm

state = PartialState(cpu=True)
assert (state.num_processes, torch.distributed.get_backend()) == (2, "gloo")
tokens = processes.random(3, 4, alpha=0.4, seed=7).sample(60, 20, seed=1).astype(int)
settings = FitSettings(num_states=3, max_steps=4, tolerance=0, seed=5, batch_size=7, save_every=1)
lengths = np.arange(60) % 21
for name, folder in (("alone", None), ("resumed", sys.argv[1] + "/fit")):
    result = fit_hmm(tokens, settings, lengths=lengths, test_tokens=tokens[:9], checkpoint_dir=folder)
    np.savez(
        f"{sys.argv[1]}/{name}-{state.process_index}.npz",
        **result.hmm.tables(), train=result.train_log_likelihood, test=result.test_log_likelihood, step=result.step,
    )
state.destroy_process_group()
"""


@pytest.mark.launch
def test_two_processes_fit_the_same_hmm_as_one_and_go_on_from_its_checkpoint(launch, tmp_path):
    script = tmp_path / "fit_on_two.py"
    script.write_text(SCRIPT)
    arguments = {"lengths": np.arange(60) % 21, "test_tokens": TOKENS[:9]}
    fit(settings=replace(SHORT, max_steps=2, save_every=1), checkpoint_dir=tmp_path / "fit", **arguments)
    config = ROOT / "accelerate_configs" / "cpu2.yaml"
    done = launch("accelerate.commands.launch", "--config_file", config, script, tmp_path)
    assert done.returncode == 0, done.stderr
    expected = fit(**arguments)
    for name in ("alone", "resumed"):
        ranks = [np.load(tmp_path / f"{name}-{rank}.npz") for rank in range(2)]
        for key in ranks[0]:
            np.testing.assert_array_equal(ranks[0][key], ranks[1][key], err_msg=key)
        for key, table in expected.hmm.tables().items():
            np.testing.assert_allclose(ranks[0][key], table, rtol=1e-10, err_msg=key)
        assert ranks[0]["train"] == pytest.approx(expected.train_log_likelihood, rel=1e-12)
        assert ranks[0]["test"] == pytest.approx(expected.test_log_likelihood, rel=1e-12)
        assert ranks[0]["step"] == expected.step
    rows = [json.loads(line) for line in (tmp_path / "fit" / "history.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
