"""DeepSpeed: weights left out of its checkpoints, and checkpoints read by another number of processes.

Checked against 0.19. Nothing is imported from DeepSpeed until it is used.
"""

import argparse
import contextlib
import os
from collections.abc import Generator
from pathlib import Path

import torch


@contextlib.contextmanager
def without_module_weights(engine) -> Generator[None]:
    """Have `save_checkpoint` of an engine write no weights of the module.

    Under stages 1 and 2 they stand in `model.safetensors` already. `save_checkpoint` has `exclude_frozen_parameters`
    and nothing for the others; this goes once it has.

    Args:
        engine (`DeepSpeedEngine`): whose `module_state_dict` is replaced meanwhile.
    """
    engine.module_state_dict = lambda **_: {}
    try:
        yield
    finally:
        del engine.module_state_dict


@contextlib.contextmanager
def universal_checkpoints(engine) -> Generator[None]:
    """Have `load_checkpoint` of an engine read the universal form, which its configuration alone can ask for.

    Goes once `load_checkpoint` takes it as an argument.
    """
    engine._config.load_universal_checkpoint = True
    try:
        yield
    finally:
        engine._config.load_universal_checkpoint = False


def write_universal(folder: Path, universal: Path) -> None:
    """Turn the shards in `folder` into DeepSpeed's universal form, by the program that it has for that.

    Goes once the conversion is a function of arguments of its own.
    """
    from deepspeed.checkpoint import ds_to_universal

    settings = argparse.Namespace(
        input_folder=str(folder),
        output_folder=str(universal),
        num_extract_workers=1,  # more would fork a process that has threads
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        ds_to_universal.main(settings)


def mend_stage_3(engine, universal: Path) -> None:
    """Set what stage 3 loads wrong from the universal form.

    All groups get the first one's weight decay, and all states share one count of steps.

    Goes once `DeepSpeedZeroOptimizer_Stage3` restores each group's settings and each state's own step.
    """
    # A pickle with classes of DeepSpeed's, which it has just read itself.
    saved = torch.load(universal / "zero" / "optimizer_state.pt", map_location="cpu", weights_only=False)
    optimizer = engine.optimizer.optimizer
    for group, values in zip(optimizer.param_groups, saved["optimizer_state_dict"]["param_groups"], strict=True):
        group |= {name: value for name, value in values.items() if name != "params"}
    for state in optimizer.state.values():
        if torch.is_tensor(state.get("step")):
            state["step"] = state["step"].clone()  # counted up in place, so once for every state that shares it
