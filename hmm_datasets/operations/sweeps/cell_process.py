"""The process that runs one cell: `python -m hmm_datasets.operations.sweeps.cell_process FOLDER PARENT`.

It runs the commands of the cell one after another, in a session of its own, and writes the state of the cell. On
SIGTERM the command is asked to save and stop. If the process `PARENT` ends, even by `kill -9`, the whole session is
killed within a quarter of a second, so no cell outlives its sweep. Ranks that `accelerate launch` started, which have
sessions of their own, end with their launcher (see `hmm_datasets.runtime.parent_watch`).
"""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from ...runtime.credentials import masked_arguments
from ...runtime.lock import exclusive_lock
from ...runtime.one_line_errors import one_line_errors
from ..stages import with_this_interpreter
from .cells import FAILED, FINISHED, LOG_NAME, RUNNING, STOPPED, CellState, failure

_LOOK_EVERY = 0.25  # seconds


def start_cell(folder: Path, environment: Mapping[str, str]) -> subprocess.Popen:
    """Start the process of a cell, which ends with this process."""
    command = [sys.executable, "-P", "-m", __name__, str(folder), str(os.getpid())]
    with (folder / LOG_NAME).open("ab") as log:
        return subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def kill_cell(process: subprocess.Popen) -> None:
    """Kill the process of a cell and all that it started, or what is left of them."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def main(folder: Path, parent: int) -> None:
    """Run a cell; the exit code is 1 if a command failed."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True, name="watch-sweep").start()
    with one_line_errors(), exclusive_lock(folder):
        state = _CellRun(folder).run()
    sys.exit(1 if state == FAILED else 0)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY)
    os.killpg(0, signal.SIGKILL)


class _CellRun:
    def __init__(self, folder: Path):
        self.folder, self.state = folder, CellState.read(folder)
        self._process: subprocess.Popen | None = None
        self._stopping = False
        signal.signal(signal.SIGTERM, self._on_sigterm)

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
            self._process = subprocess.Popen(
                with_this_interpreter(words), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        if self._stopping:  # SIGTERM came before there was a process to pass it to
            self._process.terminate()
        state.exit_code = self._process.wait()
        self._process = None
        if state.exit_code == 0:
            if state.commands_done > 0 or self._has_ended():
                state.commands_done += 1
                state.write(self.folder)
                return STOPPED if self._stopping and state.commands_done < len(state.commands) else FINISHED
            return STOPPED
        if self._stopping:
            return STOPPED
        state.errors.append(failure(log, since, state.exit_code))
        return FAILED

    def _has_ended(self) -> bool:
        last = self.state.last_file
        return last is None or (self.folder / "run" / last).exists()

    def _on_sigterm(self, number: int, frame: object) -> None:
        self._stopping = True
        if self._process is not None:
            self._process.terminate()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
