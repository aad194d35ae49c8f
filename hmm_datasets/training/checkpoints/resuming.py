"""Where a run goes on: the newest whole checkpoint that it can go on from, and what was consumed by then.

Rows are counted as they are consumed and saved with the checkpoint, so that a run whose global batch changes goes on
at the row it had reached, not at its steps times today's batch.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...digests import DIGESTS_NAME, check_digests
from ...errors import InputError
from ...files import read_json
from ...identity import IDENTITY_NAME, Identity, check_identity
from ..components.component import Component
from .inspection import STATE_NAME, good_checkpoints, zero_shards


@dataclass(frozen=True)
class Start:
    """A checkpoint that a run goes on from.

    Attributes:
        folder (`Path`): `checkpoint-N`.
        step (`int`): steps done.
        max_steps (`int`): steps of the run, as planned then.
        rows (`int`, *optional*): rows consumed, where they were counted.
        tokens (`int`): tokens consumed, without padding.
    """

    folder: Path
    step: int
    max_steps: int
    rows: int | None
    tokens: int


def possible_starts(output_dir: str) -> Iterator[Start]:
    """The whole checkpoints in a folder, the newest first; none where there is no such folder."""
    if not Path(output_dir).is_dir():
        return
    for folder in good_checkpoints(output_dir):
        state = read_json(folder / STATE_NAME)
        totals = state.get("stateful_callbacks", {}).get("RunTotals", {}).get("attributes", {})
        yield Start(
            folder, state["global_step"], state["max_steps"], totals.get("rows"), state["num_input_tokens_seen"]
        )


def find_start(args) -> Start | None:
    """Where a run with these settings goes on: at the newest whole checkpoint that is not beyond its last step.

    Rows that are read in order go on at the last step too, with nothing left to do but save and evaluate. Otherwise a
    step has to be left, since the Trainer takes one more where it finds none.

    Args:
        args ([`~hmm_datasets.training.settings.RunSettings`]): whose `max_steps` is known, or else taken from the
            checkpoint.
    """
    beyond = 0 if args.train_sampling_strategy == "sequential" else 1
    starts = possible_starts(args.output_dir) if args.resume else ()
    return next(
        (at for at in starts if at.step + beyond <= (args.max_steps if args.max_steps > 0 else at.max_steps)), None
    )


def check_start(
    folder: Path,
    identity: Identity,
    writer: dict[str, Any],
    accepted: Collection[str],
    fixed: Collection[str] = (),
) -> None:
    """Refuse to go on from a checkpoint of another run; one that says nothing of itself is taken as it is.

    The number of processes may be another. The framework and stage that shard may not: each reads its own files alone.

    Args:
        folder (`Path`): `checkpoint-N`.
        identity (mapping): of the run that would go on.
        writer (`dict`): its `framework` and number of `processes`.
        accepted, fixed: see [`~hmm_datasets.identity.check_identity`].

    Raises:
        `InputError`: it is of another run, or of another framework, or holds weights alone.
    """
    if zero_shards(folder) is None and not any(folder.glob("optimizer*")):
        raise InputError(
            f"{folder}: holds weights and no state of the optimizer, as save_only_model leaves it; choose another "
            "output_dir, and start from these weights"
        )
    check_digests(
        folder,
        f"delete {folder.name} to go on from the checkpoint before it, or its {DIGESTS_NAME} to take it as it is",
    )
    path = folder / IDENTITY_NAME
    if not path.exists():
        return
    before = read_json(path)
    check_identity(path, before, identity, accepted, fixed)
    wrote = before.get("written_by", writer)
    if wrote["framework"] != writer["framework"]:
        raise InputError(
            f"{folder}: written under {wrote['framework']} by {wrote['processes']} processes, and this run is under "
            f"{writer['framework']} with {writer['processes']}; launch it with the accelerate config it was begun with"
        )


class RestoredRandomState(Component):
    """After the first batch of a resumed run, random numbers go on as the checkpoint's do.

    The Trainer restores them before the loader begins, which draws one.
    """

    def __init__(self, trainer):
        super().__init__(trainer)
        self._is_restored = False

    def after_batches(self) -> None:
        """Restore them, once."""
        if self.trainer.start is not None and self.trainer.reads_in_order and not self._is_restored:
            self.trainer.load_random_state(self.trainer.start.folder)
        self._is_restored = True
