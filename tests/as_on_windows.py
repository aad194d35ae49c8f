"""Runs a command of this package as if the system had only what Windows has.

    python tests/as_on_windows.py sample mess3 --num_sequences 10 --length 20 --output a.npy

Modules of the package see an `os` and a `signal` without the names that only POSIX has; no folder can be opened, no
file flushed that is open for reading alone, and nothing renamed to what exists. Other libraries see the real ones.
"""

import builtins
import errno
import os
import signal
import stat
import sys
import types
from typing import Any, NoReturn

MISSING_IN_OS = (
    *(
        "chown",
        "chroot",
        "confstr",
        "fchmod",
        "fchown",
        "fdatasync",
        "fork",
        "forkpty",
        "getegid",
        "geteuid",
        "getgid",
    ),
    *("getgroups", "getloadavg", "getpgid", "getpgrp", "getsid", "getuid", "killpg", "lockf", "mkfifo", "mknod"),
    *("nice", "openpty", "posix_fadvise", "posix_fallocate", "posix_spawn", "pread", "preadv", "pwrite", "pwritev"),
    *(
        "register_at_fork",
        "sched_getaffinity",
        "sched_setaffinity",
        "sendfile",
        "setgid",
        "setsid",
        "setuid",
        "statvfs",
    ),
    *("sync", "sysconf", "tcgetpgrp", "uname", "wait", "wait3", "wait4", "waitid", "O_CLOEXEC", "O_DIRECTORY"),
    *("O_NOFOLLOW", "O_NONBLOCK", "WEXITSTATUS", "WIFEXITED", "WNOHANG"),
)
MISSING_SIGNALS = (
    *("SIGALRM", "SIGBUS", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP", "SIGTSTP"),
    *("SIGTTIN", "SIGTTOU", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGXCPU", "SIGXFSZ", "ITIMER_REAL", "alarm"),
    *("getitimer", "pthread_kill", "pthread_sigmask", "setitimer", "sigwait", "SIG_BLOCK", "SIG_UNBLOCK"),
)
MISSING_MODULES = ("fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")


class _Windows(types.ModuleType):
    """A module without some of its names."""

    def __init__(self, module: types.ModuleType, missing: tuple[str, ...], **instead: Any):
        super().__init__(module.__name__)
        self.__dict__.update({name: value for name, value in vars(module).items() if name not in missing} | instead)


def _open(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
    return os.open(path, flags, *arguments, **options)


def _fsync(handle: int) -> None:
    import fcntl

    if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "Bad file descriptor")
    os.fsync(handle)


def _rename(source: Any, target: Any) -> None:
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "File exists", os.fspath(source), None, os.fspath(target))
    os.rename(source, target)


def _replace(source: Any, target: Any) -> None:
    if os.path.isdir(target) and not os.path.islink(target):
        raise PermissionError(errno.EACCES, "Permission denied", os.fspath(source), None, os.fspath(target))
    os.replace(source, target)


def _chmod(path: Any, mode: int) -> None:
    os.chmod(path, 0o666 if mode & stat.S_IWRITE else 0o444)


def _no_library(name: str | None, *arguments: Any, **options: Any) -> Any:
    import ctypes

    if name is None:
        raise TypeError("argument of type 'NoneType' is not iterable")
    return ctypes.CDLL(name, *arguments, **options)


def install() -> None:
    """Let modules of the package that are imported from now on see only what Windows has."""
    import ctypes

    seen = {
        "os": _Windows(os, MISSING_IN_OS, open=_open, fsync=_fsync, rename=_rename, replace=_replace, chmod=_chmod),
        "signal": _Windows(signal, MISSING_SIGNALS),
        "ctypes": _Windows(ctypes, (), CDLL=_no_library),
    }
    usual = builtins.__import__

    def importing(name: str, globals: Any = None, *arguments: Any, **options: Any) -> Any:
        if globals and str(globals.get("__name__", "")).partition(".")[0] in ("hmm_datasets", "recipes"):
            if name.partition(".")[0] in MISSING_MODULES:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            if name in seen:
                return seen[name]
        return usual(name, globals, *arguments, **options)

    builtins.__import__ = importing


def main(words: list[str]) -> NoReturn:
    """Run a command of the package."""
    install()
    from hmm_datasets.cli import main as command

    sys.argv = ["hmm-datasets", *words]
    raise SystemExit(command())


if __name__ == "__main__":
    main(sys.argv[1:])
