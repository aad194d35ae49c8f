"""Heartbeats of the supervisors of one run on several hosts, by which they start its commands together.

If a launcher started again while that of another host still ran, it would find the ranks of the start before, and wait
for them without end. So starts are numbered, and each supervisor writes every second, beside the heartbeats of the
ranks, whether its command runs and in which start. It begins a start only when no command of an earlier one runs on
another host. A supervisor that no longer writes does not count, and the file of one that was killed is removed.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ..records import Count
from .heartbeat_file import HeartbeatFile, ProcessHeartbeat, SilenceClock, read_heartbeat
from .process_identity import this_process
from .rank_heartbeats import FOLDER_NAME, SUPERVISOR_PREFIX

_BEAT_EVERY = 1.0  # seconds
_MAX_STARTS = 1 << 31


@dataclass(frozen=True)
class SupervisorRecord(ProcessHeartbeat):
    """What a supervisor records.

    Attributes:
        runs (`bool`), start (`int`): whether its command runs, and in which start of the run.
    """

    runs: bool
    start: Count


def read_supervisors(folder: str | os.PathLike) -> Iterator[tuple[Path, SupervisorRecord]]:
    """The files of the supervisors of a run, whose folder this is, and their records."""
    for path in (Path(folder) / FOLDER_NAME).glob(f"{SUPERVISOR_PREFIX}*"):
        record = read_heartbeat(path, SupervisorRecord)
        if record is not None and record.start < _MAX_STARTS:
            yield path, record


class SupervisorHeartbeat:
    """Records in which start of a run the command of this host runs, as a context manager.

    Args:
        folder (path): folder of the run.
        silent (`float`): seconds without a heartbeat after which another supervisor does not count.
    """

    def __init__(self, folder: str | os.PathLike, silent: float):
        self._run = Path(folder)
        self._identity = this_process()
        name = f"{SUPERVISOR_PREFIX}{self._identity.host}-{self._identity.process}"
        self._path = self._run / FOLDER_NAME / name
        self._silent, self._silence = silent, SilenceClock()
        self._start, self._runs = 0, False
        self._file = HeartbeatFile(self._path, self._record, _BEAT_EVERY, "supervisor")

    def __enter__(self) -> "SupervisorHeartbeat":
        self._file.write_now()
        self._file.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.end()
        self._running_starts()  # the last one removes the files of killed ones
        with contextlib.suppress(OSError):
            self._path.unlink()
            self._path.parent.rmdir()

    def begin(self, wait: Callable[[float], bool], goes_on: Callable[[], bool]) -> bool:
        """Begin the next start, once no command of an earlier one runs on another host.

        Args:
            wait (callable): waits for a number of seconds; False if the supervisor was asked to stop.
            goes_on (callable): whether the ranks on other hosts have met, so that a new supervisor cannot take part in
                their start any more.

        Returns:
            `bool`: whether it was not asked to stop.
        """
        running = max(self._running_starts(), default=0)
        if self._start == 0:
            self._start = max(running + 1 if running and goes_on() else running, 1)
        else:
            self._start = max(self._start + 1, running)
        has_reported = False
        while (earlier := [start for start in self._running_starts() if start < self._start]) != []:
            if not has_reported:
                has_reported = True
                print(
                    f"supervise: start {self._start} waits until the commands of start {min(earlier)} on other hosts "
                    f"have ended, or their supervisors have been silent for {self._silent:.0f} s",
                    flush=True,
                )
            if not wait(_BEAT_EVERY):
                return False
        self._write(runs=True)
        return True

    def end(self) -> None:
        """Record that the command of this host has ended."""
        self._write(runs=False)

    def _write(self, runs: bool) -> None:
        self._runs = runs
        self._file.write_now()

    def _running_starts(self) -> list[int]:
        """The numbers of the starts in which commands run on other hosts."""
        starts = []
        for path, other in read_supervisors(self._run):
            if path == self._path:
                continue
            if other.is_here and not other.is_alive_here:
                path.unlink(missing_ok=True)
            elif other.runs and self._silence.seconds(path, other.beat) < self._silent:
                starts.append(other.start)
        return starts

    def _record(self, number: int) -> SupervisorRecord:
        return SupervisorRecord(**asdict(self._identity), beat=number, runs=self._runs, start=self._start)
