"""Several cells at a time on this machine, each with its share of the cores or a GPU of its own.

When the process of a sweep is asked to stop (Ctrl-C, SIGTERM, SIGHUP) it asks its cells to save and stop; a second
signal kills them.
"""

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from ...runtime.children import Children, SignalHandler, shared_environment, signals
from ...runtime.progress import progress_bar
from .cells import FINISHED, STOPPED, WAITING, CellState, run_cell
from .file import Cell


def num_gpus() -> int:
    """The number of GPUs of this machine."""
    import torch  # slow

    return torch.cuda.device_count()


def environments(num_gpus: int, *, jobs: int | None, processes: int, cells: int) -> list[dict[str, str]]:
    """The environment of each of the cells that run at a time.

    Args:
        num_gpus (`int`): GPUs of this machine.
        jobs (`int`, *optional*): cells at a time; by default as many as there are GPUs for, or else cores.
        processes (`int`): processes of each cell.
        cells (`int`): number of cells.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = list(map(str, range(num_gpus))) if visible is None else visible.split(",")[:num_gpus]
    room = len(gpus) or (os.cpu_count() or 1) // int(os.environ.get("OMP_NUM_THREADS") or 1)
    jobs = min(cells, max(1, room // processes) if jobs is None else jobs)
    # A bar that is drawn ten times per second would fill the log.
    shared = {"TQDM_MININTERVAL": "2", **shared_environment(jobs * processes)}
    if not gpus:
        return [shared] * jobs
    devices = [[gpus[(job * processes + n) % len(gpus)] for n in range(processes)] for job in range(jobs)]
    return [shared | {"CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(names))} for names in devices]


def run_cells(
    cells: Sequence[Cell],
    states: dict[str, CellState],
    environments: Sequence[dict[str, str]],
    write: Callable[[], object],
) -> int | None:
    """Run all cells that are not finished; return the number of the signal that stopped it, if one did.

    Args:
        cells (sequence of [`~hmm_datasets.operations.sweeps.file.Cell`]): all cells of the sweep.
        states (`dict`): their states by name, which are kept up to date.
        environments (sequence of `dict`): see [`environments`].
        write (callable): writes the tables; called when a cell has ended.
    """
    waiting = [cell for cell in cells if states[cell.name].state != FINISHED]
    children, free, numbers = Children(), list(environments), []

    def stop(number: signal.Signals) -> None:
        numbers.append(number)
        children.send(signal.SIGTERM if len(numbers) == 1 else signal.SIGKILL)

    def run(cell: Cell) -> Cell:
        environment = free.pop()
        if children.asked is None:
            states[cell.name] = run_cell(cell.folder, environment, children)
        free.append(environment)
        return cell

    bar = progress_bar(len(cells), " cells", initial=len(cells) - len(waiting), desc="cells")
    with SignalHandler(signals("SIGINT", "SIGTERM", "SIGHUP"), stop), bar, ThreadPoolExecutor(len(free)) as pool:
        for future in as_completed([pool.submit(run, cell) for cell in waiting]):
            state = states[(cell := future.result()).name]
            if state.state not in (STOPPED, WAITING):
                bar.update()
            if state.state != WAITING:  # which was not started any more
                bar.write(": ".join([cell.name, state.state, *state.errors]))
            write()
    return numbers[0] if numbers else None
