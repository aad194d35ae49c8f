"""The checkpoints that a start of a run leaves behind, moved aside before the first step.

A run continues from the newest whole checkpoint that its budget allows, or from none with `resume: false`. Those of
later steps are damaged, or belong to a course that the run now leaves. Left in place they would count as the newest
ones: `save_total_limit` would keep them and delete the new ones, and the next start would continue from them.
"""

from pathlib import Path

from ...runtime.set_aside import SetAside, set_aside
from ..callbacks.samples import SAMPLES_NAME
from ..record import HISTORY_NAME, RECORD_NAME
from .inspection import list_steps
from .resuming import Start, start_problems

# What records a run or is its result; other files in the folder may be its data.
_RUN_FILES = (
    *(RECORD_NAME, "identity.json", "plan.json", "summary.json", HISTORY_NAME, SAMPLES_NAME),
    *("digests.json", "*.safetensors", "*.safetensors.index.json", "plots"),
)


def archive_newer(run: Path, start: Start | None) -> SetAside | None:
    """Move aside the checkpoints after the one that a run starts from; without one, all that the run before left.

    Args:
        run (`Path`): folder of the run.
        start ([`Start`], *optional*): the checkpoint that the run continues from.

    Returns:
        [`SetAside`], or None if there was nothing to move.
    """
    if not run.is_dir():
        return None
    steps = list_steps(run)
    later = [f"checkpoint-{step}" for step in steps if start is None or step > start.step]
    if start is not None and start.step in steps and start_problems(run / f"checkpoint-{start.step}"):
        later.append(f"checkpoint-{start.step}")  # its copy in the other place is whole
    spare = []
    if start is not None:
        # The run forgets the rows of later steps.
        spare = [name for name in (HISTORY_NAME, SAMPLES_NAME) if (run / name).is_file()]
        where = start.folder.name if start.folder.parent == run else start.folder
        reason = f"not continued from, since the run continues from {where}"
    else:
        reason = "of the run before, since this one starts anew"
        if later or (run / "summary.json").exists():
            later += sorted({path.name for pattern in _RUN_FILES for path in run.glob(pattern)})
    return set_aside(run, later, reason, spare=spare) if later else None
