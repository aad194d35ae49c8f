"""What a run will consume, computed before it starts: steps, rows, tokens, FLOPs, epochs.

A recipe trains by the plan and checks at its end that it consumed exactly the planned number of tokens. What depends
on the machine is in `memory.py` and `rate.py`.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...data.skipped_rows import SkippedRows
from ...errors import InputError
from ..parameters import count_parameters
from ..sources import TrainingData
from .batch_schedule import BatchSchedule
from .budget import Budget, accumulation_steps
from .flops import unit_flops

if TYPE_CHECKING:
    from torch.utils.data import Dataset
    from transformers import PreTrainedModel

    from ..checkpoints.resuming import Start
    from .rate import Rate


@dataclass(frozen=True)
class Plan:
    """What a run will consume.

    Attributes:
        budget ([`~hmm_datasets.training.plan.budget.Budget`]): what decides the length of the run.
        steps (`int`): optimizer steps.
        schedule ([`~hmm_datasets.training.plan.batch_schedule.BatchSchedule`]): rows per step.
        data ([`~hmm_datasets.training.sources.TrainingData`]): what it trains on.
        parameters (`dict`): number of parameters: `total`, and `body`, which leaves out embeddings.
        flops_per_token (`int`): FLOPs per token of the forward and the backward pass, with attention over a whole row.
        flops_per_pair (`int`): those of attention from one position to another.
        start ([`~hmm_datasets.training.checkpoints.resuming.Start`], *optional*): the checkpoint it continues from.
        skipped_rows ([`~hmm_datasets.data.skipped_rows.SkippedRows`]): rows that it leaves out.
    """

    budget: Budget
    steps: int
    schedule: BatchSchedule
    data: TrainingData
    parameters: dict[str, int]
    flops_per_token: int
    flops_per_pair: int
    start: "Start | None" = None
    skipped_rows: SkippedRows = field(default_factory=SkippedRows)

    @cached_property
    def rows(self) -> int:
        """Rows it trains on."""
        return self.schedule.rows_before(self.steps)

    @cached_property
    def tokens(self) -> int:
        """Tokens it trains on, without padding."""
        return self.tokens_at(self.steps)

    def tokens_at(self, step: int) -> int:
        """Tokens consumed once `step` steps are done."""
        return _tokens_of(self.data, self.schedule.rows_before(step), self.skipped_rows)

    def train_rows(self) -> "Dataset":
        """A data set with enough rows for the run, in order, including those that it skips."""
        rows = max(self.rows, self.steps * self.schedule.global_batch_size)
        return self.data.rows(rows + self.skipped_rows.count)

    @property
    def flops(self) -> int:
        """FLOPs of the model if every sequence fills its row; recomputed activations and padding do not count."""
        return self.flops_per_token * self.tokens

    @cached_property
    def corpora(self) -> list[dict[str, Any]]:
        """The corpora it trains on, as [`~hmm_datasets.training.sources.TrainingData.corpora`] describes them."""
        return self.data.corpora(self.skipped_rows.end(self.rows))

    @property
    def epochs(self) -> list[str]:
        """For each corpus how many times it is read, in words."""
        return [
            f"{corpus['epochs']:.2f} epochs of {corpus['name']} ({corpus['tokens']:,} tokens)"
            for corpus in self.corpora
        ]

    def check_epochs(self, most: float) -> None:
        """Refuse to read a corpus more often than the user allows.

        A budget in epochs or in steps, and that of a run which sets none, is taken as it is: only one of tokens,
        FLOPs, hours or money can reach further than its corpora without being noticed.

        Raises:
            `InputError`: a corpus would be read more than `most` times; the message lists all corpora.
        """
        worst = max((corpus["epochs"] for corpus in self.corpora), default=0.0)
        if self.budget.given.keys() - {"num_train_epochs", "max_steps"} and worst > most:
            raise InputError(
                f"{self.budget.name} {self.budget.amount:g} makes {', '.join(self.epochs)}; expected {most:g} at "
                f"most: add text, lower the budget, or allow it with --epochs_ok {math.ceil(worst)}"
            )

    def __str__(self) -> str:
        return (
            f"{self.steps:,} steps, {self.rows:,} rows, {self.tokens:,} tokens "
            f"({self.tokens / self.parameters['total']:.3g} per parameter), {self.flops:.3g} FLOPs"
        )

    def to_dict(self) -> dict[str, Any]:
        """The plan as it is written to `plan.json`."""
        return {
            "budget": {self.budget.name: self.budget.amount},
            "parameters": self.parameters["total"],
            "parameters_without_embeddings": self.parameters["body"],
            "flops_per_token": self.flops_per_token,
            "flops_per_pair": self.flops_per_pair,
            "row_length": self.data.row_length,
            "global_batch_size": self.schedule.global_batch_size,
            "batch_ramp": [f"{rows}:{steps}" for rows, steps in self.schedule.stages],
            "tokens_per_step": round(self.schedule.global_batch_size * self.data.tokens_per_row),
            "steps": self.steps,
            "rows": self.rows,
            "tokens": self.tokens,
            "tokens_per_parameter": self.tokens / self.parameters["total"],
            "flops": self.flops,
            "corpora": self.corpora,
        } | ({"passed_over_rows": self.skipped_rows.count} if self.skipped_rows else {})


def _tokens_of(data: TrainingData, rows: int, skipped_rows: SkippedRows) -> int:
    """Number of tokens in the first `rows` rows that are not skipped."""
    end = skipped_rows.end(rows)
    left_out = skipped_rows.before(end).intervals
    return data.tokens_of(end) - sum(data.tokens_of(stop) - data.tokens_of(first) for first, stop in left_out)


def make_plan(
    budget: Budget,
    schedule: BatchSchedule,
    data: TrainingData,
    model: "PreTrainedModel",
    *,
    micro_batch_size: int,
    world_size: int = 1,
    start: "Start | None" = None,
    rate: "Rate | None" = None,
    price_per_hour: float | None = None,
    skipped_rows: SkippedRows | None = None,
) -> Plan:
    """Plan a run.

    Args:
        budget ([`~hmm_datasets.training.plan.budget.Budget`]): what the run may spend.
        schedule ([`~hmm_datasets.training.plan.batch_schedule.BatchSchedule`]): rows per step.
        data ([`~hmm_datasets.training.sources.TrainingData`]): what it trains on.
        model ([`~transformers.PreTrainedModel`]): the model, on any device including `meta`; it is not run.
        micro_batch_size (`int`): rows per rank in one forward pass.
        world_size (`int`, *optional*, defaults to 1): number of processes.
        start ([`~hmm_datasets.training.checkpoints.resuming.Start`], *optional*): the checkpoint it continues from.
        rate ([`~hmm_datasets.training.plan.rate.Rate`], *optional*): assumed rate, for a budget of hours or
        money.
        price_per_hour (`float`, *optional*): price of one device.
        skipped_rows ([`~hmm_datasets.data.skipped_rows.SkippedRows`], *optional*): rows that it leaves out.

    Raises:
        `InputError`: batches that do not divide, or a budget of less than one step.
    """
    accumulation_steps(schedule.global_batch_size, world_size, micro_batch_size)
    skipped_rows = SkippedRows() if skipped_rows is None else skipped_rows
    schedule = schedule.continued(start, world_size * micro_batch_size)
    parameters, (per_token, per_pair) = count_parameters(model), unit_flops(model)
    flops = per_token + per_pair * data.row_length
    steps = budget.steps(
        schedule,
        tokens_per_row=data.tokens_per_row,
        parameters=parameters["total"],
        flops_per_token=flops,
        rows_per_epoch=data.rows_per_epoch,
        examples_per_row=data.examples_per_row,
        tokens_per_second=None if rate is None else rate.tokens_per_second(flops, world_size),
        money_per_second=None if price_per_hour is None else price_per_hour * world_size / 3600,
    )
    # The first packed rows may hold fewer tokens than the average that `steps` was computed from.
    needed = budget.tokens(parameters["total"], flops)
    while _tokens_of(data, schedule.rows_before(steps), skipped_rows) < needed:
        steps += 1
    return Plan(budget, steps, schedule, data, parameters, flops, per_pair, start, skipped_rows)
