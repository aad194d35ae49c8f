"""The check of the device of a rank: whether it is there, computes, and has its memory free."""

import os
import subprocess

from ...errors import first_line
from .report import GIB, Check

_HELD = 2.0  # GiB of a GPU that are in use; the context of this process and monitoring tools take less


def gpu_drivers() -> list[str]:
    """The version of the driver of each GPU of this host; none if there is no `nvidia-smi`."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split() if done.returncode == 0 else []


def check_device(index: int | None) -> Check:
    """Multiply a small matrix on the GPU of this rank, and report its name and free memory; None for the CPU."""
    import torch

    if index is None:
        return _check_cpu()
    count = torch.cuda.device_count()
    if index >= count:
        remedy = "start no more ranks here (--num_processes)"
        return Check("device", False, f"local rank {index} has no GPU: this host has {count}; {remedy}")
    try:
        ones = torch.ones(64, 64, device=f"cuda:{index}")
        value = (ones @ ones).sum().item()
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError as error:
        return Check("device", False, f"cuda:{index} fails: {first_line(error)}")
    if value != 64.0**3:
        remedy = "take it out of use (CUDA_VISIBLE_DEVICES, sbatch --exclude=HOST)"
        return Check("device", False, f"cuda:{index} multiplies wrongly ({value} for {64.0**3}); {remedy}")
    is_held = (total - free) / GIB > _HELD
    remedy = "; nvidia-smi lists the processes that hold the rest: end them, or choose another GPU" * is_held
    detail = f"cuda:{index} {torch.cuda.get_device_name(index)}, {free / GIB:.0f} of {total / GIB:.0f} GiB free"
    return Check("device", True, detail + remedy, warning=is_held)


def _check_cpu() -> Check:
    """A process without a GPU is fine, unless there are GPUs that torch cannot use, and they are not hidden."""
    import torch

    drivers = gpu_drivers()
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if not drivers or hidden or torch.cuda.is_available():
        return Check("device", True, f"no GPU; CPU with {torch.get_num_threads()} threads")
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU only"
    return Check(
        "device",
        False,
        f"nvidia-smi lists {len(drivers)} GPUs with driver {drivers[0]}, but torch {torch.__version__}, built "
        f"for {built}, cannot use them; install another build of torch or a newer driver, or, to compute without "
        "them, set CUDA_VISIBLE_DEVICES to nothing",
    )
