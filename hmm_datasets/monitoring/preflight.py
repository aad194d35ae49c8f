"""Checks of the machine before a run, to find what would otherwise fail hours later.

Each check is one measurement, reported in one line. Under a launcher (`torchrun`, `accelerate launch`) every rank runs
the checks, and together they time an all-reduce. On machines whose GPUs cannot reach each other an all-reduce hangs,
so it runs in a separate thread with a timeout. The checks take a few seconds.
"""

import importlib.metadata
import os
import platform
import shutil
import socket
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from .. import launch_environment
from ..errors import InputError

GIB = 1 << 30
_MAX_BUILD_SECONDS = 15 * 60
_PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "tokenizers",
    "trl",
    "huggingface_hub",
    "numpy",
    "numba",
)


@dataclass(frozen=True)
class Check:
    """The result of a check.

    Attributes:
        name (`str`): what was checked.
        ok (`bool`): whether a run can start.
        detail (`str`): what was found, in one line, with a remedy if there is a problem.
        warning (`bool`): whether there is a problem that does not keep a run from starting.
    """

    name: str
    ok: bool
    detail: str
    warning: bool = False


@dataclass(frozen=True)
class PreflightSettings:
    """What a run needs.

    Args:
        min_disk_gib (`float`, *optional*, defaults to 10.0): free disk space at the output folder.
        min_memory_gib (`float`, *optional*, defaults to 2.0): free memory for all processes on this machine.
        min_shm_gib (`float`, *optional*, defaults to 0.5): free space in `/dev/shm`, through which DataLoader workers
            send batches.
        timeout (`float`, *optional*, defaults to 60.0): seconds for the all-reduce, including the rendezvous.
        push (`bool`, *optional*, defaults to `False`): whether the run pushes to the Hub, which must then answer.
    """

    min_disk_gib: float = 10.0
    min_memory_gib: float = 2.0
    min_shm_gib: float = 0.5
    timeout: float = 60.0
    push: bool = False

    def __post_init__(self):
        for name in ("min_disk_gib", "min_memory_gib", "min_shm_gib", "timeout"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} is {getattr(self, name)}; expected 0 or more")


def run_checks(output_dir: str | os.PathLike, settings: PreflightSettings | None = None) -> list[Check]:
    """Run every check.

    Args:
        output_dir (path): where the run will write; it need not exist, and is not created.
        settings ([`PreflightSettings`], *optional*): what the run needs.

    Returns:
        `list` of [`Check`]: host, versions, disk, memory, shared memory, devices, builds, Hub, and for several
        processes the all-reduce.
    """
    settings = settings or PreflightSettings()
    checks = [
        check_host(),
        check_versions(),
        check_disk(output_dir, settings.min_disk_gib),
        check_memory(settings.min_memory_gib),
        check_shared_memory(settings.min_shm_gib),
        check_devices(),
        check_builds(),
        check_hub(settings.push),
    ]
    if launch_environment.world_size() > 1:
        checks.append(check_all_reduce(settings.timeout))
    return checks


def format_checks(checks: list[Check]) -> str:
    """Checks as a table, one line each."""
    width = max(len(check.name) for check in checks)
    marks = ["FAIL" if not check.ok else "warn" if check.warning else "ok  " for check in checks]
    return "\n".join(f"{mark}  {c.name:<{width}}  {c.detail}" for mark, c in zip(marks, checks, strict=True))


def check_host() -> Check:
    """Name of the host, operating system and cores; never fails."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Check("host", True, f"{socket.gethostname()}, {platform.system()} {platform.release()}, {cores} cores")


def check_versions() -> Check:
    """Compare installed packages with this package's requirements; in a bare checkout only check that they exist."""
    found, wrong = [f"python {platform.python_version()}"], []
    for name, allowed in _requirements().items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{name} is missing")
            continue
        if name in _PACKAGES:
            found.append(f"{name} {version}")
        if allowed is not None and not allowed.contains(version, prereleases=True):
            wrong.append(f"{name} {version} is not {allowed}")
    if wrong:
        return Check("versions", False, f"{'; '.join(wrong)}; install with: pip install -U hmm-datasets")
    return Check("versions", True, ", ".join(found))


def check_disk(output_dir: str | os.PathLike, min_gib: float) -> Check:
    """Free space where the run will write, and whether it is writable."""
    folder = Path(output_dir).absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / GIB
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Check("disk", False, f"{folder} cannot be written: {error.strerror}; choose another output_dir")
    return Check("disk", free >= min_gib, f"{free:.1f} GiB free at {folder}, {min_gib:g} needed")


def check_memory(min_gib: float) -> Check:
    """Free memory, within the limit of the control group if there is one."""
    free = _free_memory()
    if free is None:
        return Check("memory", True, "unknown: neither /proc/meminfo nor a control group can be read")
    return Check("memory", free / GIB >= min_gib, f"{free / GIB:.1f} GiB free, {min_gib:g} needed")


def check_shared_memory(min_gib: float, path: str = "/dev/shm") -> Check:
    """Free space in `/dev/shm`; workers die of a bus error if a batch does not fit."""
    if not os.path.isdir(path):
        return Check("shared memory", True, f"no {path} on this system")
    usage = shutil.disk_usage(path)
    ok = usage.free / GIB >= min_gib
    remedy = "" if ok else "; give the container more (--shm-size), or use dataloader_num_workers=0"
    detail = f"{usage.free / GIB:.2f} of {usage.total / GIB:.2f} GiB free at {path}, {min_gib:g} needed{remedy}"
    return Check("shared memory", ok, detail)


