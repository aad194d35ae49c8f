"""A cell: its folder, and its state.

The folder has `settings.yaml`, `cell.json` (commands and state), `log.txt`, and `run/` with what it wrote. A cell is
finished when its commands ended with exit code 0 for exactly the settings that it has now. Its state is written by the
process that runs it ([`~hmm_datasets.operations.sweeps.cell_process`]), which may be killed at any time; then the
state stays at "running", and the cell is run again.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...files import read_yaml, write_json, write_yaml
from ...records import Count, as_record, read_record
from ..launching import command_of
from .file import Cell, Sweep

WAITING, RUNNING, STOPPED, FAILED, FINISHED = "waiting", "running", "stopped", "failed", "finished"

SETTINGS_NAME, STATE_NAME, LOG_NAME = "settings.yaml", "cell.json", "log.txt"

# What a recipe writes last. Training that is asked to stop saves and ends with exit code 0, without this file.
_LAST_FILES = dict.fromkeys(("fit", "pretrain", "midtrain", "sft", "dpo", "grpo"), "summary.json")

_DIGEST = "digest"  # of the other fields, in the state of a cell


@dataclass
class CellState:
    """What is known of a cell.

    Attributes:
        commands (list of lists of `str`): the recipe and what follows it, each beginning with `hmm-datasets`.
        last_file (`str`, *optional*): file without which the recipe has stopped before its end.
        state (`str`): waiting, running, stopped, failed or finished.
        commands_done (`int`): number of commands that are finished, which are not run again.
        attempts (`int`): how often it was started.
        errors (list of `str`): why the last attempt failed.
    """

    commands: list[list[str]]
    last_file: str | None = None
    state: str = WAITING
    commands_done: Count = 0
    attempts: Count = 0
    errors: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> "CellState":
        """The state in the folder of a cell.

        Raises:
            `InputError`: the file has changed since it was written, or is of another kind.
        """
        path = folder / STATE_NAME
        content = read_record(path, dict[str, Any], f"delete {folder} to run the cell anew")
        digest = content.pop(_DIGEST, None)
        if digest is not None and digest != _digest_of(content):
            raise InputError(f"{path}: has changed since it was written; delete {folder} to run the cell anew")
        return as_record(content, cls, path, f"delete {folder} to run the cell anew")

    def write(self, folder: Path) -> None:
        """Write the state, atomically."""
        content = asdict(self)
        write_json(folder / STATE_NAME, content | {_DIGEST: _digest_of(content)})


def _digest_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def prepare(sweep: Sweep, launch: Sequence[str] = ()) -> dict[str, CellState]:
    """Make the folders of all cells that have none yet; return the states by the names of the cells.

    Args:
        sweep ([`~hmm_datasets.operations.sweeps.file.Sweep`]): the sweep.
        launch (sequence of `str`, *optional*): flags that start each run on several processes.

    Raises:
        `InputError`: a folder was made with other settings, or not by a sweep. Nothing is made then.
    """
    states = {cell.name: _existing(sweep, cell, launch) for cell in sweep.cells}
    for cell in sweep.cells:
        if states[cell.name] is None:
            states[cell.name] = CellState(_commands(sweep, cell, launch), _LAST_FILES.get(sweep.recipe))
            write_yaml(cell.folder / SETTINGS_NAME, cell.run_settings)
            states[cell.name].write(cell.folder)
    return states


def read_states(sweep: Sweep) -> dict[str, CellState]:
    """The states of all cells; waiting for one that has no folder yet."""
    return {
        cell.name: CellState.read(cell.folder) if (cell.folder / STATE_NAME).exists() else CellState([])
        for cell in sweep.cells
    }


def _commands(sweep: Sweep, cell: Cell, launch: Sequence[str]) -> list[list[str]]:
    recipe = ["hmm-datasets", *command_of(sweep.recipe), "--config", str(cell.folder / SETTINGS_NAME), *launch]
    return [recipe, *(["hmm-datasets", *words] for words in cell.then)]


def _existing(sweep: Sweep, cell: Cell, launch: Sequence[str]) -> CellState | None:
    """The state of a cell that has a folder.

    The launch configuration may change between two starts, because runs continue on any number of processes.
    """
    if not (cell.folder / STATE_NAME).exists():
        if cell.output_dir.exists():
            raise InputError(
                f"{cell.folder}: already exists and was not made by this sweep; move it, or choose another "
                f"output_dir in {sweep.path}"
            )
        return None
    state, commands = CellState.read(cell.folder), _commands(sweep, cell, launch)
    # The folder of a sweep may be moved.
    recorded = {**read_yaml(cell.folder / SETTINGS_NAME), "output_dir": str(cell.output_dir)}
    before = recorded | {"then": [" ".join(words) for words in state.commands[1:]]}
    now = cell.run_settings | {"then": [" ".join(words) for words in commands[1:]]}
    for name in dict.fromkeys([*before, *now]):
        if before.get(name) != now.get(name):
            raise InputError(
                f"{cell.folder}: was made with other settings than {sweep.path} has now: {name} was "
                f"{before.get(name)!r} and is {now.get(name)!r} now; delete the folder to run the cell anew, or "
                "choose another output_dir"
            )
    state.commands = commands
    return state
