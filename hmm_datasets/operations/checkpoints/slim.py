"""Fewer and smaller checkpoints: without what only resuming needs, and without storage that no tensor uses.

`torch.save` of a view writes the whole storage that the view looks into, so a checkpoint may be ten times the size of
its tensors. Files of `torch.save` are read as data only (`weights_only`), mapped into memory, and written anew if
their tensors need less than the file has.
"""

import copy
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ...compat.deepspeed import load_shard
from ...errors import InputError
from ...files import DIGESTS_NAME, atomic_file, digest_problems, read_json, size_of, write_digests, write_json
from ...runtime.run_identity import IDENTITY_NAME
from ...runtime.run_records import read_checkpoint_state
from ...runtime.set_aside import SetAside, changing
from ...training.checkpoints.inspection import has_optimizer, list_checkpoints, verify_checkpoint
from ...training.checkpoints.parts import MEGATRON, STATE_NAME, resuming_names, weight_names

_SAVED = ("*.pt", "*.pth", "*.bin")
_SMALL = 1_000_000  # smaller files are not looked at
_WORTHWHILE = 0.9  # a file is written anew if it becomes smaller than this share


@dataclass(frozen=True)
class SlimResult:
    """What slimming did to a checkpoint.

    Attributes:
        folder (`Path`): the checkpoint.
        before (`int`), after (`int`): its bytes.
        removed (`list` of `str`): what only resuming needs, no longer there.
        rewritten (`list` of `str`): files written anew without unused storage.
        unread (`list` of `str`): files that have more than data in them, left as they are.
    """

    folder: Path
    before: int
    after: int
    removed: list[str]
    rewritten: list[str]
    unread: list[str]


def slim(
    folders: Sequence[Path], *, resumable: Collection[Path] = (), pruned: Sequence[Path] = ()
) -> tuple[list[SlimResult], SetAside | None]:
    """Make checkpoints of a run smaller. What they lose, and the originals of files written anew, is moved aside.

    Args:
        folders (sequence of `Path`): folders `checkpoint-N` of a run, or `global_step*` of Megatron-DeepSpeed.
        resumable (collection of `Path`, *optional*): those of them that keep what resuming needs, of which bloated
            files are written anew only.
        pruned (sequence of `Path`, *optional*): other checkpoints of the run, which are moved aside whole.

    Returns:
        `tuple`: a [`SlimResult`] for each of `folders`, and what was moved aside, if anything was.

    Raises:
        `InputError`: a checkpoint is not complete, its files have changed, or its weights are only in files that
            resuming needs.
    """
    plans = [_planned(folder, folder in resumable) for folder in folders]
    changed = [plan for plan in plans if plan.removed or plan.rewritten]
    if not changed and not pruned:
        return plans, None
    removed = [f"{plan.folder.name}/{name}" for plan in changed for name in plan.removed]
    rewritten = [f"{plan.folder.name}/{name}" for plan in changed for name in (*plan.rewritten, *_records(plan))]
    run, names = folders[0].parent, [*(folder.name for folder in pruned), *removed, *rewritten]
    with changing(run, names, "slimmed" if changed else "pruned", rewritten=rewritten) as entry:
        for plan in changed:
            before = entry.folder / plan.folder.name
            for name in plan.rewritten:
                with atomic_file(plan.folder / name) as temporary:
                    torch.save(_compact(load_shard(before / name), {}), temporary)
            if (before / IDENTITY_NAME).is_file():
                write_json(plan.folder / IDENTITY_NAME, _without_writer(read_json(before / IDENTITY_NAME)))
            if (before / DIGESTS_NAME).is_file():
                write_digests(plan.folder)
    return [replace(plan, after=size_of(plan.folder)) for plan in plans], entry


