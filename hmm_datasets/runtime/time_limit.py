"""A call of limited time, for what may hang: a device, a network, a server."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The value of a function or its error, or that it did not end in time."""

    value: T | None = None
    error: Exception | None = None
    hangs: bool = False


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
    return outcomes[0] if outcomes else Outcome(hangs=True)
