"""Several cells at a time on this machine: one process each, with its share of the cores or a GPU of its own.

The process of a sweep only waits: it starts cells, prints how they end under a bar, and writes the tables after each.
When it is asked to stop (Ctrl-C, SIGTERM, SIGHUP) it asks its cells to save and stop; a second Ctrl-C kills them. When
it is killed, they are killed too ([`~hmm_datasets.operations.sweeps.cells`]).
"""

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...display import format_duration
from ...runtime.children import SignalHandler, kill_session, signals
from ...runtime.progress import progress_bar
from ..stages import shared_environment
from .cell_process import start_cell
from .cells import FAILED, FINISHED, LOG_NAME, RUNNING, STOPPED, WAITING, CellState, failure
from .file import Cell

_LOOK_EVERY = 0.1  # seconds
_SAVING = 300.0  # seconds for cells to save and stop


@dataclass(frozen=True)
class CellSlots:
    """How cells share a machine.

    Attributes:
        jobs (`int`): cells at a time, each in a slot.
        processes (`int`): processes of each cell.
        gpus (sequence of `str`): the GPUs of this machine, each as in `CUDA_VISIBLE_DEVICES`; may be empty.
    """

    jobs: int
    processes: int = 1
    gpus: Sequence[str] = ()

    @classmethod
    def of_this_machine(
        cls, num_gpus: int, *, jobs: int | None = None, processes: int = 1, cells: int = 1 << 20
    ) -> "CellSlots":
        """By default as many of the cells as there are GPUs for, or cores for if there is no GPU."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = list(map(str, range(num_gpus))) if visible is None else visible.split(",")[:num_gpus]
        room = len(gpus) or (os.cpu_count() or 1) // int(os.environ.get("OMP_NUM_THREADS") or 1)
        return cls(min(cells, max(1, room // processes) if jobs is None else jobs), processes, gpus)

    def environment(self, slot: int) -> dict[str, str]:
        """The environment of the cell in a slot, which are numbered from 0."""
        variables = shared_environment(self.jobs * self.processes)
        # A bar that is drawn ten times per second would fill the log.
        variables.setdefault("TQDM_MININTERVAL", "2")
        if self.gpus:
            first = slot * self.processes
            gpus = [self.gpus[(first + number) % len(self.gpus)] for number in range(self.processes)]
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(dict.fromkeys(gpus))
        return variables

    def __str__(self) -> str:
        if not self.gpus:
            threads = self.environment(0).get("OMP_NUM_THREADS", "all")
            return f"{self.jobs} at a time, {threads} threads for each process"
        return f"{self.jobs} at a time on {len(self.gpus)} GPUs"


class LocalRun:
    """Runs cells to their end.

    Args:
        cells (sequence of [`~hmm_datasets.operations.sweeps.file.Cell`]): all cells of the sweep.
        states (`dict`): their states by name, which are kept up to date.
        slots ([`CellSlots`]): how they share the machine.
        write (callable): writes the tables; called when a cell has ended.
    """

    def __init__(
        self, cells: Sequence[Cell], states: dict[str, CellState], slots: CellSlots, write: Callable[[], None]
    ):
        self.states, self.slots, self.write = states, slots, write
        self._waiting = deque(cell for cell in cells if states[cell.name].state != FINISHED)
        self._running: dict[int, tuple[Cell, subprocess.Popen]] = {}
        self._signals: list[int] = []
        self._asked: float | None = None  # when the cells were asked to stop
        done = len(cells) - len(self._waiting)
        self._bar = progress_bar(len(cells), " cells", initial=done, desc="cells")

    def run(self) -> int | None:
        """Run all cells; return the number of the signal that stopped it, if one did."""
        with SignalHandler(signals("SIGINT", "SIGTERM", "SIGHUP"), self._signals.append), self._bar:
            try:
                while self._running or (self._waiting and not self._signals):
                    self._start()
                    time.sleep(_LOOK_EVERY)
                    self._end()
                    self._stop()
            finally:
                for _, process in self._running.values():
                    kill_session(process)
        return self._signals[0] if self._signals else None

    def _print(self, line: str) -> None:
        self._bar.write(line)
        sys.stdout.flush()

    def _start(self) -> None:
        for slot in range(self.slots.jobs):
            if self._waiting and slot not in self._running and not self._signals:
                cell = self._waiting.popleft()
                self.states[cell.name].errors = []
                self.states[cell.name].write(cell.folder)
                self._running[slot] = (cell, start_cell(cell.folder, self.slots.environment(slot)))

    def _end(self) -> None:
        for slot, (cell, process) in list(self._running.items()):
            if process.poll() is not None:
                del self._running[slot]
                kill_session(process)  # what a killed command has left behind
                state = self.states[cell.name] = self._state_of(cell, process)
                why = f": {state.errors[-1]}" if state.state == FAILED else ""
                self._bar.update(state.state != STOPPED)
                self._print(f"{cell.name}: {state.state} after {format_duration(state.seconds)}{why}")
                self.write()

    def _state_of(self, cell: Cell, process: subprocess.Popen) -> CellState:
        """The state of a cell whose process has ended, also if it was killed before it could write it."""
        state = CellState.read(cell.folder)
        if state.state in (WAITING, RUNNING):
            state.state = STOPPED if self._signals else FAILED
            if state.state == FAILED:
                state.errors.append(failure(cell.folder / LOG_NAME, 0, process.returncode))
            if process.returncode < 0:  # otherwise another process writes there
                state.write(cell.folder)
        return state

    def _stop(self) -> None:
        """Pass a signal on to the cells; kill them on the second, or if they do not stop."""
        if self._signals and self._asked is None:
            self._asked = time.monotonic()
            self._print(f"stopping: {len(self._running)} cells save and stop; Ctrl-C again kills them")
            for _, process in self._running.values():
                process.terminate()
        elif self._asked is not None and (len(self._signals) > 1 or time.monotonic() - self._asked > _SAVING):
            for _, process in self._running.values():
                kill_session(process)
