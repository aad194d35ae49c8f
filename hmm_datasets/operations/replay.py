"""The loss of one optimizer step of a run, computed again row by row.

The rows of a step are known from its number, so a step can be trained again: from the newest checkpoint before it, in
one process, with the recorded settings and the same micro-batches, up to its forward passes. Nothing is written into
the run. A run of one process on the same machine gives the logged loss bit for bit in float32; for several processes,
whose sums are in another order, it agrees to rounding.

Runs of pretraining and midtraining under plain data parallelism can be replayed. A run that went back at the step has
the rows as they were in the event of the spike, and their loss; here they are those of afterwards.
"""

import contextlib
import dataclasses
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PrinterCallback, default_data_collator, set_seed

from ..data.interleaving import InterleavedRows
from ..data.packing import PackedWindows
from ..data.windows import TokenWindows
from ..errors import InputError
from ..files import check_digests
from ..records import as_record
from ..report.tables import text_table
from ..runtime.events import read_events
from ..runtime.run_identity import IDENTITY_NAME, read_identity
from ..runtime.run_records import RunRecord, read_history, read_run_record
from ..training.checkpoints.curve import replayed
from ..training.checkpoints.frameworks import FRAMEWORKS
from ..training.checkpoints.inspection import Writer
from ..training.checkpoints.resuming import Start, possible_starts
from ..training.checkpoints.skipped_rows import Rollback, rollbacks_of, skipped_rows_of
from ..training.model_configs import ModelSettings, new_model
from ..training.plan.plan import make_plan
from ..training.pretrained import load_pretrained
from ..training.record import HISTORY_NAME, RECORD_NAME
from ..training.run_context import RunContext
from ..training.settings import PretrainSettings
from ..training.sources import MixtureSettings, stream_names
from ..training.step.component import Component
from ..training.step.held_out_loss import row_losses
from ..training.trainer import Pretrainer
from .recorded_data import recorded_data

if TYPE_CHECKING:
    from torch.utils.data import Dataset


@dataclasses.dataclass(frozen=True)
class ReplayedRow:
    """A row of a step.

    Attributes:
        index (`int`): index in the data set.
        loss (`float`): its loss in nats per predicted token.
        tokens (`int`): number of predicted tokens.
        optimum (`float`, *optional*): loss of the best predictor on this row, if the distribution is known.
        origin (`str`, *optional*): where it comes from, for text.
    """

    index: int
    loss: float
    tokens: int
    optimum: float | None = None
    origin: str | None = None


@dataclasses.dataclass(frozen=True)
class Replay:
    """A step computed again.

    Attributes:
        step (`int`): the step, counted from 1.
        start (`int`): step of the checkpoint that it was computed from; 0 for the beginning of the run.
        rows (`tuple` of [`ReplayedRow`]): its rows, in order.
        loss (`float`): loss of the step, summed as in training.
        logged (`float`, *optional*): what the run logged for this step alone.
    """

    step: int
    start: int
    rows: tuple[ReplayedRow, ...]
    loss: float
    logged: float | None

    @property
    def mean(self) -> float:
        """Mean of the losses of the rows, weighted by their tokens."""
        return sum(row.loss * row.tokens for row in self.rows) / sum(row.tokens for row in self.rows)


def replay(run: str | Path, step: int) -> Replay:
    """Compute the loss of a step again.

    Args:
        run (path): folder of the run.
        step (`int`): the step, counted from 1.

    Raises:
        `InputError`: no run of pretraining or midtraining, no such step, or no checkpoint from which it can be
            computed in one process.
    """
    run = Path(run)
    record = read_run_record(run / RECORD_NAME)
    rollbacks = rollbacks_of(run)
    history = [row for row in read_history(run / HISTORY_NAME) if "loss" in row]
    last = max([row["step"] for row in [*history, *read_events(run)] if "step" in row], default=0)
    if not 1 <= step <= last:
        raise InputError(f"{run}: has no step {step}; expected 1 to {last}, the last one that it logged")
    starts = (start for start in possible_starts(str(run), skipped_rows_of(rollbacks)) if start.step < step)
    start = next(starts, None)
    if start is not None:
        check_digests(start.folder)
    max_steps = next((int(row["max_steps"]) for row in reversed(history)), record.settings["max_steps"])
    with tempfile.TemporaryDirectory() as folder:
        trainer = _replayer(run, record, folder, max_steps, rollbacks)
        if start is not None and _framework(start) != FRAMEWORKS["plain"]:
            raise InputError(
                f"{start.folder}: written under {_framework(start)}, so one process cannot read its optimizer state; "
                "look into events.jsonl, which has the rows of a spike"
            )
        trainer.begin(record.data | trainer.plan.data.identity, start, rollbacks)
        trainer.compute(step, start)
        rows = _described(trainer)
    logged = _logged(history, step)
    return Replay(step, 0 if start is None else start.step, rows, trainer.step_loss.loss, logged)