def check_devices() -> Check:
    """Multiply a small matrix on each GPU, and report its name and free memory; a machine without GPUs is fine."""
    import torch

    if not torch.cuda.is_available():
        return Check("devices", True, f"no GPU; CPU with {torch.get_num_threads()} threads")
    found, wrong = [], []
    for index in range(torch.cuda.device_count()):
        try:
            ones = torch.ones(64, 64, device=f"cuda:{index}")
            value = (ones @ ones).sum().item()
            free, total = torch.cuda.mem_get_info(index)
        except RuntimeError as error:
            wrong.append(f"cuda:{index} fails: {str(error).splitlines()[0]}")
            continue
        if value != 64.0**3:
            wrong.append(f"cuda:{index} multiplies wrongly ({value} for {64.0**3}); take it out of use")
        name = torch.cuda.get_device_name(index)
        found.append(f"cuda:{index} {name}, {free / GIB:.0f} of {total / GIB:.0f} GiB free")
    return Check("devices", not wrong, "; ".join(wrong or found))


def check_builds() -> Check:
    """Locks left by killed compilations, for which DeepSpeed and others that compile with torch would wait forever."""
    from torch.utils.cpp_extension import get_default_build_root

    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
    # One level deeper in the default folder, which has a subfolder for each Python and device.
    locks = [lock for pattern in ("*/lock", "*/*/lock") for lock in root.glob(pattern)]
    old = [lock for lock in locks if time.time() - lock.stat().st_mtime > _MAX_BUILD_SECONDS]
    if old:
        return Check("builds", False, f"{old[0]}: lock of a compilation that was killed, which would hang; delete it")
    return Check("builds", True, f"no lock of an unfinished compilation in {root}")


def check_hub(needed: bool = False) -> Check:
    """Whether the Hub answers; if the run does not need it, no answer is only a warning.

    Args:
        needed (`bool`, *optional*, defaults to `False`): whether the run pushes.
    """
    from ..hub.access import reachable

    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        if needed:
            return Check("Hub", False, "HF_HUB_OFFLINE is set, so a run that pushes fails: unset it")
        return Check("Hub", True, "not checked, since HF_HUB_OFFLINE is set")
    if reachable():
        return Check("Hub", True, f"{endpoint} answers")
    remedy = "a run that needs nothing from it can run with HF_HUB_OFFLINE=1; push afterwards"
    return Check("Hub", not needed, f"{endpoint} does not answer; {remedy}", warning=True)


def check_all_reduce(timeout: float) -> Check:
    """Time an all-reduce of 16 MiB over all processes of the launcher, with a timeout in seconds.

    If there is no process group, one is created and destroyed afterwards.
    """
    rank, world = launch_environment.rank(), launch_environment.world_size()
    origin = f"rank {rank} of {world} on {socket.gethostname()}"
    result: list[Check] = []

    def attempt() -> None:
        try:
            result.append(_all_reduce(origin, world, timeout))
        except Exception as error:  # any error is reported as a failed check
            result.append(Check("all-reduce", False, f"{origin}: {str(error).splitlines()[0]}"))

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(timeout)
    if result:
        return result[0]
    remedy = "try NCCL_P2P_DISABLE=1, NCCL_IB_DISABLE=1 or another NCCL_SOCKET_IFNAME, and look for dead ranks"
    return Check("all-reduce", False, f"{origin}: no result in {timeout:g} s; {remedy}")


def _all_reduce(origin: str, world: int, timeout: float) -> Check:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(launch_environment.local_rank())
    ours = not dist.is_initialized()
    if ours:
        dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=max(timeout, 1.0)))
    try:
        values = torch.ones(1 << 22, device="cuda" if cuda else "cpu")
        dist.all_reduce(values[:1])  # the first call sets up the connections
        values[0] = 1.0
        began = time.perf_counter()
        dist.all_reduce(values)
        total = values.min().item(), values.max().item()  # waits for the device
        seconds = time.perf_counter() - began
        backend = dist.get_backend()
    finally:
        if ours:
            dist.destroy_process_group()
    if total != (world, world):
        return Check("all-reduce", False, f"{origin}: ones summed to {total[0]:g} .. {total[1]:g} by {backend}")
    return Check("all-reduce", True, f"{origin}: 16 MiB in {seconds * 1e3:.1f} ms by {backend}")


def _requirements() -> dict:
    # From the installed package's metadata, so that versions are stated only once; a bare checkout has only the names.
    from packaging.requirements import Requirement

    try:
        listed = [Requirement(text) for text in importlib.metadata.requires("hmm-datasets") or []]
    except importlib.metadata.PackageNotFoundError:
        return dict.fromkeys(_PACKAGES)
    return {r.name: r.specifier for r in listed if r.marker is None or r.marker.evaluate({"extra": ""})}


def _free_memory() -> int | None:
    amounts = []
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        amounts.append(int(fields["MemAvailable"].split()[0]) << 10)
    except (OSError, KeyError, ValueError):
        pass
    group = Path("/sys/fs/cgroup")
    for limit, used in (
        (group / "memory.max", group / "memory.current"),
        (group / "memory/memory.limit_in_bytes", group / "memory/memory.usage_in_bytes"),
    ):
        try:
            amounts.append(int(limit.read_text()) - int(used.read_text()))
        except (OSError, ValueError):
            continue  # no such control group, or no limit ("max")
    return min(amounts) if amounts else None
