"""Going back to an earlier checkpoint, and skipping the rows around a loss spike.

Chowdhery et al., "PaLM", 2022, section 5.1, restarted from a checkpoint before each spike of the loss and skipped the
batches around it, after which the loss did not spike at the same place. Here the rows that are skipped are part of
the identity of the run: they are recorded in `identity.json` of its folder before it goes back, and in that of every
later checkpoint. Rows are recorded by their index in the data set, so they are the same for every world size, and
those that follow take their places: step `t` trains on the rows after those of step `t - 1`, without the ones that
are skipped. A run keeps its number of steps, and so reads as many rows further.

A checkpoint that has trained on such rows belongs to what was given up. It is never continued from, and the next
start moves it aside. All ranks then start the same command again (see `hmm_datasets.runtime.program`), so that
going back is an ordinary resume.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from accelerate.utils import broadcast_object_list

from ...data.skipped_rows import SkippedRows
from ...errors import InputError, RolledBack
from ...runtime.events import append_event
from ...runtime.run_identity import read_identity, write_identity
from .inspection import list_steps
from .resuming import possible_starts
from .skipped_rows import Rollback, rows_identity

if TYPE_CHECKING:
    from ..run_context import RunContext

Decision = TypeVar("Decision")
MAX_ROLLBACKS = 3
"""Rollbacks to the same checkpoint; one more ends the run."""


def go_back(
    run: "RunContext", step: int, rollbacks: Sequence[Rollback], skipped_rows: SkippedRows, num_rows: int | None
) -> str:
    """Record that the rows around a step are skipped, and go back to the newest checkpoint before them.

    To be called by all ranks, before the optimizer uses the step.

    Args:
        run ([`~hmm_datasets.training.run_context.RunContext`]): the run.
        step (`int`): the step that spiked, counted from 1.
        rollbacks (sequence of [`~hmm_datasets.training.checkpoints.skipped_rows.Rollback`]): earlier ones of the run.
        skipped_rows ([`~hmm_datasets.data.skipped_rows.SkippedRows`]): the rows that are skipped because of them.
        num_rows (`int`, *optional*): number of rows of the data set; None if there are as many as the run needs.

    Returns:
        `str`: why it is not possible, if it is not; otherwise it does not return.

    Raises:
        `RolledBack`: it is recorded, and the same command continues from the checkpoint.
        `InputError`: the run went back to this checkpoint too often.
    """
    outcome = decided_by_rank_zero(run, lambda: _decide(run, step, rollbacks, skipped_rows, num_rows))
    if isinstance(outcome, str):
        return outcome
    where = f"checkpoint-{outcome.checkpoint}" if outcome.checkpoint else "its beginning"
    line = (
        f"step {step:,}: the run goes back to {where} and skips rows {outcome.first:,} to {outcome.end - 1:,} of "
        "the data set"
    )
    if run.is_world_process_zero():
        folder = Path(run.args.output_dir)
        write_identity(folder, read_identity(folder) | rows_identity([*rollbacks, outcome]))
        append_event(folder, "rollback", line, **asdict(outcome))
        run.say(line)
    run.accelerator.wait_for_everyone()
    raise RolledBack(f"{line}: start the same command again to continue")


def decided_by_rank_zero(run: "RunContext", decide: Callable[[], Decision]) -> Decision:
    """What a function returns on rank 0, which alone calls it; to be called by all ranks, which raise its errors."""
    decision: list[Any] = [None]
    if run.is_world_process_zero():
        try:
            decision = [decide()]
        except InputError as error:
            decision = [error]
    if run.args.world_size > 1:
        broadcast_object_list(decision)
    (outcome,) = decision
    if isinstance(outcome, InputError):
        raise outcome
    return outcome


def _decide(
    run: "RunContext", step: int, rollbacks: Sequence[Rollback], skipped_rows: SkippedRows, num_rows: int | None
) -> "Rollback | str":
    """The rollback for a spike at a step, or why there can be none."""
    args, schedule = run.args, run.schedule
    margin = args.spike_margin
    # Steps are counted from 1. Those before a change of the global batch may have had more rows than it says.
    first = skipped_rows.index(max(schedule.rows_before(max(step - 1 - margin, 0)), 0))
    end = skipped_rows.end(schedule.rows_before(step + margin))
    planned = SkippedRows([*skipped_rows.intervals, (first, end)])
    needed = schedule.rows_before(run.state.max_steps)
    if num_rows is not None and (kept := planned.number(num_rows)) < needed:
        return f"the {needed:,} rows that the run needs would no longer be there: {kept:,} would be left"
    starts = possible_starts(args.output_dir, planned)
    starts = [start for start in starts if start.step < step]
    if not starts and list_steps(args.output_dir):
        return (
            f"no checkpoint is from before step {max(step - margin, 1)}: keep more of them (save_total_limit), or "
            "lower spike_margin"
        )
    checkpoint = starts[0].step if starts else 0
    again = sum(rollback.checkpoint == checkpoint for rollback in rollbacks)
    if again >= MAX_ROLLBACKS:
        where = f"checkpoint-{checkpoint}" if checkpoint else "its beginning"
        raise InputError(
            f"{args.output_dir}: because of step {step} the run would go back to {where} once more, after {again} "
            "times, so the cause may not be in the rows: lower the learning rate"
        )
    return Rollback(step, checkpoint, first, end)
