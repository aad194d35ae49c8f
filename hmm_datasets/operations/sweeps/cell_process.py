"""The process that runs a cell, `python -m hmm_datasets.operations.sweeps.cell_process FOLDER PARENT`.

It runs the commands of the cell one after another, in a session of its own, and writes its state. On SIGTERM the
command is asked to save and stop. If the process `PARENT` ends, even by `kill -9`, the whole session is killed within
a quarter of a second, so no cell outlives its sweep. Ranks that `accelerate launch` started, which have sessions of
their own, end with their launcher (see `hmm_datasets.runtime.parent_watch`).
"""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from ...runtime.children import Children, SignalHandler, kill_with_children
from ...runtime.credentials import masked_arguments
from ...runtime.environment import FIRST_START
from ...runtime.lock import exclusive_lock
from ...runtime.one_line_errors import one_line_errors
from ..stages import with_this_interpreter
from .cells import FAILED, FINISHED, LOG_NAME, RUNNING, STOPPED, CellState, failure

_LOOK_EVERY = 0.25  # seconds


def start_cell(folder: Path, environment: Mapping[str, str]) -> subprocess.Popen:
    """Start the process of a cell, which ends with this process."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "hmm_datasets.operations.sweeps.cell_process",
        str(folder),
        str(os.getpid()),
    ]
    variables = {**os.environ, **environment}
    variables.pop(FIRST_START, None)  # time limits of a cell are its own
    with (folder / LOG_NAME).open("ab") as log:
        return subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def main(folder: Path, parent: int) -> None:
    """Run a cell; the exit code is 1 if a command failed."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True, name="watch-sweep").start()
    with one_line_errors(), exclusive_lock(folder):
        run = _CellRun(folder)
        # Programs of a run save on SIGTERM even if it was ignored, so they get it here too.
        with SignalHandler((signal.SIGTERM,), run.children.send, stay_ignored=()):
            state = run.run()
    sys.exit(1 if state == FAILED else 0)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY)
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    kill_with_children(os.getpid())  # Windows, which has no process groups


class _CellRun:
    def __init__(self, folder: Path):
        self.folder, self.state = folder, CellState.read(folder)
        self.children = Children()

    def run(self) -> str:
        """Run the commands that are not done yet, and return the state of the cell."""
        state, before, began = self.state, self.state.seconds, time.monotonic()
        state.state, state.exit_code = RUNNING, None
        state.attempts += 1
        state.write(self.folder)
        result = FINISHED
        while result == FINISHED and state.commands_done < len(state.commands):
            result = self._run_next()
            state.seconds = round(before + time.monotonic() - began, 1)
        state.state = result
        state.write(self.folder)
        return result

    def _run_next(self) -> str:
        """Run the next command; FINISHED means that it is done."""
        state, log = self.state, self.folder / LOG_NAME
        words = state.commands[state.commands_done]
        with log.open("ab") as output:
            shown = shlex.join(masked_arguments(words))
            output.write(f"[{time.strftime('%F %T')}, attempt {state.attempts}] $ {shown}\n".encode())
            output.flush()
            since = output.tell()
            command = with_this_interpreter(words)
            state.exit_code = self.children.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        is_asked = self.children.asked is not None
        if state.exit_code == 0:
            if state.commands_done > 0 or self._has_ended():
                state.commands_done += 1
                state.write(self.folder)
                return STOPPED if is_asked and state.commands_done < len(state.commands) else FINISHED
            return STOPPED
        if is_asked:
            return STOPPED
        state.errors.append(failure(log, since, state.exit_code))
        return FAILED

    def _has_ended(self) -> bool:
        last = self.state.last_file
        return last is None or (self.folder / "run" / last).exists()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
