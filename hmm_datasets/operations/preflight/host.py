"""The checks that one process of a host makes for all of its ranks: disk, memory and shared memory."""

import os
import shutil
import tempfile
import time
from pathlib import Path

from ...runtime.host_memory import SHARED, read_host_memory
from .report import GIB, Check

_WRITTEN = 64 << 20  # bytes
_SLOW = 50e6  # bytes per second


def existing_folder(output_dir: str | os.PathLike) -> Path:
    """The folder, or the nearest one above it that exists."""
    folder = Path(output_dir).absolute()
    while not folder.is_dir():
        folder = folder.parent
    return folder


def check_disk(output_dir: str | os.PathLike, min_gib: float) -> Check:
    """Free space where the run will write, and the rate at which 64 MiB are written there and synced."""
    folder, block = existing_folder(output_dir), os.urandom(1 << 20)
    free = shutil.disk_usage(folder).free / GIB
    space = f"{free:.1f} GiB free at {folder}, {min_gib:g} needed"
    if free < min_gib:
        return Check("disk", False, f"{space}; free some, or choose another output_dir")
    began = time.perf_counter()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            for _ in range(_WRITTEN >> 20):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return Check("disk", False, f"{folder} cannot be written: {error.strerror}; choose another output_dir")
    rate = _WRITTEN / (time.perf_counter() - began)
    remedy = "; checkpoints will be slow: choose an output_dir on another disk" if rate < _SLOW else ""
    return Check("disk", True, f"{space}; {rate / 1e6:.0f} MB/s written{remedy}", warning=rate < _SLOW)


def check_memory(min_gib: float) -> Check:
    """Free memory, within the limit of the control group if there is one."""
    memory = read_host_memory()
    free = memory.total - memory.used
    return Check("memory", free / GIB >= min_gib, f"{free / GIB:.1f} GiB free, {min_gib:g} needed")


def check_shared_memory(min_gib: float, path: str = SHARED) -> Check:
    """Free space in `/dev/shm`; workers die of a bus error if a batch does not fit."""
    if not os.path.isdir(path):
        return Check("shared memory", True, f"no {path} on this system")
    usage = shutil.disk_usage(path)
    ok = usage.free / GIB >= min_gib
    remedy = "" if ok else "; give the container more (--shm-size), or use dataloader_num_workers=0"
    detail = f"{usage.free / GIB:.2f} of {usage.total / GIB:.2f} GiB free at {path}, {min_gib:g} needed{remedy}"
    return Check("shared memory", ok, detail)
