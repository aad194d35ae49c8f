"""The format of all heartbeats: a small file in which a process records every few seconds that it is alive.

Ranks of a run ([`~hmm_datasets.runtime.rank_heartbeats.Heartbeat`]), supervisors
([`~hmm_datasets.runtime.supervisors.SupervisorRecord`]) and holders of locks
([`~hmm_datasets.runtime.lock.Holder`]) write a JSON object with the identity of the process, a number that grows with
each write, and what is particular to them. The file has a constant length and is overwritten in place, which needs no
space on a full disk.

A process on this machine is looked up by its id and start time. Of one on another machine only the file is visible,
so it is alive as long as the number changes, by the reader's own monotonic clock: clocks of different machines are
never compared.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..errors import InputError
from ..files import overwrite, read_bytes
from ..foreign.json import parse_json
from ..records import Count, as_record
from .process_identity import ProcessIdentity

FILE_BYTES = 4096
"""Length of a file."""

Record = TypeVar("Record", bound="ProcessHeartbeat")


@dataclass(frozen=True)
class ProcessHeartbeat(ProcessIdentity):
    """What every heartbeat has: which process writes it, and how often it has.

    Attributes:
        beat (`int`): number of this heartbeat.
    """

    beat: Count

    def to_bytes(self) -> bytes:
        """The content of the file."""
        return json.dumps(asdict(self), ensure_ascii=False).encode().ljust(FILE_BYTES - 1) + b"\n"


class HeartbeatFile:
    """Writes heartbeats to a file in a thread of its own, from [`HeartbeatFile.start`] to [`HeartbeatFile.end`].

    An `OSError` is ignored: the disk may be unavailable for a moment.

    Args:
        path (`Path`): the file; its folder is made if it is missing.
        record (callable): takes the number of a heartbeat, counted from 1, and returns what is written.
        every (`float`): seconds between two heartbeats.
        name (`str`): name of the thread.
        handle (`int`, *optional*): an open handle to write through, whatever is at the path by now.
    """

    def __init__(
        self,
        path: Path,
        record: Callable[[int], ProcessHeartbeat],
        every: float,
        name: str,
        handle: int | None = None,
    ):
        self._path, self._record, self._every, self._handle = path, record, every, handle
        self._number = 0
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)

    @property
    def has_ended(self) -> bool:
        """Whether it was asked to end."""
        return self._ended.is_set()

    def start(self) -> None:
        """Start the thread, whose first heartbeat comes after one interval."""
        self._thread.start()

    def write_now(self) -> None:
        """Write a heartbeat at once, from the thread that calls this."""
        with self._writing, contextlib.suppress(OSError):
            self._number += 1
            record = self._record(self._number)
            if self._handle is None:
                overwrite(self._path, record.to_bytes())
            else:
                os.lseek(self._handle, 0, os.SEEK_SET)
                os.write(self._handle, record.to_bytes())

    def end(self) -> None:
        """End the thread, once the heartbeat that it may be writing is written."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._every):
            self.write_now()


def read_heartbeat(content: bytes | Path, record: type[Record]) -> Record | None:
    """The heartbeat in a file, or in the content of one; None if it is truncated, or not one of this type.

    Args:
        content (`bytes` or `Path`): the content, or the file.
        record (`type`): the type of its record, a subclass of [`ProcessHeartbeat`].
    """
    try:
        content = read_bytes(content) if isinstance(content, Path) else content
        return as_record(parse_json(content, "heartbeat"), record, "heartbeat")
    except (OSError, InputError):
        return None


class SilenceClock:
    """How long the numbers of heartbeats have not changed, by the monotonic clock of this process."""

    def __init__(self):
        self._last: dict[Hashable, tuple[Any, float]] = {}

    def seconds(self, process: Hashable, beat: Any, at_first: float = 0.0) -> float:
        """Seconds since the number of a process was first seen.

        Args:
            process (hashable): which process it is.
            beat: number of its newest heartbeat.
            at_first (`float`, *optional*, defaults to 0.0): seconds for a process that has not been seen before.
        """
        now = time.monotonic()
        last, since = self._last.get(process, (beat, now - at_first))
        self._last[process] = (beat, since if last == beat else now)
        return now - self._last[process][1]
