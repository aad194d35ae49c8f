import os
import subprocess
import sys
from pathlib import Path

import pytest

from hmm_datasets.runtime.recipe_command import RecipeCommand
from hmm_datasets.runtime.recipe_commands import RECIPE_COMMANDS

SCRIPT = Path(__file__).with_name("stand_in.py")


@pytest.fixture
def stand_in(monkeypatch):
    """The command `stand-in`, a recipe that only counts, in this process."""
    monkeypatch.setitem(RECIPE_COMMANDS, "stand-in", RecipeCommand(str(SCRIPT)))


@pytest.fixture
def sweep_environment(tmp_path, child_environment, stand_in):
    """The environment of a sweep whose cells know the command `stand-in`."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "from hmm_datasets.runtime.recipe_command import RecipeCommand\n"
        "from hmm_datasets.runtime.recipe_commands import RECIPE_COMMANDS\n"
        f"RECIPE_COMMANDS['stand-in'] = RecipeCommand({str(SCRIPT)!r})\n"
    )
    return child_environment | {"PYTHONPATH": os.pathsep.join([str(folder), child_environment["PYTHONPATH"]])}


@pytest.fixture
def start_sweep(sweep_environment):
    """Start `hmm-datasets sweep` in a process; its output is `process.stdout`."""

    def start(*arguments: object) -> subprocess.Popen:
        command = [sys.executable, "-P", "-m", "hmm_datasets.cli", "sweep", *map(str, arguments)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, env=sweep_environment, **streams)

    return start
