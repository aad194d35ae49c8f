"""The checks that one process of a host does for all of its ranks.

They are about the host's name and cores; installed packages, and versions and a digest of this package's sources that
must be the same on every host; the disk that the run writes to, its space and the speed of writing and of syncing;
memory and shared memory; limits of the process; locks of compilations; and the Hub.
"""

import contextlib
import hashlib
import os
import platform
import shutil
import socket
import tempfile
import time
from functools import cache
from pathlib import Path

from ...compat.versions import installed_requirements
from ...hub.access import reachable
from ...runtime.environment import package_version, usable_cores
from .device import gpu_states
from .network import infiniband
from .report import GIB, Check

with contextlib.suppress(ImportError):  # Windows has none, and no preflight
    import resource

_WRITTEN = 64 << 20  # bytes
_SLOW = 50e6  # bytes per second
_SLOW_SYNC = 1.0  # seconds


def existing_folder(output_dir: str | os.PathLike) -> Path:
    """The folder, or the nearest one above it that exists."""
    folder = Path(output_dir).absolute()
    while not folder.is_dir():
        folder = folder.parent
    return folder


def check_disk(output_dir: str | os.PathLike, min_gib: float) -> Check:
    """Free space where the run will write, and whether it is writable."""
    folder = existing_folder(output_dir)
    free = shutil.disk_usage(folder).free / GIB
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Check("disk", False, f"{folder} cannot be written: {error.strerror}; choose another output_dir")
    return Check("disk", free >= min_gib, f"{free:.1f} GiB free at {folder}, {min_gib:g} needed")


def check_disk_speed(output_dir: str | os.PathLike) -> Check:
    """Write 64 MiB where the run will write, and sync them; then the time of a sync of a few bytes."""
    folder, block = existing_folder(output_dir), os.urandom(1 << 20)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            began = time.perf_counter()
            for _ in range(_WRITTEN >> 20):
                file.write(block)
            _flush(file)
            rate = _WRITTEN / (time.perf_counter() - began)
            began = time.perf_counter()
            file.write(b"a few")
            _flush(file)
            sync = time.perf_counter() - began
    except OSError as error:
        return Check("disk speed", True, f"not measured: {folder}: {error.strerror}", warning=True)
    slow = rate < _SLOW or sync > _SLOW_SYNC
    remedy = "; checkpoints will be slow: choose an output_dir on another disk" if slow else ""
    detail = f"{rate / 1e6:.0f} MB/s written and synced at {folder}, a sync of few bytes takes {sync * 1e3:.1f} ms"
    return Check("disk speed", True, detail + remedy, warning=slow)


def _flush(file) -> None:
    file.flush()
    os.fsync(file.fileno())


_MAX_BUILD_SECONDS = 15 * 60
_FEW_FILES, _MANY_FILES = 1024, 65536


def check_host() -> Check:
    """Name of the host, operating system and cores; never fails."""
    return Check("host", True, f"{socket.gethostname()}, {_system()}")


def _system() -> str:
    """The operating system, and the cores that this process may use."""
    return f"{platform.system()} {platform.release()}, {usable_cores()} cores"


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


def check_limits() -> Check:
    """The limits of this process on open files and locked memory (`ulimit -n` and `ulimit -l`)."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = resource.RLIM_INFINITY
    found = f"{'any number of' if files == unlimited else files} open files"
    found += ", any amount of" if locked == unlimited else f", {locked >> 10} KiB of"
    problems = []
    if files not in (unlimited, -1) and files < _FEW_FILES:
        problems.append(f"workers of DataLoaders may run out of open files: ulimit -n {_MANY_FILES}")
    if locked != unlimited and infiniband() == "active":
        problems.append("NCCL over InfiniBand fails without locked memory: ulimit -l unlimited, before the launcher")
    return Check("limits", True, "; ".join([f"{found} locked memory", *problems]), warning=bool(problems))


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
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        if needed:
            return Check("Hub", False, "HF_HUB_OFFLINE is set, so a run that pushes fails: unset it")
        return Check("Hub", True, "not checked, since HF_HUB_OFFLINE is set")
    if reachable():
        return Check("Hub", True, f"{endpoint} answers")
    remedy = "a run that needs nothing from it can run with HF_HUB_OFFLINE=1; push afterwards"
    return Check("Hub", not needed, f"{endpoint} does not answer; {remedy}", warning=True)


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


_VARIABLES = ("ACCELERATE_", "CUDA_", "DS_", "FSDP_", "HF_", "NCCL_", "OMP_", "PYTORCH_", "SLURM_", "TORCH")


def check_versions() -> Check:
    """Compare installed packages with this package's requirements; in a bare checkout only check that they exist."""
    found, wrong = [f"python {platform.python_version()}"], []
    for name, allowed in _requirements().items():
        version = package_version(name)
        if version is None:
            wrong.append(f"{name} is missing")
            continue
        if name in _PACKAGES:
            found.append(f"{name} {version}")
        if allowed is not None and not allowed.contains(version, prereleases=True):
            wrong.append(f"{name} {version} is not {allowed}")
    if wrong:
        return Check("versions", False, f"{'; '.join(wrong)}; install with: pip install -U hmm-datasets")
    return Check("versions", True, ", ".join(found))


def _requirements() -> dict:
    # From the installed package's metadata, so that versions are stated only once; a bare checkout has only the names.
    listed = installed_requirements()
    if not listed:
        return dict.fromkeys(_PACKAGES)
    return {r.name: r.specifier for r in listed if r.marker is None or r.marker.evaluate({"extra": ""})}


@cache
def versions_to_compare() -> dict[str, str]:
    """What must be the same on all ranks: Python, packages, sources, and for GPUs the driver, CUDA and NCCL."""
    import torch

    found = {"Python": platform.python_version(), **{name: package_version(name) or "missing" for name in _PACKAGES}}
    found |= {"torch": torch.__version__, "sources of hmm-datasets": _sources_digest()}
    if torch.cuda.is_available():
        found["CUDA"] = str(torch.version.cuda)
        found["NCCL"] = (
            ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else "none"
        )
        found["driver"] = next((state.driver for state in gpu_states()), "unknown")
    return found


def environment_report() -> str:
    """What a report of a bug needs, as a list in Markdown: versions, the system, GPUs, and which variables are set.

    Values of variables are left out, and so is the name of the host.
    """
    import torch

    found = {"hmm-datasets": package_version("hmm-datasets") or "a checkout", "system": _system()}
    found |= versions_to_compare()
    found["GPUs"] = ", ".join(map(torch.cuda.get_device_name, range(torch.cuda.device_count()))) or "none"
    found["variables"] = ", ".join(sorted(name for name in os.environ if name.startswith(_VARIABLES))) or "none"
    return "\n".join(f"- {name}: {value}" for name, value in found.items())


def _sources_digest() -> str:
    """The beginning of a hash of the Python files of this package."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
