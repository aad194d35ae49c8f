"""A sweep as a Slurm array through submitit: each element runs one cell, by the same process as on one machine.

Ninety seconds before the time limit, or when a job is preempted, Slurm signals the element. The cell then saves and
stops, and submitit puts the element back into the queue, up to three times. `slurm.json` in the folder of the sweep
has the job of each cell that was submitted, so the same command submits only cells that are unfinished and not queued.
"""

import getpass
import math
import os
import re
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...files import write_json
from ...records import read_record
from ...runtime.children import kill_session, wait_for
from ...runtime.stop_requests import parse_time
from .cell_process import start_cell
from .cells import FINISHED, CellState
from .file import Cell, Sweep

if TYPE_CHECKING:
    import submitit

JOBS_NAME = "slurm.json"
_FOLDER = ".submitit"
_OPTIONS = ("array_parallelism", "signal_delay_s")
# Of sbatch, which also takes the beginnings of their names.
_SET_BY_SWEEP = ("array", "signal", "output", "error", "open_mode", "parsable", "test_only", "wrap")
_LOOK_EVERY = 0.2  # seconds
_SAVING = 60.0  # seconds that a cell may take to save and stop


def parse_parameters(text: str) -> dict[str, Any]:
    """The parameters of sbatch in one line, for submitit.

    ```python
    >>> parse_parameters("partition=main,gres=gpu:1,time=02:00:00")
    {'timeout_min': 120, 'additional_parameters': {'partition': 'main', 'gres': 'gpu:1'}}

    ```
    """
    if not text.strip().isprintable():
        raise InputError(f"--slurm {text!a}: expected NAME=VALUE without control characters")
    options: dict[str, Any] = {}
    others: dict[str, str] = {}
    for part in re.split(r",(?=[\w-]+=)", text.strip()) if text.strip() else ():
        name, _, value = part.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        if not name or not value:
            raise InputError(f"--slurm {text!r}: {part!r} is not NAME=VALUE, as in partition=main,time=02:00:00")
        limit = None
        if name == "time":
            try:
                limit = parse_time(value)
            except InputError:
                raise InputError(f"--slurm: time is {value!r}; expected a time such as 02:00:00") from None
        if limit is not None:
            options["timeout_min"] = math.ceil(limit.total_seconds() / 60)
        elif name in _OPTIONS:
            if not value.isdecimal():
                raise InputError(f"--slurm: {name} is {value!r}; expected a number")
            options[name] = int(value)
        elif any(known.startswith(name) for known in _SET_BY_SWEEP):
            raise InputError(
                f"--slurm {part}: the sweep sets it itself; array_parallelism=N limits the cells at a time, and "
                "signal_delay_s=SECONDS is how long before the end of its time a cell saves and stops"
            )
        else:
            others[name] = value
    return options | ({"additional_parameters": others} if others else {})


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


def submit(
    sweep: Sweep, states: Mapping[str, CellState], parameters: Mapping[str, Any], *, cluster: str = "slurm"
) -> dict[str, str]:
    """Submit the cells that are neither finished nor queued as one array.

    Args:
        sweep ([`~hmm_datasets.operations.sweeps.file.Sweep`]): the sweep, whose folders are made.
        states (`dict`): the states of its cells.
        parameters (`dict`): the result of [`parse_parameters`].
        cluster (`str`, *optional*, defaults to `"slurm"`): `local` runs the elements as processes of this machine.

    Returns:
        `dict`: the id of the job of each cell that was submitted.

    Raises:
        `InputError`: submitit is not installed, there is no Slurm, or Slurm refuses the parameters.
    """
    queued = queued_cells(sweep, cluster)
    cells = [cell for cell in sweep.cells if states[cell.name].state != FINISHED and cell.name not in queued]
    if not cells:
        return {}
    executor = _executor(sweep, cluster, parameters)
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
    command = ["squeue", "--noheader", "--array", "--user", getpass.getuser(), "--format", "%i"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"squeue: {error}; it lists which cells are queued") from None
    if done.returncode:
        raise InputError(f"squeue: {done.stderr.strip()}; it lists which cells are queued")
    return jobs & set(done.stdout.split())


def _executor(sweep: Sweep, cluster: str, parameters: Mapping[str, Any]) -> "submitit.AutoExecutor":
    try:
        import submitit
    except ImportError:
        raise InputError("--slurm: submitit is not installed; pip install 'hmm-datasets[slurm]'") from None
    folder = (sweep.output_dir / _FOLDER).absolute()
    if not str(folder).isprintable():
        # It stands in the comments of a script, where what follows the end of a line would be run.
        raise InputError(f"--slurm: the folder of the sweep is {str(folder)!a}; name one without control characters")
    try:
        executor = submitit.AutoExecutor(folder, cluster=cluster)
        options = dict(parameters)
        delay, others = options.pop("signal_delay_s", None), options.pop("additional_parameters", {})
        if cluster == "slurm":
            options["slurm_additional_parameters"] = {"job_name": f"sweep-{sweep.output_dir.name}"} | others
            options |= {"slurm_signal_delay_s": delay} if delay else {}
            if "array_parallelism" in options:
                options["slurm_array_parallelism"] = options.pop("array_parallelism")
        executor.update_parameters(**options)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"--slurm: {error}") from None
    return executor


def _submitted(executor: "submitit.AutoExecutor", cells: Sequence[Cell]) -> list[str]:
    try:
        with executor.batch():
            jobs = [executor.submit(CellJob(Path(os.path.abspath(cell.folder)))) for cell in cells]
    except (RuntimeError, subprocess.CalledProcessError, OSError) as error:
        raise InputError(f"--slurm: the array was not accepted: {error}") from None
    return [str(job.job_id) for job in jobs]
