from dataclasses import replace

import numpy as np
import pytest
import torch

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.convert import from_pomegranate, to_pomegranate
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.fitting.initial import random_guess
from hmm_datasets.hmm.fitting.settings import FitSettings

GUESS = random_guess(3, 4, seed=2)
TOKENS = processes.random(3, 4, alpha=0.4, seed=7).sample(60, 20, seed=1).astype(int)
PLAIN = FitSettings(num_states=3, max_epochs=4, tolerance=0, seed=5, pseudocount=0, backend="pomegranate")


def fit(tokens=TOKENS, settings=PLAIN, **arguments):
    return fit_hmm(tokens, settings, show_progress=False, **arguments)


def assert_close(found, expected, rtol):
    for name, table in expected.tables().items():
        np.testing.assert_allclose(found.tables()[name], table, rtol=rtol, err_msg=name)


def test_it_is_pomegranates_own_fit():
    model = to_pomegranate(GUESS)
    model.max_iter, model.tol = 4, -np.inf
    model.fit(torch.from_numpy(TOKENS)[:, :, None])
    found = fit(initial=GUESS, vocabulary="abcd")
    # The same sums in batches: float32.
    assert_close(found.hmm, from_pomegranate(model, ends="drop"), rtol=1e-4)
    assert found.hmm.vocabulary == tuple("abcd")
    assert found.epoch == 4
    assert found.train_log_likelihood == pytest.approx(found.hmm.log_likelihood(TOKENS).sum() / 1200, rel=1e-6)
    assert [row["updates"] for row in found.history] == [1, 2, 3, 4]


def test_its_first_epoch_is_ours():
    found, ours = (fit(settings=replace(PLAIN, max_epochs=1, backend=name)) for name in ("pomegranate", "torch"))
    assert_close(found.hmm, ours.hmm, rtol=1e-4)
    assert found.history[0]["train_log_likelihood"] == pytest.approx(ours.history[0]["train_log_likelihood"], rel=1e-6)


def test_batches_and_ragged_lengths_change_nothing_but_rounding():
    lengths = 2 + np.arange(60) % 19
    found = fit(lengths=lengths, settings=replace(PLAIN, max_epochs=1))
    assert_close(found.hmm, fit(lengths=lengths, settings=replace(PLAIN, max_epochs=1, batch_size=2)).hmm, rtol=1e-3)
    assert_close(found.hmm, fit(lengths=lengths, settings=replace(PLAIN, max_epochs=1, backend="torch")).hmm, 1e-3)


def test_a_pseudocount_of_emissions_is_honoured():
    chosen = replace(PLAIN, max_epochs=1, emission_pseudocount=0.7)
    found = fit(settings=chosen, num_symbols=6)
    assert_close(found.hmm, fit(settings=replace(chosen, backend="torch"), num_symbols=6).hmm, rtol=1e-4)
    assert (found.hmm.emission > 0).all()


def test_held_out_data_and_restarts_work_as_with_ours():
    held_out = processes.random(3, 4, alpha=0.4, seed=7).sample(60, 20, seed=2)
    chosen = replace(PLAIN, num_restarts=2, restart_epochs=2, patience=2, max_epochs=8)
    found = fit(settings=chosen, test_tokens=held_out)
    assert {row["restart"] for row in found.history} == {0, 1}
    assert found.test_log_likelihood == pytest.approx(found.hmm.log_likelihood(held_out).sum() / 1200, rel=1e-6)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"update_every": 2}, "update_every is 2, but pomegranate has no stochastic EM"),
        ({"dtype": "float64"}, "dtype is float64, but pomegranate computes in float32"),
        (
            {"pseudocount": 0.01},
            "pseudocount is 0.01, but pomegranate has a prior on emissions only",
        ),
    ],
)
def test_what_pomegranate_cannot_honour_is_refused_by_name(changed, message):
    with pytest.raises(InputError) as caught:
        fit(settings=replace(PLAIN, **changed))
    assert message in str(caught.value)


def test_checkpoints_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"checkpoint_dir is .*, but pomegranate cannot resume a fit here"):
        fit(checkpoint_dir=tmp_path / "fit")
    assert not (tmp_path / "fit").exists()


def test_sequences_it_cannot_take_are_named():
    with pytest.raises(InputError, match="sequence 7 has 1 token, but pomegranate needs 2 or more"):
        fit(lengths=np.where(np.arange(60) == 7, 1, 20))
    impossible = replace_emission(GUESS)
    with pytest.raises(InputError, match="batch 0, sequence 0: pomegranate gives it probability 0 or NaN"):
        fit(np.full((5, 4), 3), initial=impossible, num_symbols=4)


def replace_emission(hmm):
    emission = hmm.emission.copy()
    emission[:, 3] = 0
    return type(hmm)(start=hmm.start, transition=hmm.transition, emission=emission, normalize=True)
