"""A checkpoint that is damaged, or gone, is passed over: the run continues from the newest whole one."""

import contextlib
import io
import os
import shutil
import subprocess
from contextlib import redirect_stdout

import pytest

from hmm_datasets.errors import RolledBack
from hmm_datasets.files import DIGESTS_NAME, read_jsonl
from hmm_datasets.runtime.events import read_events
from hmm_datasets.training.checkpoints.inspection import list_steps


def losses(folder):
    return {row["step"]: row["loss"] for row in read_jsonl(folder / "history.jsonl") if "loss" in row}


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


@pytest.mark.thorough
def test_ranks_that_see_different_disks_are_refused(run, tmp_path, warm_python, child_environment):
    command = [warm_python, "-c", SEES]
    pipes = {"stdout": subprocess.PIPE, "text": True, "env": child_environment}
    ranks = [subprocess.Popen([*command, str(rank), str(run), str(tmp_path / "x")], **pipes) for rank in range(2)]
    for process in ranks:
        same, refused = process.communicate(timeout=500)[0].splitlines()
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


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/35525",
    "continue from the second last checkpoint if the last one cannot be loaded",
    "the same command continues from the newest whole checkpoint, and prints which",
)
@pytest.mark.parametrize("how", ["deleted", "flipped"])
def test_whichever_file_is_damaged_the_run_continues_from_the_checkpoint_before(how, go_on, trained, tmp_path):
    made = tmp_path / "made"
    go_on(made / "run", max_steps=4)
    names = sorted(path.name for path in (made / "run" / "checkpoint-4").iterdir())
    assert {"config.json", "identity.json", "optimizer.pt", "trainer_state.json"} <= set(names)
    for name in names:
        run = shutil.copytree(made, tmp_path / name) / "run"
        damage(run / "checkpoint-4" / name, how)
        with redirect_stdout(io.StringIO()) as out:
            summary = continued(go_on, run)
        assert losses(run) == losses(trained), name
        if (name, how) == (DIGESTS_NAME, "deleted"):  # without which a checkpoint counts as whole
            assert f"{run}: continues from {run / 'checkpoint-4'}" in out.getvalue()
            continue
        assert summary["resumed_from"] == "checkpoint-2", name
        assert summary["seconds_to_first_step"] > 0
        assert f"{run}: continues from {run / 'checkpoint-2'}" in out.getvalue(), name
        (event,) = [event["message"] for event in read_events(run) if event["kind"] == "torn"]
        assert event.startswith(f"{run / 'checkpoint-4'} is damaged ("), name
        assert name in event
        assert list_steps(next((run / "set_aside").iterdir())) == [4], name


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/tdrussell/diffusion-pipe/issues/159",
    "after a power failure the newest checkpoints have only files of 0 bytes",
    "the same command continues from the newest whole checkpoint",
)
@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/35782",
    "resuming fails if the newest checkpoint is incomplete",
    "the same command continues from the newest whole checkpoint, also of a copy that was cut off",
)
@pytest.mark.parametrize("left", [0, 4])
def test_a_run_is_brought_back_from_a_copy_whose_newest_checkpoint_is_incomplete(left, go_on, trained, tmp_path):
    """As a power failure, or `rsync` that was cut off, leaves it: of `left` files all bytes, of others none."""
    run, backup = tmp_path / "run", tmp_path / "backup"
    go_on(run, max_steps=4)
    shutil.copytree(run, backup)
    shutil.rmtree(run)
    for path in sorted((backup / "checkpoint-4").iterdir())[left:]:
        os.truncate(path, 0)
    shutil.copytree(backup, run)
    assert continued(go_on, run)["resumed_from"] == "checkpoint-2"
    assert losses(run) == losses(trained)
