"""Several cells at a time on this machine: one process each, with its share of the cores or a GPU of its own.

When the process of a sweep is asked to stop (Ctrl-C, SIGTERM, SIGHUP) it asks its cells to save and stop; a second
signal kills them. When it is killed, they are killed too ([`~hmm_datasets.operations.sweeps.cell_process`]).
"""

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from ...runtime.children import Children, SignalHandler, signals
from ...runtime.progress import progress_bar
from ..stages import shared_environment
from .cell_process import run_cell
from .cells import FINISHED, STOPPED, WAITING, CellState
from .file import Cell


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
    def of_this_machine(cls, num_gpus: int, *, jobs: int | None, processes: int, cells: int) -> "CellSlots":
        """By default as many of the cells as there are GPUs for, or cores for if there is no GPU."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = list(map(str, range(num_gpus))) if visible is None else visible.split(",")[:num_gpus]
        room = len(gpus) or (os.cpu_count() or 1) // int(os.environ.get("OMP_NUM_THREADS") or 1)
        return cls(min(cells, max(1, room // processes) if jobs is None else jobs), processes, gpus)

    def environment(self, slot: int) -> dict[str, str]:
        """The environment of the cell in a slot, which are numbered from 0."""
        # A bar that is drawn ten times per second would fill the log.
        variables = {"TQDM_MININTERVAL": "2", **shared_environment(self.jobs * self.processes)}
        first = slot * self.processes
        gpus = [self.gpus[number % len(self.gpus)] for number in range(first, first + self.processes) if self.gpus]
        return variables | ({"CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(gpus))} if gpus else {})


def run_cells(
    cells: Sequence[Cell], states: dict[str, CellState], slots: CellSlots, write: Callable[[], None]
) -> int | None:
    """Run all cells that are not finished; return the number of the signal that stopped it, if one did.

    Args:
        cells (sequence of [`~hmm_datasets.operations.sweeps.file.Cell`]): all cells of the sweep.
        states (`dict`): their states by name, which are kept up to date.
        slots ([`CellSlots`]): how they share the machine.
        write (callable): writes the tables; called when a cell has ended.
    """
    waiting = [cell for cell in cells if states[cell.name].state != FINISHED]
    children, free, numbers = Children(), list(range(slots.jobs)), []

    def stop(number: signal.Signals) -> None:
        numbers.append(number)
        children.send(signal.SIGTERM if len(numbers) == 1 else signal.SIGKILL)

    def run(cell: Cell) -> Cell:
        slot = free.pop()
        if children.asked is None:
            states[cell.name] = run_cell(cell.folder, slots.environment(slot), children)
        free.append(slot)
        return cell

    bar = progress_bar(len(cells), " cells", initial=len(cells) - len(waiting), desc="cells")
    with SignalHandler(signals("SIGINT", "SIGTERM", "SIGHUP"), stop), bar, ThreadPoolExecutor(slots.jobs) as pool:
        for future in as_completed([pool.submit(run, cell) for cell in waiting]):
            state = states[(cell := future.result()).name]
            if state.state not in (STOPPED, WAITING):
                bar.update()
            if state.state != WAITING:  # which was not started any more
                bar.write(": ".join([cell.name, state.state, *state.errors]))
            write()
    return numbers[0] if numbers else None
