"""A cell: its folder, its state, and running it.

The folder has `settings.yaml`, `cell.json` (commands and state), `log.txt`, and `run/` with what it wrote. A cell is
finished when its commands ended with exit code 0 for exactly the settings that it has now. A process that is killed
leaves the state "running", and the cell is run again. Its commands end with the process that runs it (see
`hmm_datasets.runtime.parent_watch`).
"""

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from ...errors import InputError
from ...files import read_yaml, write_json, write_yaml
from ...records import Count, read_record
from ...runtime.children import Children, kill_session, with_this_interpreter
from ...runtime.credentials import masked_arguments
from ...runtime.environment import FIRST_START
from ..launching import command_of, recipe_command, split_command
from .file import Cell, Sweep

WAITING, RUNNING, STOPPED, FAILED, FINISHED = "waiting", "running", "stopped", "failed", "finished"

SETTINGS_NAME, STATE_NAME, LOG_NAME = "settings.yaml", "cell.json", "log.txt"

_TAIL = 16_384  # bytes at the end of a log that are searched for the reason of a failure
_STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass
class CellState:
    """What is known of a cell.

    Attributes:
        commands (list of lists of `str`): the recipe and what follows it, each beginning with `hmm-datasets`.
        state (`str`): waiting, running, stopped, failed or finished.
        commands_done (`int`): number of commands that are finished, which are not run again.
        attempts (`int`): how often it was started.
        errors (list of `str`): why the last attempt failed.
    """

    commands: list[list[str]]
    state: str = WAITING
    commands_done: Count = 0
    attempts: Count = 0
    errors: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> "CellState":
        """The state in the folder of a cell.

        Raises:
            `InputError`: the file is of another kind.
        """
        return read_record(folder / STATE_NAME, cls, f"delete {folder} to run the cell anew")

    def write(self, folder: Path) -> None:
        """Write the state, atomically."""
        write_json(folder / STATE_NAME, asdict(self))


def commands_of(sweep: Sweep, cell: Cell, settings: Path, launch: Sequence[str] = ()) -> list[list[str]]:
    """The commands of a cell: the recipe with a settings file and flags of the launcher, and what follows it."""
    recipe = ["hmm-datasets", *command_of(sweep.file.recipe), "--config", str(settings), *launch]
    return [recipe, *(["hmm-datasets", *words] for words in cell.then)]


def read_states(sweep: Sweep) -> dict[str, CellState]:
    """The states of all cells; waiting for one that has no folder yet."""
    return {
        cell.name: CellState.read(cell.folder) if (cell.folder / STATE_NAME).exists() else CellState([])
        for cell in sweep.cells
    }


def prepare(sweep: Sweep, launch: Sequence[str] = ()) -> dict[str, CellState]:
    """Write settings and state of all cells that were not started yet; return the states by the names of the cells.

    Args:
        sweep ([`~hmm_datasets.operations.sweeps.file.Sweep`]): the sweep.
        launch (sequence of `str`, *optional*): flags that start each run on several processes. They may change
            between two starts, because runs continue on any number of processes.

    Raises:
        `InputError`: a folder was made with other settings, or not by a sweep. Nothing is made then.
    """
    states = read_states(sweep)
    for cell in sweep.cells:
        _check_folder(sweep, cell, states[cell.name])
    for cell in sweep.cells:
        state, commands = states[cell.name], commands_of(sweep, cell, cell.folder / SETTINGS_NAME, launch)
        if state.attempts == 0 or state.commands != commands:
            state.commands = commands
            write_yaml(cell.folder / SETTINGS_NAME, cell.settings)
            state.write(cell.folder)
    return states


def _check_folder(sweep: Sweep, cell: Cell, state: CellState) -> None:
    """Refuse a folder that something else has made, or a cell that was started with other settings."""
    if not (cell.folder / STATE_NAME).exists() and cell.output_dir.exists():
        raise InputError(
            f"{cell.folder}: already exists and was not made by this sweep; move it, or choose another "
            f"output_dir in {sweep.path}"
        )
    if state.attempts == 0:
        return
    before = read_yaml(cell.folder / SETTINGS_NAME) | {"then": [" ".join(words[1:]) for words in state.commands[1:]]}
    now = {**cell.settings, "then": [" ".join(words) for words in cell.then]}
    for name in dict.fromkeys([*before, *now]):
        if before.get(name) != now.get(name) and name != "output_dir":  # the folder of a sweep may be moved
            raise InputError(
                f"{cell.folder}: was made with other settings than {sweep.path} has now: {name} was "
                f"{before.get(name)!r} and is {now.get(name)!r} now; delete the folder to run the cell anew, or "
                "choose another output_dir"
            )


def run_cell(folder: Path, environment: Mapping[str, str], children: Children) -> CellState:
    """Run the commands of a cell that are not done yet; return its state. The caller holds a lock.

    Args:
        folder (`Path`): the folder of the cell.
        environment (mapping): variables of its environment, in addition to those of this process.
        children (`Children`): by which it is asked to stop.
    """
    variables = {**os.environ, **environment}
    variables.pop(FIRST_START, None)  # time limits of a cell are its own
    state = CellState.read(folder)
    with (folder / LOG_NAME).open("ab") as log:
        state.state, state.errors, state.attempts = RUNNING, [], state.attempts + 1
        while state.state == RUNNING:
            state.write(folder)
            state.state = _run_next(folder, state, log, variables, children)
        state.write(folder)
    return state


def _run_next(folder: Path, state: CellState, log: IO[bytes], variables: Mapping[str, str], children: Children) -> str:
    """Run the next command, if there is one, and count it when it is done; return the state of the cell."""
    if state.commands_done == len(state.commands):
        return FINISHED
    if children.asked is not None:
        return STOPPED
    words = state.commands[state.commands_done]
    shown = shlex.join(masked_arguments(words))
    log.write(f"[{time.strftime('%F %T')}, attempt {state.attempts}] $ {shown}\n".encode())
    log.flush()
    since = log.tell()
    streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
    child = children.start(with_this_interpreter(words), env=variables, start_new_session=True, **streams)
    code = child.wait()
    kill_session(child)  # what a killed command has left behind
    if code != 0 and children.asked is None:
        state.errors = [failure(folder / LOG_NAME, since, code)]
        return FAILED
    # Training that is asked to stop saves and ends with exit code 0, without its last file.
    last = recipe_command(split_command(words[1:])[0]).last_file if state.commands_done == 0 else None
    if code != 0 or (last is not None and not (folder / "run" / last).exists()):
        return STOPPED
    state.commands_done += 1
    return RUNNING


def failure(log: Path, since: int, code: int) -> str:
    """Why a command failed, in one line: its own error, or the last line that it printed, and the signal, if any."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(since, size - _TAIL))
        text = file.read().decode("utf-8", errors="replace")
    lines = [_STYLES.sub("", line).strip() for line in re.split(r"[\r\n]+", text)]
    lines = [line for line in lines if line] or ["it printed nothing"]
    line = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1])
    return line if code >= 0 else f"ended by signal {-code} ({signal.strsignal(-code)}); last line: {line}"
