"""A checkpoint rewritten for another framework, or as a model for `from_pretrained`, on the CPU.

Weights, optimizer, schedule, random numbers, the Trainer's state and the identity of the run are kept, so the run
continues under the other framework with the losses that it would have had. No process group is made. Memory holds some
64 MB of tensors at a time; the shards of ZeRO are read whole, one after the other, and need as much disk again while
they are converted.

A checkpoint for ZeRO is written in DeepSpeed's universal format (Lian et al., "Universal Checkpointing", 2024, arXiv
2406.18820), which every stage and any number of processes can load.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_NAME, AutoConfig

from ...compat.deepspeed import universal_model_state, universal_optimizer_state
from ...compat.transformers import SCHEDULER_NAME
from ...digests import digest_problems, write_digests
from ...errors import InputError
from ...files import atomic_folder, inside, read_json, read_log, scratch_folder, write_json, write_jsonl
from ...identity import IDENTITY_NAME
from ..record import HISTORY_NAME, RECORD_NAME
from .frameworks import FRAMEWORKS
from .inspection import STATE_NAME, UNIVERSAL_NAME, verify_checkpoint
from .optimizer_states import WEIGHT, OptimizerStates, optimizer_states
from .parts import companion_names, not_deleted, weight_names
from .saved_tensors import SavedTensors, save_tensors
from .weights import WEIGHTS_NAME, TensorKind, Weights, write_weights

_RUN_RECORDS = (RECORD_NAME, "plan.json", "summary.json", "README.md", ".lock")


def convert(checkpoint: str | os.PathLike, destination: str | os.PathLike, to: str) -> Path:
    """Convert a checkpoint.

    Args:
        checkpoint (path): `checkpoint-N` of a run.
        destination (path): with `hf`, the folder of the model; else the folder of a run, or `checkpoint-N` in it.
        to (`str`): `hf`, `plain`, `zero` or `fsdp`.

    Returns:
        `Path`: the folder that was written.

    Raises:
        `InputError`: the checkpoint is damaged or of a kind that cannot be converted, or the destination exists.
    """
    folder, target = Path(checkpoint), Path(destination)
    problems = verify_checkpoint(folder).problems or digest_problems(folder)
    if problems:
        raise InputError(f"{folder}: {problems[0]}; convert another checkpoint")
    if to != "hf" and target.name != folder.resolve().name:
        target = target / folder.resolve().name
    if target.exists():
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


def _write_companions(folder: Path, target: Path) -> None:
    """Copy configuration and tokenizer; FSDP's shards have none beside them, so they are those of the run."""
    run = folder.resolve().parent
    source = run if not (folder / CONFIG_NAME).is_file() and (run / CONFIG_NAME).is_file() else folder
    for name in companion_names(source):
        if source == folder or (name not in _RUN_RECORDS and not name.endswith(".jsonl")):
            shutil.copyfile(source / name, target / name)
    if (target / CONFIG_NAME).is_file() or (folder / "adapter_config.json").is_file():
        return
    identity = read_json(folder / IDENTITY_NAME) if (folder / IDENTITY_NAME).is_file() else {}
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
        identity = read_json(path)
        before = identity.get("written_by", {})
        now = {"framework": FRAMEWORKS[to], "processes": before.get("processes", 1)}
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
    number = read_json(target / STATE_NAME)["global_step"]
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
    path, step = checkpoint.parent / HISTORY_NAME, read_json(checkpoint / STATE_NAME)["global_step"]
    if (source / HISTORY_NAME).is_file() and not path.exists():
        write_jsonl(path, [row for row in read_log(source / HISTORY_NAME) if row.get("step", step + 1) <= step])