def replay_text(replay: Replay) -> str:
    """A replayed step as a table for the terminal."""
    has_optimum = any(row.optimum is not None for row in replay.rows)
    has_origin = any(row.origin is not None for row in replay.rows)
    header = ["row", "loss", *["optimum", "above"] * has_optimum, "tokens", *["from"] * has_origin]
    cells = []
    for row in sorted(replay.rows, key=lambda row: row.loss, reverse=True):
        optimum = [] if row.optimum is None else [f"{row.optimum:.4f}", f"{row.loss - row.optimum:z.4f}"]
        cells.append([str(row.index), f"{row.loss:.4f}", *optimum, str(row.tokens), *[row.origin or ""] * has_origin])
    start = f"checkpoint-{replay.start}" if replay.start else "the beginning of the run"
    lines = [
        f"step {replay.step:,}, computed from {start}; losses in nats per token",
        "",
        text_table(header, cells),
        "",
        f"loss of the step {replay.loss:.8g}; mean of its rows, weighted by tokens, {replay.mean:.8g}",
    ]
    if replay.logged is None:
        lines.append("the run logged no loss for this step alone (logging_steps)")
    else:
        difference = replay.loss - replay.logged
        comparison = "the same" if difference == 0 else f"a difference of {difference:.2g}"
        lines.append(f"the run logged {replay.logged:.8g}: {comparison}")
    return "\n".join(lines)


class _Reached(Exception):
    """The step that is replayed has been computed."""


class _RowsOfStep(Component):
    """Collects the losses of the rows of a step, and ends training before the optimizer uses it."""

    def __init__(self, run: RunContext):
        super().__init__(run)
        self.step = 0
        self.losses: list[torch.Tensor] = []

    @property
    def is_due(self) -> bool:
        """Whether the step under way is the one."""
        return self.run.state.global_step + 1 == self.step

    def needs_scores(self, model) -> bool:
        return self.is_due and model.training

    def after_forward(self, model, labels, scores, loss, num_items):
        if self.is_due:
            self.losses.append(row_losses(scores.losses.detach(), labels))
        return loss

    def after_gradient(self, model, norm) -> None:
        if self.is_due:
            raise _Reached


