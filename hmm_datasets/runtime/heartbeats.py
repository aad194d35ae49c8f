"""What every process of a run is doing, written every few seconds by the process itself.

Each process has one file in the folder `.heartbeats` of its run, named after its host and process id. A thread
rewrites it every five seconds with rank, step and phase, and with the seconds that the process has spent in this
phase. So a file that is not rewritten means that the process was stopped, was killed, or cannot reach the disk. A file
that is rewritten while its phase gets older means that the process waits for something.

Entering a phase takes about a microsecond and writes nothing. The file has a constant length and is overwritten in
place, which needs no space on a full disk. Seconds are differences of a monotonic clock, so a change of the system
time does not alter them. The file is removed when the process ends without an error, and otherwise says why it ended.
"""

import contextlib
import faulthandler
import io
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO

from ..errors import InputError, LostPeer, first_line
from ..files import check_may_write, overwrite_json
from ..foreign.json import parse_json
from ..records import Count, Finite, as_record
from . import environment
from .beat import Beat
from .events import seconds_since
from .process_identity import ProcessIdentity, this_process

FOLDER_NAME = ".heartbeats"
"""Name of the folder with the heartbeats, in that of the run."""

SUPERVISOR_PREFIX = "supervisor-"
"""How the names of the files of supervisors begin, which are in that folder too."""

STACKS_WANTED = "stacks-wanted"
"""Name of a file in that folder that asks the processes for their stacks."""

BEAT_EVERY = 5.0
"""Seconds between two heartbeats of a process."""

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

_ABORTED_MESSAGE = "aborted (SIGABRT), as by the watchdog of NCCL after a peer was lost; the cause is in its log"
_FATAL = ".fatal.txt"
_WIDTH = 4096  # bytes of a file
_STEPS = 20  # latest steps over which the seconds of phases are averaged
_WATCHMEN = ("heartbeats", "exclusive-lock", "watch-launcher", "watch-rendezvous", "tqdm_monitor")
_OLD = 30.0  # seconds after which a file is one of an earlier start
_MAX_RANKS = 1_000_000


@dataclass(frozen=True)
class Heartbeat(ProcessIdentity):
    """What a process is doing.

    Attributes:
        rank (`int`), local_rank (`int`), world_size (`int`): its place.
        device (`str`): name of its device, such as `cuda:1 NVIDIA H200 (GPU-1a2b)`; empty until it is known.
        started (`float`): time at which it started, in seconds since 1970, by the clock of its host.
        time (`float`): time of this heartbeat, by the same clock.
        beat (`int`): number of this heartbeat.
        start (`int`): number of the start of the run that the process belongs to, by which the latest start is known
            when a clock was wrong; 0 in files of earlier versions.
        phase (`str`): one of [`PHASES`], or `stopped` or `failed`.
        phase_seconds (`float`): seconds since it entered the phase.
        step (`int`, *optional*): the step that it works on, counted from 1.
        visits (`int`): phases entered since the beginning of the step; ranks that have come as far have the same.
        longest (`float`): longest time that it has spent in one visit to this phase, in seconds, without its first
            step, which also compiles and fills caches.
        seconds (`dict[str, float]`): seconds per step in each phase, averaged over the latest steps.
        tokens_per_second (`float`, *optional*): tokens of its own micro-batches, over the latest steps.
        job (`str`, *optional*): the job of the batch system, such as `slurm 1234 pretrain`.
        compiling (`float`): seconds of this step in which it has compiled, by `torch.compile`.
        message (`str`, *optional*): why it ended.
        error (`str`, *optional*): name of the class of the error with which it ended.
        age (`float`): seconds from the last write, by the time of the file, to the reading; 0 when written.
        clock_ahead (`float`): seconds by which the clock of the host is ahead of that of the file; 0 when written.
    """

    rank: Count
    local_rank: Count
    world_size: Count
    device: str
    started: Finite
    time: Finite
    beat: Count
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
    age: float = 0.0
    clock_ahead: float = 0.0

    @property
    def has_ended(self) -> bool:
        """Whether the process says that it has ended."""
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


