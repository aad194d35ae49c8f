"""A call of limited time, for what may hang: a device, a network, a server."""

import contextlib
import faulthandler
import re
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The value of a function or its error; if it did not end in time, neither, but the function that it hangs in."""

    value: T | None = None
    error: Exception | None = None
    hangs_in: str | None = None


def within(seconds: float, function: Callable[[], T]) -> Outcome[T]:
    """Call a function in a thread, which is left to itself if it has not ended after some seconds."""
    outcomes: list[Outcome[T]] = []

    def attempt() -> None:
        try:
            outcomes.append(Outcome(value=function()))
        except Exception as error:  # whatever it is, the caller reports it
            outcomes.append(Outcome(error=error))

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    return outcomes[0] if outcomes else Outcome(hangs_in=_innermost(thread.ident))


def _innermost(thread: int | None) -> str:
    """The function that a thread executes, with file and line."""
    first_frame = rf'^Thread 0x0*{thread or 0:x}\b.*\n  File "(.*)", line (\d+) in (.*)$'
    frame = None
    with contextlib.suppress(OSError), tempfile.TemporaryFile("w+") as file:  # a full disk hides the name alone
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        frame = re.search(first_frame, file.read(), re.MULTILINE)
    return f"{frame[3]} ({frame[1]}:{frame[2]})" if frame else "an unknown function"
