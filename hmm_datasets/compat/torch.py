"""torch: the memory tracker, timeouts of all process groups, tensors that keep their type through casts, and products
of half precision that are added in float32.

Checked against 2.13.
"""

import functools
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn


def fake_tensors() -> Any:
    """A context in which tensors have shapes and types but no data.

    The documentation of `torch.compiler` describes `FakeTensorMode`, but only under this private path. Tensors on
    `torch.device("meta")` would be enough for shapes, but the tracker of [`tracked_memory`] needs fake tensors. This
    can be removed once torch exports the class.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


@contextmanager
def tracked_memory(model: nn.Module) -> Generator[Callable[[], int]]:
    """Track memory inside the context, and give the bytes of activations and temporaries at its peak.

    There is no public function for tensors without data. Upstream: `MemTracker` was added by pytorch/pytorch#124688.
    This can be removed once it leaves `torch.distributed._tools`.

    Args:
        model (`nn.Module`): the model, whose parameters and gradients are counted separately.

    Yields:
        callable: returns the bytes; call it after the context has ended.
    """
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    tracker.track_external(model)

    def peak() -> int:
        (sizes,) = tracker.get_tracker_snapshot("peak").values()
        return sum(size for kind, size in sizes.items() if getattr(kind, "name", "") in ("ACT", "TEMP"))

    with tracker, warnings.catch_warnings():
        # A warning of the tracker, about modules that the code of the model calls through a function.
        warnings.filterwarnings("ignore", "Module is None", UserWarning)
        yield peak


def set_timeout_of_all_groups(timeout: timedelta) -> None:
    """Set the timeout of all process groups.

    The Trainer sets `ddp_timeout` for the first group only; DeepSpeed makes others with torch's default. In torch 2.13
    neither a list of the groups nor a function that sets a timeout is public. Upstream: pytorch/pytorch#187387 adds
    `torch.distributed.set_timeout` and deprecates `_set_pg_timeout`; we know of no public list of groups. This can be
    removed once there is one, or once DeepSpeed takes a timeout for the groups that it makes.
    """
    from torch.distributed import distributed_c10d

    for group in list(distributed_c10d._world.pg_map):
        distributed_c10d._set_pg_timeout(timeout, group)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """`total += left @ right` in float32, for factors of any type.

    From some version on CUDA adds a product of half precision to a float32 tensor in one call; which one is not
    documented, so it is tried once. Otherwise, and on a CPU, the factors are copied to float32.

    Args:
        total (`torch.Tensor` of shape `(M, N)`): float32.
        left (`torch.Tensor` of shape `(M, K)`), right (`torch.Tensor` of shape `(K, N)`): of one type.
    """
    if left.is_cuda and left.dtype != torch.float32 and _adds_wide(left.device, left.dtype):
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(left.float(), right.float())


@functools.cache
def _adds_wide(device: torch.device, dtype: torch.dtype) -> bool:
    total, ones = (torch.ones(16, 16, device=device, dtype=kind) for kind in (torch.float32, dtype))
    try:
        torch.addmm(total, ones, ones, out_dtype=torch.float32, out=total)
    except (RuntimeError, TypeError):
        return False
    return bool((total == 17).all())


class KeepsTypes(nn.Module):
    """A module whose tensors move to other devices but keep their types under `.half()`, `.to(torch.bfloat16)` etc.

    A cast of a parent module does not call `to` of this one. All casts call `nn.Module._apply`, which many libraries
    override for that reason. This can be removed once torch has a hook for it.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "KeepsTypes":
        def move_only(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(move_only, recurse)
