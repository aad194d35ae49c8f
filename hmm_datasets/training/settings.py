"""Settings of the trainers, with those of transformers and TRL: dataclasses that are checked when they are created."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, TrainingArguments
from trl import DPOConfig, GRPOConfig, SFTConfig

from ..compat.checkpointing import checkpointing_settings
from ..data.skipped_rows import SkippedRows
from ..errors import InputError
from ..runtime import environment
from ..runtime.credentials import Secret, refuse_masks
from ..runtime.setting_rules import check_object
from ..runtime.stop_requests import parse_time
from .callbacks.samples import read_sample_prompts
from .checkpoints.resuming import possible_starts
from .checkpoints.skipped_rows import rollbacks_of, skipped_rows_of
from .fields import CHUNKED_VOCABULARY, DPOFields, GRPOFields, PretrainFields, SFTFields
from .optimizers import check_optimizer
from .plan.batch_schedule import BatchSchedule
from .plan.budget import Budget, accumulation_steps, read_budget
from .plan.plan import Plan, make_plan
from .plan.rate import Rate, read_rate
from .precision import check_dtype, find_precision, launched_in
from .refusals import check_packages, check_planned, check_refusals
from .sources import TrainingData
from .step.component import named_components
from .step.spikes import check_spikes
from .trackers import check_trackers


class RunSettings(checkpointing_settings()):
    """A mixin that checks the settings of a run, so that the order of rows is the same on any number of processes."""

    alternatives = (("max_steps", "num_train_epochs", "train_tokens", "train_budget"),)
    default_budget = Budget()
    """Budget of a run if none is set."""

    recipe = "pretrain"
    """The recipe with these settings, as `refusal_rules.TRAINERS` has it."""

    idle_devices = 0
    """Number of GPUs that this process sees and does not use."""

    def __post_init__(self):
        check_refusals(self)
        check_object(self)
        self._read_values()
        self._set_accumulation()
        self._set_budget()
        _fit_to_machine(self)
        self._complete_in_precision()
        self._take_one_device()
        check_packages(self)
        check_optimizer(self)

    def _read_values(self) -> None:
        """Check and read the settings that stand for something else: secrets, times, prompts, names."""
        if self.hub_token is not None:
            refuse_masks({"hub_token": self.hub_token})
            self.hub_token = Secret(self.hub_token, "hub_token")
        if self.time_limit is not None:
            parse_time(self.time_limit)
        self.sample_prompts = read_sample_prompts(self.sample_prompts)
        check_trackers(self.report_to)
        named_components(self.components)
        check_dtype(self)
        check_spikes(self)
        self.batch_schedule  # noqa: B018  (raises if a stage is wrong)

    def _set_accumulation(self) -> None:
        """The micro-batches of a step, which follow from the global batch."""
        steps = accumulation_steps(self.global_batch_size, environment.world_size(), self.per_device_train_batch_size)
        if self.gradient_accumulation_steps not in (1, steps):
            raise InputError(
                f"gradient_accumulation_steps is {self.gradient_accumulation_steps}, but follows from "
                f"global_batch_size {self.global_batch_size}: {steps} here; set global_batch_size instead"
            )
        self.gradient_accumulation_steps = steps

    def _set_budget(self) -> None:
        """The budget, from whichever setting states it."""
        budget = Budget(
            max_steps=None if self.max_steps == -1 else self.max_steps,
            num_train_epochs=self.num_train_epochs or None,
            train_tokens=self.train_tokens,
            **read_budget(self.train_budget),
        )
        self.budget = budget if budget.given else self.default_budget

    def _complete_in_precision(self) -> None:
        """Let transformers complete the settings, in the precision of the run."""
        if self.ddp_find_unused_parameters is None:
            self.ddp_find_unused_parameters = False  # these models use every parameter in every step
        precision, self.precision_origin = find_precision(self)
        # Given as the launcher's, since transformers refuses bf16 for DeepSpeed without a GPU.
        self.bf16 = self.fp16 = False
        with launched_in(precision):
            super().__post_init__()
        self.bf16, self.fp16 = precision == "bf16", precision == "fp16"

    def _take_one_device(self) -> None:
        """Let this process compute on one device, and refuse ranks that do not see each other."""
        if environment.world_size() != self.world_size:
            raise InputError(
                f"the launcher started {environment.world_size()} processes that do not see each other (world "
                f"size {self.world_size}); use one of accelerate_configs/, or set use_cpu"
            )
        self.idle_devices = max(0, self.n_gpu - 1)
        self._n_gpu = min(1, self.n_gpu)  # transformers would copy the model to all of them and read a batch for each

    @property
    def batch_schedule(self) -> BatchSchedule:
        """The global batch of every step."""
        return BatchSchedule.parse(self.batch_ramp, self.global_batch_size)

    @property
    def row_seed(self) -> int:
        """Seed of the order of rows: `data_seed`, or `seed` without one."""
        return self.seed if self.data_seed is None else self.data_seed

    @property
    def rate(self) -> Rate | None:
        """The rate that the plan assumes, if any."""
        precision = "bf16" if self.mixed_precision == "no" else self.mixed_precision
        return read_rate(self.assumed_rate, precision)

    @property
    def skipped_rows(self) -> SkippedRows:
        """Rows that the run in `output_dir` skips since it went back."""
        return skipped_rows_of(rollbacks_of(self.output_dir) if self.resume else [])

    def plan(self, data: TrainingData, model: PreTrainedModel, world_size: int | None = None) -> Plan:
        """Plan a run with these settings, from its newest checkpoint if there is one, and set `max_steps`.

        Args:
            data ([`~hmm_datasets.training.sources.TrainingData`]): what it trains on.
            model ([`~transformers.PreTrainedModel`]): the model it trains.
            world_size (`int`, *optional*): number of processes; by default the current one.
        """
        check_planned(self)
        skipped_rows = self.skipped_rows
        starts = possible_starts(self.output_dir, skipped_rows) if self.resume else ()
        for start in (*starts, None):
            plan = make_plan(
                self.budget,
                self.batch_schedule,
                data,
                model,
                start=start,
                micro_batch_size=self.per_device_train_batch_size,
                world_size=self.world_size if world_size is None else world_size,
                rate=self.rate,
                price_per_hour=self.price_per_hour,
                skipped_rows=skipped_rows,
            )
            if start is None or start.step <= plan.steps:
                break
        self.max_steps = plan.steps
        return plan


@dataclass
class PretrainSettings(RunSettings, PretrainFields, TrainingArguments):
    """`TrainingArguments` with this project's defaults for training on rows of tokens."""

    def to_dict(self) -> dict[str, Any]:
        """The settings, without `data_seed`, which those of the data have."""
        return {name: value for name, value in super().to_dict().items() if name != "data_seed"}

    def plan(self, data: TrainingData, model: PreTrainedModel, world_size: int | None = None) -> Plan:
        """See [`RunSettings.plan`]; corpora are read `epochs_ok` times at most."""
        plan = super().plan(data, model, world_size)
        plan.check_epochs(self.epochs_ok)
        return plan

    def chunks(self, vocab_size: int) -> bool:
        """Whether the loss is to be computed in chunks for a vocabulary of this size."""
        return vocab_size >= CHUNKED_VOCABULARY if self.chunked_loss is None else self.chunked_loss


