"""The first hours of strangers: each does what a page says and nothing else, from a folder of its own."""

import os
import sys
from pathlib import Path

import pytest


@pytest.fixture
def python_program(warm_python, run_to_end, child_environment, tmp_path):
    """Run Python in a folder; fails where that fails, and returns what it printed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    def run(program: str, *arguments: str) -> str:
        what = ["-m", "hmm_datasets.cli", *arguments] if not program else ["-c", program]
        result = run_to_end([warm_python, *what], 120, cwd=tmp_path, env=child_environment | {"PATH": path})
        assert result.returncode == 0, f"{result.stdout[-3000:]}\n{result.stderr[-5000:]}"
        return result.stdout

    return run


@pytest.fixture
def hmm_datasets_command(python_program):
    """Run `hmm-datasets ARGUMENTS` in that folder."""
    return lambda *arguments: python_program("", *map(str, arguments))
