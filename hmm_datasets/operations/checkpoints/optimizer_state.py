"""The optimizer state of a checkpoint by names of parameters, whichever framework wrote it.

| written under | files | parameters are |
|---|---|---|
| plain data parallelism | `optimizer.pt` | numbered, in the order of the parameter groups |
| FSDP2 with full state dicts | `optimizer.bin` | named |
| FSDP2 with sharded ones | `optimizer_0/`, `pytorch_model_fsdp_0/` | named, in pieces, one file per rank |
| DeepSpeed ZeRO | `global_stepN/*_optim_states.pt` | cut into flat shards, one per rank |
| this package, for ZeRO | `global_stepN_universal/zero/NAME/` | named, one file per tensor |

Numbers become names through the model of the configuration, made without weights, and the settings of the run, from
which its parameter groups follow. Shards of ZeRO are first converted to DeepSpeed's universal format, and those of
FSDP2 to one file by `torch.distributed.checkpoint`, which holds them in memory.
"""

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from transformers import AutoConfig, AutoModelForCausalLM, Trainer

from ...compat.deepspeed import load_shard, write_universal
from ...compat.torch import data_only
from ...errors import InputError, first_line
from ...files import inside
from ...runtime.run_identity import read_identity
from ...training.checkpoints.inspection import universal_folder, zero_shards
from ...training.optimizers import matrix_names, parameter_groups

WEIGHT = "fp32"
"""Name of a parameter's float32 weights beside the names of its states, as DeepSpeed calls them."""

_OPTIMIZER_SHARDS, _WEIGHT_SHARDS = "optimizer_0", "pytorch_model_fsdp_0"


class OptimizerState(NamedTuple):
    """The state of an optimizer; tensors are mapped from files of the checkpoint, or of the scratch folder.

    Attributes:
        groups (`list` of `dict`): settings of the parameter groups, without `params`.
        names (`list` of `list` of `str`): names of the parameters of each group.
        states (`dict`): the states of each parameter that has any, by its name.
        weights (`dict` of `str` to `torch.Tensor`): the float32 weights, where they are part of the state.
    """

    groups: list[dict[str, Any]]
    names: list[list[str]]
    states: dict[str, dict[str, torch.Tensor]]
    weights: dict[str, torch.Tensor]

    @property
    def all_names(self) -> list[str]:
        """Names of all parameters, in the order of the groups."""
        return [name for group in self.names for name in group]


def read_optimizer_state(folder: Path, scratch: Path) -> OptimizerState:
    """Read the optimizer state of a checkpoint.

    Args:
        folder (`Path`): the checkpoint.
        scratch (`Path`): an empty folder, for as many bytes as the state has.

    Raises:
        `InputError`: there is none, or it is of a kind that cannot be converted.
    """
    shards, universal = zero_shards(folder), universal_folder(folder)
    if shards is not None and universal is None:
        universal = scratch / "universal"
        try:
            write_universal(shards.folder, universal)
        except InputError:
            raise
        except (KeyError, ValueError, RuntimeError, AssertionError, OSError) as error:
            reason = first_line(error)
            raise InputError(f"{shards.folder}: DeepSpeed cannot convert it ({reason}); take another one") from error
    if universal is not None:
        return _universal(folder, universal / "zero")
    if (folder / "optimizer.pt").is_file():
        return _numbered(folder, folder / "optimizer.pt")
    if (folder / "optimizer.bin").is_file():
        return _saved(folder / "optimizer.bin", _load(folder / "optimizer.bin"))
    if (folder / _OPTIMIZER_SHARDS).is_dir():
        state = _saved(folder, _from_shards(folder / _OPTIMIZER_SHARDS, scratch)["optimizer"])
        weights = _from_shards(folder / _WEIGHT_SHARDS, scratch)["model"]
        missing = next((name for name in state.all_names if name not in weights), None)
        if missing is not None or not state.all_names:
            raise InputError(f"{folder}: its shards have no weights called {missing or 'as in its optimizer'}")
        return state._replace(weights={name: weights[name].float() for name in state.all_names})
    raise InputError(f"{folder}: has no optimizer state, so only --to hf is possible")


