"""Checkpoints are copied to another place in the background, whole, and a run continues from the copies."""

import contextlib
import io
import os
import shutil
import subprocess
import threading
from contextlib import redirect_stdout

import pytest

from hmm_datasets.compat.transformers import TrainerHooks
from hmm_datasets.errors import InputError, RolledBack
from hmm_datasets.files import DIGESTS_NAME, digest_problems, read_jsonl
from hmm_datasets.runtime.events import read_events
from hmm_datasets.training.checkpoints import copies as copies_module
from hmm_datasets.training.checkpoints.copies import WAITING, CheckpointCopies
from hmm_datasets.training.checkpoints.verifying import list_steps, verify_checkpoint


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def losses(folder):
    return {row["step"]: row["loss"] for row in read_jsonl(folder / "history.jsonl") if "loss" in row}


class Copies(CheckpointCopies):
    """Copies of which all are kept."""

    def start(self, checkpoint, outdated=lambda steps: []):
        super().start(checkpoint, outdated)


def copier(run, destination, said):
    return Copies(run, destination, said.append)


def test_a_run_is_copied_and_continues_from_the_copies_when_its_folder_is_lost(go_on, trained, tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    go_on(run, max_steps=4, copy_checkpoints_to=str(other), save_total_limit=1)
    assert list_steps(run) == [4]
    assert list_steps(other / "run") == [4], "save_total_limit holds for the copies too"
    assert content(other / "run" / "checkpoint-4") == content(run / "checkpoint-4")
    events = [event for event in read_events(run) if event["kind"] == "copy"]
    assert [(event["step"], event["failed"]) for event in events] == [(2, False), (4, False)]
    assert not [path for path in (*run.iterdir(), *(other / "run").iterdir()) if path.name.startswith(".")]
    shutil.rmtree(run)
    assert go_on(run, max_steps=6, copy_checkpoints_to=str(other))["resumed_from"] == "checkpoint-4"
    assert losses(run) == losses(trained)
    assert list_steps(run) == [6]
    assert list_steps(other / "run") == [6, 4]


def test_copies_are_deleted_by_the_settings_at_the_time_of_saving(go_on, tmp_path, monkeypatch):
    """The Trainer finishes without save_total_limit, and copies are made meanwhile."""
    finishing, copied, copy = threading.Event(), threading.Event(), CheckpointCopies._copy
    finalize = TrainerHooks._finalize_training

    def late(self, name, *given):
        assert finishing.wait(60)
        size = copy(self, name, *given)
        if name == "checkpoint-4":
            copied.set()
        return size

    def waits(self, *given):
        def finish(*_):
            finishing.set()
            assert copied.wait(60)

        monkeypatch.setattr(self.callback_handler, "on_train_end", finish)
        return finalize(self, *given)

    monkeypatch.setattr(CheckpointCopies, "_copy", late)
    monkeypatch.setattr(TrainerHooks, "_finalize_training", waits)
    go_on(tmp_path / "run", max_steps=4, copy_checkpoints_to=str(tmp_path / "other"), save_total_limit=1)
    assert list_steps(tmp_path / "other" / "run") == [4]


def test_a_damaged_checkpoint_is_replaced_by_its_copy(go_on, trained, tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    go_on(run, max_steps=4, copy_checkpoints_to=str(other))
    os.truncate(run / "checkpoint-4" / "optimizer.pt", 90)
    assert go_on(run, max_steps=6, copy_checkpoints_to=str(other))["resumed_from"] == "checkpoint-4"
    assert losses(run) == losses(trained)
    (aside,) = (run / "set_aside").iterdir()
    assert list_steps(aside) == [4]


def test_the_copies_of_another_run_are_not_touched(go_on, tmp_path):
    other = tmp_path / "other"
    go_on(tmp_path / "a" / "run", max_steps=2, copy_checkpoints_to=str(other))
    (other / "run" / "identity.json").write_text('{"data": {"stream": 2}}')
    before = content(other)
    with pytest.raises(InputError, match="stream was 2 and is 1; choose another copy_checkpoints_to"):
        go_on(tmp_path / "b" / "run", max_steps=2, copy_checkpoints_to=str(other))
    assert content(other) == before
    with pytest.raises(InputError, match="name another disk"):
        go_on(tmp_path / "a" / "run", max_steps=2, copy_checkpoints_to=str(tmp_path / "a"))


def test_a_copy_that_cannot_be_made_is_an_event_and_the_run_goes_on(go_on, tmp_path, small_disk):
    disk = small_disk("150k")
    summary = go_on(tmp_path / "run", max_steps=4, copy_checkpoints_to=str(disk))
    assert summary["steps"] == 4
    events = [event for event in read_events(tmp_path / "run") if event["kind"] == "copy"]
    assert [event["failed"] for event in events] == [True, True]
    assert "checkpoint-4 was not copied to " in events[1]["message"]
    assert "No space left on device" in events[1]["message"]
    assert len(events[1]["message"]) < 300
    assert list_steps(disk / "run") == []
    assert sum(path.stat().st_size for path in disk.rglob("*") if path.is_file()) < 10_000
    assert not list((tmp_path / "run").glob(".copy.*"))


def test_a_copy_with_other_bytes_is_not_kept(run, tmp_path, monkeypatch):
    copytree = shutil.copytree

    def damaged(source, target, **given):
        copytree(source, target, **given)
        if "copy_function" not in given:
            data = bytearray((target / "optimizer.pt").read_bytes())
            data[1000] ^= 1
            (target / "optimizer.pt").write_bytes(data)
        return target

    monkeypatch.setattr(copies_module.shutil, "copytree", damaged)
    said = []
    copies = copier(run, tmp_path / "other", said)
    copies.start(run / "checkpoint-6")
    copies.finish(60)
    assert list_steps(tmp_path / "other") == []
    assert "optimizer.pt: SHA-256 is" in said[-1]
    assert "training continues" in said[-1]


def test_slow_copies_leave_out_the_oldest_and_deleted_checkpoints_are_copied_still(run, tmp_path, monkeypatch):
    begun, go, copy = threading.Event(), threading.Event(), CheckpointCopies._copy

    def slow(self, *given):
        begun.set()
        go.wait(60)
        return copy(self, *given)

    monkeypatch.setattr(CheckpointCopies, "_copy", slow)
    said = []
    copies = copier(run, tmp_path / "other", said)
    copies.start(run / "checkpoint-2")
    assert begun.wait(60)
    order = [4, 6, 4, 6]
    assert len(order) - WAITING == 2
    for step in order:
        copies.start(run / f"checkpoint-{step}")
    assert [event["step"] for event in read_events(run)] == [4, 6]
    assert "copies are slower than checkpoints are saved" in said[-1]
    shutil.rmtree(run / "checkpoint-2")
    copies.finish(0.1)
    assert "took longer than 0.1 s; not waited for" in said[-1]
    go.set()
    copies.finish(60)
    assert list_steps(tmp_path / "other") == [6, 4, 2]
    for step in (2, 4, 6):
        assert verify_checkpoint(tmp_path / "other" / f"checkpoint-{step}").ok
        assert digest_problems(tmp_path / "other" / f"checkpoint-{step}") == []
    assert not list(run.glob(".copy.*"))


SEES = """
import sys
import torch
from hmm_datasets.training.checkpoints.resuming import possible_starts
from hmm_datasets.training.run import _check_same_start
rank, run, other = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.distributed.init_process_group("gloo", init_method=f"file://{run}/rendezvous", rank=rank, world_size=2)
for folder in (run, run if rank == 0 else other):
    try:
        _check_same_start(next(possible_starts(folder), None))
        print("the same")
    except ValueError as error:
        print(error)
"""


@pytest.mark.launch
def test_ranks_that_see_different_disks_are_refused(run, tmp_path, warm_python, child_environment):
    command = [warm_python, "-c", SEES]
    pipes = {"stdout": subprocess.PIPE, "text": True, "env": child_environment}
    ranks = [subprocess.Popen([*command, str(rank), str(run), str(tmp_path / "x")], **pipes) for rank in range(2)]
    for process in ranks:
        same, refused = process.communicate(timeout=120)[0].splitlines()
        assert same == "the same"
        assert refused.startswith(f"rank 0 would continue from {run}/checkpoint-6, rank 1 from no checkpoint; ")


def damage(path, how):
    if how == "deleted":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


def continued(go_on, run, **given):
    """The summary of the run, started again as often as a recipe starts itself again."""
    while True:
        with contextlib.suppress(RolledBack):
            return go_on(run, max_steps=6, **given)


@pytest.mark.parametrize("how", ["deleted", "flipped"])
def test_whichever_file_is_damaged_the_run_continues_from_the_copy_and_prints_which(how, go_on, trained, tmp_path):
    made, copies = tmp_path / "made", tmp_path / "copies"
    go_on(made / "run", max_steps=4, copy_checkpoints_to=str(copies))
    names = sorted(path.name for path in (made / "run" / "checkpoint-4").iterdir())
    assert {"config.json", "identity.json", "optimizer.pt", "trainer_state.json"} <= set(names)
    for name in names:
        run = shutil.copytree(made, tmp_path / name) / "run"
        other = shutil.copytree(copies, tmp_path / name / "copies")
        damage(run / "checkpoint-4" / name, how)
        with redirect_stdout(io.StringIO()) as out:
            assert continued(go_on, run, copy_checkpoints_to=str(other))["resumed_from"] == "checkpoint-4", name
        assert losses(run) == losses(trained), name
        if (name, how) == (DIGESTS_NAME, "deleted"):  # without which a checkpoint counts as whole
            assert f"{run}: continues from {run / 'checkpoint-4'}" in out.getvalue()
            continue
        assert f"{run}: continues from {other / 'run' / 'checkpoint-4'}" in out.getvalue(), name
        (event,) = [event["message"] for event in read_events(run) if event["kind"] == "torn"]
        assert event.startswith(f"{run / 'checkpoint-4'} is damaged ("), name
        assert name in event
        assert list_steps(next((run / "set_aside").iterdir())) == [4], name


@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/35525",
    "continue from the second last checkpoint if the last one cannot be loaded",
    "the same command continues from the newest whole checkpoint or copy, and prints which",
)
def test_without_a_copy_the_run_continues_from_the_checkpoint_before_a_damaged_one(go_on, trained, tmp_path):
    run = tmp_path / "run"
    go_on(run, max_steps=4)
    damage(run / "checkpoint-4" / "optimizer.pt", "flipped")
    summary = continued(go_on, run)
    assert summary["resumed_from"] == "checkpoint-2"
    assert summary["seconds_to_first_step"] > 0
    assert losses(run) == losses(trained)
    assert list_steps(next((run / "set_aside").iterdir())) == [4]


def test_a_damaged_copy_too_is_passed_over(go_on, trained, tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    go_on(run, max_steps=4, copy_checkpoints_to=str(other))
    damage(run / "checkpoint-4" / "model.safetensors", "flipped")
    damage(other / "run" / "checkpoint-4" / "optimizer.pt", "flipped")
    assert continued(go_on, run, copy_checkpoints_to=str(other))["resumed_from"] == "checkpoint-2"
    assert losses(run) == losses(trained)
    assert [list_steps(next((folder / "set_aside").iterdir())) for folder in (run, other / "run")] == [[4], [4]]
