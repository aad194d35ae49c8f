"""The first hours of strangers: each does what a page says and nothing else, from a folder of its own."""

import os
import sys
from pathlib import Path

import pytest


@pytest.fixture
def hmm_datasets_command(warm_python, run_to_end, child_environment, tmp_path):
    """Run `hmm-datasets ARGUMENTS` in a folder; fails where that fails, and returns what it printed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    def run(*arguments: object) -> str:
        command = [warm_python, "-m", "hmm_datasets.cli", *map(str, arguments)]
        result = run_to_end(command, 120, cwd=tmp_path, env=child_environment | {"PATH": path})
        assert result.returncode == 0, f"{result.stdout[-3000:]}\n{result.stderr[-5000:]}"
        return result.stdout

    return run
