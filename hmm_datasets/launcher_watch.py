"""A rank ends when the launcher that started it is gone.

`accelerate launch` and `torchrun` start each rank in a session of its own. Whoever kills the launcher without warning
(`kill -9`, the out-of-memory killer, a cancelled job) leaves its ranks alive: those that train go on and write, beside
the run that is started again in their place; those that still import wait in the rendezvous for half an hour. Nothing
in torch or accelerate ends them. Here a thread looks every half second who the parent of the rank is, and ends the
process once it is no longer the launcher. It works in every phase, since imports, collectives and writing to a disk
all let other threads run.

A process that no launcher started is left alone: one started from a shell, by nohup, setsid, tmux or Slurm outlives
what started it, as any program does.
"""

import contextlib
import os
import re
import sys
import threading
import time

from . import launch_environment
from .files import discard_unfinished

_LOOK_EVERY = 0.5  # seconds
_OTHER_RANKS = 1.0  # seconds until the other ranks have noticed too, and write no more

# What the first words of a launcher's command line look like: a script by its name, or a module after `-m`.
_LAUNCHER = re.compile(
    r"(^|/)(accelerate|accelerate-launch|torchrun|deepspeed|hmm-datasets)$|^hmm_datasets\.cli$"
    r"|(^|[/.])accelerate[/.]commands[/.]|torch[/.]distributed[/.](run|launch)\b|deepspeed[/.]launcher[/.]"
)


def end_with_launcher() -> None:
    """Watch the launcher that started this process, if one did, and end this process once that one is gone.

    Call it once, first of all. Files and folders that were being written are deleted
    ([`~hmm_datasets.files.discard_unfinished`]); the exit code is 1.
    """
    leader = _launched_process()
    if leader is None:
        return
    launcher = _parent(leader)
    if launcher is None or (leader == os.getpid() and not _is_python(launcher)):
        _end(launcher)  # it was killed while this process was starting
    threading.Thread(target=_watch, args=(leader, launcher), daemon=True, name="watch-launcher").start()


def _launched_process() -> int | None:
    """The process that a launcher started directly: this one, or the shell script that this one runs in."""
    import psutil

    if "TORCHELASTIC_RUN_ID" in os.environ:
        return os.getsid(0)  # torch's elastic agent gives each process that it starts a session
    try:
        words = psutil.Process(os.getppid()).cmdline()[:4]
    except psutil.Error:
        return None
    return os.getpid() if any(map(_LAUNCHER.search, words)) else None


def _watch(leader: int, launcher: int) -> None:
    while _parent(leader) == launcher:
        time.sleep(_LOOK_EVERY)
    _end(launcher)


def _parent(process: int) -> int | None:
    """The parent of a process; `None` if the process is gone."""
    import psutil

    if process == os.getpid():
        return os.getppid()
    try:
        return psutil.Process(process).ppid()
    except psutil.NoSuchProcess:
        return None


def _is_python(process: int) -> bool:
    import psutil

    try:
        return "python" in psutil.Process(process).exe()
    except psutil.AccessDenied:
        return False  # of another user, so no launcher of this one's
    except psutil.NoSuchProcess:
        return False


def _end(launcher: int | None) -> None:
    discard_unfinished(after=_OTHER_RANKS)
    rank = launch_environment.rank()
    with contextlib.suppress(OSError):  # the launcher's terminal may be gone with it
        print(f"error: rank {rank} ends: its launcher (process {launcher}) is gone", file=sys.stderr, flush=True)
    os._exit(1)
