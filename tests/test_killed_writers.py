"""Kills of each kind of writer at random moments, a hundred or `KILLS`: nothing is lost, and nothing is left."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("killed_writers.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        *("folder", "evaluation", "words", "tokenization", "fit", "saving", "sweep", "supervise"),
        *("checkpoint slim", "checkpoint slim --keep"),
        *("checkpoint restore", "checkpoint convert"),
        *("sample --output", "tokenize", "end of a run"),
    ],
)
def test_kills_at_random_moments_lose_nothing_and_leave_nothing(kind, tmp_path, child_environment):
    paths = [child_environment.get("PYTHONPATH", ""), str(PROGRAM.parent / "training")]
    environment = child_environment | {"PYTHONPATH": ":".join(filter(None, paths))}
    kills = os.environ.get("KILLS", "100")
    command = [sys.executable, PROGRAM, tmp_path / "work", kind, kills, "7"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr[-2000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    print(kind, counts)
    assert counts["killed"] == int(kills)
    assert not {name for name in counts if "LOST" in name or name == "left behind"}, counts
    assert counts["not finished afterwards"] == counts["other result"] == 0
