"""Fewer and smaller checkpoints: without what only resuming needs, and without old ones."""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...files import DIGESTS_NAME, digest_problems, read_json, size_of, write_digests, write_json
from ...runtime.run_identity import IDENTITY_NAME
from ...runtime.run_records import read_checkpoint_state
from ...runtime.set_aside import SetAside, changing
from ...training.checkpoints.inspection import has_optimizer, list_checkpoints, verify_checkpoint
from ...training.checkpoints.parts import STATE_NAME, resuming_names, weight_names


@dataclass(frozen=True)
class SlimResult:
    """What slimming did to a checkpoint.

    Attributes:
        folder (`Path`): the checkpoint.
        before (`int`), after (`int`): its bytes.
        removed (`list` of `str`): what only resuming needs, no longer there.
    """

    folder: Path
    before: int
    after: int
    removed: list[str]


def slim(
    folders: Sequence[Path], *, resumable: Collection[Path] = (), pruned: Sequence[Path] = ()
) -> tuple[list[SlimResult], SetAside | None]:
    """Make checkpoints of a run smaller. What they lose is moved aside.

    Args:
        folders (sequence of `Path`): folders `checkpoint-N` of a run.
        resumable (collection of `Path`, *optional*): those of them that stay as they are.
        pruned (sequence of `Path`, *optional*): other checkpoints of the run, which are moved aside whole.

    Returns:
        `tuple`: a [`SlimResult`] for each of `folders`, and what was moved aside, if anything was.

    Raises:
        `InputError`: a checkpoint is not complete, its files have changed, or its weights are only in files that
            resuming needs.
    """
    plans = [_planned(folder, folder in resumable) for folder in folders]
    changed = [plan for plan in plans if plan.removed]
    if not changed and not pruned:
        return plans, None
    removed = [f"{plan.folder.name}/{name}" for plan in changed for name in plan.removed]
    rewritten = [f"{plan.folder.name}/{name}" for plan in changed for name in _records(plan)]
    run, names = folders[0].parent, [*(folder.name for folder in pruned), *removed, *rewritten]
    with changing(run, names, "slimmed" if changed else "pruned", rewritten=rewritten) as entry:
        for plan in changed:
            before = entry.folder / plan.folder.name
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
    problems = verify_checkpoint(folder).problems or digest_problems(folder)
    if problems:
        raise InputError(f"{folder}: {problems[0]}; a damaged checkpoint is not made smaller, move it away instead")
    removed = [] if is_resumable else resuming_names(folder)
    if removed and not weight_names(folder):
        raise InputError(
            f"{folder}: its weights are only in the shards that resuming needs; write them to a folder first: "
            f"hmm-datasets checkpoint convert {folder} {folder}-hf --to hf"
        )
    size = size_of(folder)
    return SlimResult(folder, size, size, removed)


def _records(plan: SlimResult) -> list[str]:
    """The records of a checkpoint that no longer hold once it is slimmed."""
    return [name for name in (IDENTITY_NAME, DIGESTS_NAME) if (plan.folder / name).is_file()]


def _without_writer(identity: dict[str, Any]) -> dict[str, Any]:
    """The identity of a checkpoint that has no files of ranks any more."""
    writer = identity.pop("written_by", None)
    return identity if writer is None else identity | {"slimmed_from": writer}
