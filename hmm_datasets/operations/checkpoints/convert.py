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

So a checkpoint is rewritten for another framework, or as a model for `from_pretrained`, on the CPU. Weights,
optimizer, schedule, random numbers, the Trainer's state and the identity of the run are kept, so the run continues
under the other framework with the losses that it would have had. No process group is made. Memory holds some 64 MB of
tensors at a time; the shards of ZeRO are read whole, one after the other, and need as much disk again while they are
converted.

A checkpoint for ZeRO is written in DeepSpeed's universal format (Lian et al., "Universal Checkpointing", 2024, arXiv
2406.18820), which every stage and any number of processes can load.
"""

import contextlib
import os
import shutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint import FileSystemReader, TensorStorageMetadata, load
from transformers import CONFIG_NAME, AutoConfig, AutoModelForCausalLM, AutoTokenizer, Trainer

from ...compat.deepspeed import load_shard, universal_model_state, universal_optimizer_state, write_universal
from ...compat.torch import data_only
from ...compat.transformers import SCHEDULER_NAME
from ...errors import InputError, first_line
from ...files import (
    atomic_folder,
    digest_problems,
    inside,
    scratch_folder,
    tidy,
    write_digests,
    write_json,
    write_jsonl,
)
from ...hub.download import ModelName
from ...records import as_record
from ...runtime.run_identity import IDENTITY_NAME, read_identity
from ...runtime.run_records import read_checkpoint_state, read_history
from ...training.checkpoints.frameworks import FRAMEWORKS
from ...training.checkpoints.parts import STATE_NAME, UNIVERSAL_NAME, companion_names, not_deleted, weight_names
from ...training.checkpoints.verifying import Writer, universal_folder, verify_checkpoint, zero_shards
from ...training.optimizers import matrix_names, parameter_groups
from ...training.pretrained import load_pretrained
from ...training.record import HISTORY_NAME, RECORD_NAME
from .saved_tensors import SavedTensors, save_tensors
from .weights import WEIGHTS_NAME, TensorKind, Weights, write_weights

_SHARDED_OPTIMIZER, _SHARDED_WEIGHTS = "optimizer_0", "pytorch_model_fsdp_0"
_GROUPS = "optimizer.param_groups."

WEIGHT = "fp32"
"""Name of a parameter's float32 weights beside the names of its states, as DeepSpeed calls them."""

_RUN_RECORDS = (RECORD_NAME, "plan.json", "summary.json", "README.md", ".lock")


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
            reason = first_line(error)
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
            with data_only(folder / ".metadata"):
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
        with data_only(self._folder), warnings.catch_warnings():
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
        raise InputError(f"{path}: cannot be read ({first_line(error)}); take another checkpoint") from None


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
        raise InputError(f"{folder}: transformers cannot make its model ({first_line(error)})") from None
    identity = read_identity(folder)
    settings = identity.get("settings", {})
    groups = parameter_groups(
        model,
        learning_rate=1.0,
        weight_decay=1.0,
        decayed=set(Trainer.get_decay_parameter_names(None, model)),
        factors=settings.get("learning_rate_factors"),
        matrices=matrix_names(model) if settings.get("optimizer") == "muon" else (),
    )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    return [[names[id(parameter)] for parameter in group["params"]] for group in groups], shapes


def convert(checkpoint: str | os.PathLike, destination: str | os.PathLike, to: str) -> Path:
    """Convert a checkpoint.

    Args:
        checkpoint (path): `checkpoint-N` of a run; with `hf` also the name of a GGUF file.
        destination (path): with `hf`, the folder of the model; else the folder of a run, or `checkpoint-N` in it.
        to (`str`): `hf`, `plain`, `zero` or `fsdp`.

    Returns:
        `Path`: the folder that was written.

    Raises:
        `InputError`: the checkpoint is damaged or of a kind that cannot be converted, or the destination exists.
    """
    folder, target = Path(checkpoint), Path(destination)
    if ModelName.parse(checkpoint).gguf_file is not None:
        return _convert_gguf(os.fspath(checkpoint), target, to)
    problems = verify_checkpoint(folder).problems or digest_problems(folder)
    if problems:
        raise InputError(f"{folder}: {problems[0]}; convert another checkpoint")
    if to != "hf" and target.name != folder.resolve().name:
        target = target / folder.resolve().name
    if target.exists():
        tidy(target.parent)  # of a process that was killed when it had just finished
        raise InputError(f"{target}: exists; give another folder to convert {folder} to")
    with not_deleted(folder), scratch_folder(target) as scratch, atomic_folder(target, replace=False) as temporary:
        _write_companions(folder, temporary)
        if to == "hf":
            _write_model(folder, temporary, scratch)
        else:
            _write_checkpoint(folder, temporary, scratch, to)
        write_digests(temporary)
    if to != "hf":
        _write_history(folder.resolve().parent, target)
        problems = verify_checkpoint(target).problems
        if problems:
            raise InputError(f"{target}: {problems[0]} after writing; delete it, and convert with more free space")
    return target