class Heart:
    """Writes the heartbeats of this process, from the creation of the object until [`Heart.end`].

    Args:
        folder (path): folder of the run; made if it is missing.
        every (`float`, *optional*): seconds between two heartbeats.
    """

    def __init__(self, folder: str | os.PathLike, every: float = BEAT_EVERY):
        self._run, self._identity = Path(folder), this_process()
        name = (folder, self._identity.host, self._identity.process)
        self._path, self._stacks = heartbeat_path(*name), stacks_path(*name)
        self._answered = 0.0
        self._began, self._started = time.monotonic(), time.time()
        self._device, self._message, self._error = "", None, None
        self._phase, self._step, self._visits = PHASES[0], None, 0
        self._since = self._began
        self._longest: dict[str, float] = {}
        self._of_step: dict[str, float] = {}
        self._tokens = 0
        self._steps: deque[tuple[float, dict[str, float], int]] = deque(maxlen=_STEPS)
        self._step_began = self._began
        self._is_warm = False
        self._compiled, self._compiles_since = 0.0, None
        self._fatal = _fatal_error_file(fatal_error_path(*name))
        self._changing = threading.Lock()
        self._start = _number_of_start(self._path)
        self._beat = Beat(self._write, every, "heartbeats")
        self._beat.now()
        self._beat.start()

    def enter(self, phase: str, step: int | None = None) -> None:
        """Enter a phase, of a step if it is one; a new step begins with `data`."""
        now = time.monotonic()
        with self._changing:
            seconds = now - self._since
            self._of_step[self._phase] = self._of_step.get(self._phase, 0.0) + seconds
            if self._is_warm:
                self._longest[self._phase] = max(self._longest.get(self._phase, 0.0), seconds)
            if step is not None and step != self._step:
                if self._is_warm:
                    self._steps.append((now - self._step_began, self._of_step, self._tokens))
                self._is_warm = self._step is not None  # the first step also compiles and fills caches
                self._step, self._step_began, self._of_step, self._tokens, self._visits = step, now, {}, 0, 0
                self._compiled = 0.0
            self._phase, self._since, self._visits = phase, now, self._visits + 1

    def count(self, tokens: int) -> None:
        """Count the tokens of a micro-batch of this process."""
        self._tokens += tokens

    def name_device(self, device: str) -> None:
        """Name the device of this process."""
        self._device = device

    def compile(self, begins: bool) -> None:
        """A compilation begins or ends, within a phase."""
        now = time.monotonic()
        with self._changing:
            if self._compiles_since is not None:
                self._compiled += now - self._compiles_since
            self._compiles_since = now if begins else None

    @property
    def phase(self) -> str:
        """The current phase."""
        return self._phase

    def forget_earlier(self) -> None:
        """Remove the files that other processes left at an earlier start."""
        with contextlib.suppress(OSError):
            now = self._path.stat().st_mtime
            for path in self._path.parent.iterdir():
                # A file that seems to be of the future was written when the clock was wrong.
                # Those of fatal errors are as old as the process that has one open.
                is_open = path == self._path or path.name.endswith(_FATAL)
                if not is_open and abs(now - path.stat().st_mtime) > _OLD:
                    path.unlink()

    def end(self, phase: str | None = None, message: str | None = None, error: str | None = None) -> None:
        """Stop writing.

        Args:
            phase (`str`, *optional*): `stopped` or `failed`, which stays in the file; by default the file is removed.
            message (`str`, *optional*): why the process ends.
            error (`str`, *optional*): name of the class of the error.
        """
        if self._beat.has_ended:
            return
        self._beat.end()
        self._message, self._error = message, error
        if self._fatal is not None:
            with contextlib.suppress(OSError, io.UnsupportedOperation):
                faulthandler.enable()  # on stderr again
                self._fatal.close()
                os.unlink(self._fatal.name)
        if phase is not None:
            self.enter(phase)
            self._beat.now()
        # A start that was refused leaves nothing behind, in a new folder or in that of another run.
        is_refused = error == InputError.__name__ and self._step is None
        is_removed = phase is None or (is_refused and environment.SUPERVISED not in os.environ)
        with contextlib.suppress(OSError):
            if phase is None and environment.rank() == 0:
                for path in self._path.parent.iterdir():  # also what killed processes of earlier starts have left
                    if not path.name.startswith(SUPERVISOR_PREFIX):
                        path.unlink(missing_ok=True)
            if is_removed:
                self._stacks.unlink(missing_ok=True)
                self._path.unlink(missing_ok=True)
                self._path.parent.rmdir()
                self._run.rmdir()

    def end_at_once(self, message: str, error: str) -> None:
        """Say why this process ends, without waiting for any thread; only a supervisor reads it."""
        self._phase, self._since, self._message, self._error = FAILED, time.monotonic(), message, error
        with contextlib.suppress(OSError):
            if environment.SUPERVISED in os.environ:
                overwrite_json(self._path, asdict(self._now(1)), _WIDTH)
                return
            self._path.unlink(missing_ok=True)
            self._stacks.unlink(missing_ok=True)
            self._path.parent.rmdir()

    def _write(self, number: int) -> None:
        with contextlib.suppress(OSError):
            overwrite_json(self._path, asdict(self._now(number)), _WIDTH)
        if number > 1 and not self._beat.has_ended:  # in the thread of heartbeats
            self._answer()

    def _answer(self) -> None:
        """Write the stacks of all threads, once for each time that they are asked for."""
        asked = (self._path.parent / STACKS_WANTED).stat().st_mtime
        if asked != self._answered:
            self._answered = asked
            unfinished = self._stacks.with_suffix(".tmp")
            unfinished.write_text(_stacks_of_threads(), encoding="utf-8")
            unfinished.rename(self._stacks)

    def _now(self, number: int) -> Heartbeat:
        with self._changing:
            steps, phase, since, step = list(self._steps), self._phase, self._since, self._step
            visits, compiled, compiles_since = self._visits, self._compiled, self._compiles_since
            longest = self._longest.get(phase, 0.0)
        now = time.monotonic()
        total = sum(seconds for seconds, _, _ in steps)
        tokens = sum(count for _, _, count in steps)
        message = None if self._message is None else self._message.encode()[:500].decode(errors="ignore")
        return Heartbeat(
            **asdict(self._identity),
            rank=environment.rank(),
            local_rank=environment.local_rank(),
            world_size=environment.world_size(),
            device=self._device[:100],
            started=self._started,
            time=time.time(),
            beat=number,
            phase=phase,
            phase_seconds=round(now - since, 3),
            step=step,
            visits=visits,
            longest=round(longest, 3),
            seconds=_mean([seconds for _, seconds, _ in steps]),
            tokens_per_second=round(tokens / total, 1) if tokens and total > 0 else None,
            job=_job(),
            message=message,
            error=self._error,
            start=self._start,
            compiling=round(compiled + (0.0 if compiles_since is None else now - compiles_since), 3),
        )


