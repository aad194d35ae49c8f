"""Versions: those that must be equal on all ranks, and what a bug report needs."""

import hashlib
import os
import platform
from functools import cache
from pathlib import Path

from ...compat.versions import LIBRARIES
from ...runtime.environment import package_version, usable_cores
from .device import gpu_drivers

_PACKAGES = ("torch", "tokenizers", "numpy", "numba", *LIBRARIES)
_VARIABLES = ("ACCELERATE_", "CUDA_", "DS_", "FSDP_", "HF_", "NCCL_", "OMP_", "PYTORCH_", "SLURM_", "TORCH")


@cache
def versions_to_compare() -> dict[str, str]:
    """What must be the same on all ranks: Python, packages, sources, and for GPUs the driver, CUDA and NCCL."""
    import torch

    versions = {name: package_version(name) or "missing" for name in _PACKAGES}
    versions = {"Python": platform.python_version()} | versions | {"torch": torch.__version__}
    versions["sources of hmm-datasets"] = _sources_digest()
    if torch.cuda.is_available():
        has_nccl = torch.distributed.is_nccl_available()
        versions["CUDA"] = str(torch.version.cuda)
        versions["NCCL"] = ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else "none"
        versions["driver"] = next(iter(gpu_drivers()), "unknown")
    return versions


def environment_report() -> str:
    """What a report of a bug needs, as a list in Markdown: versions, the system, GPUs, and which variables are set.

    Values of variables are left out, and so is the name of the host.
    """
    import torch

    system = f"{platform.system()} {platform.release()}, {usable_cores()} cores"
    items = {"hmm-datasets": package_version("hmm-datasets") or "a checkout", "system": system}
    items |= versions_to_compare()
    items["GPUs"] = ", ".join(map(torch.cuda.get_device_name, range(torch.cuda.device_count()))) or "none"
    items["variables"] = ", ".join(sorted(name for name in os.environ if name.startswith(_VARIABLES))) or "none"
    return "\n".join(f"- {name}: {value}" for name, value in items.items())


def _sources_digest() -> str:
    """The beginning of a hash of the Python files of this package."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