def _convert_gguf(name: str, target: Path, to: str) -> Path:
    """Write the model and tokenizer of a GGUF file as a folder of transformers, with float32 weights."""
    if to != "hf" or target.exists():
        fault = (
            f"{target}: exists; give another folder" if to == "hf" else f"--to {to}: takes a checkpoint; use --to hf"
        )
        raise InputError(f"{fault} to convert {name} to")
    model, tokenizer = (load_pretrained(kind, name) for kind in (AutoModelForCausalLM, AutoTokenizer))
    with atomic_folder(target, replace=False) as temporary:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        write_digests(temporary)
    return target


def _write_companions(folder: Path, target: Path) -> None:
    """Copy configuration and tokenizer; FSDP's shards have none beside them, so they are those of the run."""
    run = folder.resolve().parent
    source = run if not (folder / CONFIG_NAME).is_file() and (run / CONFIG_NAME).is_file() else folder
    for name in companion_names(source):
        if source == folder or (name not in _RUN_RECORDS and not name.endswith(".jsonl")):
            shutil.copyfile(source / name, target / name)
    if (target / CONFIG_NAME).is_file() or (folder / "adapter_config.json").is_file():
        return
    identity = read_identity(folder)
    if "model" not in identity:
        raise InputError(f"{folder}: has no {CONFIG_NAME}; copy the one of its model there")
    AutoConfig.for_model(**identity["model"]).save_pretrained(target)


def _write_model(folder: Path, target: Path, scratch: Path) -> None:
    """Copy the weights, or gather them from the shards of ZeRO."""
    names = weight_names(folder)
    for name in names:
        shutil.copyfile(folder / name, target / name)
    if not names:
        with optimizer_states(folder, scratch) as states:
            _gather_weights(folder, target, states)


def _gather_weights(folder: Path, target: Path, states: OptimizerStates) -> None:
    """Write the float32 weights that are part of the optimizer's state."""
    if not states.has_weights:
        raise InputError(
            f"{folder}: has no model.safetensors, and no weights in its optimizer state; take another one"
        )
    kinds = {name: TensorKind(torch.float32, tuple(_weight(states, name).shape)) for name in states.all_names()}
    write_weights(target, {WEIGHTS_NAME: list(kinds)}, kinds, lambda name: _weight(states, name))


def _write_checkpoint(folder: Path, target: Path, scratch: Path, to: str) -> None:
    of_ranks = [path.name for pattern in ("rng_state*.pth", "rollout_*.pt") for path in folder.glob(pattern)]
    for name in (STATE_NAME, SCHEDULER_NAME, *of_ranks):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, target / name)
    with optimizer_states(folder, scratch) as states:
        _write_float_weights(folder, target, states)
        writer = {"plain": _write_numbered, "fsdp": _write_named, "zero": _write_universal}[to]
        writer(target, states)
    path = folder / IDENTITY_NAME
    if path.is_file():
        identity = read_identity(folder)
        before = identity.get("written_by", {})
        now = {"framework": FRAMEWORKS[to], "processes": as_record(before, Writer, path).processes}
        write_json(target / IDENTITY_NAME, identity | {"written_by": now | {"converted_from": before}})


