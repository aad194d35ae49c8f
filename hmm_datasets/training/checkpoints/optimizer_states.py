"""The optimizer state of a checkpoint by names of parameters, whichever framework wrote it.

| written under | files | parameters are |
|---|---|---|
| plain data parallelism | `optimizer.pt` | numbered, in the order of the parameter groups |
| FSDP2 with full state dicts | `optimizer.bin` | named |
| FSDP2 with sharded ones | `optimizer_0/`, `pytorch_model_fsdp_0/` | named, in pieces, one file per rank |
| DeepSpeed ZeRO | `global_stepN/*_optim_states.pt` | cut into flat shards, one per rank |
| this package, for ZeRO | `global_stepN_universal/zero/NAME/` | named, one file per tensor |

Numbers become names through the model of the configuration, made without weights, and the settings of the run, from
which its parameter groups follow. Shards of ZeRO are first converted to DeepSpeed's universal format; those of FSDP2
are read by `torch.distributed.checkpoint`, tensor by tensor, without a process group.
"""

import contextlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint import FileSystemReader, TensorStorageMetadata, load
from transformers import AutoConfig, AutoModelForCausalLM, Trainer

from ...compat.deepspeed import load_shard, write_universal
from ...compat.torch import only_data
from ...errors import InputError
from ...files import inside, read_json
from ...identity import IDENTITY_NAME
from ..optimizers import matrix_names, parameter_groups
from .inspection import universal_folder, zero_shards
from .saved_tensors import SavedTensors

_SHARDED_OPTIMIZER, _SHARDED_WEIGHTS = "optimizer_0", "pytorch_model_fsdp_0"
_GROUPS = "optimizer.param_groups."

WEIGHT = "fp32"
"""Name of a parameter's float32 weights beside the names of its states, as DeepSpeed calls them."""


