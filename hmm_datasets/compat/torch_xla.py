"""torch_xla: the device that transformers trains on wherever it is installed, and all chips of a TPU as one device.

Nothing public says of accelerate's loader for XLA what data set it reads, and the way in which its batches are divided
among chips can be chosen only when it is made, by accelerate. `MpDeviceLoaderWrapper` is read and its
`_parallel_loader_kwargs` are written, as `tpu_spmd_dataloader` of transformers does for FSDP. This can be removed once
accelerate's loader has the attribute `dataset`, and divides batches where `torch_xla.runtime.use_spmd` was called.
"""

from typing import Any

import numpy as np
from accelerate.utils import is_torch_xla_available

spmd: Any = None
runtime: Any = None
if is_torch_xla_available():
    from torch_xla import runtime  # ty: ignore[import-not-found]
    from torch_xla.distributed import spmd  # ty: ignore[import-not-found]


def xla_device() -> str | None:
    """The kind of device that torch_xla computes on, such as `"TPU"` or `"CPU"`; None if it is not used.

    It is used if it is installed and the environment variable USE_TORCH_XLA is not 0.
    """
    return None if runtime is None else runtime.device_type()


def use_all_chips() -> int:
    """Compute on all chips of this machine from this process, as if they were one device; returns their number.

    Call it before accelerate's state is made, which cannot use several otherwise. Without torch_xla it does nothing.
    Weights are on every chip, and the compiler adds the sum of their gradients (GSPMD, Xu et al., 2021).
    """
    if runtime is None:
        return 1
    chips = runtime.global_runtime_device_count()
    if chips > 1 and not runtime.is_spmd():
        runtime.use_spmd()
        spmd.set_global_mesh(spmd.Mesh(np.arange(chips), (chips,), ("rows",)))
    return chips


def divide_rows(loader: Any) -> Any:
    """Let a loader of accelerate divide the rows of its batches among the chips, if there are several."""
    mesh = None if spmd is None else spmd.get_global_mesh()
    if mesh is not None:
        loader._parallel_loader_kwargs["input_sharding"] = spmd.ShardingSpec(mesh, ("rows", None))
    return loader


def dataset_of(loader: Any) -> Any:
    """The data set that a loader of accelerate reads."""
    return loader.dataset if hasattr(loader, "dataset") else loader.dataloader.dataset
