import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json, write_digests, write_json
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.fitting.initial import random_guess
from hmm_datasets.hmm.fitting.settings import FitSettings
from hmm_datasets.hmm.model import HMM

ROOT = Path(__file__).parents[3]
GUESS = random_guess(3, 4, seed=2)
TOKENS = processes.random(3, 4, alpha=0.4, seed=7).sample(60, 20, seed=1).astype(int)
# Stops for nothing but max_epochs.
SHORT = FitSettings(num_states=3, max_epochs=4, tolerance=0, seed=5, batch_size=7)


def fit(tokens=TOKENS, settings=SHORT, **arguments):
    return fit_hmm(tokens, settings, show_progress=False, **arguments)


def rows_on_disk(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


# Checkpoints


@pytest.mark.thorough
def test_a_resumed_fit_is_the_undisturbed_one_to_the_last_bit(tmp_path):
    held_out = {"test_tokens": TOKENS[:9], "vocabulary": "abcd"}
    undisturbed = fit(settings=replace(SHORT, max_epochs=9), **held_out)
    for max_epochs in (5, 7, 9):
        found = fit(settings=replace(SHORT, max_epochs=max_epochs, save_every=2), checkpoint_dir=tmp_path, **held_out)
    assert found.hmm == undisturbed.hmm
    assert found.hmm.vocabulary == tuple("abcd")
    assert (found.epoch, found.train_log_likelihood) == (undisturbed.epoch, undisturbed.train_log_likelihood)
    assert found.test_log_likelihood == undisturbed.test_log_likelihood
    values = ("epoch", "train_log_likelihood", "log_posterior", "test_log_likelihood")
    rows = rows_on_disk(tmp_path)
    assert rows == found.history, "epochs done twice stand there once"
    assert [[row[k] for k in values] for row in rows] == [[row[k] for k in values] for row in undisturbed.history]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *(f"epoch-{n}" for n in (2, 4, 5, 6, 7, 8, 9)),
        "history.jsonl",
    ]


def test_a_resumed_fit_starts_at_the_newest_checkpoint(tmp_path):
    fit(settings=replace(SHORT, max_epochs=6, save_every=2), checkpoint_dir=tmp_path)
    # A later state left by hand, as if of epoch 6: it has to be what goes on.
    HMM(**GUESS.tables()).save_pretrained(tmp_path / "epoch-6" / "hmm")
    with pytest.raises(InputError, match=r"epoch-6/hmm/.*SHA-256 is .*; delete .*epoch-6 to continue from the"):
        fit(settings=replace(SHORT, max_epochs=7, save_every=2), checkpoint_dir=tmp_path)
    (tmp_path / "epoch-6" / "digests.json").unlink()
    found = fit(settings=replace(SHORT, max_epochs=7, save_every=2), checkpoint_dir=tmp_path)
    assert found.hmm == fit(settings=replace(SHORT, max_epochs=1), initial=GUESS).hmm


def test_a_finished_fit_is_not_fitted_again(tmp_path):
    first = fit(settings=replace(SHORT, save_every=2), checkpoint_dir=tmp_path)
    again = fit(settings=replace(SHORT, save_every=2), checkpoint_dir=tmp_path)
    assert again.hmm == first.hmm
    assert again.history == first.history


