"""accelerate: FSDP2 on processes without a GPU, layers with hooks, and the flags of its launcher.

FSDP2. `torch.distributed.fsdp.fully_shard` runs on gloo, but accelerate 1.15 uses FSDP only with GPUs. On gloo it
silently trains under plain DDP. The only thing missing is that the state of accelerate is set to FSDP. With this
module, a job for a cluster under FSDP2 can be tried and tested on a laptop. `AcceleratorState.__init__` is wrapped,
and `AcceleratorState._mixed_precision` and `PartialState._shared_state` are read and written. Upstream: we know of no
issue; Lightning has the same request (Lightning-AI/pytorch-lightning#21812). This can be removed once
`AcceleratorState` supports `ACCELERATE_USE_FSDP` under MULTI_CPU.

Layers with hooks. `dispatch_model` replaces the forward pass of layers by one that moves weights between devices, and
nothing public says of a layer that it did. This can be removed once something does.

The launcher's flags. A command line that starts a recipe has flags of the launcher and of the recipe, in any order.
`launch_command_parser` makes a parser, which expects the script between them; `_actions` and `_option_string_actions`
are changed so that it does not, and takes no flag that is meant for the recipe. This can be removed once accelerate
reads its flags apart from the script.
"""

import argparse
import os
from collections.abc import Callable, Container, Sequence
from typing import Any, NoReturn


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


def read_launcher_flags(
    words: Sequence[str], others: Container[str], refuse: Callable[[str], NoReturn]
) -> tuple[argparse.Namespace, list[str]]:
    """The flags of `accelerate launch` among the words of a command line, and the other words in their order.

    Args:
        words (sequence of `str`): the words, without a script.
        others (container of `str`): flags of the launcher, with underscores, that are left among the other words.
        refuse (callable): raises an error with the message of argparse.
    """
    from accelerate.commands.launch import launch_command_parser

    parser = launch_command_parser()
    parser.error, parser.allow_abbrev = refuse, False
    for action in parser._actions:
        if not action.option_strings:  # the script and its arguments
            action.nargs = action.default = argparse.SUPPRESS
    for flag in list(parser._option_string_actions):
        if not flag.startswith("--") or flag.replace("-", "_").replace("__", "--", 1) in others:
            del parser._option_string_actions[flag]
    return parser.parse_known_args(words)
