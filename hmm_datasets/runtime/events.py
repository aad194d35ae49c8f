"""The log of what happened to a run besides training: `events.jsonl` in its folder, one line per event.

A loss spike, a rollback, a restart or a lost host is an event. Events are only appended, by the run itself, by
`hmm-datasets supervise` and by `hmm-datasets watch`, and they stay when a run continues from an earlier checkpoint.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import append_jsonl
from ..records import Count, Finite, read_rows
from . import environment
from .credentials import masked

EVENTS_NAME = "events.jsonl"
_SKEW = 60.0  # seconds by which clocks may differ


@dataclass(frozen=True)
class _Event:
    """The fields of every event, and those that readers rely on where they are there."""

    time: Finite
    kind: str
    message: str
    host: str
    rank: Count = 0
    step: Count = 0
    delay: Finite = 0.0


def append_event(folder: str | os.PathLike, kind: str, message: str, **fields: Any) -> dict[str, Any]:
    """Append an event to the log of a run, with the time, this host and, under a launcher, this rank.

    Access tokens and keys in it are masked; the words of a command are for the caller to mask.

    Args:
        folder (path): folder of the run.
        kind (`str`): what happened, in one word, such as `spike` or `restart`.
        message (`str`): what happened, in one sentence.
        **fields: what else is known, such as `step`; `host` and `rank` may name others than the ones that write.

    Returns:
        `dict`: the event, as written.
    """
    origin: dict[str, Any] = {"host": environment.host()}
    if "RANK" in os.environ:
        origin["rank"] = environment.rank()
    event = {
        "time": time.time(),
        "kind": kind,
        **origin,
        **masked(fields),
        "message": masked(" ".join(message.split())),
    }
    append_jsonl(Path(folder) / EVENTS_NAME, event)
    return event


def seconds_since(moment: float, now: float | None = None) -> float:
    """Seconds since a moment that a clock gave, on this machine or another.

    A moment up to a minute ahead is now, since clocks differ. One further ahead was given by a clock that was wrong,
    so it is not known how long ago it was: its distance counts, and what is as old as that is not taken for new.

    ```python
    >>> seconds_since(100.0, 130.0), seconds_since(150.0, 130.0), seconds_since(3730.0, 130.0)
    (30.0, 0.0, 3600.0)

    ```
    """
    elapsed = (time.time() if now is None else now) - moment
    return abs(elapsed) if elapsed < -_SKEW else max(elapsed, 0.0)


def read_events(folder: str | os.PathLike) -> list[dict[str, Any]]:
    """The events of a run in the order in which they were written; none if it has no log.

    Rows that are no events are skipped, and named once in a warning.
    """
    path = Path(folder) / EVENTS_NAME
    return read_rows(path, _Event) if path.exists() else []
