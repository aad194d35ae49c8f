"""DeepSpeed: checkpoints without module weights, and checkpoints loaded by another number of processes.

Checked against 0.19. Nothing is imported from DeepSpeed until it is used.
"""

import argparse
import contextlib
import os
from collections.abc import Generator, Iterable
from pathlib import Path

import torch


@contextlib.contextmanager
def without_module_weights(engine) -> Generator[None]:
    """A context in which `save_checkpoint` of an engine writes no weights of the module.

    Under stages 1 and 2 the weights are in `model.safetensors` already. `save_checkpoint` has
    `exclude_frozen_parameters` but no such option for other parameters. This can be removed once it has one.

    Args:
        engine (`DeepSpeedEngine`): the engine, whose `module_state_dict` is replaced inside the context.
    """
    engine.module_state_dict = lambda **_: {}
    try:
        yield
    finally:
        del engine.module_state_dict


@contextlib.contextmanager
def universal_checkpoints(engine) -> Generator[None]:
    """A context in which `load_checkpoint` of an engine reads a universal checkpoint.

    Otherwise only the configuration can ask for this. It can be removed once `load_checkpoint` takes it as an
    argument.
    """
    engine._config.load_universal_checkpoint = True
    try:
        yield
    finally:
        engine._config.load_universal_checkpoint = False


@contextlib.contextmanager
def whole_parameters(parameters: Iterable[torch.nn.Parameter]) -> Generator[None]:
    """A context in which parameters that ZeRO 3 has sharded are whole; what rank 0 writes into them is kept.

    Args:
        parameters (iterable of `torch.nn.Parameter`): sharded or not; without ZeRO 3 nothing happens.
    """
    sharded = [parameter for parameter in parameters if hasattr(parameter, "ds_id")]
    if not sharded:
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(sharded, modifier_rank=0):
        yield


def write_universal(folder: Path, universal: Path) -> None:
    """Convert the shards in `folder` to a universal checkpoint, by DeepSpeed's command-line program.

    This can be removed once DeepSpeed has a function for the conversion.
    """
    from deepspeed.checkpoint import ds_to_universal

    settings = argparse.Namespace(
        input_folder=str(folder),
        output_folder=str(universal),
        num_extract_workers=1,  # more workers would fork a process that has threads
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        ds_to_universal.main(settings)


def correct_stage_3(engine, universal: Path) -> None:
    """Correct the state that stage 3 loads wrongly from a universal checkpoint.

    After loading, all parameter groups have the weight decay of the first, and all states share one step counter. This
    can be removed once `DeepSpeedZeroOptimizer_Stage3` restores the settings of each group and the step of each state.
    """
    # A pickle with DeepSpeed's classes, which DeepSpeed has just read itself.
    saved = torch.load(universal / "zero" / "optimizer_state.pt", map_location="cpu", weights_only=False)
    optimizer = engine.optimizer.optimizer
    for group, values in zip(optimizer.param_groups, saved["optimizer_state_dict"]["param_groups"], strict=True):
        group |= {name: value for name, value in values.items() if name != "params"}
    for state in optimizer.state.values():
        if torch.is_tensor(state.get("step")):
            state["step"] = state["step"].clone()  # incremented in place, so a shared one would be counted repeatedly
