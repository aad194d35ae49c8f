"""Writes the heartbeats of a process: what it is doing, every few seconds by a thread of its own.

The thread rewrites the file of this process ([`~hmm_datasets.runtime.rank_heartbeats`]) every five seconds with rank,
step and phase, and with the seconds that the process has spent in this phase. So a file that is not rewritten means
that the process was stopped, was killed, or cannot reach the disk. A file that is rewritten while its phase gets older
means that the process waits for something.

Entering a phase takes about a microsecond and writes nothing. Seconds are differences of a monotonic clock, so a
change of the system time does not alter them.
"""

import contextlib
import faulthandler
import io
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO

from ..errors import InputError
from ..files import overwrite
from . import environment
from .heartbeat_file import HeartbeatFile
from .host_memory import read_host_memory
from .process_identity import this_process
from .rank_heartbeats import (
    EARLIER_START_AFTER,
    FAILED,
    FATAL_SUFFIX,
    LOST_LOCK,
    PHASES,
    SHOW_STACKS,
    SUPERVISOR_PREFIX,
    Heartbeat,
    fatal_error_path,
    heartbeat_path,
    number_of_start,
)

BEAT_EVERY = 5.0
"""Seconds between two heartbeats of a process."""

_LATEST_STEPS = 20  # over which the seconds of phases are averaged


class HeartbeatWriter:
    """Writes the heartbeats of this process, from [`HeartbeatWriter.begin`] to [`HeartbeatWriter.end`].

    Args:
        folder (path, *optional*): folder of the run, to begin at once; made if it is missing.
        every (`float`, *optional*): seconds between two heartbeats.
    """

    def __init__(self, folder: str | os.PathLike | None = None, every: float = BEAT_EVERY):
        self._changing, self._file = threading.Lock(), None
        self._clear()
        if folder is not None:
            self.begin(folder, every)

    def _clear(self) -> None:
        self._began, self._started = time.monotonic(), time.time()
        self._device, self._message, self._error = "", None, None
        self._phase, self._step, self._visits = PHASES[0], None, 0
        self._since = self._began
        self._longest: dict[str, float] = {}
        self._of_step: dict[str, float] = {}
        self._tokens = 0
        self._steps: deque[tuple[float, dict[str, float], int]] = deque(maxlen=_LATEST_STEPS)
        self._step_began = self._began
        self._is_warm = False
        self._compiled, self._compiles_since = 0.0, None

    def begin(self, folder: str | os.PathLike, every: float = BEAT_EVERY) -> None:
        """Begin to write, in the first phase; see [`HeartbeatWriter`]."""
        self._run, self._identity = Path(folder), this_process()
        name = (folder, self._identity.host, self._identity.process)
        self._path = heartbeat_path(*name)
        self._clear()
        self._fatal = _fatal_error_file(fatal_error_path(*name))
        self._start = number_of_start(self._path)
        file = self._file = HeartbeatFile(self._path, self._now, every, "heartbeats")
        file.write_now()
        file.start()

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

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """A context that is a phase; the phase before it continues afterwards."""
        before = self._phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def forget_earlier(self) -> None:
        """Remove what others left at an earlier start; called by rank 0 once no other start can be running."""
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            now = self._path.stat().st_mtime
            for path in self._path.parent.iterdir():
                # A file that seems to be of the future was written when the clock was wrong.
                # Those of fatal errors are as old as the process that has one open.
                is_open = path == self._path or path.name.endswith(FATAL_SUFFIX)
                if not is_open and abs(now - path.stat().st_mtime) > EARLIER_START_AFTER:
                    path.unlink()

    def end(self, phase: str | None = None, message: str | None = None, error: str | None = None) -> None:
        """Stop writing; nothing happens if it has not begun.

        Args:
            phase (`str`, *optional*): `stopped` or `failed`, which stays in the file; by default the file is removed.
            message (`str`, *optional*): why the process ends.
            error (`str`, *optional*): name of the class of the error.
        """
        file = self._file
        if file is None or file.has_ended:
            return
        file.end()
        self._message, self._error = message, error
        if self._fatal is not None:
            with contextlib.suppress(OSError, io.UnsupportedOperation):
                faulthandler.unregister(SHOW_STACKS)
                faulthandler.enable()  # on stderr again
                self._fatal.close()
                os.unlink(self._fatal.name)
        if phase is not None:
            self.enter(phase)
            file.write_now()
        # A start that was refused leaves nothing behind, in a new folder or in that of another run.
        is_refused = error == InputError.__name__ and self._step is None
        is_removed = phase is None or (is_refused and environment.SUPERVISED not in os.environ)
        with contextlib.suppress(OSError):
            if phase is None and environment.rank() == 0:
                for path in self._path.parent.iterdir():  # also what killed processes of earlier starts have left
                    if not path.name.startswith(SUPERVISOR_PREFIX):
                        path.unlink(missing_ok=True)
            if is_removed:
                self._path.unlink(missing_ok=True)
                self._path.parent.rmdir()
                self._run.rmdir()

    def end_at_once(self, message: str) -> None:
        """Record that this process ends because it has lost its lock; any thread calls it, right before the end.

        No thread is waited for, and only a supervisor reads it.
        """
        if self._file is None:
            return
        self._phase, self._since, self._message, self._error = FAILED, time.monotonic(), message, LOST_LOCK
        with contextlib.suppress(OSError):
            if environment.SUPERVISED in os.environ:
                overwrite(self._path, self._now(1).to_bytes())
                return
            self._path.unlink(missing_ok=True)
            self._path.parent.rmdir()

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
            world_size=environment.world_size(),
            device=self._device[:100],
            started=self._started,
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
            memory=read_host_memory(),
            compiling=round(compiled + (0.0 if compiles_since is None else now - compiles_since), 3),
        )


def _fatal_error_file(path: Path) -> IO[str] | None:
    """The file into which `faulthandler` writes, of a process with a supervisor, which shows it; else None.

    It writes the stacks of all threads there when a fatal signal ends the process, or when it is sent [`SHOW_STACKS`].
    """
    if environment.SUPERVISED not in os.environ:
        return None
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w", encoding="utf-8")
        faulthandler.enable(file)
        faulthandler.register(SHOW_STACKS, file)
        return file
    return None


def _mean(steps: list[dict[str, float]]) -> dict[str, float]:
    phases = {phase: None for seconds in steps for phase in seconds}
    return {phase: round(sum(seconds.get(phase, 0.0) for seconds in steps) / len(steps), 6) for phase in phases}


def _job() -> str | None:
    """The job of Slurm that this process runs in, with its name; of an array, that of the array."""
    number = os.environ.get("SLURM_ARRAY_JOB_ID", os.environ.get("SLURM_JOB_ID"))
    return None if number is None else f"slurm {number} {os.environ.get('SLURM_JOB_NAME', '')}".strip()
