"""The precision of a run: in every one of them the loss is computed and reported in float32."""

from dataclasses import replace
from typing import Any


def keep_loss_in_float32(accelerator: Any) -> None:
    """Make FSDP2 return what the model returns; call it before the model is wrapped.

    accelerate asks FSDP2 to cast the outputs of every layer and of the model to the low precision, which rounds the
    loss to 8 bits. Layers compute in the low precision anyway, and the loss in float32.

    Args:
        accelerator ([`~accelerate.Accelerator`]): the accelerator of the run.
    """
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    policy = getattr(plugin, "mixed_precision_policy", None)
    if getattr(policy, "output_dtype", None) is not None:
        plugin.mixed_precision_policy = replace(policy, output_dtype=None)
