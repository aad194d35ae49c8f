"""Says for whom a rank waits while the ranks find each other, which torch does in silence for up to half an hour."""

import os
import sys
import threading
import time
from datetime import timedelta

from ..display import format_duration
from . import environment

SAY_AFTER = 10.0
"""Seconds that the other ranks are given before it is printed."""

_LOOK_EVERY = 0.5
_DEFAULT = timedelta(minutes=30)  # of torch


def announce_waits() -> None:
    """Print for whom this process waits, and for how long, if it waits for the other ranks; in a thread."""
    if environment.world_size() > 1:
        threading.Thread(target=_watch, daemon=True, name="watch-rendezvous").start()


def _watch() -> None:
    since = None
    while True:
        time.sleep(_LOOK_EVERY)
        torch = sys.modules.get("torch")
        if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
            return
        timeout, now = _timeout_of_wait(), time.monotonic()
        since = None if timeout is None else since or now
        if timeout is None or since is None or now - since < SAY_AFTER:
            continue
        place = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
        line = (
            f"rank {environment.rank()} on {environment.host()}: waiting at {place} for the others of "
            f"{environment.world_size()} ranks, for up to {format_duration(timeout)}"
        )
        print(line, file=sys.stderr, flush=True)
        return


def _timeout_of_wait() -> float | None:
    """How long the main thread waits for the other ranks, in seconds; None if it does something else."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "init_process_group":
            timeout = frame.f_locals.get("timeout")
            return (timeout if isinstance(timeout, timedelta) else _DEFAULT).total_seconds()
        frame = frame.f_back
    return None