def read_heartbeats(folder: str | os.PathLike) -> list[Heartbeat]:
    """The newest heartbeat of every rank of the latest start, by rank; none if there are no files.

    A rank that has not reported is missing from the list; `world_size` of the others says how many there should be.

    Args:
        folder (path): folder of the run.
    """
    found = []
    for path in (Path(folder) / FOLDER_NAME).glob("*.json"):
        beat = _read(path)
        if beat is not None:
            found.append(beat)
    newest: dict[int, Heartbeat] = {}
    for beat in sorted(found, key=_order_of_starts):
        newest[beat.rank] = beat
    if not newest:
        return []
    world_size = max(newest.values(), key=_order_of_starts).world_size
    return [newest[rank] for rank in sorted(newest) if rank < world_size]


def latest_start(folder: str | os.PathLike) -> int:
    """The number of the latest start of which a process has reported; 0 if none has."""
    return max((beat.start for beat in read_heartbeats(folder)), default=0)


def _order_of_starts(beat: Heartbeat) -> tuple[int, float]:
    return beat.start, beat.started


def _number_of_start(path: Path) -> int:
    """The number of the start that a process belongs to, from the files of the others; `path` is its own.

    A process that is not known to be running belongs to an earlier start. One on another machine runs if its file was
    written lately, by the clock of the disk.
    """
    check_may_write()
    earlier, now = [0], [1]
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        written = path.stat().st_mtime
        for other in path.parent.glob("*.json"):
            beat = None if other == path else _read(other)
            if beat is not None:
                is_lately = not beat.is_here and abs(written - other.stat().st_mtime) < _OLD
                (now if beat.is_alive_here or is_lately else earlier).append(beat.start)
    return max(max(earlier) + 1, *now)


def heartbeat_path(folder: str | os.PathLike, host: str, process: int) -> Path:
    """The file with the heartbeats of a process."""
    return Path(folder) / FOLDER_NAME / f"{host}-{process}.json"


def stacks_path(folder: str | os.PathLike, host: str, process: int) -> Path:
    """The file with the stacks of a process, if it was asked for them."""
    return Path(folder) / FOLDER_NAME / f"{host}-{process}.stacks.txt"


def fatal_error_path(folder: str | os.PathLike, host: str, process: int) -> Path:
    """The file with the stacks of a supervised process that a signal such as SIGABRT or SIGSEGV has ended."""
    return Path(folder) / FOLDER_NAME / f"{host}-{process}{_FATAL}"


def _fatal_error_file(path: Path) -> IO[str] | None:
    """The file into which `faulthandler` writes, of a process with a supervisor, which shows it; else None."""
    if environment.SUPERVISED not in os.environ:
        return None
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w", encoding="utf-8")
        faulthandler.enable(file)
        return file
    return None