def _write_float_weights(folder: Path, target: Path, states: OptimizerStates) -> None:
    """Write the weights, in float32 where the optimizer has them so."""
    if not weight_names(folder):
        _gather_weights(folder, target, states)
        return
    weights = Weights(folder)
    exact = {*states.all_names()} & weights.kinds.keys() if states.has_weights else set()
    kinds = {
        name: TensorKind(torch.float32, kind.shape) if name in exact else kind for name, kind in weights.kinds.items()
    }
    with weights.reader() as read:
        write_weights(
            target,
            weights.files,
            kinds,
            lambda name: _weight(states, name) if name in exact else read(name),
        )


def _weight(states: OptimizerStates, name: str) -> torch.Tensor:
    return states.tensor(name, WEIGHT)


def _write_numbered(target: Path, states: OptimizerStates) -> None:
    numbers = {name: number for number, name in enumerate(states.all_names())}
    _write_saved(target / "optimizer.pt", states, numbers)


def _write_named(target: Path, states: OptimizerStates) -> None:
    _write_saved(target / "optimizer.bin", states, {name: name for name in states.all_names()})


def _write_saved(path: Path, states: OptimizerStates, keys: dict[str, Any]) -> None:
    """Write the state as one file, with parameters called by `keys`."""
    kinds = {name: states.kinds(name) for name in states.all_names()}
    groups = [
        group | {"params": [keys[name] for name in names]}
        for group, names in zip(states.groups, states.names, strict=True)
    ]
    skeleton = {
        "state": {
            keys[name]: {key: torch.empty(kind.shape, dtype=kind.dtype) for key, kind in found.items()}
            for name, found in kinds.items()
            if found
        },
        "param_groups": groups,
    }

    def fill(saved: SavedTensors) -> None:
        for name, found in kinds.items():
            for key, kind in found.items():
                saved.content(kind.nbytes)["state"][keys[name]][key].copy_(states.tensor(name, key))

    save_tensors(path, skeleton, fill)


def _write_universal(target: Path, states: OptimizerStates) -> None:
    """Write the state in DeepSpeed's universal format."""
    steps = {name: _adamw_step(states, name) for name in states.all_names()}
    step = next(iter(steps.values()))
    other = next((name for name, found in steps.items() if found is None or found != step), None)
    if step is None or other is not None:
        raise InputError(
            f"its optimizer is not AdamW with one number of steps for all weights ({other}), as DeepSpeed's ZeRO "
            "needs; continue under plain data parallelism or FSDP"
        )
    number = read_checkpoint_state(target / STATE_NAME).global_step
    tag = f"global_step{number}_universal"
    universal = target / tag
    (universal / "zero").mkdir(parents=True)
    weights = Weights(target)
    with weights.reader() as read:
        for name in states.all_names():
            if name not in weights.kinds:
                raise InputError(f"{weights.folder}: has no weights called {name}, as its optimizer does")
            folder = inside(universal / "zero", name, weights.folder)
            folder.mkdir()
            torch.save({"param": read(name).float()}, folder / f"{WEIGHT}.pt")
            for key in ("exp_avg", "exp_avg_sq"):
                torch.save({"param": states.tensor(name, key).float().clone()}, folder / f"{key}.pt")
            torch.save(torch.tensor(step), folder / "step.pt")
    torch.save(universal_optimizer_state(states.groups, step), universal / "zero" / "optimizer_state.pt")
    schedule = target / SCHEDULER_NAME
    schedule_state = torch.load(schedule, weights_only=True) if schedule.is_file() else None
    state = universal_model_state(number, schedule_state)
    # Stages 1 and 2 read the first file, stage 3 the second.
    for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"):
        torch.save(state, universal / name)
    (target / UNIVERSAL_NAME).write_text(tag, encoding="utf-8")


def _adamw_step(states: OptimizerStates, name: str) -> float | None:
    """The number of steps that AdamW has done for a parameter; None if its state is not that of AdamW."""
    if states.kinds(name).keys() != {"step", "exp_avg", "exp_avg_sq"}:
        return None
    return float(states.tensor(name, "step"))


def _write_history(source: Path, checkpoint: Path) -> None:
    """Give a new run the history of the one before, up to the checkpoint."""
    path, step = checkpoint.parent / HISTORY_NAME, read_checkpoint_state(checkpoint / STATE_NAME).global_step
    if (source / HISTORY_NAME).is_file() and not path.exists():
        write_jsonl(path, [row for row in read_history(source / HISTORY_NAME) if row.get("step", step + 1) <= step])
