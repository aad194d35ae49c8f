"""A sweep as a Slurm array through submitit: each element runs one cell, by the same process as on one machine.

Ninety seconds before the time limit, or when a job is preempted, Slurm signals the element. The cell then saves and
stops, and submitit puts the element back into the queue, up to three times. `slurm.json` in the folder of the sweep
has the job of each cell that was submitted, so the same command submits only cells that are unfinished and not queued.
"""

import getpass
import os
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError, first_line
from ...files import write_json
from ...records import read_record
from ...runtime.children import kill_session, wait_for
from ..slurm import run_slurm
from .cell_process import start_cell
from .cells import FINISHED, CellState
from .file import Cell, Sweep

if TYPE_CHECKING:
    import submitit

JOBS_NAME = "slurm.json"
_FOLDER = ".submitit"
_LOOK_EVERY = 0.2  # seconds
_SAVING = 60.0  # seconds that a cell may take to save and stop


class CellJob:
    """What an element of the array runs. submitit pickles it, and calls `checkpoint` before the time limit."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._process: subprocess.Popen | None = None

    def __call__(self) -> str:
        """Run the cell until it has ended; return its state."""
        self._process = start_cell(self.folder, {"TQDM_MININTERVAL": "10"})
        while self._process.poll() is None:  # `wait` would keep a signal handler from seeing the end
            time.sleep(_LOOK_EVERY)
        kill_session(self._process)
        return CellState.read(self.folder).state

    def checkpoint(self) -> "submitit.helpers.DelayedSubmission":
        """Let the cell save and stop, and continue it in another job."""
        import submitit

        if self._process is not None:
            self._process.terminate()
            wait_for(self._process, _SAVING)
            kill_session(self._process)
        return submitit.helpers.DelayedSubmission(CellJob(self.folder))


def submit(sweep: Sweep, states: Mapping[str, CellState], *, cluster: str = "slurm") -> dict[str, str]:
    """Submit the cells that are neither finished nor queued as one array.

    Args:
        sweep ([`~hmm_datasets.operations.sweeps.file.Sweep`]): the sweep, whose folders are made.
        states (`dict`): the states of its cells.
        cluster (`str`, *optional*, defaults to `"slurm"`): `local` runs the elements as processes of this machine.

    Returns:
        `dict`: the id of the job of each cell that was submitted.

    Raises:
        `InputError`: submitit is not installed, there is no Slurm, or submitit or Slurm refuses the parameters.
    """
    queued = queued_cells(sweep, cluster)
    cells = [cell for cell in sweep.cells if states[cell.name].state != FINISHED and cell.name not in queued]
    if not cells:
        return {}
    executor = _executor(sweep, cluster)
    for cell in cells:
        states[cell.name].errors = []
        states[cell.name].write(cell.folder)
    jobs = dict(zip((cell.name for cell in cells), _submitted(executor, cells), strict=True))
    write_json(sweep.output_dir / JOBS_NAME, _jobs(sweep) | jobs)
    return jobs


def queued_cells(sweep: Sweep, cluster: str = "slurm") -> dict[str, str]:
    """The jobs of the cells that wait in the queue or run there, by the names of the cells."""
    jobs = _jobs(sweep)
    if not jobs:
        return {}
    alive = _alive(set(jobs.values()), cluster)
    return {name: job for name, job in jobs.items() if job in alive}


def _jobs(sweep: Sweep) -> dict[str, str]:
    path = sweep.output_dir / JOBS_NAME
    remedy = "delete it; cells whose jobs are queued are then queued again"
    return read_record(path, dict[str, str], remedy) if path.exists() else {}


def _alive(jobs: Collection[str], cluster: str) -> set[str]:
    if cluster == "local":  # whose ids are those of processes
        import psutil

        return {job for job in jobs if psutil.pid_exists(int(job))}
    listed = run_slurm("squeue", "--noheader", "--array", "--user", getpass.getuser(), "--format", "%i")
    return jobs & set(listed.split())


def _executor(sweep: Sweep, cluster: str) -> "submitit.AutoExecutor":
    try:
        import submitit
    except ImportError:
        raise InputError("--slurm: submitit is not installed; pip install 'hmm-datasets[slurm]'") from None
    folder = (sweep.output_dir / _FOLDER).absolute()
    parameters = {"name": f"sweep-{sweep.output_dir.name}"} | sweep.slurm
    # They stand in the comments of a script, where what follows the end of a line would be run.
    for text in (str(folder), *_texts(parameters)):
        if not text.isprintable():
            raise InputError(f"--slurm: {text!a} has control characters; leave them out")
    try:
        executor = submitit.AutoExecutor(folder, cluster=cluster)
        executor.update_parameters(**parameters)
    except (RuntimeError, ValueError, TypeError, NameError, AssertionError) as error:
        raise InputError(f"{sweep.path}: slurm: {first_line(error)}") from None
    return executor


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from (str(key), *_texts(inner))
    else:
        yield str(value)


def _submitted(executor: "submitit.AutoExecutor", cells: Sequence[Cell]) -> list[str]:
    try:
        with executor.batch():
            jobs = [executor.submit(CellJob(Path(os.path.abspath(cell.folder)))) for cell in cells]
    except (RuntimeError, subprocess.CalledProcessError, OSError) as error:
        raise InputError(f"--slurm: the array was not accepted: {error}") from None
    return [str(job.job_id) for job in jobs]
