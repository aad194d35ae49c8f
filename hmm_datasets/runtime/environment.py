"""Rank and world size of this process, from the variables that `accelerate launch` and `torchrun` set."""

import contextlib
import importlib.metadata
import os
import socket
import time
from collections.abc import Iterator, Mapping

from ..errors import InputError

SUPERVISED = "HMM_DATASETS_SUPERVISED"
"""Number of this start of a run that is supervised; set by the supervisor."""

FIRST_START = "HMM_DATASETS_FIRST_START"
"""Host and process that first started this command, and the time, by the monotonic clock of the host."""

_TASKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
"""Numbers of processes that `mpiexec` and `srun` have started."""

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


def check_ranks() -> None:
    """Refuse variables of a launcher by which processes would take each other for rank 0, or none would.

    Raises:
        `InputError`: a variable is no integer, or a rank is not less than the number of ranks.
    """
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        text = os.environ.get(name)
        if text is not None and not text.isdecimal():
            raise InputError(f"the variable {name} is {text!r}; expected an integer, 0 or more, or no such variable")
    of_host = "LOCAL_WORLD_SIZE" if "LOCAL_WORLD_SIZE" in os.environ else "WORLD_SIZE"
    for name, size_name in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", of_host)):
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


def check_alone() -> None:
    """Refuse to be one of several processes without a launcher: all would take themselves for rank 0.

    Raises:
        `InputError`: `mpiexec` or `srun` started them; or see [`check_ranks`].
    """
    check_ranks()
    name = next((name for name in _TASKS if os.environ.get(name, "1") not in ("0", "1")), None)
    if name is not None and "RANK" not in os.environ:
        raise InputError(
            f"the variable {name} is {os.environ[name]}, so mpiexec or srun started several processes, which have no "
            "ranks; start one process per machine with --launch, or, to run one alone, unset it"
        )


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
