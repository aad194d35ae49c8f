"""A thread that says every few seconds that its process is alive, by writing a number that it counts up."""

import contextlib
import threading
from collections.abc import Callable


class Beat:
    """Calls a function every so often in a thread of its own, from [`Beat.start`] to [`Beat.end`].

    An `OSError` of the function is ignored: the disk may be unavailable for a moment.

    Args:
        write (callable): writes a beat; takes its number, counted from 1.
        every (`float`): seconds between two beats.
        name (`str`): name of the thread.
    """

    def __init__(self, write: Callable[[int], None], every: float, name: str):
        self._write, self._every = write, every
        self._number = 0
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True, name=name)

    @property
    def has_ended(self) -> bool:
        """Whether it was asked to end."""
        return self._ended.is_set()

    def start(self) -> None:
        """Start the thread, whose first beat comes after one interval."""
        self._thread.start()

    def now(self) -> None:
        """Write a beat at once, from the thread that calls this."""
        with self._writing, contextlib.suppress(OSError):
            self._number += 1
            self._write(self._number)

    def end(self) -> None:
        """End the thread, once the beat that it may be writing is written."""
        self._ended.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._ended.wait(self._every):
            self.now()
