"""Ending a rank when the launcher that started it has ended.

`accelerate launch` and `torchrun` start each rank in a new session. If the launcher is killed without warning
(`kill -9`, the out-of-memory killer, a cancelled job), its ranks survive. Ranks that train continue to write, at the
same time as a restarted run. Ranks that are still importing wait in the rendezvous for half an hour. Neither torch nor
accelerate ends them. Here a thread checks the parent of the rank every half second, and ends the process when the
parent is no longer the launcher. This works at any time, because imports, collectives and disk writes all let other
threads run.

A process that was not started by a launcher is not affected. One started from a shell, by nohup, setsid, tmux or Slurm
may outlive the program that started it.
"""

import contextlib
import multiprocessing
import os
import re
import sys
import threading
import time
from functools import cache
from typing import Any

from ..files import discard_unfinished
from . import environment, heartbeats
from .rank_heartbeats import FAILED, LOST_LAUNCHER

_LOOK_EVERY = 0.5  # seconds
_OTHER_RANKS = 1.0  # seconds until the other ranks have noticed it too and stopped writing

# Matches one of the first words of the command line of a launcher: the name of a script, or a module after `-m`.
_LAUNCHER = re.compile(
    r"(^|/)(accelerate|accelerate-launch|torchrun|deepspeed|hmm-datasets)$"
    r"|^hmm_datasets\.cli$"
    r"|(^|[/.])accelerate[/.]commands[/.]|torch[/.]distributed[/.](run|launch)\b|deepspeed[/.]launcher[/.]"
)


def end_with_launcher() -> None:
    """Watch the launcher that started this process, if there is one, and end this process when it has ended.

    Call it once, before anything else. Unfinished files and folders are deleted
    ([`~hmm_datasets.files.discard_unfinished`]), and the exit code is 1.
    """
    leader = _launched_process()
    if leader is None:
        return
    launcher = _parent(leader)
    if launcher is None or (leader == os.getpid() and not _is_python(launcher)):
        _end(launcher)  # the launcher was killed while this process was starting
    threading.Thread(target=_watch, args=(leader, launcher), daemon=True, name="watch-launcher").start()


@cache  # once in a process
def end_forks_with_this_process() -> None:
    """Let every process that this one forks from now on end when this one has ended, however it ended.

    The workers of a pool otherwise wait for its next task for ever. Those that a fork server starts are its forks, so
    it does the same for them ([`~hmm_datasets.runtime.fork_server`]).
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=end_with_parent)
        preload_in_fork_server(multiprocessing)


def preload_in_fork_server(multiprocessing_module: Any) -> None:
    """Let the fork server of `multiprocessing`, or of `multiprocess`, end with this process, and its forks with it."""
    multiprocessing_module.set_forkserver_preload(["hmm_datasets.runtime.fork_server"])


def end_with_parent() -> None:
    """Watch the parent of this process, and end this process when it has ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="watch-launcher").start()


def _launched_process() -> int | None:
    """The process that a launcher started directly: this one, or the shell script that this one runs in."""
    import psutil

    if not hasattr(os, "getsid"):  # Windows, where nothing is launched on several processes
        return None
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return os.getsid(0)  # torch's elastic agent starts each process in a new session
    try:
        words = psutil.Process(os.getppid()).cmdline()[:4]
    except psutil.Error:
        return None
    # `timeout 60 hmm-datasets ...` names a launcher too, but it is not Python.
    return os.getpid() if any(map(_LAUNCHER.search, words)) and _is_python(os.getppid()) else None


def _watch(leader: int, launcher: int) -> None:
    while _parent(leader) == launcher:
        time.sleep(_LOOK_EVERY)
    _end(launcher)


def _parent(process: int) -> int | None:
    """The parent of a process; `None` if the process has ended."""
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
        return False  # a process of another user cannot be the launcher
    except psutil.NoSuchProcess:
        return False


def _end(launcher: int | None) -> None:
    message = f"its launcher (process {launcher}) has ended"
    heartbeats.end(FAILED, message, LOST_LAUNCHER)
    discard_unfinished(after=_OTHER_RANKS)
    rank = environment.rank()
    with contextlib.suppress(OSError):  # the terminal of the launcher may be closed
        print(f"error: rank {rank} ends: its launcher (process {launcher}) has ended", file=sys.stderr, flush=True)
    os._exit(1)
