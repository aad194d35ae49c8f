"""What a rank of a run records about itself, and how it is read: rank, device, step and phase, and since when.

Each process has one file in the folder `.heartbeats` of its run, named after its host and process id, in the format of
[`~hmm_datasets.runtime.heartbeat_file`]. The file is removed when the process ends without an error, and otherwise
records why it ended.
"""

import contextlib
import os
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..errors import LostPeer
from ..files import check_may_write
from ..records import Count, Finite
from .events import seconds_since
from .heartbeat_file import ProcessHeartbeat, read_heartbeat
from .host_memory import HostMemory

FOLDER_NAME = ".heartbeats"
"""Name of the folder with the heartbeats, in that of the run."""

SUPERVISOR_PREFIX = "supervisor-"
"""How the names of the files of supervisors begin, which are in that folder too."""

PHASES = (
    "import",
    "rendezvous",
    "setup",
    "data",
    "forward",
    "backward",
    "optimizer",
    "saving",
    "evaluating",
    "finishing",
    "working",
)
"""What a process does, in the order of a run; those from `data` to `optimizer` are repeated in every step.

Programs that do not train are `working`. Epochs of the fit of an HMM and batches of tokenization are their steps."""

LOST_LAUNCHER = "LostLauncher"
"""Error of a process that ends because the launcher that started it has ended."""

ABORTED = "Aborted"
"""Error of one of several processes that was ended by SIGABRT: the watchdog of NCCL does so when a peer was lost."""

LOST_LOCK = "LostLock"
"""Error of a process that ends because another one has taken over the lock of its folder."""

STOPPED, FAILED = "stopped", "failed"
"""Phases of a process that has ended: on request, or with an error."""

FATAL_SUFFIX = ".fatal.txt"
"""How the names of files with the stacks of fatal errors end."""

SHOW_STACKS = getattr(signal, "SIGUSR2", None)
"""Signal on which a supervised process writes its stacks into that file; Windows, which supervises none, lacks it."""

EARLIER_START_AFTER = 30.0
"""Seconds without a write after which a file belongs to an earlier start."""

_ABORTED_MESSAGE = "aborted (SIGABRT), as by the watchdog of NCCL after a peer was lost; the cause is in its log"
_MAX_RANKS = 1_000_000


@dataclass(frozen=True)
class Heartbeat(ProcessHeartbeat):
    """What a process is doing.

    Attributes:
        rank (`int`), world_size (`int`): its place.
        device (`str`): name of its device, such as `cuda:1 NVIDIA H200 (GPU-1a2b)`; empty until it is known.
        started (`float`): time at which it started, in seconds since 1970, by the clock of its host.
        start (`int`): number of the start of the run that the process belongs to, by which the latest start is known
            when a clock was wrong.
        phase (`str`): one of [`PHASES`], or `stopped` or `failed`.
        phase_seconds (`float`): seconds since it entered the phase.
        step (`int`, *optional*): the step that it works on, counted from 1.
        visits (`int`): phases entered since the step began; equal in ranks that have reached the same point.
        longest (`float`): longest time that it has spent in one visit to this phase, in seconds, without its first
            step, which also compiles and fills caches.
        seconds (`dict[str, float]`): seconds per step in each phase, averaged over the latest steps.
        tokens_per_second (`float`, *optional*): tokens of its own micro-batches, over the latest steps.
        job (`str`, *optional*): the job of the batch system, such as `slurm 1234 pretrain`.
        memory ([`~hmm_datasets.runtime.host_memory.HostMemory`], *optional*): that of its host.
        compiling (`float`): seconds of this step in which it has compiled, by `torch.compile`.
        message (`str`, *optional*): why it ended.
        error (`str`, *optional*): name of the class of the error with which it ended.
        written (`float`): time of the last write, by the clock of the disk; 0 when it is being written.
        age (`float`): seconds from then to the reading.
    """

    rank: Count
    world_size: Count
    device: str
    started: Finite
    phase: str
    phase_seconds: Finite
    step: Count | None = None
    visits: Count = 0
    longest: Finite = 0.0
    seconds: dict[str, Finite] = field(default_factory=dict)
    tokens_per_second: Finite | None = None
    job: str | None = None
    message: str | None = None
    error: str | None = None
    start: Count = 0
    compiling: Finite = 0.0
    memory: HostMemory | None = None
    written: float = 0.0
    age: float = 0.0

    @property
    def has_ended(self) -> bool:
        """Whether the process has recorded that it has ended."""
        return self.phase in (STOPPED, FAILED)

    @property
    def follows(self) -> bool:
        """Whether it ended because another process had ended, or perhaps did, if it was aborted."""
        return self.error in (LostPeer.__name__, LOST_LAUNCHER, ABORTED)

    @property
    def place(self) -> str:
        """Rank, host, process and device, in words."""
        device = f", {self.device}" if self.device else ""
        return f"rank {self.rank} on {self.host} (process {self.process}{device})"


