"""Which checkpoints of a run to keep, and which to move aside.

Kept are the newest complete ones, those of every so many steps, the one that the run itself calls its best, and always
the newest one that the run can resume from.
"""

import os
from pathlib import Path

from ...errors import InputError
from ...runtime.run_records import read_checkpoint_state
from ...training.checkpoints.parts import STATE_NAME
from .listing import CheckpointInfo, list_run


def checkpoints_to_prune(run: str | os.PathLike, newest: int, every: int | None = None) -> list[CheckpointInfo]:
    """The checkpoints of a run that are not to be kept, newest first.

    Args:
        run (path): folder of the run.
        newest (`int`): how many of the newest complete checkpoints are kept.
        every (`int`, *optional*): those at steps divisible by this are kept too.

    Raises:
        `InputError`: the run has no complete checkpoint.
    """
    run = Path(run)
    checkpoints = [info for info in list_run(run) if info.set_aside is None]
    complete = [info for info in checkpoints if not info.problems]
    if not complete:
        raise InputError(
            f"{run}: has no complete checkpoint to keep, so none is pruned; hmm-datasets checkpoint list {run} prints "
            "what is wrong with them"
        )
    kept = {info.step for info in complete[:newest]}
    kept |= {next((info.step for info in complete if info.can_resume), complete[0].step)}
    if every is not None:
        kept |= {info.step for info in complete if info.step % every == 0}
    kept.add(read_checkpoint_state(run / f"checkpoint-{complete[0].step}" / STATE_NAME).best_global_step)
    return [info for info in checkpoints if info.step not in kept]
