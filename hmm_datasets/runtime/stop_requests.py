"""Requests to stop, or to save, what runs long: signals, files in its folder, and a time limit.

These ask to save and stop: SIGTERM; SIGUSR1, which Slurm sends before a job's end with `--signal=USR1@300`; SIGHUP,
sent when a terminal or an ssh connection closes; a file named `stop` in the folder; and the time limit. A SIGHUP that
nohup has set to be ignored stays ignored. A file named `save` asks to save and continue.
"""

import signal
import time
from datetime import timedelta
from pathlib import Path

from ..errors import InputError
from ..runtime.children import signals
from .children import SignalHandler
from .environment import first_start

NOTHING, SAVE, STOP = 0, 1, 2

_LOOK_EVERY = 1.0  # seconds between checks for the files, which are slow on a network disk
_MARGIN = 60.0  # seconds kept free before the limit, in addition to what the caller needs

_NO_LIMIT = ("UNLIMITED", "INFINITE", "NOT_SET")  # as Slurm's squeue and sbatch call it


class Stopped(Exception):
    """What ran was stopped on request, and has saved its state. The message is the reason."""


class StopRequests:
    """Listens for requests, as a context manager in the main thread.

    Args:
        folder (path): where files named `stop` and `save` are looked for.
        time_limit (`timedelta`, *optional*): time limit of the job, counted from the first start of this command.

    Attributes:
        reason (`str`, *optional*): what the last request was.
    """

    def __init__(self, folder: str | Path, time_limit: timedelta | None = None):
        self.reason: str | None = None
        self._folder = Path(folder)
        self._deadline = None if time_limit is None else first_start() + time_limit.total_seconds()
        self._wanted = NOTHING
        self._looked = 0.0
        # Batch scripts let launchers ignore SIGUSR1, which their processes inherit; nohup means it of SIGHUP.
        asked = signals("SIGTERM", "SIGUSR1", "SIGHUP")
        self._listening = SignalHandler(asked, self._on_signal, stay_ignored=signals("SIGHUP"))

    def __enter__(self) -> "StopRequests":
        self._listening.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._listening.__exit__(None, None, None)

    def look(self, *, needed: float = 0.0, main: bool = True) -> int:
        """What is asked for: `NOTHING`, `SAVE` or `STOP`.

        Args:
            needed (`float`, *optional*): seconds that are needed before the time limit, besides a minute.
            main (`bool`, *optional*, defaults to `True`): also look for files and at the time limit, which is enough
                on one rank.
        """
        now = time.monotonic()
        if main and self._deadline is not None and now + needed + _MARGIN > self._deadline:
            self._wanted, self.reason = STOP, "the time limit is near"
        if main and now - self._looked >= _LOOK_EVERY:
            self._looked = now
            for name, wanted in (("save", SAVE), ("stop", STOP)):
                if (self._folder / name).exists():
                    (self._folder / name).unlink()  # so that the next start does not stop at once
                    self._wanted, self.reason = max(wanted, self._wanted), f"file {self._folder / name}"
        return self._wanted

    def forget(self, done: int = STOP) -> None:
        """Forget what was asked for, because it is being done, unless more than `done` has been asked for since."""
        if self._wanted <= done:
            self._wanted, self.reason = NOTHING, None

    def _on_signal(self, number: signal.Signals) -> None:
        self._wanted, self.reason = STOP, number.name


def parse_time(text: str) -> timedelta | None:
    """Read a time as Slurm writes it: `minutes`, `hours:minutes:seconds`, `days-hours:minutes:seconds`, or shorter.

    Returns:
        `timedelta`, *optional*: the time; None if there is no limit, which Slurm writes as `UNLIMITED`.

    ```python
    >>> parse_time("3:55:00"), parse_time("1-12"), parse_time("90").total_seconds(), parse_time("UNLIMITED")
    (datetime.timedelta(seconds=14100), datetime.timedelta(days=1, seconds=43200), 5400.0, None)

    ```
    """
    if text.strip().upper() in _NO_LIMIT:
        return None
    days, dash, rest = text.strip().rpartition("-")
    try:
        parts = [int(part) for part in rest.split(":")]
        if dash:
            names = ("hours", "minutes", "seconds")
        else:
            names = ("minutes", "seconds") if len(parts) < 3 else ("hours", "minutes", "seconds")
        if len(parts) > len(names) or min(parts) < 0:
            raise ValueError
        result = timedelta(days=int(days) if dash else 0, **dict(zip(names, parts, strict=False)))
    except ValueError:
        raise InputError(
            f"time_limit is {text!r}; expected minutes, minutes:seconds, hours:minutes:seconds, "
            "days-hours:minutes or UNLIMITED"
        ) from None
    if result <= timedelta():
        raise InputError(f"time_limit is {text!r}; expected more than 0")
    return result
