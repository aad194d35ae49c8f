"""DeepSpeed: models larger than a device, Muon under ZeRO, checkpoints without weights or of other numbers of ranks.

Checked against 0.18.6 to 0.19.8. Nothing is imported from DeepSpeed until it is used.
"""

import argparse
import contextlib
import importlib.metadata
import math
import os
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils import serialization

from ..errors import InputError
from .torch import data_only


def whole_shape(parameter: torch.nn.Parameter) -> torch.Size:
    """The shape of a parameter that ZeRO 3 may have sharded, after which its own has one dimension."""
    return getattr(parameter, "ds_shape", parameter.shape)


def without_zero3_init() -> AbstractContextManager[Any]:
    """Within this context models are loaded whole, and write by themselves, also in a process that ZeRO 3 trains in.

    Otherwise transformers divides every model that it loads over all ranks, and generates on all of them together: one
    rank that does so alone waits for the others for ever.
    """
    from transformers.integrations import deepspeed

    return mock.patch.object(deepspeed, "_hf_deepspeed_config_weak_ref", None)


def zero_muon_with_adamw(
    groups: list[dict[str, Any]],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    fused: bool,
    momentum: float = 0.95,
) -> torch.optim.Optimizer:
    """DeepSpeed's Muon, which ZeRO runs on whole gradients, and torch's AdamW, with the updates of torch's Muon.

    For a matrix of shape `(A, B)` torch multiplies the update by `0.2 sqrt(max(A, B))` (`match_rms_adamw`), DeepSpeed
    by `sqrt(max(1, A / B))`. The first is `0.2 sqrt(B)` times the second, so matrices are grouped by `B`, with this
    factor in the learning rate of a group and its inverse in the weight decay. The Newton-Schulz steps are DeepSpeed's
    `standard` ones, which torch takes too.

    `deepspeed.initialize` marks the parameters only for an optimizer that its JSON names, and cannot leave out
    embeddings and the output layer. This can be removed once it takes such groups, and scales as AdamW.

    Args:
        groups (`list` of `dict`): parameter groups, as [`~hmm_datasets.training.optimizers.parameter_groups`] makes
            them.
        lr, betas, eps, fused, momentum: see [`~hmm_datasets.training.optimizers.MuonWithAdamW`].

    Raises:
        `InputError`: DeepSpeed before 0.19.8, whose Muon has other updates.
    """
    from deepspeed.runtime.zero.muon import muon_optimizer, original_muon

    if not hasattr(original_muon, "ns_compute_dtype"):
        raise InputError(
            f"optimizer is muon, whose updates deepspeed {importlib.metadata.version('deepspeed')} scales wrongly; "
            "expected 0.19.8 or newer, or --optimizer adamw"
        )
    if not torch.accelerator.is_available():
        # To it every CPU supports bfloat16, which most multiply far slower; see `use_float32_in_muon`.
        setattr(original_muon, "ns_compute_dtype", lambda ns_method="gram": torch.float32)  # noqa: B010
    all_groups = []
    for group in groups:
        settings = {name: value for name, value in group.items() if name != "params"}
        is_muon, by_columns = group["optimizer"] == "muon", {}
        for parameter in group["params"]:
            parameter.use_muon = is_muon
            columns = whole_shape(parameter)[1] if is_muon else 0
            by_columns.setdefault(columns, []).append(parameter)
        if not is_muon:
            all_groups.append(group | {"use_muon": False, "betas": betas, "eps": eps})
            continue
        for columns, parameters in sorted(by_columns.items()):
            factor = 0.2 * math.sqrt(columns)
            scaled = {"lr": group.get("lr", lr) * factor, "weight_decay": group["weight_decay"] / factor}
            muon = {"use_muon": True, "momentum": momentum, "ns_method": "standard"}
            all_groups.append(settings | scaled | muon | {"params": parameters})
    adamw = {"lr": lr, "betas": betas, "eps": eps, "fused": fused}
    return muon_optimizer.MuonWithAuxAdam(all_groups, adam_optimizer=torch.optim.AdamW, adam_optimizer_kwargs=adamw)


def reduce_whole_gradients(settings: dict[str, Any]) -> None:
    """Let stage 3 reduce whole gradients, as it needs for Muon, in the settings that it is given."""
    if settings["zero_optimization"]["stage"] == 3:
        settings["zero_optimization"]["reduce_scatter"] = False


def without_module_weights(engine) -> AbstractContextManager[Any]:
    """A context in which `save_checkpoint` of an engine writes no weights of the module.

    Under stages 1 and 2 the weights are in `model.safetensors` already. `save_checkpoint` has
    `exclude_frozen_parameters` but no such option for other parameters. This can be removed once it has one.

    Args:
        engine (`DeepSpeedEngine`): the engine, whose `module_state_dict` is replaced inside the context.
    """
    return mock.patch.object(engine, "module_state_dict", return_value={})


def universal_checkpoints(engine) -> AbstractContextManager[Any]:
    """A context in which `load_checkpoint` of an engine reads a universal checkpoint.

    Otherwise only the configuration can ask for this. It can be removed once `load_checkpoint` takes it as an
    argument.
    """
    return mock.patch.object(engine._config, "load_universal_checkpoint", True)


