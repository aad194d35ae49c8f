"""Versions, which must be equal on all ranks."""

import hashlib
import platform
from functools import cache
from pathlib import Path

from ...compat.versions import LIBRARIES
from ...runtime.environment import package_version
from .device import gpu_drivers

_PACKAGES = ("torch", "tokenizers", "numpy", "numba", *LIBRARIES)


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


def _sources_digest() -> str:
    """The beginning of a hash of the Python files of this package."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
