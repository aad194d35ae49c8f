"""A sweep as a Slurm array through submitit: each element runs one cell, by the same process as on one machine.

Ninety seconds before the time limit, or when a job is preempted, Slurm signals the element. The cell then saves and
stops, and submitit puts the element back into the queue, up to three times. `slurm.json` in the folder of the sweep
has the job of each cell that was submitted, so the same command submits only cells that are unfinished and not queued.
"""

import concurrent.futures
import getpass
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InputError, first_line, needing_extra
from ...files import write_json
from ...records import read_record
from ...runtime.children import Children
from ...runtime.lock import exclusive_lock
from ..slurm import run_slurm
from .cells import FINISHED, CellState, run_cell
from .file import Sweep

if TYPE_CHECKING:
    import submitit

JOBS_NAME = "slurm.json"
_SAVING = 60.0  # seconds that a cell may take to save and stop


class CellJob:
    """What an element of the array runs. submitit pickles it, and calls `checkpoint` before the time limit."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __call__(self) -> str:
        """Run the cell until it has ended; return its state."""
        self._children = Children()
        # The main thread is there for signals.
        with exclusive_lock(self.folder), concurrent.futures.ThreadPoolExecutor(1) as pool:
            self._running = pool.submit(run_cell, self.folder, {"TQDM_MININTERVAL": "10"}, self._children)
            return self._running.result().state

    def checkpoint(self) -> "submitit.helpers.DelayedSubmission":
        """Let the cell save and stop, and continue it in another job."""
        import submitit

        self._children.send(signal.SIGTERM)
        concurrent.futures.wait([self._running], timeout=_SAVING)
        self._children.send(signal.SIGKILL)
        return submitit.helpers.DelayedSubmission(CellJob(self.folder))


def submit(
    sweep: Sweep, states: Mapping[str, CellState], queued: Mapping[str, str], *, cluster: str = "slurm"
) -> dict[str, str]:
    """Submit the cells that are neither finished nor queued as one array.

    Args:
        sweep ([`~hmm_datasets.operations.sweeps.file.Sweep`]): the sweep, whose folders are made.
        states (`dict`): the states of its cells.
        queued (`dict`): see [`queued_cells`].
        cluster (`str`, *optional*, defaults to `"slurm"`): `local` runs the elements as processes of this machine.

    Returns:
        `dict`: the id of the job of each cell that was submitted.

    Raises:
        `InputError`: submitit is not installed, there is no Slurm, or submitit or Slurm refuses the parameters.
    """
    cells = [cell for cell in sweep.cells if states[cell.name].state != FINISHED and cell.name not in queued]
    if not cells:
        return {}
    with needing_extra("slurm", "--slurm"):
        import submitit
    folder = (sweep.output_dir / ".submitit").absolute()
    parameters = {"name": f"sweep-{sweep.output_dir.name}"} | sweep.file.slurm
    # They stand in the comments of a script, where what follows the end of a line would be run.
    if not (text := f"{folder}{parameters}").isprintable() or "\\n" in json.dumps(parameters):
        raise InputError(f"{sweep.path}: slurm: {text!a} has control characters; leave them out")
    try:
        executor = submitit.AutoExecutor(folder, cluster=cluster)
        executor.update_parameters(**parameters)
        with executor.batch():
            jobs = [executor.submit(CellJob(Path(os.path.abspath(cell.folder)))) for cell in cells]
    except (RuntimeError, ValueError, TypeError, NameError, AssertionError, OSError) as error:
        raise InputError(f"{sweep.path}: slurm: {first_line(error)}") from None
    except subprocess.CalledProcessError as error:
        raise InputError(f"--slurm: the array was not accepted: {error}") from None
    submitted = {cell.name: str(job.job_id) for cell, job in zip(cells, jobs, strict=True)}
    write_json(sweep.output_dir / JOBS_NAME, {**queued, **submitted})
    return submitted


def queued_cells(sweep: Sweep) -> dict[str, str]:
    """The jobs of the cells that wait in the queue or run there, by the names of the cells.

    Raises:
        `InputError`: Slurm does not list its jobs.
    """
    path = sweep.output_dir / JOBS_NAME
    remedy = "delete it; cells whose jobs are queued are then queued again"
    jobs = read_record(path, dict[str, str], remedy) if path.exists() else {}
    if not jobs:
        return {}
    listed = run_slurm("squeue", "--noheader", "--array", "--user", getpass.getuser(), "--format", "%i")
    return {name: job for name, job in jobs.items() if job in listed.split()}