def test_batch_size_and_length_of_the_fit_may_change_on_resuming(tmp_path):
    fit(settings=replace(SHORT, max_epochs=2, save_every=2), checkpoint_dir=tmp_path)
    found = fit(settings=replace(SHORT, batch_size=11, save_every=3, patience=9), checkpoint_dir=tmp_path)
    for name, table in fit().hmm.tables().items():
        np.testing.assert_allclose(found.hmm.tables()[name], table, rtol=1e-4, err_msg=name)
    assert len(found.history) == 4


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "differs"),
    [
        ({"settings": replace(SHORT, seed=6)}, "settings.seed was 5 and is 6"),
        ({"settings": replace(SHORT, pseudocount=0.5)}, "settings.pseudocount was"),
        ({"settings": replace(SHORT, num_states=2)}, "settings.num_states was"),
        ({"tokens": TOKENS[::-1]}, "data.train was"),
        ({"tokens": TOKENS[:-1]}, "data.train was"),
        ({"lengths": np.full(60, 19)}, "data.train was"),
        ({"test_tokens": TOKENS}, "data.test was None and is"),
        ({"initial": GUESS}, "data.initial was"),
        ({"num_symbols": 5}, "data.num_symbols was"),
    ],
)
def test_the_folder_of_another_fit_is_refused_and_left_alone(tmp_path, arguments, differs):
    fit(settings=replace(SHORT, save_every=2), checkpoint_dir=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError) as caught:
        fit(**{"settings": SHORT, **arguments}, checkpoint_dir=tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'epoch-4' / 'identity.json'}: of another run: {differs}")
    assert message.endswith("choose another folder, or delete that one")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_fit_by_another_rule_of_updates_is_refused(tmp_path):
    online = replace(SHORT, update_every=2, batch_size=10)
    fit(settings=replace(online, update_rule="replace"), checkpoint_dir=tmp_path)
    with pytest.raises(InputError, match=r"settings\.update_rule was 'replace' and is None"):
        fit(settings=online, checkpoint_dir=tmp_path)


@pytest.mark.parametrize(("value", "refused"), [(None, False), (0.5, True)])
def test_a_setting_that_does_not_exist_any_more_is_refused_if_it_had_an_effect(value, refused, tmp_path):
    first = fit(settings=SHORT, checkpoint_dir=tmp_path)
    (path,) = (tmp_path / "epoch-4").glob("identity.json")
    identity = read_json(path)
    identity["settings"]["start_pseudocount"] = value
    write_json(path, identity)
    write_digests(path.parent)
    if refused:
        with pytest.raises(InputError, match=r"settings\.start_pseudocount was 0.5 and is None"):
            fit(settings=SHORT, checkpoint_dir=tmp_path)
    else:
        assert fit(settings=SHORT, checkpoint_dir=tmp_path).hmm == first.hmm


def test_a_torn_history_does_not_stop_a_fit(tmp_path):
    fit(settings=replace(SHORT, max_epochs=3, save_every=2), checkpoint_dir=tmp_path)
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"step": 3, "train_l')
    found = fit(settings=replace(SHORT, save_every=2), checkpoint_dir=tmp_path)
    rows = rows_on_disk(tmp_path)
    assert [row["epoch"] for row in rows] == [0, 1, 2, 3]
    assert rows == found.history


ONLINE = replace(SHORT, update_every=2, max_epochs=6, save_every=2)


@pytest.mark.thorough
def test_stochastic_em_resumes_with_its_statistics_to_the_last_bit(tmp_path):
    undisturbed = fit(settings=ONLINE)
    for max_epochs in (3, 6):
        found = fit(settings=replace(ONLINE, max_epochs=max_epochs), checkpoint_dir=tmp_path)
    assert found.hmm == undisturbed.hmm
    assert [row["updates"] for row in found.history] == [row["updates"] for row in undisturbed.history]
    (tmp_path / "epoch-3" / "statistics.safetensors").unlink()
    (tmp_path / "epoch-3" / "digests.json").unlink()
    for name in ("epoch-4", "epoch-6"):
        shutil.rmtree(tmp_path / name)
    assert fit(settings=ONLINE, checkpoint_dir=tmp_path).hmm != undisturbed.hmm


def test_in_stochastic_em_the_batch_size_may_not_change(tmp_path):
    fit(settings=ONLINE, checkpoint_dir=tmp_path)
    with pytest.raises(InputError, match=r"settings\.batch_size was 7 and is 8"):
        fit(settings=replace(ONLINE, batch_size=8), checkpoint_dir=tmp_path)


