"""A rank that waits for others says so."""

import subprocess

import pytest

VARIABLES = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
WAITING = """
import datetime, os, sys, torch
from hmm_datasets.runtime import environment, rendezvous
from hmm_datasets.errors import LostPeer
from hmm_datasets.runtime.program import _free_port, _one_line_of_lost_peers

os.environ["MASTER_PORT"] = str(_free_port())
rendezvous.SAY_AFTER = 0.5
rendezvous.announce_waits()
try:
    with _one_line_of_lost_peers():
        torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
except LostPeer as error:
    print(error, file=sys.stderr)
"""


@pytest.mark.thorough
def test_a_rank_that_waits_for_others_says_for_whom_and_for_how_long_and_ends_then(child_environment, warm_python):
    command = [warm_python, "-c", WAITING]
    done = subprocess.run(command, env=child_environment | VARIABLES, capture_output=True, text=True, timeout=500)
    waiting, error = done.stderr.splitlines()[0], done.stderr.splitlines()[-1]
    assert waiting.endswith("for the others of 4 ranks, for up to 2.0 s")
    assert error.startswith("lost another process (Timed out after")
    assert "Traceback" not in done.stderr
