"""Commands that change the checkpoints of a run are killed: no checkpoint is torn, and the same command continues.

In the suite every some calls; `KILL_EVERY=1` kills at each rename and deletion.
"""

import os
import subprocess
from pathlib import Path

import pytest

from hmm_datasets.cli import main

PROGRAM = Path(__file__).with_name("killed_changes.py")
COMMANDS = {
    "slim": ("slim", "RUN"),
    "slim and prune": ("slim", "RUN", "--keep", "1", "--every", "4"),
    "restore": ("restore", "RUN"),
    "convert": ("convert", "RUN/checkpoint-6", "RUN/../model", "--to", "hf"),
}


@pytest.mark.parametrize("name", COMMANDS if "KILL_EVERY" in os.environ else ["slim and prune", "restore"])
def test_a_killed_change_tears_no_checkpoint_and_the_same_command_ends_as_if_undisturbed(
    name, run, tmp_path, warm_python, child_environment, capsys
):
    if name == "restore":
        assert main(["checkpoint", "slim", str(run), "--keep_newest", "0"]) == 0
    command = [warm_python, PROGRAM, run, tmp_path / "work", os.environ.get("KILL_EVERY", "11"), *COMMANDS[name]]
    done = subprocess.run(command, env=child_environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    *problems, kills = done.stdout.splitlines()
    with capsys.disabled():
        print(f"{name}: {kills}", end=" ") if "KILL_EVERY" in os.environ else None
    assert not problems, "\n".join(problems)[:3000]
    assert int(kills.split()[0]) >= 2
