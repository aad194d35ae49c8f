"""One all-reduce over all ranks, as the first step of a run makes it.

An all-reduce between machines that cannot reach each other hangs, so it runs in a thread that is given up after a
timeout. How fast collectives are is measured by nccl-tests (github.com/NVIDIA/nccl-tests).
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from ...errors import first_line
from ...runtime import environment
from ...runtime.process_identity import uses_gpu
from ...runtime.time_limit import within
from .report import Check

if TYPE_CHECKING:
    from torch.distributed import Store

_NUMBERS = 1 << 22  # in the array, 16 MiB of float32
_REMEDIES = {
    "nccl": "try NCCL_P2P_DISABLE=1 (without NVLink), NCCL_IB_DISABLE=1 (without InfiniBand) or another "
    "NCCL_SOCKET_IFNAME, and look for dead ranks",
    "gloo": "try GLOO_SOCKET_IFNAME with the interface between the hosts, and look for dead ranks",
}


def check_all_reduce(timeout: float, store: "Store") -> Check:
    """Sum an array over all ranks; call it on all of them.

    Args:
        timeout (`float`): seconds for all of it.
        store ([`~torch.distributed.Store`]): through which ranks meet.
    """
    backend = "nccl" if uses_gpu() else "gloo"
    outcome = within(timeout, lambda: _all_reduce(backend, timeout, store))
    problem = outcome.value if outcome.error is None else first_line(outcome.error)
    if outcome.hangs:
        problem = f"no result in {timeout:g} s"
    if problem:
        return Check("all-reduce", False, f"{problem}; {_REMEDIES[backend]}")
    return Check("all-reduce", True, f"{_NUMBERS >> 18} MiB summed over {environment.world_size()} ranks by {backend}")


def _all_reduce(backend: str, timeout: float, store: "Store") -> str:
    """What is wrong with the sum; empty if nothing is."""
    import torch
    import torch.distributed as dist

    rank, world = environment.rank(), environment.world_size()
    device = "cpu" if backend == "gloo" else f"cuda:{environment.local_rank()}"
    if backend == "nccl":
        torch.cuda.set_device(device)
    limit = timedelta(seconds=max(timeout, 1.0))
    dist.init_process_group(backend, timeout=limit, store=store, rank=rank, world_size=world)
    try:
        values = torch.full((_NUMBERS,), float(rank + 1), device=device)
        dist.all_reduce(values)
        low, high, expected = values.min().item(), values.max().item(), world * (world + 1) / 2
    finally:
        dist.destroy_process_group()
    is_right = (low, high) == (expected, expected)
    return "" if is_right else f"1, 2, ... {world} summed to {low:g} .. {high:g} by {backend}, not {expected:g}"
