"""Memory and shared memory of this host: what is in use, of how much.

In a container the limit of the control group counts, without the cache of files, which it gives up when it needs room.
A use that grows from step to step is a leak; workers die of a bus error where `/dev/shm` is full.
"""

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from ..records import Count

SHARED = "/dev/shm"

_GROUPS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)


@dataclass(frozen=True)
class HostMemory:
    """Bytes in use on a host, and in all.

    Attributes:
        used (`int`), total (`int`): memory.
        shared_used (`int`), shared_total (`int`): what is in `/dev/shm`, and its size; 0 where there is none.
    """

    used: Count
    total: Count
    shared_used: Count = 0
    shared_total: Count = 0


def read_host_memory(group: Path = Path("/sys/fs/cgroup")) -> HostMemory:
    """The memory of this host, or of this container.

    Args:
        group (`Path`, *optional*): folder of the control group.
    """
    import psutil

    memory = psutil.virtual_memory()
    used, total = memory.total - memory.available, memory.total
    for limit, current, statistics, cache in _GROUPS:
        with contextlib.suppress(OSError, ValueError):  # no such control group, or no limit ("max")
            most, now = int((group / limit).read_text()), int((group / current).read_text())
            counts = dict(line.split() for line in (group / statistics).read_text().splitlines())
            if most < total:
                used, total = max(0, now - int(counts.get(cache, 0))), most
    try:
        shared = shutil.disk_usage(SHARED)
    except OSError:
        return HostMemory(used, total)
    return HostMemory(used, total, shared.used, shared.total)
