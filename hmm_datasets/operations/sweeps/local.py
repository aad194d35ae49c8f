"""Cells side by side on this machine: one process each, with its share of the cores or a GPU of its own.

The process of a sweep only waits: it starts cells, shows them, and writes the tables after each. When it is asked to
stop (Ctrl-C, SIGTERM, SIGHUP) it asks its cells to save and stop; a second Ctrl-C kills them. When it is killed, they
are killed too (`cells`). While it runs it shows in a terminal a line for each running cell and a bar, elsewhere
plain lines.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...display import format_duration
from ...runtime.children import SignalHandler, kill_session, signals
from ...runtime.plain_output import terminal
from ..stages import shared_environment
from .cells import FAILED, FINISHED, LOG_NAME, RUNNING, STOPPED, WAITING, CellState, failure, last_line, start_cell
from .file import Cell

_DRAW_EVERY = 0.5  # seconds


class LiveView:
    """Shows the cells of a sweep.

    Args:
        total (`int`): number of cells.
        done (`int`): number of those that were finished before.
    """

    def __init__(self, total: int, done: int):
        self.total, self.done, self.before = total, done, done
        self._began = time.monotonic()
        self._drawn = 0.0
        self._height = 0
        self._in_terminal = sys.stdout.isatty()

    def started(self, cell: Cell, state: CellState) -> None:
        """Say that a cell was started."""
        if not self._in_terminal:
            self.say(f"{cell.name}: started" + (f", attempt {state.attempts + 1}" if state.attempts else ""))

    def ended(self, cell: Cell, state: CellState, again: bool) -> None:
        """Say how a cell ended, and whether it is tried again."""
        self.done += state.state == FINISHED or (state.state == FAILED and not again)
        text = f"[{self.done}/{self.total}] {cell.name}: {state.state} after {format_duration(state.seconds)}"
        if state.state == FAILED:
            text += f": {state.errors[-1]}" + ("; it will be started again" if again else "")
        self.say(text)

    def say(self, line: str) -> None:
        """Print a line above the view."""
        self._erase()
        print(line, flush=True)

    def show(self, running: Sequence[tuple[Cell, float]]) -> None:
        """Draw the running cells, each with the time when it began, and the bar."""
        if not self._in_terminal or time.monotonic() - self._drawn < _DRAW_EVERY:
            return
        from tqdm import tqdm

        now, size = time.monotonic(), shutil.get_terminal_size()
        shown = running[: max(1, size.lines - 3)]  # what is above the screen could not be erased
        lines = []
        for cell, began in shown:
            start = f"{cell.name}  {format_duration(now - began)}"
            lines.append(f"{start}  {_quiet(last_line(cell.folder / LOG_NAME))}"[: size.columns - 1])
        if len(running) > len(shown):
            lines[-1] = f"... and {len(running) - len(shown) + 1} more"
        bar = tqdm.format_meter(
            self.done, self.total, now - self._began, ncols=size.columns - 1, unit=" cells", initial=self.before
        )
        self._erase()
        sys.stdout.write("\n".join([*lines, bar]) + "\n")
        sys.stdout.flush()
        self._height, self._drawn = len(lines) + 1, now

    def close(self) -> None:
        """Erase the view."""
        self._erase()

    def _erase(self) -> None:
        if self._height:
            terminal(sys.stdout).write(f"\x1b[{self._height}A\x1b[J")
            self._height = 0


def _quiet(line: str) -> str:
    """The line of a log without characters that would move the cursor."""
    return re.sub(r"[\x00-\x1f\x7f]", " ", line)


_LOOK_EVERY = 0.1  # seconds
_PATIENCE = 300.0  # seconds for cells to save and stop


@dataclass(frozen=True)
class CellLanes:
    """How cells share a machine.

    Attributes:
        jobs (`int`): cells at a time.
        processes (`int`): processes of each cell.
        gpus (sequence of `str`): the GPUs of this machine, each as in `CUDA_VISIBLE_DEVICES`; may be empty.
    """

    jobs: int
    processes: int = 1
    gpus: Sequence[str] = ()

    @classmethod
    def of_this_machine(
        cls, num_gpus: int, *, jobs: int | None = None, processes: int = 1, cells: int = 1 << 20
    ) -> "CellLanes":
        """By default as many of the cells as there are GPUs for, or cores for if there is no GPU."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = list(map(str, range(num_gpus))) if visible is None else visible.split(",")[:num_gpus]
        room = len(gpus) or (os.cpu_count() or 1) // int(os.environ.get("OMP_NUM_THREADS") or 1)
        return cls(min(cells, max(1, room // processes) if jobs is None else jobs), processes, gpus)

    def environment(self, lane: int) -> dict[str, str]:
        """The environment of the cell in a lane, which are numbered from 0."""
        found = shared_environment(lanes=self.jobs * self.processes)
        # A bar that is drawn ten times per second would fill the log.
        found.setdefault("TQDM_MININTERVAL", "2")
        if self.gpus:
            first = lane * self.processes
            own = [self.gpus[(first + number) % len(self.gpus)] for number in range(self.processes)]
            found["CUDA_VISIBLE_DEVICES"] = ",".join(dict.fromkeys(own))
        return found

    def __str__(self) -> str:
        if not self.gpus:
            threads = self.environment(0).get("OMP_NUM_THREADS", "all")
            return f"{self.jobs} at a time, {threads} threads for each process"
        return f"{self.jobs} at a time on {len(self.gpus)} GPUs"


@dataclass
class _Running:
    cell: Cell
    process: subprocess.Popen
    began: float = field(default_factory=time.monotonic)


class LocalRun:
    """Runs cells to their end.

    Args:
        cells (sequence of [`~hmm_datasets.operations.sweeps.file.Cell`]): all cells of the sweep.
        states (`dict`): their states by name, which are kept up to date.
        lanes ([`CellLanes`]): how they share the machine.
        retries (`int`): how often a failed cell is started again, after all others.
        write (callable): writes the tables; called when a cell has ended.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        states: dict[str, CellState],
        lanes: CellLanes,
        retries: int,
        write: Callable[[], None],
    ):
        self.states, self.lanes, self.write = states, lanes, write
        unfinished = [cell for cell in cells if states[cell.name].state != FINISHED]
        for cell in unfinished:
            states[cell.name].errors = []
            states[cell.name].write(cell.folder)
        self._waiting = deque(unfinished)
        self._tries = dict.fromkeys((cell.name for cell in unfinished), 1 + retries)
        self._running: dict[int, _Running] = {}
        self._signals: list[int] = []
        self._told = 0.0  # when the cells were asked to stop
        self._view = LiveView(len(cells), len(cells) - len(unfinished))

    def run(self) -> int | None:
        """Run all cells; return the number of the signal that stopped it, if one did."""
        with SignalHandler(signals("SIGINT", "SIGTERM", "SIGHUP"), self._signals.append):
            try:
                while self._running or (self._waiting and not self._signals):
                    self._start()
                    time.sleep(_LOOK_EVERY)
                    self._end()
                    self._stop()
                    self._view.show([(one.cell, one.began) for one in self._running.values()])
            finally:
                for one in self._running.values():
                    kill_session(one.process)
                self._view.close()
                sys.stdout.flush()
        return self._signals[0] if self._signals else None

    def _start(self) -> None:
        while self._waiting and len(self._running) < self.lanes.jobs and not self._signals:
            lane = next(number for number in range(self.lanes.jobs) if number not in self._running)
            cell = self._waiting.popleft()
            self._tries[cell.name] -= 1
            self._running[lane] = _Running(cell, start_cell(cell.folder, self.lanes.environment(lane)))
            self._view.started(cell, self.states[cell.name])

    def _end(self) -> None:
        for lane, one in list(self._running.items()):
            if one.process.poll() is None:
                continue
            del self._running[lane]
            kill_session(one.process)  # what a killed command has left behind
            cell, state = one.cell, self._state_of(one)
            self.states[cell.name] = state
            again = state.state == FAILED and self._tries[cell.name] > 0 and not self._signals
            if again:
                self._waiting.append(cell)
            self._view.ended(cell, state, again)
            self.write()

    def _state_of(self, one: _Running) -> CellState:
        """The state of a cell whose process has ended, also if it was killed before it could write it."""
        state = CellState.read(one.cell.folder)
        if state.state not in (WAITING, RUNNING):
            return state
        state.state = STOPPED if self._signals else FAILED
        if state.state == FAILED:
            state.errors.append(failure(one.cell.folder / LOG_NAME, 0, one.process.returncode))
        if one.process.returncode < 0:  # otherwise another process writes there
            state.write(one.cell.folder)
        return state

    def _stop(self) -> None:
        """Pass a signal on to the cells; kill them on the second, or if they do not stop."""
        if not self._signals:
            return
        if self._told == 0:
            self._told = time.monotonic()
            self._view.say(f"stopping: {len(self._running)} cells save and stop; Ctrl-C again kills them")
            for one in self._running.values():
                one.process.terminate()
        elif len(self._signals) > 1 or time.monotonic() - self._told > _PATIENCE:
            for one in self._running.values():
                kill_session(one.process)
