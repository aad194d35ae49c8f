"""Which checkpoints of a run to keep, and which to move aside.

Kept are the newest complete ones, those of every so many steps, the best by a metric, the one that the run itself
calls its best, and always the newest one that the run can resume from.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError
from ...records import is_record
from ...runtime.run_records import read_checkpoint_state, read_history
from ...training.checkpoints.parts import STATE_NAME
from ...training.record import HISTORY_NAME
from .listing import CheckpointInfo, list_run


@dataclass(frozen=True)
class Keep:
    """What to keep.

    Attributes:
        newest (`int`): number of the newest complete checkpoints.
        every (`int`, *optional*): steps divisible by this are kept too.
        best (`str`, *optional*): name of a metric in the history; the checkpoint with its best value is kept too.
        greater_is_better (`bool`): whether the largest value is the best, not the smallest.
    """

    newest: int
    every: int | None = None
    best: str | None = None
    greater_is_better: bool = False


def checkpoints_to_prune(run: str | os.PathLike, keep: Keep) -> list[CheckpointInfo]:
    """The checkpoints of a run that are not to be kept, newest first.

    Raises:
        `InputError`: the run has no complete checkpoint, or the metric was not recorded at the step of any.
    """
    run = Path(run)
    checkpoints = [info for info in list_run(run) if info.set_aside is None]
    complete = [info for info in checkpoints if not info.problems]
    if not complete:
        raise InputError(
            f"{run}: has no complete checkpoint to keep, so none is pruned; hmm-datasets checkpoint list {run} prints "
            "what is wrong with them"
        )
    kept = {info.step for info in complete[: keep.newest]}
    kept |= {next((info.step for info in complete if info.can_resume), complete[0].step)}
    if keep.every is not None:
        kept |= {info.step for info in complete if info.step % keep.every == 0}
    if keep.best is not None:
        kept.add(_best(run, complete, keep.best, keep.greater_is_better))
    kept.add(read_checkpoint_state(run / f"checkpoint-{complete[0].step}" / STATE_NAME).best_global_step)
    return [info for info in checkpoints if info.step not in kept]


def _best(run: Path, complete: list[CheckpointInfo], metric: str, greater_is_better: bool) -> int:
    path = run / HISTORY_NAME
    rows = read_history(path) if path.is_file() else []
    steps = {info.step for info in complete}
    values = {row["step"]: row[metric] for row in rows if "step" in row and is_record(row.get(metric), float)}
    values = {step: value for step, value in values.items() if step in steps and math.isfinite(value)}
    if not values:
        names = {
            name for row in rows if row.get("step") in steps for name, value in row.items() if isinstance(value, float)
        }
        raise InputError(
            f"--keep_best {metric}: {path} has no value of it at the step of a checkpoint; it has "
            f"{', '.join(sorted(names)) or 'none at all'}"
        )
    return (max if greater_is_better else min)(values, key=values.__getitem__)
