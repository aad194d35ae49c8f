"""accelerate: FSDP2 on processes without a GPU, layers with hooks, and the flags of its launcher.

FSDP2. `torch.distributed.fsdp.fully_shard` runs on gloo, but accelerate 1.15 uses FSDP only with GPUs. On gloo it
silently trains under plain DDP. The only thing missing is that the state of accelerate is set to FSDP. With this
module, a job for a cluster under FSDP2 can be tried and tested on a laptop. `AcceleratorState.__init__` is wrapped,
and `AcceleratorState._mixed_precision` and `PartialState._shared_state` are read and written. Upstream: we know of no
issue; Lightning has the same request (Lightning-AI/pytorch-lightning#21812). This can be removed once
`AcceleratorState` supports `ACCELERATE_USE_FSDP` under MULTI_CPU.

Layers with hooks. `dispatch_model` replaces the forward pass of layers by one that moves weights between devices, and
nothing public says of a layer that it did. This can be removed once something does.

The launcher's flags. A command line that starts a recipe has flags of the launcher and of the recipe.
`launch_command_parser` makes a parser, but argparse has no public list of the flags of a parser. This can be removed
once accelerate or argparse has one.
"""

import argparse
import os
from typing import Any


def shard_on_cpu() -> None:
    """Make accelerate use FSDP2 over gloo, if a launcher asked for FSDP and there is no GPU; otherwise do nothing.

    Call it before the first `Accelerator` or `TrainingArguments` is made.
    """
    import torch

    wanted = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    if not wanted or torch.accelerator.is_available() or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return

    from accelerate.state import AcceleratorState, DistributedType, PartialState

    initialize = AcceleratorState.__init__
    if initialize.__name__ == "initialize_and_shard":
        return  # an earlier call has wrapped it

    def initialize_and_shard(self, *args, fsdp_plugin=None, **kwargs):
        initialize(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = fsdp_plugin
            self.distributed_type = DistributedType.FSDP
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = initialize_and_shard


def has_hook(layer: Any) -> bool:
    """Whether the forward pass of a layer was replaced, as in a model on several devices."""
    return hasattr(layer, "_hf_hook")


def flags_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The flags of a parser made by another library, in every spelling, and the action of each."""
    return dict(parser._option_string_actions)
