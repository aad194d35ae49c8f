"""A rank that waits for others says so, and a command in a shell of srun is alone."""

import os
import subprocess

import pytest

from hmm_datasets.runtime import environment

VARIABLES = {"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "4"}
WAITING = """
import datetime, torch
from hmm_datasets.runtime import environment, rendezvous
from hmm_datasets.errors import LostPeer
from hmm_datasets.runtime.program import _free_port, _one_line_of_lost_peers

environment.os.environ["MASTER_PORT"] = str(_free_port())
rendezvous.SAY_AFTER = 0.5
environment.read_mpi_variables()
rendezvous.announce_waits()
try:
    with _one_line_of_lost_peers():
        torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
except LostPeer as error:
    print(error, file=environment.sys.stderr)
"""


@pytest.mark.outside(
    "https://github.com/Lightning-AI/pytorch-lightning/pull/15011",
    "jobs of Slurm that hang because of variables that srun has set",
    "after ten seconds a line names the variables, who is waited for and how long, and how to run alone",
)
@pytest.mark.thorough
def test_a_rank_that_waits_for_others_says_for_whom_and_for_how_long_and_ends_then(child_environment, warm_python):
    command = [warm_python, "-c", WAITING]
    done = subprocess.run(command, env=child_environment | VARIABLES, capture_output=True, text=True, timeout=500)
    waiting, error = done.stderr.splitlines()[0], done.stderr.splitlines()[-1]
    assert "for the others of 4 ranks, for up to 2.0 s; so says PMI_SIZE=4, as in a shell within srun" in waiting
    assert waiting.endswith(
        "begin the command with: env -u PMI_RANK -u PMI_SIZE -u MPI_LOCALRANKID -u MPI_LOCALNRANKS"
    )
    assert error.startswith("lost another process (Timed out after")
    assert "Traceback" not in done.stderr


def test_a_command_that_is_typed_into_a_shell_of_srun_is_alone(monkeypatch, capsys):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", *VARIABLES):
        monkeypatch.delenv(name, raising=False)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    ours, theirs = os.openpty()
    with open(theirs) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        assert environment.read_mpi_variables() is None
    os.close(ours)
    assert environment.world_size() == 1
    assert "PMI_SIZE" not in os.environ, "which accelerate would take"
    assert capsys.readouterr().err == "PMI_SIZE is 4, but this is typed into a shell: it runs alone\n"
