"""Parts of a task side by side, in threads of this process."""

import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def in_parallel(work: Callable[[Any], None], parts: Sequence[Any], num_threads: int) -> None:
    """Call `work(part)` for every part, in at most so many threads, of which this one is the first.

    Compiled kernels that release Python's global lock run side by side. The other threads are kept for the next call:
    to start one takes a tenth of a millisecond. They are Python's threads, because numba's own do not survive the
    fork of a DataLoader's worker; these end before a fork. This thread works too: one that only waits is often woken
    on the core of the thread that it has just started, and starts the next one when that is done.
    """
    remaining = iter(parts)  # shared: every thread takes the next part when it is done with one

    def work_on() -> None:
        for part in remaining:
            work(part)

    helpers = [_helpers().submit(work_on) for _ in range(min(num_threads, len(parts)) - 1)]
    try:
        work_on()
    finally:
        # Those that wait for a thread have nothing left to do.
        running = [helper for helper in helpers if not helper.cancel()]
        errors = [helper.exception() for helper in running]
    for error in errors:
        if error is not None:
            raise error


class _Helpers:
    """Threads that start when they are first needed, and end before a fork, which would copy none of them."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
            release = self._lock.release
            os.register_at_fork(before=self._end, after_in_parent=release, after_in_child=release)

    def submit(self, work: Callable[[], None]):
        with self._lock:
            if self._pool is None:
                others = max(1, (os.cpu_count() or 1) - 1)
                self._pool = ThreadPoolExecutor(others, thread_name_prefix="hmm_datasets")
            return self._pool.submit(work)

    def _end(self) -> None:
        # The lock is held until after the fork.
        self._lock.acquire()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


@functools.cache
def _helpers() -> _Helpers:
    """The threads of this process."""
    return _Helpers()