@pytest.mark.thorough
def test_restarts_resume_where_they_stopped(tmp_path):
    chosen = replace(SHORT, max_epochs=6, num_restarts=3, restart_epochs=2, save_every=2, seed=0)
    undisturbed = fit(settings=chosen)
    first = fit(settings=chosen, checkpoint_dir=tmp_path / "whole")
    stopped = tmp_path / "stopped"
    # As if stopped in the third short run: two are done, and a row of the third is written.
    for restart in range(2):
        shutil.copytree(tmp_path / "whole" / f"restart-{restart}", stopped / f"restart-{restart}")
    (stopped / "history.jsonl").write_text('{"epoch": 0, "restart": 2}\n')
    found = fit(settings=chosen, checkpoint_dir=stopped)
    assert found.hmm == first.hmm == undisturbed.hmm
    assert found.history == rows_on_disk(stopped)
    values = ("epoch", "restart", "seed", "train_log_likelihood")
    assert [[row[k] for k in values] for row in found.history] == [[row[k] for k in values] for row in first.history]
    assert sorted(path.name for path in stopped.iterdir()) == [
        *("epoch-4", "epoch-6", "history.jsonl", "restart-0", "restart-1", "restart-2")
    ]


# Several processes

SCRIPT = """
import sys
from dataclasses import replace
import numpy as np
import torch
from accelerate import PartialState
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.fitting.settings import FitSettings
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.runtime.program import exit_without_teardown

with exit_without_teardown():
    state = PartialState(cpu=True)
    assert (state.num_processes, torch.distributed.get_backend()) == (2, "gloo")
    tokens = processes.random(3, 4, alpha=0.4, seed=7).sample(60, 20, seed=1).astype(int)
    settings = FitSettings(num_states=3, max_epochs=4, tolerance=0, seed=5, batch_size=7, save_every=1)
    online = replace(settings, update_every=2, num_restarts=2, restart_epochs=2)
    lengths = np.arange(60) % 21
    torch.set_num_threads(1 + state.process_index)
    folder = sys.argv[1]
    for name, chosen, checkpoints in (
        ("alone", settings, None), ("resumed", settings, folder + "/fit"), ("online", online, folder + "/online")
    ):
        result = fit_hmm(tokens, chosen, lengths=lengths, test_tokens=tokens[:9], checkpoint_dir=checkpoints)
        scores = {"train": result.train_log_likelihood, "test": result.test_log_likelihood, "step": result.epoch}
        np.savez(f"{folder}/{name}-{state.process_index}.npz", **result.hmm.tables(), **scores)
    state.wait_for_everyone()
    state.destroy_process_group()
"""


@pytest.mark.thorough
def test_two_processes_fit_the_same_bits_as_one_and_resume_from_its_checkpoint(launch, tmp_path):
    script = tmp_path / "fit_on_two.py"
    script.write_text(SCRIPT)
    arguments = {"lengths": np.arange(60) % 21, "test_tokens": TOKENS[:9]}
    fit(settings=replace(SHORT, max_epochs=2, save_every=1), checkpoint_dir=tmp_path / "fit", **arguments)
    config = ROOT / "accelerate_configs" / "cpu2.yaml"
    done = launch("accelerate.commands.launch", "--config_file", config, script, tmp_path)
    assert done.returncode == 0, done.stderr
    online = replace(SHORT, update_every=2, num_restarts=2, restart_epochs=2)
    alone = fit(**arguments)
    for name, expected in (("alone", alone), ("resumed", alone), ("online", fit(settings=online, **arguments))):
        for rank in range(2):
            found = np.load(tmp_path / f"{name}-{rank}.npz")
            for key, table in expected.hmm.tables().items():
                np.testing.assert_array_equal(found[key], table, err_msg=f"{name} {rank} {key}")
            assert found["train"] == expected.train_log_likelihood
            assert found["test"] == expected.test_log_likelihood
            assert found["step"] == expected.epoch
    rows = rows_on_disk(tmp_path / "fit")
    assert [row["epoch"] for row in rows] == [0, 1, 2, 3]
