"""The supervisors of one run on several hosts, which start its commands together.

If a launcher started again while that of another host still ran, it would find the ranks of the start before, and wait
for them without end. So starts are numbered, and each supervisor writes every second, beside the heartbeats of the
ranks, whether its command runs and in which start. It begins a start only when no command of an earlier one runs on
another host. A supervisor that no longer writes does not count, and the file of one that was killed is removed.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from .. import launch_environment
from ..files import overwrite_json
from ..heartbeats import FOLDER_NAME
from ..process_state import machine_id, start_time

_BEAT_EVERY = 1.0  # seconds
_MAX_STARTS = 1 << 31
_WIDTH = 512  # bytes of a file, which is overwritten in place


class Presence:
    """Says in which start of a run the command of this host runs, as a context manager.

    Args:
        folder (path): folder of the run.
        silent (`float`): seconds without a word after which another supervisor does not count.
    """

    def __init__(self, folder: str | os.PathLike, silent: float):
        self._folder = Path(folder) / FOLDER_NAME
        self._path = self._folder / f"supervisor-{launch_environment.host()}-{os.getpid()}"
        self._silent = silent
        self._number, self._runs = 0, False
        self._beats = 0
        self._seen: dict[Path, tuple[int, float]] = {}
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="supervisor")

    def __enter__(self) -> "Presence":
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()
        self._others()  # the last one takes away what killed ones have left
        with contextlib.suppress(OSError):
            self._path.unlink()
            self._folder.rmdir()

    def begin(self, wait: Callable[[float], bool], goes_on: Callable[[], bool]) -> bool:
        """Begin the next start, once no command of an earlier one runs on another host.

        Args:
            wait (callable): waits for a number of seconds; False if the supervisor was asked to stop.
            goes_on (callable): whether the ranks on other hosts have found each other, so that a new supervisor cannot
                take part in their start any more.

        Returns:
            `bool`: whether it was not asked to stop.
        """
        running = max(self._others(), default=0)
        if self._number == 0:
            self._number = max(running + 1 if running and goes_on() else running, 1)
        else:
            self._number = max(self._number + 1, running)
        while any(number < self._number for number in self._others()):
            if not wait(_BEAT_EVERY):
                return False
        self._say(runs=True)
        return True

    def end(self) -> None:
        """Say that the command of this host has ended."""
        self._say(runs=False)

    def _say(self, runs: bool) -> None:
        self._runs = runs
        self._beat()

    def _others(self) -> list[int]:
        """The numbers of the starts in which commands run on other hosts."""
        now, found = time.monotonic(), []
        for path in self._folder.glob("supervisor-*"):
            if path == self._path:
                continue
            try:
                content = json.loads(path.read_bytes())
                beat, runs, number = content["beat"], content["runs"], content["start"]
                here = content.get("machine") == machine_id()  # files of earlier versions have no machine
                if here and start_time(content["process"]) != content["started"]:
                    path.unlink()
                    continue
            except (OSError, ValueError, KeyError, TypeError):
                continue  # it is being written or removed, or is not one of these files
            if type(number) is not int or not 0 <= number < _MAX_STARTS:
                continue
            seen, since = self._seen.get(path, (None, now))
            if seen != beat:
                since = now
            self._seen[path] = (beat, since)
            if runs and now - since < self._silent:
                found.append(number)
        return found

    def _keep(self) -> None:
        while not self._ended.wait(_BEAT_EVERY):
            self._beat()

    def _beat(self) -> None:
        with self._writing, contextlib.suppress(OSError):  # the disk may be unavailable for a moment
            self._beats += 1
            content = {"host": launch_environment.host(), "start": self._number, "runs": self._runs}
            content |= {"machine": machine_id(), "process": os.getpid(), "started": start_time(os.getpid())}
            overwrite_json(self._path, content | {"beat": self._beats}, _WIDTH)
