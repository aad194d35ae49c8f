"""What a run will consume, known before it starts: steps, rows, tokens, FLOPs, epochs.

A recipe trains by the plan and checks at its end that it consumed what the plan says, to the token. `forecast.py`
adds what depends on the machine: memory, time, money.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..models import count_parameters
from ..sources import TrainingData
from .batch_schedule import BatchSchedule
from .budget import Budget, accumulation_steps
from .flops import flops_per_token

if TYPE_CHECKING:
    from torch.utils.data import Dataset
    from transformers import PreTrainedModel

    from ..checkpoints.resuming import Start
    from .forecast import Rate


@dataclass(frozen=True)
class Plan:
    """A run, before it runs.

    Attributes:
        budget ([`~hmm_datasets.training.plan.budget.Budget`]): what decides how long it is.
        steps (`int`): optimizer steps.
        ramp ([`~hmm_datasets.training.plan.batch_schedule.BatchSchedule`]): rows per step.
        data ([`~hmm_datasets.training.sources.TrainingData`]): what it trains on.
        parameters (`dict`): `total`, and `body`, those without embeddings.
        flops_per_token (`int`): forward and backward.
        start ([`~hmm_datasets.training.checkpoints.resuming.Start`], *optional*): the checkpoint it goes on from.
    """

    budget: Budget
    steps: int
    ramp: BatchSchedule
    data: TrainingData
    parameters: dict[str, int]
    flops_per_token: int
    start: "Start | None" = None

    @cached_property
    def rows(self) -> int:
        """Rows it trains on."""
        return self.ramp.rows_before(self.steps)

    @cached_property
    def tokens(self) -> int:
        """Tokens it trains on, padding apart."""
        return self.tokens_at(self.steps)

    def tokens_at(self, step: int) -> int:
        """Tokens consumed once `step` steps are done."""
        return self.data.tokens_of(self.ramp.rows_before(step))

    def train_rows(self) -> "Dataset":
        """Rows enough for the run, in order."""
        return self.data.rows(max(self.rows, self.steps * self.ramp.global_batch_size))

    @property
    def flops(self) -> int:
        """FLOPs of the model; recomputed activations count nothing, and padding neither."""
        return self.flops_per_token * self.tokens

    def __str__(self) -> str:
        return (
            f"{self.steps:,} steps, {self.rows:,} rows, {self.tokens:,} tokens "
            f"({self.tokens / self.parameters['total']:.3g} a parameter), {self.flops:.3g} FLOPs"
        )

    def to_dict(self) -> dict[str, Any]:
        """What a record of the run says of it."""
        return {
            "budget": {self.budget.name: self.budget.amount},
            "parameters": self.parameters["total"],
            "parameters_without_embeddings": self.parameters["body"],
            "flops_per_token": self.flops_per_token,
            "row_length": self.data.row_length,
            "global_batch_size": self.ramp.global_batch_size,
            "batch_ramp": [f"{rows}:{steps}" for rows, steps in self.ramp.stages],
            "tokens_per_step": round(self.ramp.global_batch_size * self.data.tokens_per_row),
            "steps": self.steps,
            "rows": self.rows,
            "tokens": self.tokens,
            "tokens_per_parameter": self.tokens / self.parameters["total"],
            "flops": self.flops,
            "corpora": self.data.corpora(self.rows),
        }


def make_plan(
    budget: Budget,
    ramp: BatchSchedule,
    data: TrainingData,
    model: "PreTrainedModel",
    *,
    micro_batch_size: int,
    world_size: int = 1,
    start: "Start | None" = None,
    rate: "Rate | None" = None,
    price_per_hour: float | None = None,
) -> Plan:
    """Plan a run.

    Args:
        budget ([`~hmm_datasets.training.plan.budget.Budget`]): what it may spend.
        ramp ([`~hmm_datasets.training.plan.batch_schedule.BatchSchedule`]): rows per step.
        data ([`~hmm_datasets.training.sources.TrainingData`]): what it trains on.
        model ([`~transformers.PreTrainedModel`]): on any device, meta too: it is counted, not run.
        micro_batch_size (`int`): rows a rank runs at once.
        world_size (`int`, *optional*, defaults to 1): processes.
        start ([`~hmm_datasets.training.checkpoints.resuming.Start`], *optional*): the checkpoint it goes on from.
        rate ([`~hmm_datasets.training.plan.forecast.Rate`], *optional*): assumed, for a budget of hours or money.
        price_per_hour (`float`, *optional*): of a device.

    Raises:
        `InputError`: batches that do not divide, or a budget that buys no step.
    """
    accumulation_steps(ramp.global_batch_size, world_size, micro_batch_size)
    ramp = ramp.continued(start, world_size * micro_batch_size)
    parameters, flops = count_parameters(model), flops_per_token(model, data.row_length)
    steps = budget.steps(
        ramp,
        tokens_per_row=data.tokens_per_row,
        parameters=parameters["total"],
        flops_per_token=flops,
        rows_per_epoch=data.rows_per_epoch,
        tokens_per_second=None if rate is None else rate.tokens_per_second(flops, world_size),
        money_per_second=None if price_per_hour is None else price_per_hour * world_size / 3600,
    )
    # Rows that are packed hold more or fewer tokens than they do on average.
    needed = budget.tokens(parameters["total"], flops)
    while data.tokens_of(ramp.rows_before(steps)) < needed:
        steps += 1
    return Plan(budget, steps, ramp, data, parameters, flops, start)
