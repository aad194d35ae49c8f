"""Which process on which machine: what tells a process from a later one with the same id, and whether it runs."""

import os
import socket
from functools import cache
from pathlib import Path


@cache
def machine_id() -> str:
    """Identifier of this machine and container: process ids can be compared only where it is the same."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        import psutil

        return f"{socket.gethostname()} {psutil.boot_time():.0f}"


def start_time(process: int) -> float | None:
    """Start time of a process on this machine, by a monotonic clock; None if the process has ended."""
    state = _state_and_start(process)
    return None if state is None else state[1]


def is_suspended(process: int) -> bool:
    """Whether a process on this machine was suspended by SIGSTOP, SIGTSTP or a debugger."""
    state = _state_and_start(process)
    return state is not None and state[0] in "Tt"


def _state_and_start(process: int) -> tuple[str, float] | None:
    if Path("/proc/self/stat").exists():
        try:
            state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if state in "ZX" else (state, float(fields[18]))  # in ticks since the boot
    import psutil

    try:
        handle = psutil.Process(process)
        return "T" if handle.status() == psutil.STATUS_STOPPED else "R", handle.create_time()
    except psutil.Error:
        return None
