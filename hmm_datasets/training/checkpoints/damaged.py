"""The checkpoint that a run is about to continue from, compared with its digests, and moved aside if it is damaged.

Only reading a file shows a bit that has flipped in it, so the first rank of each machine reads the checkpoint once. If
a file differs, rank 0 moves the checkpoint aside, and all ranks start the same command again (see
`hmm_datasets.runtime.program`), which continues from the newest whole one that is left.
"""

import os
from pathlib import Path

from accelerate.utils import gather_object

from ...errors import InputError, RolledBack
from ...files import DIGESTS_NAME, digest_problems
from ...runtime.events import append_event
from ...runtime.set_aside import set_aside
from ..run_context import RunContext
from .resuming import Start, possible_starts
from .rollback import decided_by_rank_zero


def check_whole(run: RunContext, start: Start) -> None:
    """Check that no file of a checkpoint has changed since it was written; to be called by all ranks.

    Raises:
        `RolledBack`: one has, the checkpoint is moved aside, and the same command continues from another one.
        `InputError`: one has, and there is no other checkpoint.
    """
    problems = digest_problems(start.folder) if os.environ.get("LOCAL_RANK", "0") == "0" else []
    seen = [problem for problem in gather_object([next(iter(problems), None)]) if problem is not None]
    if seen:
        line = decided_by_rank_zero(run, lambda: _move_aside(run, start, seen[0]))
        raise RolledBack(f"{line}: start the same command again to continue")


def _move_aside(run: RunContext, start: Start, problem: str) -> str:
    """Move a damaged checkpoint aside, if there is another one; returns the line that is printed."""
    folder, args = start.folder, run.args
    starts = possible_starts(args.output_dir, args.skipped_rows)
    other = next((at for at in starts if at.folder != folder and at.step <= start.step), None)
    if other is None:
        raise InputError(
            f"{folder / problem}; no other checkpoint is whole: delete {folder.name} to start anew, or its "
            f"{DIGESTS_NAME} to use it as it is"
        )
    aside = set_aside(folder.parent, [folder.name], f"damaged, so the run continues from {other.folder}")
    line = f"{folder} is damaged ({problem}): moved to {aside.folder}, the run continues from {other.folder}"
    append_event(Path(args.output_dir), "torn", line, step=start.step)
    run.say(line)
    return line
