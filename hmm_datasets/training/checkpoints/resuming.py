"""Where a run continues: the newest whole checkpoint that it can resume from, and what was consumed by then.

Rows are counted as they are consumed, and the count is saved with the checkpoint. So a run whose global batch changes
continues at the row it had reached, and not at the number of steps times the new batch.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...data.skipped_rows import SkippedRows
from ...errors import InputError
from ...files import digest_problems
from ...records import Count, as_record
from ...runtime.run_identity import IDENTITY_NAME, Identity, as_saved, check_identity, read_identity
from ...runtime.run_records import read_checkpoint_state
from ..run_context import RunContext
from ..step.component import Component
from .curve import comparable
from .frameworks import reads, short_name
from .inspection import Writer, has_optimizer, list_steps, verify_checkpoint
from .parts import STATE_NAME
from .skipped_rows import ROWS_SECTION, left_out_the_same


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


def possible_starts(output_dir: str, skipped_rows: SkippedRows | None = None) -> Iterator[Start]:
    """The whole checkpoints of a run, newest first; none if there is no such run.

    Args:
        output_dir (`str`): folder of the run.
        skipped_rows ([`~hmm_datasets.data.skipped_rows.SkippedRows`], *optional*): rows that the run leaves out;
            without the checkpoints that have trained on some of them.
    """
    run = Path(output_dir)
    for step in list_steps(run) if run.is_dir() else ():
        folder = run / f"checkpoint-{step}"
        if start_problems(folder):
            continue
        start = start_at(folder)
        if start is not None and (skipped_rows is None or left_out_the_same(folder, start.rows, skipped_rows)):
            yield start


def start_problems(folder: Path) -> Sequence[str]:
    """Why a run cannot continue from a checkpoint, as far as sizes, headers and what is read of it first show."""
    return verify_checkpoint(folder).problems or digest_problems(folder, (STATE_NAME, IDENTITY_NAME))


def start_at(folder: Path) -> Start | None:
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
    starts = possible_starts(args.output_dir, args.skipped_rows) if args.resume else ()
    return next(
        (at for at in starts if at.step + beyond <= (args.max_steps if args.max_steps > 0 else at.max_steps)), None
    )


def before_step(args, step: int) -> str:
    """Where a run that ends at a step can continue from, in words: its newest whole checkpoint from before it."""
    starts = (start for start in possible_starts(args.output_dir) if start.step < step)
    start = next(starts, None)
    return "no checkpoint is from before it" if start is None else f"{start.folder} is from before it"


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

    Args:
        run ([`~hmm_datasets.training.run_context.RunContext`]): the run.
        restore (callable): restores the state, if the run was resumed.
    """

    def __init__(self, run: RunContext, restore: Callable[[], None]):
        super().__init__(run)
        self._restore = restore
        self._is_restored = False

    def after_batches(self) -> None:
        """Restore the state, once."""
        if not self._is_restored:
            self._restore()
        self._is_restored = True
