"""The process that runs a cell, `python -m hmm_datasets.operations.sweeps.cell_process FOLDER PARENT`.

It runs the commands of the cell one after another, in a session of its own, and writes its state. On SIGTERM the
command is asked to save and stop. If the process `PARENT` ends, even by `kill -9`, the whole session is killed within
a quarter of a second, so no cell outlives its sweep. Ranks that `accelerate launch` started, which have sessions of
their own, end with their launcher (see `hmm_datasets.runtime.parent_watch`).
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from ...runtime.children import Children, SignalHandler, kill_session, kill_with_children
from ...runtime.credentials import masked_arguments
from ...runtime.environment import FIRST_START
from ...runtime.lock import exclusive_lock
from ...runtime.one_line_errors import one_line_errors
from ..stages import with_this_interpreter
from .cells import FAILED, FINISHED, LOG_NAME, RUNNING, STOPPED, WAITING, CellState

_LOOK_EVERY = 0.25  # seconds
_TAIL = 16_384  # bytes at the end of a log that are searched for the reason of a failure
_STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run_cell(folder: Path, environment: Mapping[str, str], children: Children) -> CellState:
    """Run a cell in a process that ends with this one; return its state when it has ended.

    Args:
        folder (`Path`): the folder of the cell.
        environment (mapping): variables of its environment, in addition to those of this process.
        children (`Children`): by which it is asked to stop.
    """
    words = ["-m", "hmm_datasets.operations.sweeps.cell_process", str(folder), str(os.getpid())]
    variables = {**os.environ, **environment}
    variables.pop(FIRST_START, None)  # time limits of a cell are its own
    with (folder / LOG_NAME).open("ab") as log:
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        child = children.start([sys.executable, "-P", *words], env=variables, start_new_session=True, **streams)
        code = child.wait()
    kill_session(child)  # what a killed command has left behind
    state = CellState.read(folder)
    if state.state in (WAITING, RUNNING):  # it was killed before it could write, or another process writes there
        state.state = FAILED if children.asked is None else STOPPED
        state.errors = [failure(folder / LOG_NAME, 0, code)] if state.state == FAILED else []
        if code < 0:
            state.write(folder)
    return state


def main(folder: Path, parent: int) -> None:
    """Run the commands of a cell that are not done yet; the exit code is 1 if one failed."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True, name="watch-sweep").start()
    children = Children()
    # Programs of a run save on SIGTERM even if it was ignored, so they get it here too.
    handler = SignalHandler((signal.SIGTERM,), children.send, stay_ignored=())
    with one_line_errors(), exclusive_lock(folder), handler:
        state = CellState.read(folder)
        state.state, state.errors, state.attempts = RUNNING, [], state.attempts + 1
        state.write(folder)
        ended = FINISHED
        while ended == FINISHED and state.commands_done < len(state.commands):
            ended = _run_next(folder, state, children)
        state.state = ended
        state.write(folder)
    sys.exit(1 if ended == FAILED else 0)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY)
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    kill_with_children(os.getpid())  # Windows, which has no process groups


def _run_next(folder: Path, state: CellState, children: Children) -> str:
    """Run the next command, and record that it is done; return how it ended."""
    log, words = folder / LOG_NAME, state.commands[state.commands_done]
    if children.asked is not None:
        return STOPPED
    with log.open("ab") as output:
        shown = shlex.join(masked_arguments(words))
        output.write(f"[{time.strftime('%F %T')}, attempt {state.attempts}] $ {shown}\n".encode())
        output.flush()
        since = output.tell()
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        code = children.run(with_this_interpreter(words), **streams)
    if code != 0 and children.asked is None:
        state.errors = [failure(log, since, code)]
        return FAILED
    stopped = state.commands_done == 0 and state.last_file and not (folder / "run" / state.last_file).exists()
    if code != 0 or stopped:
        return STOPPED
    state.commands_done += 1
    state.write(folder)
    return FINISHED


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


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
