"""A checkpoint rewritten for another framework, or as a model for `from_pretrained`, on the CPU.

Weights, optimizer, schedule, random numbers, the Trainer's state and the identity of the run are kept, so the run
continues under the other framework with the losses that it would have had. No process group is made. Tensors are
mapped from files; shards are read whole, and need as much disk again while they are converted.

A checkpoint for ZeRO is written in DeepSpeed's universal format (Lian et al., "Universal Checkpointing", 2024, arXiv
2406.18820), which every stage and any number of processes can load.
"""

import os
import shutil
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from torch import Tensor
from transformers import CONFIG_NAME, AutoConfig

from ...compat.deepspeed import universal_model_state, universal_optimizer_state
from ...compat.transformers import SCHEDULER_NAME
from ...errors import InputError
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
from ...records import as_record
from ...runtime.run_identity import IDENTITY_NAME, read_identity
from ...runtime.run_records import read_checkpoint_state, read_history
from ...training.checkpoints.frameworks import FRAMEWORKS
from ...training.checkpoints.inspection import Writer, verify_checkpoint
from ...training.checkpoints.parts import (
    MEGATRON,
    STATE_NAME,
    UNIVERSAL_NAME,
    companion_names,
    not_deleted,
    weight_names,
)
from ...training.record import HISTORY_NAME, RECORD_NAME
from .megatron import convert_megatron
from .optimizer_state import WEIGHT, OptimizerState, read_optimizer_state
from .weights import read_weights

_RUN_RECORDS = (RECORD_NAME, "plan.json", "summary.json", "README.md", ".lock")


def convert(checkpoint: str | os.PathLike, destination: str | os.PathLike, to: str) -> Path:
    """Convert a checkpoint.

    Args:
        checkpoint (path): `checkpoint-N` of a run; with `hf` also a folder `global_step*` of Megatron-DeepSpeed.
        destination (path): with `hf` the folder of the model; else the folder of a run, or `checkpoint-N` in it.
        to (`str`): `hf`, `plain`, `zero` or `fsdp`.

    Returns:
        `Path`: the folder that was written.

    Raises:
        `InputError`: the checkpoint is damaged or of a kind that cannot be converted, or the destination exists.
    """
    folder, target = Path(checkpoint), Path(destination)
    is_of_megatron, is_model = any(folder.glob(MEGATRON)), to == "hf"
    if is_of_megatron and not is_model:
        raise InputError(f"--to {to}: takes a checkpoint of a run; use --to hf to convert {folder}")
    if not is_model and target.name != folder.resolve().name:
        target = target / folder.resolve().name
    if target.exists():
        tidy(target.parent)  # of a process that was killed when it had just finished
        raise InputError(f"{target}: exists; give another folder to convert {folder} to")
    if is_of_megatron:
        return convert_megatron(folder, target)
    problems = verify_checkpoint(folder).problems or digest_problems(folder)
    if problems:
        raise InputError(f"{folder}: {problems[0]}; convert another checkpoint")
    with not_deleted(folder), scratch_folder(target) as scratch, atomic_folder(target, replace=False) as temporary:
        _write_companions(folder, temporary)
        if not is_model:
            _write_checkpoint(folder, temporary, scratch, to)
        elif names := weight_names(folder):
            for name in names:
                shutil.copyfile(folder / name, temporary / name)
        else:
            _write_weights(folder, temporary, read_optimizer_state(folder, scratch))
        write_digests(temporary)
    if not is_model:
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
    identity = read_identity(folder)
    if "model" not in identity:
        raise InputError(f"{folder}: has no {CONFIG_NAME}; copy the one of its model there")
    AutoConfig.for_model(**identity["model"]).save_pretrained(target)