def _saved(path: Path, content: Any) -> OptimizerState:
    """The state in what `torch.save` wrote, with the names of parameters that it has."""
    if not isinstance(content, dict) or not {"state", "param_groups"} <= content.keys():
        raise InputError(f"{path}: has no state and param_groups, so it is not that of an optimizer")
    params = [list(group["params"]) for group in content["param_groups"]]
    return OptimizerState(_without_params(content["param_groups"]), params, content["state"], {})


def _numbered(folder: Path, path: Path) -> OptimizerState:
    state = _saved(path, _load(path))
    names, _ = _trained_parameters(folder)
    sizes, expected = [len(group) for group in state.names if group], [len(group) for group in names]
    if sizes != expected:
        raise InputError(
            f"{path}: has groups of {sizes} parameters, the model has {expected}; a checkpoint "
            "can be converted only if all weights are trained, with the optimizer settings in its identity.json"
        )
    groups = [group for group, params in zip(state.groups, state.names, strict=True) if params]
    named = zip((name for group in names for name in group), state.all_names, strict=True)
    states = {name: state.states[number] for name, number in named if number in state.states}
    return OptimizerState(groups, names, states, {})


def _from_shards(folder: Path, scratch: Path) -> dict[str, Any]:
    """What `torch.distributed.checkpoint` wrote into a folder."""
    try:
        with data_only(folder / ".metadata"):
            storage = FileSystemReader(folder).read_metadata().storage_data
        files = {stored.relative_path for stored in storage.values()}
    except InputError:
        raise
    except Exception as error:  # damaged pickles raise any
        raise InputError(f"{folder}: its .metadata cannot be read ({error}); take another checkpoint") from None
    for name in sorted(files, key=str):
        inside(folder, name, folder / ".metadata")
    with data_only(folder), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as it should be
        dcp_to_torch_save(folder, scratch / f"{folder.name}.pt")
    return _load(scratch / f"{folder.name}.pt")


def _universal(folder: Path, zero: Path) -> OptimizerState:
    """The state in a checkpoint of DeepSpeed's universal format."""
    names, shapes = _trained_parameters(folder)
    saved = _load(zero / "optimizer_state.pt")
    inner = saved.get("optimizer_state_dict", {})
    groups = saved.get("param_groups") or inner["param_groups"]
    step = inner.get("state", {}).get(0, {}).get("step")
    if len(groups) != len(names) or not all((zero / name).is_dir() for group in names for name in group):
        raise InputError(f"{folder}: its optimizer has other parameters than its model, so it is not converted")
    state = OptimizerState(_without_params(groups), names, {}, {})
    for name in state.all_names:
        parts = {"step": step} | {path.stem: _load(path) for path in sorted((zero / name).glob("*.pt"))}
        # Flat, or a bare tensor, where the shards were those of stage 3.
        values = {
            key: (value["param"] if isinstance(value, dict) else value).reshape(shapes[name])
            for key, value in parts.items()
            if key != "step"
        }
        state.weights[name] = values.pop(WEIGHT)
        if parts["step"] is not None:
            values["step"] = torch.tensor(float(parts["step"]))  # of its own, since it is incremented in place
        state.states[name] = values
    return state


def _without_params(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in group.items() if key != "params"} for group in groups]


def _load(path: Path) -> Any:
    try:
        return load_shard(path)
    except (RuntimeError, OSError) as error:
        raise InputError(f"{path}: cannot be read ({first_line(error)}); take another checkpoint") from None


def _trained_parameters(folder: Path) -> tuple[list[list[str]], dict[str, torch.Size]]:
    """The names of the parameters by group of the optimizer, and their shapes, from configuration and settings.

    Raises:
        `InputError`: the folder has no model that transformers knows, or an adapter.
    """
    if (folder / "adapter_config.json").is_file():
        raise InputError(
            f"{folder}: is of a LoRA run, whose adapter has no ZeRO or FSDP form here; train it under one framework"
        )
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, trust_remote_code=False))
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{folder}: transformers cannot make its model ({first_line(error)})") from None
    settings = read_identity(folder).get("settings", {})
    groups = parameter_groups(
        model,
        learning_rate=1.0,
        weight_decay=1.0,
        decayed=set(Trainer.get_decay_parameter_names(None, model)),
        matrices=matrix_names(model) if settings.get("optimizer") == "muon" else (),
    )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    return [[names[id(parameter)] for parameter in group["params"]] for group in groups], shapes