class _Replayer(Pretrainer):
    """A trainer that ends in a step and writes nothing."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.remove_callback(PrinterCallback)
        self.part = _RowsOfStep(self)
        # Methods after the gradient are called from the last to the first: after the loss is known, before its check.
        self.components.insert(self.components.index(self.step_loss), self.part)

    def compute(self, step: int, start: Start | None = None) -> None:
        """Train until the losses of a step are computed."""
        self.part.step = step
        with contextlib.suppress(_Reached):
            self.train(resume_from_checkpoint=None if start is None else str(start.folder))

    def rows(self) -> list[tuple[int, float, int]]:
        """Index, loss and number of predicted tokens of each row of the step."""
        batches = self.rows_of_micro_batches(len(self.part.losses)) or []
        row_losses = torch.cat(self.part.losses).tolist()
        indices = [index for batch in batches for index in batch]
        return [
            (index, total / max(count, 1), int(count))
            for index, (total, count) in zip(indices, row_losses, strict=True)
        ]


def _replayer(run: Path, record: RunRecord, folder: str, max_steps: int, rollbacks: Sequence[Rollback]) -> _Replayer:
    """A trainer with the recorded settings, data and model, which begins as the recipe does."""
    recorded = record.settings
    chosen_data = recorded_data(run, recorded)
    known = {field.name for field in dataclasses.fields(PretrainSettings)}
    chosen = {name: value for name, value in replayed(recorded).items() if name in known}
    if recorded.get("learning_rate_factors"):
        raise InputError(
            f"{run}: trained with learning_rate_factors, which only earlier versions replay (see run.json)"
        )
    if recorded.get("scale_learning_rate") == "sqrt":  # of an earlier version: by the number of processes
        chosen["learning_rate"] *= record.world_size**0.5
    settings = PretrainSettings(
        folder,
        **chosen,
        **{"max_steps": max_steps, "use_cpu": bool(recorded.get("use_cpu")), "save_strategy": "no"},
        **{"report_to": "none", "on_spike": "ignore", "resume": False, "disable_tqdm": True, "logging_strategy": "no"},
    )
    for name in ("logging_steps", "eval_steps", "save_steps"):  # without effect, but transformers warns if they differ
        setattr(settings, name, recorded.get(name, getattr(settings, name)))
    set_seed(settings.seed)
    data = chosen_data.load()
    if isinstance(chosen_data, MixtureSettings):
        model = load_pretrained(AutoModelForCausalLM, recorded["model"])
        if "dtype" not in recorded and model.dtype == torch.bfloat16:  # an earlier version trained in it
            settings.dtype = "bfloat16"
    else:
        names = [field.name for field in dataclasses.fields(ModelSettings) if field.name in recorded]
        model = new_model(ModelSettings(**{name: recorded[name] for name in names}).config(data))
    plan = make_plan(
        *(settings.budget, settings.batch_schedule, data, model),
        micro_batch_size=settings.per_device_train_batch_size,
        skipped_rows=skipped_rows_of(rollbacks),
    )
    return _Replayer(
        model=model,
        args=settings,
        plan=plan,
        processing_class=data.tokenizer,
        data_collator=default_data_collator,
    )


def _framework(start: Start) -> str:
    written_by = read_identity(start.folder).get("written_by", {})
    return as_record(written_by, Writer, start.folder / IDENTITY_NAME).framework


def _logged(history: list[dict[str, Any]], step: int) -> float | None:
    """The loss that the run logged for a step alone; None if it logged a mean over several."""
    losses = {row["step"]: row["loss"] for row in history}
    return losses.get(step) if step == 1 or step - 1 in losses else None


def _described(trainer: _Replayer) -> tuple[ReplayedRow, ...]:
    """The rows of the step, with what is known of them."""
    rows = trainer.rows()
    indices = [index for index, _, _ in rows]
    source = trainer.plan.data.source
    optima: list[float | None] = [None] * len(rows)
    if source is not None and source.has_exact_distribution:
        tokens = torch.stack([trainer.all_rows[index]["input_ids"][1:] for index in indices])  # after the first, BOS
        optima = (-np.asarray(source.log_likelihood(tokens.numpy())) / tokens.shape[1]).tolist()
    named = origins(trainer.all_rows, indices)
    return tuple(
        ReplayedRow(index, loss, count, optimum, origin)
        for (index, loss, count), optimum, origin in zip(rows, optima, named, strict=True)
    )


def origins(rows: "Dataset", indices: Sequence[int]) -> list[str | None]:
    """The documents that rows of text are from."""
    if isinstance(rows, InterleavedRows):
        streams = stream_names([str(Path(source.stream.folder).parent) for source in rows.sources])
        parts = zip(*(part.tolist() for part in rows.sources_and_rows(indices)), strict=True)
        return [f"{streams[source]}: {origins(rows.sources[source], [row])[0]}" for source, row in parts]
    if isinstance(rows, TokenWindows):
        first = rows.window_indices(indices) * rows.length
        documents = [rows.stream.document_at(first + offset).tolist() for offset in (0, rows.length - 1)]
        return [f"document {a}" if a == b else f"documents {a} to {b}" for a, b in zip(*documents, strict=True)]
    if isinstance(rows, PackedWindows):
        numbers, starts, _, _ = rows.plan.pieces_of(rows.window_indices(indices))
        held = defaultdict(list)
        for number, document in zip(numbers.tolist(), rows.stream.document_at(starts).tolist(), strict=True):
            held[number].append(document)
        lists = [sorted(held[number]) for number in range(len(indices))]
        return [f"document{'s' * (len(group) > 1)} {', '.join(map(str, group))}" for group in lists]
    return [None] * len(indices)
