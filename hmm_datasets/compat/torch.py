"""torch: checkpoints read as data alone, the memory tracker, timeouts of all process groups, tensors that keep their
type through casts, products of half precision that are added in float32, and Muon on a CPU.

Checked against 2.9 to 2.15; 2.8 has no Muon, which is refused where it is asked for.
"""

import functools
import itertools
import logging
import os
import pickle
import time
import types
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from accelerate.utils import patch_environment
from torch import Tensor, nn
from torch._dynamo.callback import callback_handler
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import distributed_c10d
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.checkpoint import CheckpointException, filesystem

from ..errors import InputError, first_line

_logger = logging.getLogger(__name__)

_CLASSES_OF_SHARDS = {
    "torch.distributed.checkpoint.metadata": {
        *("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "_MEM_FORMAT_ENCODING"),
        *("TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata"),
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "pathlib": {"Path", "PurePosixPath", "PosixPath"},
    "collections": {"OrderedDict"},
}


# A rank on a CPU is on `cpu:0`, to which torch moves no storage of a file. Before 5.18 transformers asks for it when a
# run of several such ranks is resumed. This can be removed once 5.18 is the oldest version that is supported.
torch.serialization.register_package(
    0, lambda storage: None, lambda storage, place: storage if place == "cpu:0" else None
)

_waits = itertools.count()
_muon: Any = getattr(torch.optim, "_muon", None)  # since 2.9
_newton_schulz: Any = getattr(_muon, "_zeropower_via_newtonschulz", None)


@contextmanager
def data_only(source: str | os.PathLike, classes: Sequence[type] = ()) -> Generator[None]:
    """A context in which `torch.load` and `torch.distributed.checkpoint` read data and never run what a pickle names.

    Other libraries call `torch.load(weights_only=False)`, and `torch.distributed.checkpoint` unpickles its `.metadata`
    and what is no tensor. Both make objects of any class that the file names, and so run any code. The context holds
    for all threads of this process. It can be removed once these libraries pass `weights_only=True`, and torch has the
    same for `.metadata`.

    Args:
        source (path): what is read, for the error.
        classes (sequence of `type`, *optional*): further classes whose objects may be made.

    Raises:
        `InputError`: a file names something else.
    """
    forced = {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "0"}
    restricted = types.SimpleNamespace(**vars(pickle) | {"load": lambda file: _ShardMetadata(file).load()})
    try:
        with (
            patch_environment(**forced),
            mock.patch.object(filesystem, "pickle", restricted),
            torch.serialization.safe_globals(list(classes)),
        ):
            yield
    except (pickle.UnpicklingError, CheckpointException) as error:
        causes = [cause for cause, _ in error.failures.values()] if isinstance(error, CheckpointException) else [error]
        lines = str(causes[0]).splitlines() or [type(causes[0]).__name__]
        reason = next((line for line in lines if "GLOBAL" in line), lines[0])  # the first one of torch is advice
        raise InputError(f"{source}: cannot be read as data ({reason}); take another checkpoint") from None


class _ShardMetadata(pickle.Unpickler):
    """Reads the `.metadata` of `torch.distributed.checkpoint`, in which only these classes occur."""

    def find_class(self, module: str, name: str) -> Any:
        module = "pathlib" if module == "pathlib._local" else module  # so written by Python 3.13 alone
        value = getattr(torch, name, None) if module == "torch" else None
        if name in _CLASSES_OF_SHARDS.get(module, ()) or isinstance(value, torch.dtype):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f".metadata names {module}.{name}, which is no part of one")


def fake_tensors() -> Any:
    """A context in which tensors have shapes and types but no data.

    The documentation of `torch.compiler` describes `FakeTensorMode`, but only under this private path. Tensors on
    `torch.device("meta")` would be enough for shapes, but the tracker of [`tracked_memory`] needs fake tensors. This
    can be removed once torch exports the class.
    """
    return FakeTensorMode()


def wait_for_rank_zero() -> None:
    """Wait until rank 0 has come here as well, however long it works alone; all ranks have to call it.

    A barrier ends with an error after the timeout of its process group. Here the store of the ranks is asked again and
    again, and the wait ends if the store is gone, that is when rank 0 or its launcher has ended. Nothing happens
    without a process group. `torch.distributed` has no public access to its store.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return
    store, name = dist.distributed_c10d._get_default_store(), f"hmm_datasets/rank 0 came to wait {next(_waits)}"
    if dist.get_rank() == 0:
        store.set(name, "1")
    while not store.check([name]):
        time.sleep(0.2)


def on_compilations(call: Callable[[bool], None]) -> None:
    """Call a function with True when `torch.compile` begins to compile in this process, and with False when it ends.

    Compilations inside others do not count. They include backward passes, which are compiled when they first run.
    `torch.compiler` has no such hook; this can be removed once it exports the callbacks of `torch._dynamo.callback`.
    """
    callback_handler.register_start_callback(lambda arguments: call(True))
    callback_handler.register_end_callback(lambda arguments: call(False))


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
        adds, reason = bool((total == 17).all()), "its sum is wrong"
    except (RuntimeError, TypeError) as error:
        adds, reason = False, first_line(error)
    if adds:
        _logger.info("products of %s are added in float32 by torch.addmm(out_dtype=)", dtype)
    elif os.environ.get("RANK", "0") == "0":
        _logger.warning(
            "torch.addmm(out_dtype=) does not add products of %s in float32 here (%s): the gradient of the output "
            "layer is computed in float32, which is slower",
            dtype,
            reason,
        )
    return adds


class KeepDtype(nn.Module):
    """A module whose tensors move to other devices but keep their types under `.half()`, `.to(torch.bfloat16)` etc.

    A cast of a parent module does not call `to` of this one. All casts call `nn.Module._apply`, which many libraries
    override for that reason. This can be removed once torch has a hook for it.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "KeepDtype":
        def move_only(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(move_only, recurse)


def use_float32_in_muon() -> None:
    """From now on torch's Muon runs its Newton-Schulz steps in float32 for matrices on a CPU.

    torch rounds them to bfloat16, which processors without instructions for it multiply 40 to 500 times slower than
    float32 (pytorch issue 146508): an update of 5 million parameters took 16 seconds with AVX2, and takes half a one
    in float32. This can be removed once torch takes the type of the weights.

    Raises:
        `InputError`: torch 2.8, which has no Muon.
    """
    if _muon is None:
        raise InputError(
            f"optimizer is muon; expected torch 2.9 or newer, not {torch.__version__}, or --optimizer adamw"
        )
    # A type checker sees the function that is replaced.
    setattr(_muon, "_zeropower_via_newtonschulz", _newton_schulz_of_device)  # noqa: B010


def _newton_schulz_of_device(
    grad: Tensor, ns_coefficients: tuple[float, float, float], ns_steps: int, eps: float
) -> Tensor:
    if grad.device.type != "cpu":
        return _newton_schulz(grad, ns_coefficients, ns_steps, eps)
    a, b, c = ns_coefficients
    is_tall = grad.shape[0] > grad.shape[1]
    wide = (grad.T if is_tall else grad).float()
    wide = wide / wide.norm().clamp(min=eps)
    for _ in range(ns_steps):
        gram = wide @ wide.T
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    return wide.T if is_tall else wide