def _write_checkpoint(folder: Path, target: Path, scratch: Path, to: str) -> None:
    of_ranks = [path.name for pattern in ("rng_state*.pth", "rollout_*.pt") for path in folder.glob(pattern)]
    for name in (STATE_NAME, SCHEDULER_NAME, *of_ranks):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, target / name)
    state = read_optimizer_state(folder, scratch)
    weights = _write_weights(folder, target, state)
    if to == "zero":
        _write_universal(target, state, weights)
    else:
        is_named = to == "fsdp"
        keys = {name: name if is_named else number for number, name in enumerate(state.all_names)}
        groups = [
            group | {"params": [keys[name] for name in names]}
            for group, names in zip(state.groups, state.names, strict=True)
        ]
        states = {keys[name]: state.states[name] for name in state.all_names if name in state.states}
        torch.save(
            {"state": states, "param_groups": groups}, target / ("optimizer.bin" if is_named else "optimizer.pt")
        )
    path = folder / IDENTITY_NAME
    if path.is_file():
        identity = read_identity(folder)
        before = identity.get("written_by", {})
        now = {"framework": FRAMEWORKS[to], "processes": as_record(before, Writer, path).processes}
        write_json(target / IDENTITY_NAME, identity | {"written_by": now | {"converted_from": before}})


def _write_weights(folder: Path, target: Path, state: OptimizerState) -> dict[str, Tensor]:
    """Write the weights, in float32 where the optimizer has them so."""
    weights = read_weights(folder) if weight_names(folder) else dict(state.weights)
    if not weights:
        raise InputError(
            f"{folder}: has no model.safetensors, and no weights in its optimizer state; take another one"
        )
    weights |= {name: weight for name, weight in state.weights.items() if name in weights}
    save_torch_state_dict(weights, target)
    return weights


def _write_universal(target: Path, state: OptimizerState, weights: dict[str, Tensor]) -> None:
    """Write the state in DeepSpeed's universal format."""
    steps = {name: _adamw_step(state, name) for name in state.all_names}
    step = next(iter(steps.values()))
    other = next((name for name, count in steps.items() if count is None or count != step), None)
    if step is None or other is not None:
        raise InputError(
            f"its optimizer is not AdamW with one number of steps for all weights ({other}), as DeepSpeed's ZeRO "
            "needs; continue under plain data parallelism or FSDP"
        )
    number = read_checkpoint_state(target / STATE_NAME).global_step
    tag = f"global_step{number}_universal"
    universal = target / tag
    (universal / "zero").mkdir(parents=True)
    for name in state.all_names:
        if name not in weights:
            raise InputError(f"{target}: has no weights called {name}, as its optimizer does")
        folder = inside(universal / "zero", name, target)
        folder.mkdir()
        for key, value in {WEIGHT: weights[name], **state.states[name]}.items():
            content = torch.tensor(step) if key == "step" else {"param": value.float().clone()}
            torch.save(content, folder / f"{key}.pt")
    torch.save(universal_optimizer_state(state.groups, step), universal / "zero" / "optimizer_state.pt")
    schedule = target / SCHEDULER_NAME
    schedule_state = torch.load(schedule, weights_only=True) if schedule.is_file() else None
    model_state = universal_model_state(number, schedule_state)
    # Stages 1 and 2 read the first file, stage 3 the second.
    for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"):
        torch.save(model_state, universal / name)
    (target / UNIVERSAL_NAME).write_text(tag, encoding="utf-8")


def _adamw_step(state: OptimizerState, name: str) -> float | None:
    """The number of steps that AdamW has done for a parameter; None if its state is not that of AdamW."""
    values = state.states.get(name, {})
    return float(values["step"]) if values.keys() == {"step", "exp_avg", "exp_avg_sq"} else None


def _write_history(source: Path, checkpoint: Path) -> None:
    """Give a new run the history of the one before, up to the checkpoint."""
    path, step = checkpoint.parent / HISTORY_NAME, read_checkpoint_state(checkpoint / STATE_NAME).global_step
    if (source / HISTORY_NAME).is_file() and not path.exists():
        write_jsonl(path, [row for row in read_history(source / HISTORY_NAME) if row.get("step", step + 1) <= step])