def read_heartbeats(folder: str | os.PathLike) -> list[Heartbeat]:
    """The newest heartbeat of every rank of the latest start, by rank; none if there are no files.

    A rank that has not reported is missing from the list; `world_size` of the others is how many there should be.

    Args:
        folder (path): folder of the run.
    """
    beats = filter(None, map(_read, (Path(folder) / FOLDER_NAME).glob("*.json")))
    newest = {beat.rank: beat for beat in sorted(beats, key=_order_of_starts)}
    if not newest:
        return []
    world_size = max(newest.values(), key=_order_of_starts).world_size
    return [newest[rank] for rank in sorted(newest) if rank < world_size]


def _order_of_starts(beat: Heartbeat) -> tuple[int, float]:
    return beat.start, beat.started


def number_of_start(path: Path) -> int:
    """The number of the start that a process belongs to, from the files of the others; `path` is its own.

    A process that is not known to be running belongs to an earlier start. One on another machine runs if its file was
    written lately, by the clock of the disk.
    """
    check_may_write()
    newest_ended, newest_running = 0, 1
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        now = path.stat().st_mtime
        others = (_read(other) for other in path.parent.glob("*.json") if other != path)
        for beat in filter(None, others):
            if beat.is_alive_here or (not beat.is_here and abs(now - beat.written) < EARLIER_START_AFTER):
                newest_running = max(newest_running, beat.start)
            else:
                newest_ended = max(newest_ended, beat.start)
    return max(newest_ended + 1, newest_running)


def heartbeat_path(folder: str | os.PathLike, host: str, process: int) -> Path:
    """The file with the heartbeats of a process."""
    return Path(folder) / FOLDER_NAME / f"{host}-{process}.json"


def fatal_error_path(folder: str | os.PathLike, host: str, process: int) -> Path:
    """The file with the stacks of a supervised process that a signal such as SIGSEGV has ended, or that hung."""
    return Path(folder) / FOLDER_NAME / f"{host}-{process}{FATAL_SUFFIX}"


def _read(path: Path) -> Heartbeat | None:
    beat = read_heartbeat(path, Heartbeat)
    try:
        written = path.stat().st_mtime
    except OSError:
        return None  # it has just been removed
    if beat is None or not (beat.rank < beat.world_size <= _MAX_RANKS and beat.phase in (*PHASES, STOPPED, FAILED)):
        return None
    beat = replace(beat, written=written, age=seconds_since(written))
    is_aborted = beat.world_size > 1 and not beat.has_ended and _is_aborted(path.with_suffix(FATAL_SUFFIX))
    return replace(beat, phase=FAILED, error=ABORTED, message=_ABORTED_MESSAGE) if is_aborted else beat


def _is_aborted(path: Path) -> bool:
    """Whether the file with the stacks of a fatal error is that of a process ended by SIGABRT."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").startswith("Fatal Python error: Aborted")
    except OSError:
        return False