def checkpoints_to_prune(run: str | os.PathLike, newest: int, every: int | None = None) -> list[Path]:
    """The checkpoints of a run that are not to be kept, newest first.

    Kept are the newest complete ones, those of every so many steps, the one that the run itself calls its best, and
    always the newest one that the run can resume from.

    Args:
        run (path): folder of the run.
        newest (`int`): how many of the newest complete checkpoints are kept.
        every (`int`, *optional*): those at steps divisible by this are kept too.

    Raises:
        `InputError`: the run has no complete checkpoint.
    """
    reports = list_checkpoints(run)
    complete = [report for report in reports if report.ok]
    if not complete:
        raise InputError(
            f"{run}: has no complete checkpoint-N to keep; hmm-datasets checkpoint list {run} prints what it has"
        )
    kept = {report.step for report in complete[:newest]}
    kept |= {next((report.step for report in complete if has_optimizer(report.folder)), complete[0].step)}
    kept |= {report.step for report in complete if every is not None and report.step % every == 0}
    kept.add(read_checkpoint_state(complete[0].folder / STATE_NAME).best_global_step)
    return [report.folder for report in reports if report.step not in kept]


def _planned(folder: Path, is_resumable: bool) -> SlimResult:
    """What is to be done to a checkpoint."""
    is_of_megatron = any(folder.glob(MEGATRON))
    problems = (() if is_of_megatron else verify_checkpoint(folder).problems) or digest_problems(folder)
    if problems:
        raise InputError(f"{folder}: {problems[0]}; a damaged checkpoint is not made smaller, move it away instead")
    removed = [] if is_resumable else resuming_names(folder)
    if removed and not weight_names(folder) and not is_of_megatron:
        raise InputError(
            f"{folder}: its weights are only in the shards that resuming needs; write them to a folder first: "
            f"hmm-datasets checkpoint convert {folder} {folder}-hf --to hf"
        )
    size = size_of(folder)
    return SlimResult(folder, size, size, removed, *_bloated(folder, removed))


def _records(plan: SlimResult) -> list[str]:
    """The records of a checkpoint that no longer hold once it is slimmed."""
    names = ([IDENTITY_NAME] if plan.removed else []) + [DIGESTS_NAME]
    return [name for name in names if (plan.folder / name).is_file()]


def _without_writer(identity: dict[str, Any]) -> dict[str, Any]:
    """The identity of a checkpoint that has no files of ranks any more."""
    writer = identity.pop("written_by", None)
    return identity if writer is None else identity | {"slimmed_from": writer}


def _bloated(folder: Path, removed: list[str]) -> tuple[list[str], list[str]]:
    """Files whose tensors need less than they have, and files that cannot be read as data."""
    bloated, unread = [], []
    for path in sorted({path for pattern in _SAVED for path in folder.rglob(pattern)}):
        name = path.relative_to(folder).as_posix()
        if name.split("/")[0] in removed or path.stat().st_size < _SMALL:
            continue
        try:
            if _bytes_needed(load_shard(path)) < _WORTHWHILE * path.stat().st_size:
                bloated.append(name)
        except (InputError, RuntimeError):
            unread.append(name)
    return bloated, unread


def _key(tensor: torch.Tensor) -> tuple:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _bytes_needed(content: Any) -> int:
    tensors: dict[tuple, int] = {}
    _visit(content, lambda tensor: tensors.setdefault(_key(tensor), tensor.nbytes))
    return sum(tensors.values())


def _visit(content: Any, look: Callable[[torch.Tensor], Any]) -> None:
    if torch.is_tensor(content):
        look(content)
    elif isinstance(content, dict):
        for value in content.values():
            _visit(value, look)
    elif isinstance(content, list | tuple):
        for value in content:
            _visit(value, look)


def _compact(content: Any, seen: dict[tuple, torch.Tensor]) -> Any:
    """The same content, with each tensor in a storage of its own; equal views stay one tensor."""
    if torch.is_tensor(content):
        return seen.setdefault(_key(content), content.clone(memory_format=torch.contiguous_format))
    if isinstance(content, dict):
        kept = copy.copy(content)  # of the same type, which may be ordered
        for key, value in content.items():
            kept[key] = _compact(value, seen)
        return kept
    if isinstance(content, list):
        return [_compact(value, seen) for value in content]
    if isinstance(content, tuple):
        return tuple(_compact(value, seen) for value in content)
    return content
