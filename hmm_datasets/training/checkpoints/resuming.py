"""How far a run has come: the newest whole checkpoint that it can go on from, and what was consumed by then.

Rows are counted as they are consumed and saved with the checkpoint, so that a run whose global batch changes goes on
at the row it had reached, not at its steps times today's batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...files import read_json
from .inspection import STATE_NAME, good_checkpoints


@dataclass(frozen=True)
class Reached:
    """What a checkpoint says of the run so far.

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


def reached_points(output_dir: str) -> Iterator[Reached]:
    """What the whole checkpoints in a folder say, the newest first; nothing where there is no such folder."""
    if not Path(output_dir).is_dir():
        return
    for folder in good_checkpoints(output_dir):
        state = read_json(folder / STATE_NAME)
        totals = state.get("stateful_callbacks", {}).get("Tally", {}).get("attributes", {})
        yield Reached(
            folder, state["global_step"], state["max_steps"], totals.get("rows"), state["num_input_tokens_seen"]
        )


def point_to_resume(args) -> Reached | None:
    """Where a run with these settings goes on: at the newest whole checkpoint that is not beyond its last step.

    Rows that are read in order go on at the last step too, with nothing left to do but save and evaluate. Otherwise a
    step has to be left, since the Trainer takes one more where it finds none.

    Args:
        args ([`~hmm_datasets.training.settings.GlobalBatch`]): whose `max_steps` is known, or else taken from the
            checkpoint.
    """
    beyond = 0 if args.train_sampling_strategy == "sequential" else 1
    points = reached_points(args.output_dir) if args.resume else ()
    return next(
        (at for at in points if at.step + beyond <= (args.max_steps if args.max_steps > 0 else at.max_steps)), None
    )
