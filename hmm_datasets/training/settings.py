"""Settings of the trainers: dataclasses that are checked when they are created.

Settings of what is looked at while a run trains, besides the held-out loss: tasks, and where its time goes.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, TrainingArguments
from trl import DPOConfig, GRPOConfig, SFTConfig

from ..data.skipped_rows import SkippedRows
from ..errors import InputError
from ..runtime import environment
from ..runtime.credentials import Secret, refuse_masks
from ..runtime.settings import setting
from ..runtime.stop_requests import parse_time
from .callbacks.samples import check_samples
from .checkpoints.resuming import possible_starts
from .checkpoints.skipped_rows import rollbacks_of, rows_passed_over
from .fused_loss import CHUNKED_VOCABULARY
from .optimizers import check_optimizer
from .plan.batch_schedule import BatchSchedule
from .plan.budget import BUDGETS, Budget, accumulation_steps
from .plan.forecast import Rate, assumed_rate
from .plan.plan import Plan, make_plan
from .post_training.lora import LoRASettings
from .precision import check_dtype, find_precision, launched_in
from .sources import TrainingData
from .step.spikes import check_spikes
from .step.z_loss import check_z_loss
from .supported import check_packages, check_planned, check_supported
from .trackers import check_trackers


@dataclass
class WatchSettings:
    """A mixin for the settings of trainers; recipes evaluate the tasks (see `evaluation.during_training`)."""

    task_steps: int = setting(0, "Evaluate tasks (facts, and CORE with core_data) every so many steps; 0 for never.")
    core_data: str | None = setting(None, "With task_steps: folder of CORE's questions.")
    core_tasks: list[str] = setting([], "With task_steps: tasks of CORE; by default all that core_data has.")
    core_max_per_task: int | None = setting(200, "With task_steps: maximum number of questions per task of CORE.")
    profile_steps: int = setting(
        0, "Profile so many steps, after the first three of this start; 0 for none. Slows these down."
    )

    def __post_init__(self):
        super().__post_init__()
        for name in ("task_steps", "profile_steps"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}; expected 0 or more")
        if self.core_data is not None and self.task_steps == 0:
            raise InputError("core_data is set, but tasks are never evaluated; set task_steps, or leave core_data out")
        if self.core_max_per_task is not None and self.core_max_per_task < 1:
            raise InputError(f"core_max_per_task is {self.core_max_per_task}; expected 1 or more")


@dataclass
class RunSettings(WatchSettings):
    """Settings that keep the order of examples the same on any number of processes.

    This is a mixin for `TrainingArguments` and its subclasses. The user chooses the global batch; accumulation follows
    from it, the world size and the micro-batch (`per_device_train_batch_size`).
    """

    global_batch_size: int = setting(64, "Rows per optimizer step, over all ranks and gradient accumulation.")
    resume: bool = setting(True, "Continue from the newest whole checkpoint in output_dir, if there is one.")
    accept_changes: list[str] = setting(
        [], "Names, such as data.seed, that may differ from those of the run that is continued."
    )
    keep_every: int | None = setting(
        None, "Keep checkpoints of steps divisible by this, whatever save_total_limit says."
    )
    copy_checkpoints_to: str | None = setting(
        None,
        "Folder on another disk. Each checkpoint is copied there in the background, to a folder named as "
        "output_dir, and the run continues from the copy if its own checkpoints are gone.",
    )
    optimizer_from: str | None = setting(
        None,
        "Run or checkpoint of the model, whose optimizer state the run starts with; the learning rate "
        "schedule starts anew.",
    )
    price_per_hour: float | None = setting(
        None, "Price per device and hour, in any currency, for the cost in logs and plans."
    )
    time_limit: str | None = setting(
        None, "Save and stop before this time is up, written as in Slurm: 3:55:00 or 2-00:00:00."
    )
    evaluations_per_doubling: int = setting(
        0, "Evaluations per doubling of the step, evenly spaced on a log axis; 0 for none."
    )
    train_tokens: int | None = setting(None, "Budget: number of tokens to train on, over all ranks.")
    train_examples: int | None = setting(None, "Budget: number of examples, also if several are packed into a row.")
    tokens_per_parameter: float | None = setting(
        None, "Budget: tokens per parameter of the model; 20 if no budget is set."
    )
    train_flops: float | None = setting(None, "Budget: floating-point operations of the model.")
    train_hours: float | None = setting(None, "Budget: hours of training, at the assumed rate.")
    train_cost: float | None = setting(None, "Budget: cost of training, at the assumed rate and price_per_hour.")
    num_train_epochs: float = setting(0.0, "Budget: passes over the training data.")
    assumed_tokens_per_second: float | None = setting(
        None, "Assumed rate of training for the plan: tokens per second over all devices."
    )
    assumed_run: str | None = setting(
        None, "Assumed rate of training for the plan: that of an earlier run (its folder)."
    )
    assumed_device: str | None = setting(
        None, "Assumed rate of training for the plan: assumed_mfu of this device's peak, e.g. H200."
    )
    assumed_mfu: float = setting(0.4, "Assumed model FLOPs utilization of assumed_device.")
    batch_ramp: list[str] = setting(
        [],
        "Smaller global batches of the first steps, as ROWS:STEPS: 16:100 32:300; or a linear ramp, as "
        "START+INCREMENT:ROWS: 16+16:5000000 reaches global_batch_size after 5 million rows.",
    )
    z_loss: float = setting(0.0, "Weight of the z-loss (mean squared log-normalizer) in the loss, such as 1e-4.")
    on_spike: str = setting(
        "warn",
        "At a spike of the loss: warn; skip, to drop the gradient of the step; rollback, to go back to "
        "the newest checkpoint before it and skip the rows around it, also at a loss that is not finite; or "
        "ignore, not to look for any.",
    )
    spike_margin: int = setting(5, "With on_spike rollback: steps before and after the spike that are skipped.")
    max_rollbacks: int = setting(3, "Maximum number of rollbacks to the same checkpoint; one more ends the run.")
    log_indices: bool = setting(False, "Write the indices of the rows each rank trains on to indices-RANK.jsonl.")
    sample_prompts: list[str] = setting([], "Prompts that the model continues at every evaluation.")
    sample_tokens: int = setting(48, "Maximum number of tokens per continuation of a prompt.")
    sample_temperature: float = setting(0.0, "Sampling temperature of continuations; 0 for greedy decoding.")

    bf16: bool | None = setting(None, "Compute in bfloat16; by default on GPUs that have it. false for float32.")
    fp16: bool | None = setting(None, "Compute in float16, for GPUs without bfloat16.")
    dtype: str | None = setting(
        None,
        "Type of weights and moments: float32, or bfloat16 for half the memory, in which small updates are lost; by "
        "default float32, and for the frozen base of an adapter that of its file.",
    )
    train_sampling_strategy: str = "sequential"
    include_num_input_tokens_seen: str = "non_padding"
    logging_steps: float = 10
    logging_nan_inf_filter: bool = False

    alternatives = (("max_steps", "num_train_epochs", *BUDGETS),)
    default_budget = Budget()
    """Budget of a run if none is set."""

    recipe = "pretrain"
    """The recipe with these settings, as `supported.TRAINERS` has it."""

    idle_devices = 0
    """Number of GPUs that this process sees and does not use."""

    def __post_init__(self):
        check_supported(self)
        if self.hub_token is not None:
            refuse_masks({"hub_token": self.hub_token})
            self.hub_token = Secret(self.hub_token, "hub_token")
        steps = accumulation_steps(self.global_batch_size, environment.world_size(), self.per_device_train_batch_size)
        if self.gradient_accumulation_steps not in (1, steps):
            raise InputError(
                f"gradient_accumulation_steps is {self.gradient_accumulation_steps}, but follows from "
                f"global_batch_size {self.global_batch_size}: {steps} here; set global_batch_size instead"
            )
        self.gradient_accumulation_steps = steps
        if self.time_limit is not None:
            parse_time(self.time_limit)
        check_samples(self.sample_prompts, self.sample_tokens, self.sample_temperature)
        check_trackers(self.report_to)
        if self.keep_every is not None and self.keep_every < 1:
            raise InputError(f"keep_every is {self.keep_every}; expected 1 or more, or leave it out")
        if self.copies is not None and self.copies.resolve() == Path(self.output_dir).resolve():
            raise InputError(
                f"copy_checkpoints_to is {self.copy_checkpoints_to}, where {self.output_dir} is; name another disk"
            )
        check_z_loss(self.z_loss)
        check_dtype(self)
        check_spikes(self)
        given = {name: getattr(self, name) for name in BUDGETS}
        given["max_steps"] = None if self.max_steps == -1 else self.max_steps
        given["num_train_epochs"] = self.num_train_epochs or None
        budget = Budget(**given)
        self.budget = budget if budget.given else self.default_budget
        self.batch_schedule  # noqa: B018  (raises if a stage is wrong)
        _fit_to_machine(self)
        if self.ddp_find_unused_parameters is None:
            self.ddp_find_unused_parameters = False  # these models use every parameter in every step
        precision, self.precision_origin = find_precision(self)
        # Given as the launcher's, since transformers refuses bf16 for DeepSpeed without a GPU.
        self.bf16 = self.fp16 = False
        with launched_in(precision):
            super().__post_init__()
        self.bf16, self.fp16 = precision == "bf16", precision == "fp16"
        if environment.world_size() != self.world_size:
            raise InputError(
                f"the launcher started {environment.world_size()} processes that do not see each other (world "
                f"size {self.world_size}); use one of accelerate_configs/, or set use_cpu"
            )
        self.idle_devices = max(0, self.n_gpu - 1)
        self._n_gpu = min(1, self.n_gpu)  # transformers would copy the model to all of them and read a batch for each
        check_packages(self)

    @property
    def copies(self) -> Path | None:
        """Folder of the copies of the checkpoints, if any are made."""
        if self.copy_checkpoints_to is None or self.output_dir is None:
            return None
        return Path(self.copy_checkpoints_to) / Path(self.output_dir).absolute().name

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
        return assumed_rate(
            tokens_per_second=self.assumed_tokens_per_second,
            run=self.assumed_run,
            device=self.assumed_device,
            mfu=self.assumed_mfu,
            precision="bf16" if self.mixed_precision == "no" else self.mixed_precision,
        )

    @property
    def passed_over(self) -> SkippedRows:
        """Rows that the run in `output_dir` skips since it went back."""
        return rows_passed_over(rollbacks_of(self.output_dir, self.copies) if self.resume else [])

    def plan(self, data: TrainingData, model: PreTrainedModel, world_size: int | None = None) -> Plan:
        """Plan a run with these settings, from its newest checkpoint if there is one, and set `max_steps`.

        Args:
            data ([`~hmm_datasets.training.sources.TrainingData`]): what it trains on.
            model ([`~transformers.PreTrainedModel`]): the model it trains.
            world_size (`int`, *optional*): number of processes; by default the current one.
        """
        check_planned(self)
        passed_over = self.passed_over
        starts = possible_starts(self.output_dir, passed_over, copies=self.copies) if self.resume else ()
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
                passed_over=passed_over,
            )
            if start is None or start.step <= plan.steps:
                break
        self.max_steps = plan.steps
        return plan


@dataclass
class OptimizerSettings:
    """Settings of optimizer and learning rate schedule: a mixin for `TrainingArguments` and its subclasses."""

    matrix_optimizer: str = setting(
        "adamw", "Optimizer of the hidden matrices: adamw, or muon with AdamW for the rest."
    )
    learning_rate_factors: dict[str, Any] | str | None = setting(
        None, "Regular expressions on parameter names, and factors of their learning rate."
    )
    scale_learning_rate: str | None = setting(
        None, "sqrt to multiply learning_rate by the square root of the number of processes."
    )
    decay_steps: float = setting(0.2, "Decay steps of warmup_stable_decay; below 1, a share of the run.")

    def __post_init__(self):
        super().__post_init__()
        check_optimizer(self)


@dataclass
class PretrainSettings(OptimizerSettings, RunSettings, TrainingArguments):
    """`TrainingArguments` with this project's defaults for training on rows of tokens."""

    pad_vocabulary_to: int | None = setting(
        None, "Pad the output layer to a multiple of this; by default 128 on a GPU, 1 for no padding."
    )
    dataloader_num_workers: int = field(
        default_factory=lambda: 2 * torch.accelerator.is_available(),
        metadata={"help": "Processes per rank that load rows ahead; by default 2 with a GPU, else 0."},
    )
    chunked_loss: bool | None = setting(
        None,
        "Compute the loss without holding the logits of all tokens; by default for vocabularies of "
        f"{CHUNKED_VOCABULARY:,} tokens or more.",
    )
    lr_scheduler_type: str = "cosine_with_min_lr"
    lr_scheduler_kwargs: dict[str, Any] | str | None = None
    warmup_steps: float = 0.05
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    adam_beta2: float = 0.95

    def chunks(self, vocab_size: int) -> bool:
        """Whether the loss is to be computed in chunks for a vocabulary of this size."""
        return vocab_size >= CHUNKED_VOCABULARY if self.chunked_loss is None else self.chunked_loss


