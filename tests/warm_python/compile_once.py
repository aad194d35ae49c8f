"""Processes that need the same kernel wait for the one that compiles it, and load it from numba's cache.

In a fresh checkout nothing is compiled yet, and all processes of the tests need the same kernels at about the same
time: almost a quarter of all compilations were of a kernel that another process was compiling too.
"""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from numba.core.caching import NullCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher


def compile_each_kernel_once(folder: Path) -> None:
    """From now on this process has a lock on a file in `folder` while it compiles a kernel, or loads it."""
    folder.mkdir(exist_ok=True)
    compile_kernel, held = Dispatcher.compile, set()

    @contextlib.contextmanager
    def locked(name: str) -> Iterator[None]:
        with open(folder / name, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            held.add(name)
            try:
                yield
            finally:
                held.remove(name)

    def compile_once(self, signature):
        name = f"{self.py_func.__module__}.{self.py_func.__qualname__}"
        # The lock of this process comes first: of two threads one would otherwise have this one, and the other that.
        with global_compiler_lock:
            waits = not isinstance(self._cache, NullCache) and name not in held
            with locked(name) if waits else contextlib.nullcontext():
                return compile_kernel(self, signature)

    Dispatcher.compile = compile_once
