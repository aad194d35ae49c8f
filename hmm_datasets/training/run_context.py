"""What the parts of a training run may read of it; a Trainer provides this, and so can a test."""

from typing import TYPE_CHECKING, Any, Protocol

from accelerate import Accelerator
from torch import nn
from transformers import TrainerState

if TYPE_CHECKING:
    from .plan.batch_schedule import BatchSchedule
    from .step.totals import RunTotals


class RunContext(Protocol):
    """A run as its components see it.

    Attributes:
        args: the settings, see [`~hmm_datasets.training.settings.RunSettings`].
        state ([`~transformers.TrainerState`]): steps and tokens so far.
        accelerator ([`~accelerate.Accelerator`]): collectives of the ranks.
        model (`nn.Module`): the model, not wrapped.
        deepspeed: the engine of DeepSpeed, once training has begun under it.
        current_gradient_accumulation_steps (`int`): number of micro-batches of this rank in the step under way.
        schedule ([`~hmm_datasets.training.plan.batch_schedule.BatchSchedule`]): number of rows of every step.
        totals ([`~hmm_datasets.training.step.totals.RunTotals`]): totals over all starts of the run.
        is_interrupted (`bool`): whether it stops before its end, on request.
        is_deepspeed_enabled (`bool`), is_fsdp_enabled (`bool`): what shards the model.
    """

    args: Any
    state: TrainerState
    accelerator: Accelerator
    model: nn.Module
    deepspeed: Any
    current_gradient_accumulation_steps: int
    schedule: "BatchSchedule"
    totals: "RunTotals"
    is_interrupted: bool
    is_deepspeed_enabled: bool
    is_fsdp_enabled: bool

    def say(self, line: str) -> None:
        """Write a line above the progress bar, on rank 0."""

    def is_world_process_zero(self) -> bool:
        """Whether this is rank 0."""
        ...
