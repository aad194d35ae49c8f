"""accelerate: FSDP2 on processes without a GPU, and the flags of its launcher.

FSDP2. `torch.distributed.fsdp.fully_shard` runs on gloo. accelerate 1.15 turns to FSDP only where there are GPUs: on
gloo it trains under plain DDP instead, and says nothing. All that is missing is that accelerate's state says FSDP.
With this, what a cluster runs under FSDP2 can be tried, and is tested, on a laptop. `AcceleratorState.__init__` is
wrapped, and `AcceleratorState._mixed_precision` and `PartialState._shared_state` are read and written. Upstream: no
issue is known; Lightning has the same request (Lightning-AI/pytorch-lightning#21812). It can go once
`AcceleratorState` takes `ACCELERATE_USE_FSDP` under MULTI_CPU.

The launcher's flags. A command line that starts a recipe holds flags of the launcher and of the recipe.
`launch_command_parser` makes a parser, and argparse says of no parser which flags it has. It can go once accelerate or
argparse does.
"""

import argparse
import os

from .. import launch_environment


def shard_on_cpu() -> None:
    """Let accelerate use FSDP2 over gloo, where a launcher asked for FSDP and there is no GPU; else do nothing.

    Call it before the first `Accelerator` or `TrainingArguments` is made.
    """
    import torch

    wanted = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    if not wanted or torch.accelerator.is_available() or launch_environment.world_size() < 2:
        return

    from accelerate.state import AcceleratorState, DistributedType, PartialState

    initialize = AcceleratorState.__init__
    if initialize.__name__ == "initialize_and_shard":
        return  # by an earlier call

    def initialize_and_shard(self, *args, fsdp_plugin=None, **kwargs):
        initialize(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = fsdp_plugin
            self.distributed_type = DistributedType.FSDP
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = initialize_and_shard


def flags_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The flags of a parser that another library made, in every spelling, and what each sets."""
    return dict(parser._option_string_actions)