def _stacks_of_threads() -> str:
    """The Python stacks of the threads of this process, the main thread first, without those that only keep watch."""
    frames = sys._current_frames()
    threads = [thread for thread in threading.enumerate() if thread.name not in _WATCHMEN]
    threads.sort(key=lambda thread: thread is not threading.main_thread())
    parts = [
        f"thread {thread.name}\n{''.join(traceback.format_stack(frames[thread.ident]))}"
        for thread in threads
        if thread.ident in frames
    ]
    return "\n".join(parts)


def _read(path: Path) -> Heartbeat | None:
    try:
        with path.open("rb") as file:
            content = parse_json(file.read(), path)
            written = os.fstat(file.fileno()).st_mtime
        beat = as_record(content, Heartbeat, path)
        beat = replace(beat, age=seconds_since(written), clock_ahead=round(beat.time - written, 3))
        if not (beat.rank < beat.world_size <= _MAX_RANKS and beat.phase in (*PHASES, STOPPED, FAILED)):
            return None
        is_aborted = beat.world_size > 1 and not beat.has_ended and _is_aborted(path.with_suffix(_FATAL))
        return replace(beat, phase=FAILED, error=ABORTED, message=_ABORTED_MESSAGE) if is_aborted else beat
    except (OSError, InputError):
        return None  # it is being written or removed, or is not one of these files


def _is_aborted(path: Path) -> bool:
    """Whether the file with the stacks of a fatal error says that a process was ended by SIGABRT."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").startswith("Fatal Python error: Aborted")
    except OSError:
        return False


def _mean(steps: list[dict[str, float]]) -> dict[str, float]:
    phases = {phase: None for seconds in steps for phase in seconds}
    return {phase: round(sum(seconds.get(phase, 0.0) for seconds in steps) / len(steps), 6) for phase in phases}


def _job() -> str | None:
    """The job of the batch system that this process runs in, with its name."""
    for system, number, name in (
        ("slurm", "SLURM_ARRAY_JOB_ID", "SLURM_JOB_NAME"),
        ("slurm", "SLURM_JOB_ID", "SLURM_JOB_NAME"),
        ("pbs", "PBS_JOBID", "PBS_JOBNAME"),
        ("lsf", "LSB_JOBID", "LSB_JOBNAME"),
    ):
        if number in os.environ:
            return " ".join([system, os.environ[number], os.environ.get(name, "")]).strip()
    return None


_heart: Heart | None = None  # of this process


@contextlib.contextmanager
def beating(folder: str | os.PathLike | None, every: float = BEAT_EVERY) -> Iterator[None]:
    """A context in which this process writes heartbeats; nothing happens without a folder, or inside another one.

    After an error the file says which.

    Args:
        folder (path, *optional*): folder of the run.
        every (`float`, *optional*): seconds between two heartbeats.
    """
    global _heart
    if folder is None or _heart is not None:
        yield
        return
    _heart = Heart(folder, every)
    try:
        yield
    except BaseException as error:
        _heart.end(FAILED, first_line(error), type(error).__name__)
        raise
    else:
        _heart.end()
    finally:
        _heart = None


def enter(phase: str, step: int | None = None) -> None:
    """Enter a phase, of a step if it is one."""
    if _heart is not None:
        _heart.enter(phase, step)


@contextlib.contextmanager
def during(phase: str) -> Iterator[None]:
    """A context that is a phase; the phase before it continues afterwards."""
    heart = _heart
    if heart is None:
        yield
        return
    before = heart.phase
    heart.enter(phase)
    try:
        yield
    finally:
        heart.enter(before)


def count(tokens: int) -> None:
    """Count the tokens of a micro-batch of this process."""
    if _heart is not None:
        _heart.count(tokens)


def compiling(begins: bool) -> None:
    """A compilation begins, or ends."""
    if _heart is not None:
        _heart.compile(begins)


def name_device(device: str) -> None:
    """Name the device of this process."""
    if _heart is not None:
        _heart.name_device(device)


def forget_earlier() -> None:
    """Remove what other processes left at an earlier start; called by rank 0 once no other start can be running."""
    if _heart is not None:
        _heart.forget_earlier()


def end(phase: str, message: str, error: str | None = None) -> None:
    """Say why this process ends: `stopped` on request, or `failed`, and with which class of error."""
    if _heart is not None:
        _heart.end(phase, message, error)


def end_at_once(message: str) -> None:
    """Say that this process ends because it has lost its lock; called by any thread, right before the end."""
    if _heart is not None:
        _heart.end_at_once(message, LOST_LOCK)
