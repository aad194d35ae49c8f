"""Bus bandwidth of the collectives that training uses, by the size of the array.

DDP all-reduces gradients and broadcasts weights; ZeRO and FSDP2 gather weights and reduce-scatter gradients; expert
parallelism sends from all to all. As in nccl-tests, bandwidth is the bytes of the whole array per second, times
the share of it that each link carries, so that it does not depend on the number of ranks `n`
(github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md). Small arrays measure the latency, large ones the links.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SIZES = (1 << 16, 1 << 20, 1 << 24)
"""Bytes of the arrays."""
_REPEATS = 3  # of which the fastest counts; the first may connect ranks


def bus_bandwidths(device: str, seconds: "Callable[[Callable, torch.Tensor], float]") -> dict[str, list[float]]:
    """Bytes per second of each collective, for each of `SIZES`; none for those that the backend does not have.

    Args:
        device (`str`): device of the arrays.
        seconds (callable): takes a call and an array, and returns how long the call takes.
    """
    import torch
    import torch.distributed as dist

    # torch 2.13 renamed these, and warns of the names before.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    world = dist.get_world_size()
    rates: dict[str, list[float]] = {}
    for size in SIZES:
        whole = torch.ones(size // 4 // world * world, device=device)
        part, other = torch.ones(len(whole) // world, device=device), torch.empty_like(whole)
        share = (world - 1) / world
        calls = {
            "all-reduce": (2 * share, lambda whole=whole: dist.all_reduce(whole, dist.ReduceOp.MAX)),
            "broadcast": (1.0, lambda whole=whole: dist.broadcast(whole, 0)),
            "all-gather": (share, lambda other=other, part=part: gather(other, part)),
            "reduce-scatter": (share, lambda whole=whole, part=part: scatter(part, whole)),
            "all-to-all": (share, lambda whole=whole, other=other: dist.all_to_all_single(other, whole)),
        }
        for name, (factor, call) in calls.items():
            try:
                fastest = min(seconds(call, whole) for _ in range(_REPEATS))
            except (RuntimeError, NotImplementedError):  # on all ranks alike
                rates.setdefault(name, [])
                continue
            rates.setdefault(name, []).append(factor * whole.numel() * 4 / fastest)
    return rates


def bandwidths_text(rates: dict[str, list[float]], sizes: Sequence[int] = SIZES) -> str:
    """Bandwidths in a line.

    ```python
    >>> bandwidths_text({"all-reduce": [1e9, 2e9], "broadcast": []}, sizes=(1 << 16, 1 << 20))
    'GB/s at 64 KiB, 1 MiB: all-reduce 1, 2; broadcast not available'

    ```
    """
    named = ", ".join(f"{size >> 20} MiB" if size >> 20 else f"{size >> 10} KiB" for size in sizes)
    parts = [
        f"{name} {', '.join(f'{rate / 1e9:.3g}' for rate in measured) or 'not available'}"
        for name, measured in rates.items()
    ]
    return f"GB/s at {named}: {'; '.join(parts)}"