class StateKind(NamedTuple):
    """Type and shape of a tensor of the optimizer's state."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class OptimizerStates(ABC):
    """The state of an optimizer, read tensor by tensor.

    Attributes:
        groups (`list` of `dict`): settings of the parameter groups, without `params`.
        names (`list` of `list` of `str`): names of the parameters of each group.
        has_weights (`bool`): whether the float32 copy of the weights is part of the state.
    """

    groups: list[dict[str, Any]]
    names: list[list[str]]
    has_weights = False

    @abstractmethod
    def kinds(self, name: str) -> dict[str, StateKind]:
        """Type and shape of each state of a parameter; empty if it has none."""

    @abstractmethod
    def tensor(self, name: str, key: str) -> torch.Tensor:
        """A state of a parameter. Keep it only until the next call."""

    def all_names(self) -> list[str]:
        """Names of all parameters, in the order of the groups."""
        return [name for group in self.names for name in group]


@contextlib.contextmanager
def optimizer_states(folder: Path, scratch: Path) -> Iterator[OptimizerStates]:
    """A context that gives the optimizer state of a checkpoint.

    Args:
        folder (`Path`): the checkpoint.
        scratch (`Path`): an empty folder, for as many bytes as the state has.

    Raises:
        `InputError`: there is none, or it is of a kind that cannot be converted.
    """
    shards, universal = zero_shards(folder), universal_folder(folder)
    if universal is not None:
        yield _Universal(folder, universal)
    elif shards is not None:
        try:
            write_universal(shards.folder, scratch / "universal")
        except InputError:
            raise
        except (KeyError, ValueError, RuntimeError, AssertionError, OSError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"{shards.folder}: DeepSpeed cannot convert it ({reason}); take another one") from error
        yield _Universal(folder, scratch / "universal")
    elif (folder / "optimizer.pt").is_file():
        yield _Numbered(folder)
    elif (folder / "optimizer.bin").is_file():
        yield _Named(folder)
    elif (folder / _SHARDED_OPTIMIZER).is_dir():
        yield _Sharded(folder)
    else:
        raise InputError(f"{folder}: has no optimizer state, so only --to hf is possible")


class _Saved(OptimizerStates):
    """A state in one file of `torch.save`."""

    def __init__(self, path: Path):
        self._file = SavedTensors(path)
        content = self._file.content()
        if not isinstance(content, dict) or not {"state", "param_groups"} <= content.keys():
            raise InputError(f"{path}: has no state and param_groups, so it is not that of an optimizer")
        self._params = [group["params"] for group in content["param_groups"]]
        self.groups = [
            {key: value for key, value in group.items() if key != "params"} for group in content["param_groups"]
        ]
        self._keys: dict[str, Any] = {}

    def kinds(self, name: str) -> dict[str, StateKind]:
        state = self._file.content()["state"].get(self._keys[name], {})
        return {key: StateKind(value.dtype, tuple(value.shape)) for key, value in state.items()}

    def tensor(self, name: str, key: str) -> torch.Tensor:
        size = self.kinds(name)[key].nbytes
        return self._file.content(size)["state"][self._keys[name]][key]


class _Named(_Saved):
    """The optimizer of FSDP2."""

    def __init__(self, folder: Path):
        super().__init__(folder / "optimizer.bin")
        self.names = self._params
        self._keys = {name: name for name in self.all_names()}


class _Numbered(_Saved):
    """The optimizer of plain data parallelism."""

    def __init__(self, folder: Path):
        super().__init__(folder / "optimizer.pt")
        self.names, _ = trained_parameters(folder)
        found, expected = [len(group) for group in self._params if group], [len(group) for group in self.names]
        if found != expected:
            raise InputError(
                f"{folder / 'optimizer.pt'}: has groups of {found} parameters, the model has {expected}; a checkpoint "
                "can be converted only if all weights are trained, with the optimizer settings in its identity.json"
            )
        numbers = [number for group in self._params for number in group]
        self._keys = dict(zip(self.all_names(), numbers, strict=True))
        self.groups = [group for group, params in zip(self.groups, self._params, strict=True) if params]


class _Sharded(OptimizerStates):
    """The shards of FSDP2."""

    has_weights = True

    def __init__(self, folder: Path):
        self._optimizer, self._weights = _Shards(folder / _SHARDED_OPTIMIZER), _Shards(folder / _SHARDED_WEIGHTS)
        found: dict[int, dict[str, Any]] = {}
        for key in self._optimizer.sizes:
            if key.startswith(_GROUPS):
                number, name = key.removeprefix(_GROUPS).split(".", 1)
                found.setdefault(int(number), {})[name] = self._optimizer.value(key)
        self.names = [found[number].pop("params", []) for number in sorted(found)]
        self.groups = [found[number] for number in sorted(found)]
        missing = next((name for name in self.all_names() if f"model.{name}" not in self._weights.sizes), None)
        if missing is not None or not self.all_names():
            raise InputError(f"{folder}: its shards have no weights called {missing or 'as in its optimizer'}")

    def kinds(self, name: str) -> dict[str, StateKind]:
        prefix, sizes = f"optimizer.state.{name}.", self._optimizer.sizes
        keys = [prefix + key for key in ("step", "exp_avg", "exp_avg_sq", "momentum_buffer") if prefix + key in sizes]
        return {key.removeprefix(prefix): self._optimizer.kind(key) for key in keys}

    def tensor(self, name: str, key: str) -> torch.Tensor:
        if key == WEIGHT:
            return self._weights.value(f"model.{name}").float()
        return self._optimizer.value(f"optimizer.state.{name}.{key}")


class _Shards:
    """A folder of `torch.distributed.checkpoint`.

    Attributes:
        sizes (`dict`): what is known of each entry, by its key.
    """

    def __init__(self, folder: Path):
        self._folder, self._reader = folder, FileSystemReader(folder)
        try:
            with only_data(folder / ".metadata"):
                metadata = self._reader.read_metadata()
            self.sizes = dict(metadata.state_dict_metadata)
            names = {one.relative_path for one in metadata.storage_data.values()}
        except InputError:
            raise
        except Exception as error:  # damaged pickles raise any
            raise InputError(f"{folder}: its .metadata cannot be read ({error}); take another checkpoint") from None
        for name in sorted(names, key=str):
            inside(folder, name, folder / ".metadata")

    def kind(self, key: str) -> StateKind:
        """Type and shape of a tensor."""
        return StateKind(self.sizes[key].properties.dtype, tuple(self.sizes[key].size))

    def value(self, key: str) -> Any:
        """A tensor, or what else is saved under a key."""
        is_tensor = isinstance(self.sizes[key], TensorStorageMetadata)
        found = {key: torch.empty(self.kind(key).shape, dtype=self.kind(key).dtype) if is_tensor else None}
        with only_data(self._folder), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as it should be
            load(found, storage_reader=self._reader, no_dist=True)
        return found[key]


class _Universal(OptimizerStates):
    """A checkpoint in DeepSpeed's universal format."""

    has_weights = True

    def __init__(self, folder: Path, universal: Path):
        self._folder = universal / "zero"
        self.names, self._shapes = trained_parameters(folder)
        saved = _load(self._folder / "optimizer_state.pt")
        inner = saved.get("optimizer_state_dict", {})
        groups = saved.get("param_groups") or inner["param_groups"]
        self.groups = [{key: value for key, value in group.items() if key != "params"} for group in groups]
        self._step = inner.get("state", {}).get(0, {}).get("step")
        if len(self.groups) != len(self.names) or not all((self._folder / name).is_dir() for name in self.all_names()):
            raise InputError(f"{folder}: its optimizer has other parameters than its model, so it is not converted")

    def kinds(self, name: str) -> dict[str, StateKind]:
        found = {path.stem: self.tensor(name, path.stem) for path in sorted((self._folder / name).glob("*.pt"))}
        if self._step is not None:
            found["step"] = self.tensor(name, "step")
        return {key: StateKind(value.dtype, tuple(value.shape)) for key, value in found.items() if key != WEIGHT}

    def tensor(self, name: str, key: str) -> torch.Tensor:
        path = self._folder / name / f"{key}.pt"
        if key == "step":
            step = _load(path) if path.is_file() else self._step
            return torch.as_tensor(step, dtype=torch.float32)
        saved = _load(path)
        # Flat, or a bare tensor, where the shards were those of stage 3.
        return (saved["param"] if isinstance(saved, dict) else saved).reshape(self._shapes[name])


def _load(path: Path) -> Any:
    try:
        return load_shard(path)
    except (RuntimeError, OSError) as error:
        raise InputError(f"{path}: cannot be read ({str(error).splitlines()[0]}); take another checkpoint") from None


def trained_parameters(folder: Path) -> tuple[list[list[str]], dict[str, torch.Size]]:
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
        raise InputError(f"{folder}: transformers cannot make its model ({str(error).splitlines()[0]})") from None
    identity = read_json(folder / IDENTITY_NAME) if (folder / IDENTITY_NAME).is_file() else {}
    settings = identity.get("settings", {})
    groups = parameter_groups(
        model,
        learning_rate=1.0,
        weight_decay=1.0,
        decayed=set(Trainer.get_decay_parameter_names(None, model)),
        factors=settings.get("learning_rate_factors"),
        matrices=matrix_names(model) if settings.get("matrix_optimizer") == "muon" else (),
    )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    return [[names[id(parameter)] for parameter in group["params"]] for group in groups], shapes
