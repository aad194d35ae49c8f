"""Writers that are killed with SIGKILL and started again; `killed_writer.py` does the killing."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest


@pytest.fixture
def killed(tmp_path, child_environment):
    def killed(when: str) -> list[dict]:
        command = [sys.executable, Path(__file__).with_name("killed_writer.py"), tmp_path, when]
        result = subprocess.run(command, env=child_environment, capture_output=True, text=True, timeout=500)
        assert result.returncode == 0, result.stderr[-3000:]
        return [json.loads(line) for line in result.stdout.splitlines()]

    return killed


@pytest.mark.parametrize("number", [8, pytest.param(20, marks=pytest.mark.slow)])
def test_a_writer_killed_at_random_moments_ends_with_the_bytes_of_an_undisturbed_one(number, killed):
    undisturbed, *rows = killed(str(number))
    kills = [row for row in rows if "killed" in row]
    whole = [row["whole"] for row in rows if "whole" in row]
    assert len(kills) == number
    assert len(undisturbed["whole"]) == 2 * 13 + 1
    assert all(digests == undisturbed["whole"] for digests in whole)
    # They found streams that had begun, and none set one back. That every place is met is the next test's claim.
    assert any(row["files"] for row in kills)
    for before, after in pairwise(rows):
        if "killed" in before and "killed" in after:
            assert after["shards"] >= before["shards"]


@pytest.mark.thorough
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_writer_killed_at_any_file_operation_ends_with_the_same_bytes(every, killed):
    rows = killed(f"points/{every}")
    whole = [row["whole"] for row in rows if "whole" in row]
    assert all(digests == whole[0] for digests in whole)
    assert len(whole[0]) == 2 * 3 + 1
    steps = list(zip(rows[::3], rows[1::3], strict=False))
    assert sum(kill["killed"] for _, kill in steps) > 100 // every
    for before, kill in steps:
        kill["left"].pop("a/.replaced", None)  # a mark of a stream that is about to be replaced
        assert kill["left"] in (before["before"], whole[0])