@contextlib.contextmanager
def weights_stay_until_sharded(model: torch.nn.Module) -> Generator[None]:
    """A context in which DeepSpeed moves only the buffers of a model to its device before it shards the weights.

    Under stage 3 DeepSpeed first moves the whole model, which may be larger than the device, sends each weight of rank
    0 to the others, and then divides one weight after the other among the ranks. It also divides weights that are not
    there yet: it moves each alone, and sends it once more. So both is left out before: NCCL sends nothing that is not
    on its device. With `zero.Init` a model is divided while it is made, but then its initial weights are others. This
    can be removed once `initialize` has an option for it.

    Args:
        model (`torch.nn.Module`): the model, whose `to` is replaced inside the context.
    """

    from deepspeed.runtime.engine import DeepSpeedEngine

    def move_buffers(device) -> torch.nn.Module:
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(device))
        return model

    sends_nothing = mock.patch.object(DeepSpeedEngine, "_broadcast_model", return_value=None)
    with mock.patch.object(model, "to", move_buffers), sends_nothing:
        yield


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


@contextlib.contextmanager
def only_shards(source: str | os.PathLike) -> Generator[None]:
    """A context in which `torch.load` reads DeepSpeed's shards, and never runs what a pickle names.

    Besides tensors they have objects of these classes. This can be removed once DeepSpeed tells torch that they are
    safe, and reads its own files with `weights_only=True`.

    Args:
        source (path): what is read, for the error.

    Raises:
        `InputError`: a file names other classes.
    """
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    with data_only(source, [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]):
        yield


def load_shard(path: Path) -> Any:
    """The content of a file of `torch.save` that DeepSpeed may have written, on the CPU, mapped from the disk.

    Raises:
        `InputError`: it has more than data.
        `RuntimeError`: it is no archive of `torch.save`, or is damaged.
    """
    classes = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    is_of_deepspeed = bool(classes) and all(name.startswith("deepspeed.") for name in classes)
    with only_shards(path) if is_of_deepspeed else data_only(path):
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def write_universal(folder: Path, universal: Path) -> None:
    """Convert the shards in `folder` to a universal checkpoint, by DeepSpeed's command-line program.

    This can be removed once DeepSpeed has a function for the conversion.

    Raises:
        `InputError`: a shard has more than data, or its optimizer is Muon.
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
    mapped = serialization.config.load.mmap
    with (
        only_shards(folder),
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        serialization.config.load.mmap = True  # so that a shard is read only as far as it is used
        try:
            ds_to_universal.main(settings)
        except KeyError as error:
            if error.args != ("exp_avg",):
                raise
            raise InputError(
                f"{folder}: has the state of Muon, which DeepSpeed cannot convert; resume on as many processes as "
                "wrote it, with the same stage of ZeRO, or convert the weights alone (--to hf)"
            ) from None
        finally:
            serialization.config.load.mmap = mapped


def universal_optimizer_state(groups: list[dict[str, Any]], step: float) -> dict[str, Any]:
    """What `zero/optimizer_state.pt` of a universal checkpoint has, so that every stage can load it.

    DeepSpeed's program writes this file for the stage of the shards that it reads. Stages 1 and 2 read the groups at
    the top, stage 3 those inside. This can be removed once DeepSpeed has a function that writes such a checkpoint.

    Args:
        groups (`list` of `dict`): settings of the parameter groups.
        step (`float`): number of steps that the optimizer has done.
    """
    import deepspeed

    state = {0: {"step": torch.tensor(step)}}
    return {
        "param_groups": groups,
        "optimizer_state_dict": {"state": state, "param_groups": groups},
        "ds_version": deepspeed.__version__,
    }


def universal_model_state(step: int, schedule: dict[str, Any] | None) -> dict[str, Any]:
    """What `*_model_states.pt` of a universal checkpoint has besides weights, which are in its `zero/` folder.

    Args:
        step (`int`): optimizer steps done.
        schedule (`dict`, *optional*): state of the learning rate schedule.
    """
    import deepspeed

    return {
        "module": {},
        "lr_scheduler": schedule,
        "global_steps": step,
        "skipped_steps": 0,
        "dp_world_size": 1,
        "mp_world_size": 1,
        "ds_version": deepspeed.__version__,
        "universal_checkpoint_info": {},
    }


def correct_stage_3(engine, universal: Path) -> None:
    """Correct the state that stage 3 loads wrongly from a universal checkpoint.

    After loading, all parameter groups have the weight decay of the first, and all states share one step counter. This
    can be removed once `DeepSpeedZeroOptimizer_Stage3` restores the settings of each group and the step of each state.
    """
    saved = load_shard(universal / "zero" / "optimizer_state.pt")
    optimizer = engine.optimizer.optimizer
    for group, values in zip(optimizer.param_groups, saved["optimizer_state_dict"]["param_groups"], strict=True):
        group |= {name: value for name, value in values.items() if name != "params"}
    for state in optimizer.state.values():
        if torch.is_tensor(state.get("step")):
            state["step"] = state["step"].clone()  # incremented in place, so a shared one would be counted repeatedly
