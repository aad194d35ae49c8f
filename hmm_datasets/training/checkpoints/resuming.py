"""Where a run continues: the newest whole checkpoint that it can resume from, and what was consumed by then.

Rows are counted as they are consumed, and the count is saved with the checkpoint. So a run whose global batch changes
continues at the row it had reached, and not at the number of steps times the new batch.

The rows that a run skips, as recorded in its identity and in those of its checkpoints.

Going back to an earlier checkpoint, and skipping the rows around a loss spike.

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

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.utils import broadcast_object_list

from ...data.rows import PassedOver
from ...errors import InputError, RolledBack
from ...files import DIGESTS_NAME, check_digests
from ...records import Count, as_record
from ...runtime.events import append_event
from ...runtime.run_identity import IDENTITY_NAME, Identity, as_saved, check_identity, read_identity, write_identity
from ...runtime.run_records import read_checkpoint_state
from ..step.component import Component
from .curve import comparable
from .verifying import STATE_NAME, Writer, has_optimizer, list_steps, reads, short_name, verify_checkpoint

if TYPE_CHECKING:
    from ..trainer import StepTrainer

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
    return {ROWS_SECTION: {"passed_over": [asdict(one) for one in rollbacks]}} if rollbacks else {}


def rollbacks_in(folder: Path) -> list[Rollback]:
    """The rollbacks recorded in the identity of a run or of a checkpoint."""
    recorded = read_identity(folder).get(ROWS_SECTION, {})
    return as_record(recorded.get("passed_over", []), list[Rollback], folder / IDENTITY_NAME)


def rollbacks_of(*folders: str | os.PathLike | None) -> list[Rollback]:
    """The rollbacks of a run, from the identities in its folders and in its checkpoints, in their order.

    Args:
        *folders (path, *optional*): the folder of the run, and that of the copies of its checkpoints if there is one.
    """
    runs = [Path(folder) for folder in folders if folder is not None and Path(folder).is_dir()]
    places = [place for run in runs for place in (run, *(run / f"checkpoint-{step}" for step in list_steps(run)))]
    return list(dict.fromkeys(one for place in places for one in rollbacks_in(place)))


def rows_passed_over(rollbacks: Sequence[Rollback]) -> PassedOver:
    """The rows that these rollbacks leave out."""
    return PassedOver((one.first, one.end) for one in rollbacks)


def left_out_the_same(checkpoint: Path, rows: int | None, passed_over: PassedOver) -> bool:
    """Whether a checkpoint that has trained on `rows` rows has left out, among them, what a run leaves out."""
    own = rows_passed_over(rollbacks_in(checkpoint))
    if own == passed_over or rows is None:
        return own == passed_over
    end = own.end(rows)
    return own.before(end) == passed_over.before(end)


@dataclass(frozen=True)
class Start:
    """A checkpoint that a run continues from.

    Attributes:
        folder (`Path`): `checkpoint-N`.
        step (`int`): steps done.
        max_steps (`int`): steps of the run, as planned when the checkpoint was written.
        rows (`int`, *optional*): rows consumed; None if they were not counted.
        tokens (`int`): tokens consumed, without padding.
    """

    folder: Path
    step: int
    max_steps: int
    rows: int | None
    tokens: int


def possible_starts(
    output_dir: str, passed_over: PassedOver | None = None, *, copies: Path | None = None
) -> Iterator[Start]:
    """The whole checkpoints of a run, newest first; none if there is no such run.

    Args:
        output_dir (`str`): folder of the run.
        passed_over ([`~hmm_datasets.data.rows.PassedOver`], *optional*): rows that the run leaves out; without
            the checkpoints that have trained on some of them.
        copies (`Path`, *optional*): folder of the copies of its checkpoints; of the same step, the run's own is first.
    """
    places = [Path(place) for place in (output_dir, copies) if place is not None and Path(place).is_dir()]
    found = [(-step, order, place) for order, place in enumerate(places) for step in list_steps(place)]
    for step, _, place in sorted(found):
        folder = place / f"checkpoint-{-step}"
        if not verify_checkpoint(folder).ok:
            continue
        start = _start_at(folder)
        if start is not None and (passed_over is None or left_out_the_same(folder, start.rows, passed_over)):
            yield start


def _start_at(folder: Path) -> Start | None:
    """The start at a checkpoint; None if the counts in its state are missing."""
    path = folder / STATE_NAME
    try:
        state = read_checkpoint_state(path)
        totals = as_record(state.stateful_callbacks.get("RunTotals", {}), _Totals, path).attributes
    except InputError:
        return None
    if state.max_steps is None or state.num_input_tokens_seen is None:
        return None
    return Start(folder, state.global_step, state.max_steps, totals.rows, state.num_input_tokens_seen)


@dataclass(frozen=True)
class _Attributes:
    """Rows that a run has consumed over all its starts; earlier versions did not count them."""

    rows: Count | None = None


@dataclass(frozen=True)
class _Totals:
    """The state of the component that counts."""

    attributes: _Attributes = _Attributes()


def find_start(args) -> Start | None:
    """Where a run with these settings continues: at the newest whole checkpoint that is not beyond its last step.

    If rows are read in order, a run can also continue at its last step, with only saving and evaluating left.
    Otherwise at least one step must be left, since the Trainer would train one step too many.

    Args:
        args ([`~hmm_datasets.training.settings.RunSettings`]): the settings; if they have no `max_steps`, that of the
            checkpoint is used.
    """
    beyond = 0 if args.train_sampling_strategy == "sequential" else 1
    starts = possible_starts(args.output_dir, args.passed_over, copies=args.copies) if args.resume else ()
    return next(
        (at for at in starts if at.step + beyond <= (args.max_steps if args.max_steps > 0 else at.max_steps)), None
    )


def check_start(
    folder: Path,
    identity: Identity,
    writer: dict[str, Any],
    accepted: Collection[str],
    fixed: Collection[str] = (),
    kind: type | None = None,
) -> None:
    """Refuse to continue from a checkpoint of another run; a checkpoint without an identity is accepted.

    The number of processes may differ. The framework and the stage of sharding may not, since each reads only its own
    files; but every stage of ZeRO reads what [`~hmm_datasets.operations.checkpoints.convert.convert`] writes for it.

    Args:
        folder (`Path`): `checkpoint-N`.
        identity (mapping): identity of the run that would continue.
        writer (`dict`): `framework` and number of `processes` of that run.
        accepted, fixed: see [`~hmm_datasets.runtime.run_identity.check_identity`].
        kind (`type`, *optional*): class of the settings, for the defaults of those that the checkpoint does not name.

    Raises:
        `InputError`: the checkpoint is from another run or another framework, or has weights only.
    """
    if not has_optimizer(folder):
        raise InputError(
            f"{folder}: has weights but no optimizer state, as save_only_model and slim leave it; choose another "
            "output_dir, and start from these weights"
        )
    check_digests(
        folder,
        f"delete {folder.name} to continue from the checkpoint before it, or its {DIGESTS_NAME} to use it as it is",
    )
    path = folder / IDENTITY_NAME
    if not path.exists():
        return
    before = read_identity(folder)
    compared = {name: section for name, section in identity.items() if name != ROWS_SECTION}  # see `possible_starts`
    saved = before if kind is None else comparable(before, as_saved(compared), kind)
    check_identity(path, saved, compared, accepted, fixed)
    wrote = as_record(before.get("written_by", writer), Writer, path)
    if not reads(writer["framework"], wrote.framework):
        to, run = short_name(writer["framework"]), folder.absolute().parent
        raise InputError(
            f"{folder}: written under {wrote.framework} by {wrote.processes} processes, but this run is under "
            f"{writer['framework']} with {writer['processes']}; use the accelerate config that it was started with, "
            f"or convert it with hmm-datasets checkpoint convert {folder} {run}-{to} --to {to} and continue with "
            f"--output_dir {run}-{to}"
        )


class RestoredRandomState(Component):
    """Restores the state of the random numbers after the first batch of a resumed run.

    The Trainer restores it too, but before the data loader starts, which draws a number.
    """

    def __init__(self, trainer):
        super().__init__(trainer)
        self._is_restored = False

    def after_batches(self) -> None:
        """Restore the state, once."""
        if self.trainer.start is not None and self.trainer.reads_in_order and not self._is_restored:
            self.trainer.load_random_state(self.trainer.start.folder)
        self._is_restored = True


def go_back(trainer: "StepTrainer", step: int) -> str:
    """Record that the rows around a step are skipped, and go back to the newest checkpoint before them.

    To be called by all ranks, before the optimizer uses the step.

    Args:
        trainer ([`~hmm_datasets.training.trainer.StepTrainer`]): the trainer of the run.
        step (`int`): the step that spiked, counted from 1.

    Returns:
        `str`: why it is not possible, if it is not; otherwise it does not return.

    Raises:
        `RolledBack`: it is recorded, and the same command continues from the checkpoint.
        `InputError`: the run went back to this checkpoint too often.
    """
    decision: list[Any] = [None]
    if trainer.is_world_process_zero():
        try:
            decision = [_decide(trainer, step)]
        except InputError as error:
            decision = [error]
    if trainer.args.world_size > 1:
        broadcast_object_list(decision)
    (found,) = decision
    if isinstance(found, str):
        return found
    if isinstance(found, InputError):
        raise found
    where = f"checkpoint-{found.checkpoint}" if found.checkpoint else "its beginning"
    line = (
        f"step {step:,}: the run goes back to {where} and skips rows {found.first:,} to {found.end - 1:,} of "
        "the data set"
    )
    if trainer.is_world_process_zero():
        run = Path(trainer.args.output_dir)
        write_identity(run, read_identity(run) | rows_identity([*trainer.rollbacks, found]))
        append_event(run, "rollback", line, **asdict(found))
        trainer.say(line)
    trainer.accelerator.wait_for_everyone()
    raise RolledBack(f"{line}: start the same command again to continue")


def _decide(trainer: "StepTrainer", step: int) -> "Rollback | str":
    """The rollback for a spike at a step, or why there can be none."""
    args, passed_over, schedule = trainer.args, trainer.passed_over, trainer.schedule
    margin = args.spike_margin
    # Steps are counted from 1. Those before a change of the global batch may have had more rows than it says.
    first = passed_over.index(max(schedule.rows_before(max(step - 1 - margin, 0)), 0))
    end = passed_over.end(schedule.rows_before(step + margin))
    planned = PassedOver([*passed_over.intervals, (first, end)])
    needed = schedule.rows_before(trainer.state.max_steps)
    if trainer.plan is None and (kept := planned.number(len(trainer.all_rows))) < needed:
        return f"the {needed:,} rows that the run needs would no longer be there: {kept:,} would be left"
    starts = possible_starts(args.output_dir, planned, copies=args.copies)
    starts = [start for start in starts if start.step < step]
    if not starts and list_steps(args.output_dir):
        return (
            f"no checkpoint is from before step {max(step - margin, 1)}: keep more of them (save_total_limit), or "
            "lower spike_margin"
        )
    checkpoint = starts[0].step if starts else 0
    again = sum(one.checkpoint == checkpoint for one in trainer.rollbacks)
    if again >= args.max_rollbacks:
        where = f"checkpoint-{checkpoint}" if checkpoint else "its beginning"
        raise InputError(
            f"{args.output_dir}: because of step {step} the run would go back to {where} once more, after {again} "
            "times (max_rollbacks), so the cause may not be in the rows: lower the learning rate, or raise "
            "max_rollbacks"
        )
    return Rollback(step, checkpoint, first, end)