@dataclass
class SFTSettings(RunSettings, SFTFields, SFTConfig):
    """TRL's `SFTConfig` with this project's defaults: the loss is on the assistant's words alone."""

    recipe = "sft"
    default_budget = Budget(num_train_epochs=3.0)

    def __post_init__(self):
        super().__post_init__()
        if self.packing or self.padding_free:
            # TRL joins the rows of a batch to one, and those that ranks repeat could not be distinguished in it.
            self.per_device_eval_batch_size = 1


@dataclass
class DPOSettings(RunSettings, DPOFields, DPOConfig):
    """TRL's `DPOConfig` with this project's defaults: the reference is computed once, before training, and cached."""

    recipe = "dpo"
    default_budget = Budget(num_train_epochs=1.0)


@dataclass
class GRPOSettings(RunSettings, GRPOFields, GRPOConfig):
    """TRL's `GRPOConfig` with this project's defaults.

    A row of the global batch is a completion, so one of 64 with 8 completions per prompt has 8 prompts.
    """

    recipe = "grpo"
    default_budget = Budget(num_train_epochs=1.0)

    def __post_init__(self):
        if self.load_best_model_at_end or self.save_strategy == "best":
            self.metric_for_best_model = self.metric_for_best_model or "reward"  # not the loss, which is near zero
        super().__post_init__()
        if self.on_spike == "rollback":
            raise InputError("on_spike is rollback, but rollouts are drawn anew, not skipped; set warn or skip")
        cap = self.epsilon if self.epsilon_high is None else self.epsilon_high
        if self.loss_type == "cispo" and cap < 1:
            raise InputError(
                f"epsilon_high is {cap:g} with loss_type cispo, which caps ratios of probabilities there, so that all "
                "rewards would count less; set it above 1, for example 5.0 (arXiv 2510.13786)"
            )
        if self.rollout_steps * self.gradient_accumulation_steps != self.steps_per_generation * self.num_iterations:
            raise InputError(
                f"generation_batch_size {self.generation_batch_size} with num_iterations {self.num_iterations} does "
                f"not make whole steps of global_batch_size {self.global_batch_size}; make it a multiple"
            )

    @property
    def rollout_steps(self) -> int:
        """Optimizer steps that use the same rollouts."""
        return max(1, self.steps_per_generation * self.num_iterations // self.gradient_accumulation_steps)

    @property
    def rollout_prompts(self) -> int:
        """Prompts that are completed at a time."""
        return self.generation_batch_size // self.num_generations

    def prompts_before(self, step: int) -> int:
        """Number of prompts before those of an optimizer step, counted from 0."""
        return step // self.rollout_steps * self.rollout_prompts

    def set_steps(self, num_prompts: int) -> None:
        """Set `max_steps` to the budget, for this number of prompts per epoch.

        Raises:
            `InputError`: the budget is less than one step.
        """
        if self.budget.name == "max_steps":
            return
        rollouts = int(self.budget.amount * num_prompts + 1e-9) // self.rollout_prompts
        if rollouts == 0:
            raise InputError(
                f"num_train_epochs {self.budget.amount:g} of {num_prompts:,} prompts are less than the first step "
                f"takes, {self.rollout_prompts:,}; raise it, or lower global_batch_size"
            )
        self.max_steps = rollouts * self.rollout_steps


def _fit_to_machine(settings: TrainingArguments) -> None:
    """Without a GPU, tell the Trainer so; otherwise its ranks would not find each other."""
    if torch.accelerator.is_available():
        return
    settings.dataloader_pin_memory = False
    if environment.uses_deepspeed():
        settings.ddp_backend = "gloo"  # accelerate does not use DeepSpeed if use_cpu is set
    else:
        settings.use_cpu = True
