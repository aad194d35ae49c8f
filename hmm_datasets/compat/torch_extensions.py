"""How torch compiles an extension, such as DeepSpeed's: a killed run leaves no compiler, and its lock stops nobody.

`torch.utils.cpp_extension` makes a file `lock` in the folder of the extension, and others wait as long as it is there,
without a word. A process that is killed while it compiles leaves it for ever (PyTorch issue 189245, mended after 2.13
by a lock of the system). It keeps the file open, so a lock that no process of this machine has open, in a folder in
which nothing has changed for a while, is of a process that has ended.

ninja and the compilers that it starts would work on after such a process. Linux ends ninja with the thread that
started it (`PR_SET_PDEATHSIG` of prctl), however that ended, and ninja ends its compilers.
"""

import contextlib
import ctypes
import os
import secrets
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil

from ..display import format_duration
from ..errors import InputError
from ..files import unchanged_for

LOCAL_SILENCE, SHARED_SILENCE = 60.0, 600.0
"""Seconds without a change in a folder after which nobody compiles there: on a local disk, or on a shared one."""

PATIENCE = 1800.0
"""Seconds that another process is given to compile."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_SAY_AFTER = 2.0
_LOOK_EVERY = 0.5  # seconds; each look goes through the processes of the machine
_SHARED = (
    *("nfs", "lustre", "gpfs", "beegfs", "cifs", "smb", "ceph", "fuse", "9p", "afs", "panfs", "wekafs", "virtiofs"),
)


def end_compilers_with_this_process() -> None:
    """From now on compilations of extensions that torch starts end when this process does; on Linux."""
    if sys.platform == "linux":
        from torch.utils import cpp_extension

        prctl = ctypes.CDLL(None).prctl  # before the fork
        run = partial(subprocess.run, preexec_fn=lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM))
        module = SimpleNamespace(**vars(subprocess) | {"run": run})
        setattr(cpp_extension, "subprocess", module)  # noqa: B010 - a type checker sees the module that is replaced


def mend_compiler_locks() -> None:
    """From now on torch takes over the lock of a compilation that was killed, and says for what it waits.

    torch 2.15 takes a lock of the system instead, which ends with its process; there this changes nothing.
    """
    try:
        from torch.utils import file_baton
    except ImportError:
        return

    class Lock(file_baton.FileBaton):
        """Replaces a class that torch does not document."""

        def try_acquire(self) -> bool:
            """Whether this process compiles; otherwise another one does."""
            began, has_said = time.monotonic(), False
            while not super().try_acquire():
                path = Path(self.lock_file_path)
                if _holder(path) is not None:
                    return False
                limit, unchanged = _silence(path), 0.0
                with contextlib.suppress(OSError):  # the compilation has just ended, or begun
                    unchanged = unchanged_for(path.parent)
                if unchanged > limit:
                    _take_away(path)
                elif not has_said and time.monotonic() - began > _SAY_AFTER:
                    has_said = True
                    _say(f"{path}: waiting up to {limit:.0f} s to see whether another machine compiles there")
                time.sleep(_LOOK_EVERY)
            return True

        def wait(self) -> None:
            """Wait until another process of this machine has compiled.

            Raises:
                `InputError`: it takes too long, or was killed.
            """
            path, began, has_said = Path(self.lock_file_path), time.monotonic(), False
            while path.exists():
                holder, waited = _holder(path), time.monotonic() - began
                if holder is None and path.exists():
                    raise InputError(
                        f"{path}: the process that compiled there was killed; start the same command again"
                    )
                if waited > PATIENCE:
                    raise InputError(
                        f"{path}: process {holder} has compiled there for {format_duration(waited)}; look at it, or "
                        "end it and start the same command again"
                    )
                if not has_said and waited > _SAY_AFTER:
                    has_said = True
                    _say(
                        f"{path.parent}: waiting up to {format_duration(PATIENCE)} for process {holder} to compile it"
                    )
                time.sleep(_LOOK_EVERY)

    for module in (file_baton, sys.modules.get("torch.utils.cpp_extension")):
        if hasattr(module, "FileBaton"):
            setattr(module, "FileBaton", Lock)  # noqa: B010 - a type checker sees the class that is replaced


def _holder(path: Path) -> int | None:
    """The process of this machine that has a file open."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if any(file.path == str(path.resolve()) for file in process.open_files()):
                return process.pid
    return None


def _silence(path: Path) -> float:
    """How long nothing must have changed beside a lock, by the kind of its disk."""
    real = path.resolve()
    mounts = [part for part in psutil.disk_partitions(all=True) if real.is_relative_to(part.mountpoint)]
    kind = max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else ""
    return SHARED_SILENCE if kind.startswith(_SHARED) else LOCAL_SILENCE


def _take_away(path: Path) -> None:
    """Delete a lock, but not one that another process has just made in its place."""
    with contextlib.suppress(OSError):
        before, aside = path.stat().st_ino, path.with_name(f".lock.{secrets.token_hex(4)}")
        os.rename(path, aside)
        if aside.stat().st_ino != before or _holder(aside) is not None:
            os.link(aside, path)
        else:
            _say(f"{path}: left by a process that was killed while it compiled; it is deleted")
        aside.unlink()


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
