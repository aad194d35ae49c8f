"""The rows that a run skips, as recorded in its identity and in those of its checkpoints."""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...data.skipped_rows import SkippedRows
from ...errors import InputError
from ...records import Count, as_record
from ...runtime.run_identity import IDENTITY_NAME, read_identity
from .inspection import list_steps

ROWS_SECTION = "rows"
"""The section of an identity that names the rows skipped."""


@dataclass(frozen=True)
class Rollback:
    """A rollback, as recorded in the identity of a run.

    Attributes:
        step (`int`): step of the spike, counted from 1.
        checkpoint (`int`): step that the run went back to; 0 for its beginning.
        first (`int`), end (`int`): first row that is skipped, and the row after the last, as indices in the data
            set.
    """

    step: Count
    checkpoint: Count
    first: Count
    end: Count


def rows_identity(rollbacks: Sequence[Rollback]) -> dict[str, Any]:
    """The section of an identity that names the rows skipped; empty if there are none."""
    return {ROWS_SECTION: {"passed_over": [asdict(rollback) for rollback in rollbacks]}} if rollbacks else {}


def rollbacks_in(folder: Path) -> list[Rollback]:
    """The rollbacks recorded in the identity of a run or of a checkpoint."""
    recorded = read_identity(folder).get(ROWS_SECTION, {})
    return as_record(recorded.get("passed_over", []), list[Rollback], folder / IDENTITY_NAME)


def rollbacks_of(folder: str | os.PathLike) -> list[Rollback]:
    """The rollbacks of the run in a folder, from its identity and those of its checkpoints, in their order."""
    run = Path(folder)
    if not run.is_dir():
        return []
    recorded = rollbacks_in(run)
    for step in list_steps(run):
        with contextlib.suppress(InputError):  # a damaged checkpoint, from which the run does not continue
            recorded += rollbacks_in(run / f"checkpoint-{step}")
    return list(dict.fromkeys(recorded))


def skipped_rows_of(rollbacks: Sequence[Rollback]) -> SkippedRows:
    """The rows that these rollbacks leave out."""
    return SkippedRows((rollback.first, rollback.end) for rollback in rollbacks)


def left_out_the_same(checkpoint: Path, rows: int | None, skipped_rows: SkippedRows) -> bool:
    """Whether a checkpoint that has trained on `rows` rows has left out, among them, what a run leaves out."""
    skipped = skipped_rows_of(rollbacks_in(checkpoint))
    if skipped == skipped_rows or rows is None:
        return skipped == skipped_rows
    end = skipped.end(rows)
    return skipped.before(end) == skipped_rows.before(end)
