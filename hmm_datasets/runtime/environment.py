"""Rank and world size of this process, from the variables that `accelerate launch` and `torchrun` set.

[`read_mpi_variables`] sets these variables in a process that `mpiexec` or `srun` started directly.
"""

import contextlib
import importlib.metadata
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from ..errors import InputError

DEFAULT_PORT = "29500"
"""Port at which ranks find each other if none is set; that of torch's launchers."""

SUPERVISED = "HMM_DATASETS_SUPERVISED"
"""Number of this start of a run that is supervised; set by the supervisor."""

FIRST_START = "HMM_DATASETS_FIRST_START"
"""Host and process that first started this command, and the time, by the monotonic clock of the host."""

_MPI = (
    # rank, number of ranks, rank on its host, number of ranks on its host
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH and Intel MPI
    ("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),  # MPICH of HPE Cray
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
)


_taken: tuple[str, ...] | None = None
_began: float | None = None


def rank() -> int:
    """The rank of this process, from 0; 0 if no launcher started it."""
    return _number("RANK", 0)


def local_rank() -> int:
    """The rank of this process among those of its machine, from 0."""
    return _number("LOCAL_RANK", 0)


def world_size() -> int:
    """The number of processes; 1 if no launcher started this one."""
    return _number("WORLD_SIZE", 1)


def _number(name: str, default: int) -> int:
    # What is no number is refused when a command begins, by `check_ranks`, and must not hide errors after that.
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default


def check_ranks(names: Sequence[str] = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")) -> None:
    """Refuse variables of a launcher by which processes would take each other for rank 0, or none would.

    Args:
        names (sequence of `str`, *optional*): the rank, the number of ranks, and both on this machine.

    Raises:
        `InputError`: a variable is no integer, or a rank is not less than the number of ranks.
    """
    for name in filter(None, names):
        text = os.environ.get(name)
        if text is not None and not text.isdecimal():
            raise InputError(f"the variable {name} is {text!r}; expected an integer, 0 or more, or no such variable")
    for name, size_name in ((names[0], names[1]), (names[2], names[3] if names[3] in os.environ else names[1])):
        size = _number(size_name, 1)
        if _number(name, 0) >= size:
            is_set = f"is {size}" if size_name in os.environ else "is not set"
            raise InputError(
                f"the variable {name} is {_number(name, 0)}, but {size_name} {is_set}; expected a rank less than the "
                "number of ranks: unset both to run alone, or start all ranks with --launch"
            )


def uses_deepspeed() -> bool:
    """Whether accelerate's launcher started this process for DeepSpeed."""
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"


def host() -> str:
    """The name of this host, as Slurm calls it if this is a job of Slurm."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def check_posix(what: str) -> None:
    """Raise an error on Windows, for what needs signals, sessions or limits that only POSIX systems have.

    Raises:
        `InputError`: this is Windows.
    """
    if not hasattr(os, "killpg"):
        raise InputError(f"{what}: needs signals and sessions of processes, which Windows does not have; use WSL")


def usable_cores() -> int:
    """The number of cores that this process may use, which in a container may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def package_version(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def read_mpi_variables() -> str | None:
    """Set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in a process that `mpiexec` or `srun` started.

    Nothing is set in a process that torch's launcher started, or that is the only one. One that was typed into a shell
    that `srun` started (its input is a terminal) is alone too, and its variables are deleted. Ranks on one host find
    each other there; ranks on several hosts need MASTER_ADDR from the user, because MPI gives no process the
    address of another one.

    Returns:
        `str`, *optional*: what is missing, with the remedy, if ranks could not find each other.

    Raises:
        `InputError`: see [`check_ranks`].
    """
    global _taken
    check_ranks()
    if "RANK" in os.environ:
        return None
    variables = next((names for names in _MPI if all(name in os.environ for name in names if name)), None)
    if variables is None or os.environ[variables[1]] in ("0", "1"):
        return None
    check_ranks(variables)
    if sys.stdin is not None and sys.stdin.isatty():
        print(
            f"{variables[1]} is {os.environ[variables[1]]}, but this is typed into a shell: it runs alone",
            file=sys.stderr,
        )
        for name in (name for names in _MPI for name in names if not name.startswith("SLURM_")):
            os.environ.pop(name, None)  # accelerate would take them
        return None
    _taken = variables
    rank_name, size_name, local_rank_name, local_size_name = variables
    size = os.environ[size_name]
    os.environ |= {"RANK": os.environ[rank_name], "WORLD_SIZE": size, "LOCAL_RANK": os.environ[local_rank_name]}
    if local_size_name:
        os.environ["LOCAL_WORLD_SIZE"] = os.environ[local_size_name]
    on_one_host = os.environ.get(local_size_name) == size or os.environ.get("SLURM_STEP_NUM_NODES") == "1"
    if "MASTER_ADDR" not in os.environ:
        if not on_one_host:
            return (
                f"{size_name} is {size}, on several hosts, and MASTER_ADDR is not set; export it on every host, with "
                "the address of the host of rank 0 (Open MPI: mpiexec -x MASTER_ADDR)"
            )
        os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ.setdefault("MASTER_PORT", DEFAULT_PORT)
    return None


def taken_from_mpi() -> tuple[str, ...] | None:
    """The variables that [`read_mpi_variables`] took the rank from; None if it took none."""
    return _taken


def with_start(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables for a process that runs the same command: its time limit counts from now, or from an earlier start."""
    earlier = _noted_start(variables)
    return {**variables, FIRST_START: f"{host()} {os.getpid()} {time.monotonic() if earlier is None else earlier}"}


def _noted_start(variables: Mapping[str, str]) -> float | None:
    # Launchers write variables into files and send them to other machines, whose clocks are others. So the time counts
    # if it was noted here, by this process or by one that has started it; containers number their processes alike.
    import psutil

    own, words = psutil.Process(), variables.get(FIRST_START, "").split()
    if len(words) != 3 or words[0] != host():
        return None
    return float(words[2]) if int(words[1]) in (process.pid for process in (own, *own.parents())) else None


@contextlib.contextmanager
def begun() -> Iterator[dict[str, str]]:
    """A context in which this process runs a command, whose time limit counts from here, or from an earlier start.

    Yields:
        `dict`: the variables with which the command can be started again. Commands that it starts have other limits.
    """
    global _began
    variables = with_start(os.environ)
    _began = _noted_start(variables)
    os.environ.pop(FIRST_START, None)
    try:
        yield variables
    finally:
        _began = None


def first_start() -> float:
    """Time at which this command was first started, by the monotonic clock; now, outside of a command."""
    noted = _noted_start(os.environ) if _began is None else _began
    return time.monotonic() if noted is None else noted


def silence_missing_gpu_warnings() -> None:
    """Tell DeepSpeed that there is no GPU, about which it would otherwise write a warning to stdout."""
    import torch

    if not torch.accelerator.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
