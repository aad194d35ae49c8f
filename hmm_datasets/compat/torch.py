"""torch: the memory tracker, timeouts of all process groups, and tensors that keep their type through casts.

Checked against 2.13.
"""

import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch import Tensor, nn


def fake_tensors() -> Any:
    """A context in which tensors have shapes and types but no data.

    `FakeTensorMode` is described in the documentation of `torch.compiler`, under this private path alone. Tensors on
    `torch.device("meta")` would do for the shapes; the tracker of [`tracked_memory`] follows fake ones. It goes once
    torch exports the class.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


@contextmanager
def tracked_memory(model: nn.Module) -> Generator[Callable[[], int]]:
    """Follow what is allocated inside, and tell the bytes of activations and temporaries at the peak of all memory.

    Nothing public tells that of tensors without data. Upstream: `MemTracker` came with pytorch/pytorch#124688; this
    goes once it leaves `torch.distributed._tools`.

    Args:
        model (`nn.Module`): whose parameters and gradients are counted apart.

    Yields:
        callable: gives the bytes; call it after the block.
    """
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    tracker.track_external(model)

    def peak() -> int:
        (sizes,) = tracker.get_tracker_snapshot("peak").values()
        return sum(size for kind, size in sizes.items() if getattr(kind, "name", "") in ("ACT", "TEMP"))

    with tracker, warnings.catch_warnings():
        # The tracker's own, of modules that the model's code calls by a function.
        warnings.filterwarnings("ignore", "Module is None", UserWarning)
        yield peak


def set_timeout_of_all_groups(timeout: timedelta) -> None:
    """Give all process groups a timeout.

    The Trainer gives `ddp_timeout` to the first group alone; DeepSpeed makes others with torch's default. Neither a
    list of the groups nor, in torch 2.13, a function that sets a timeout is public. Upstream: pytorch/pytorch#187387
    adds `torch.distributed.set_timeout` and deprecates `_set_pg_timeout`; nothing is known that lists the groups. It
    goes once there is such a list, or DeepSpeed takes a timeout for the groups that it makes.
    """
    from torch.distributed import distributed_c10d

    for group in list(distributed_c10d._world.pg_map):
        distributed_c10d._set_pg_timeout(timeout, group)


class KeepsTypes(nn.Module):
    """A module whose tensors go to other devices but keep their types: `.half()`, `.to(torch.bfloat16)` and the like.

    Casts of a module that holds this one do not call its `to`; all of them end in `nn.Module._apply`, which many
    libraries override for that reason. It goes once torch has a hook for it.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "KeepsTypes":
        def move_only(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(move_only, recurse)