@dataclass
class SFTSettings(OptimizerSettings, LoRASettings, RunSettings, SFTConfig):
    """TRL's `SFTConfig` with this project's defaults: the loss is on the assistant's words alone."""

    assistant_only_loss: bool = True

    recipe = "sft"
    default_budget = Budget(num_train_epochs=3.0)

    def __post_init__(self):
        super().__post_init__()
        if self.packing and self.pad_to_multiple_of:
            raise InputError(
                "pad_to_multiple_of and packing are both set, but packed rows have no padding; leave one of them out"
            )
        if self.packing or self.padding_free:
            # TRL joins the rows of a batch to one, and those that ranks repeat could not be distinguished in it.
            self.per_device_eval_batch_size = 1


@dataclass
class DPOSettings(OptimizerSettings, LoRASettings, RunSettings, DPOConfig):
    """TRL's `DPOConfig` with this project's defaults: the reference is computed once, before training, and cached."""

    precompute_ref_log_probs: bool = True

    recipe = "dpo"
    default_budget = Budget(num_train_epochs=1.0)

    def __post_init__(self):
        super().__post_init__()
        if self.z_loss:
            raise InputError("z_loss is set, but preferences have no labels to add it to; leave it out")


@dataclass
class GRPOSettings(OptimizerSettings, LoRASettings, RunSettings, GRPOConfig):
    """TRL's `GRPOConfig` with this project's defaults.

    A row of the global batch is a completion, so one of 64 with 8 completions per prompt has 8 prompts.
    """

    shuffle_dataset: bool | None = False  # the order is that of the rows, shuffled anew in every epoch
    num_generations_eval: int | None = 1
    on_spike: str = "ignore"  # the loss of rollouts is near zero, whatever they are like
    log_completions: bool = True
    num_completions_to_print: int | None = 0
    include_num_input_tokens_seen: str = "no"  # TRL counts prompts and completions when they are generated

    recipe = "grpo"
    default_budget = Budget(num_train_epochs=1.0)

    def __post_init__(self):
        if self.load_best_model_at_end or self.save_strategy == "best":
            self.metric_for_best_model = self.metric_for_best_model or "reward"  # not the loss, which is near zero
        super().__post_init__()
        if self.budget.name not in ("max_steps", "num_train_epochs"):
            raise InputError(
                f"{self.budget.name} is set, but the lengths of rollouts are not known before; set max_steps or "
                "num_train_epochs"
            )
        if self.on_spike == "rollback":
            raise InputError("on_spike is rollback, but rollouts are drawn anew, not skipped; set warn or skip")
        if self.batch_ramp or self.z_loss or self.log_indices:
            name = next(name for name in ("batch_ramp", "z_loss", "log_indices") if getattr(self, name))
            raise InputError(f"{name} is set, but it is not possible with rollouts; leave it out")
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
