"""Settings of the recipes: dataclasses that TRL's parser reads from a YAML file and flags, checked when created."""

import argparse
import difflib
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from transformers import PreTrainedModel, TrainingArguments
from trl import SFTConfig, TrlParser

from .. import launch_environment
from ..compat.accelerate import shard_on_cpu
from ..errors import InputError
from ..files import read_yaml
from ..shipped_files import local_or_shipped
from .callbacks.interruptions import parse_time
from .callbacks.samples import check_samples
from .checkpoints.resuming import possible_starts
from .components.z_loss import check_z_loss
from .lora import LoRASettings
from .optimizers import check_optimizer
from .plan.batch_schedule import BatchSchedule
from .plan.budget import BUDGETS, Budget, accumulation_steps
from .plan.forecast import Rate, assumed_rate
from .plan.plan import Plan, make_plan
from .sources import TrainingData
from .trackers import check_trackers


@dataclass
class RunSettings:
    """Settings that keep the order of examples the same on any number of processes.

    This is a mixin for `TrainingArguments` and its subclasses. The user chooses the global batch; accumulation follows
    from it, the world size and the micro-batch (`per_device_train_batch_size`).
    """

    global_batch_size: int = field(
        default=64, metadata={"help": "Rows per optimizer step, over all ranks and gradient accumulation."}
    )
    resume: bool = field(
        default=True, metadata={"help": "Continue from the newest whole checkpoint in output_dir, if there is one."}
    )
    accept_changes: list[str] = field(
        default_factory=list,
        metadata={"help": "Names, such as data.seed, that may differ from those of the run that is continued."},
    )
    keep_every: int | None = field(
        default=None, metadata={"help": "Keep checkpoints of steps divisible by this, whatever save_total_limit says."}
    )
    price_per_hour: float | None = field(
        default=None, metadata={"help": "Price per device and hour, in any currency, for the cost in logs and plans."}
    )
    time_limit: str | None = field(
        default=None,
        metadata={"help": "Save and stop before this time is up, written as in Slurm: 3:55:00 or 2-00:00:00."},
    )
    evaluations_per_doubling: int = field(
        default=0, metadata={"help": "Evaluations per doubling of the step, evenly spaced on a log axis; 0 for none."}
    )
    train_tokens: int | None = field(
        default=None, metadata={"help": "Budget: number of tokens to train on, over all ranks."}
    )
    train_examples: int | None = field(
        default=None, metadata={"help": "Budget: number of examples, also if several are packed into a row."}
    )
    tokens_per_parameter: float | None = field(
        default=None, metadata={"help": "Budget: tokens per parameter of the model; 20 if no budget is set."}
    )
    train_flops: float | None = field(
        default=None, metadata={"help": "Budget: floating-point operations of the model."}
    )
    train_hours: float | None = field(
        default=None, metadata={"help": "Budget: hours of training, at the assumed rate."}
    )
    train_cost: float | None = field(
        default=None, metadata={"help": "Budget: cost of training, at the assumed rate and price_per_hour."}
    )
    num_train_epochs: float = field(default=0.0, metadata={"help": "Budget: passes over the training data."})
    assumed_tokens_per_second: float | None = field(
        default=None, metadata={"help": "Assumed rate of training for the plan: tokens per second over all devices."}
    )
    assumed_run: str | None = field(
        default=None, metadata={"help": "Assumed rate of training for the plan: that of an earlier run (its folder)."}
    )
    assumed_device: str | None = field(
        default=None,
        metadata={"help": "Assumed rate of training for the plan: assumed_mfu of this device's peak, e.g. H200."},
    )
    assumed_mfu: float = field(default=0.4, metadata={"help": "Assumed model FLOPs utilization of assumed_device."})
    batch_ramp: list[str] = field(
        default_factory=list,
        metadata={"help": "Smaller global batches of the first steps, as ROWS:STEPS: 16:100 32:300."},
    )
    z_loss: float = field(
        default=0.0, metadata={"help": "Weight of the z-loss (mean squared log-normalizer) in the loss, such as 1e-4."}
    )
    log_indices: bool = field(
        default=False, metadata={"help": "Write the indices of the rows each rank trains on to indices-RANK.jsonl."}
    )
    sample_prompts: list[str] = field(
        default_factory=list, metadata={"help": "Prompts that the model continues at every evaluation."}
    )
    sample_tokens: int = field(default=48, metadata={"help": "Maximum number of tokens per continuation of a prompt."})
    sample_temperature: float = field(
        default=0.0, metadata={"help": "Sampling temperature of continuations; 0 for greedy decoding."}
    )

    train_sampling_strategy: str = "sequential"
    include_num_input_tokens_seen: str = "non_padding"
    logging_steps: float = 10
    logging_nan_inf_filter: bool = False

    default_budget = Budget()
    """Budget of a run if none is set."""

    def __post_init__(self):
        steps = accumulation_steps(
            self.global_batch_size, launch_environment.world_size(), self.per_device_train_batch_size
        )
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
        check_z_loss(self.z_loss)
        given = {name: getattr(self, name) for name in BUDGETS}
        given["max_steps"] = self.max_steps if self.max_steps > 0 else None
        given["num_train_epochs"] = self.num_train_epochs or None
        budget = Budget(**given)
        self.budget = budget if budget.given else self.default_budget
        self.batch_schedule  # noqa: B018  (raises if a stage is wrong)
        _fit_to_machine(self)
        if self.ddp_find_unused_parameters is None:
            self.ddp_find_unused_parameters = False  # these models use every parameter in every step
        super().__post_init__()
        if launch_environment.world_size() != self.world_size:
            raise InputError(
                f"the launcher started {launch_environment.world_size()} processes that do not see each other (world "
                f"size {self.world_size}); use one of accelerate_configs/, or set use_cpu"
            )

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickling, without the Hub token, which must not be written to a file."""
        return {**self.__dict__, "hub_token": None}

    @property
    def batch_schedule(self) -> BatchSchedule:
        """The global batch of every step."""
        return BatchSchedule.parse(self.batch_ramp, self.global_batch_size)

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

    def plan(self, data: TrainingData, model: PreTrainedModel, world_size: int | None = None) -> Plan:
        """Plan a run with these settings, from its newest checkpoint if there is one, and set `max_steps`.

        Args:
            data ([`~hmm_datasets.training.sources.TrainingData`]): what it trains on.
            model ([`~transformers.PreTrainedModel`]): the model it trains.
            world_size (`int`, *optional*): number of processes; by default the current one.
        """
        for start in (*(possible_starts(self.output_dir) if self.resume else ()), None):
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
            )
            if start is None or start.step <= plan.steps:
                break
        self.max_steps = plan.steps
        return plan


@dataclass
class OptimizerSettings:
    """Settings of optimizer and learning rate schedule: a mixin for `TrainingArguments` and its subclasses."""

    matrix_optimizer: str = field(
        default="adamw", metadata={"help": "Optimizer of the hidden matrices: adamw, or muon with AdamW for the rest."}
    )
    learning_rate_factors: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": "Regular expressions on parameter names, and factors of their learning rate."},
    )
    decay_steps: float = field(
        default=0.2,
        metadata={"help": "Decay steps of warmup_stable_decay; below 1, a share of the run."},
    )

    def __post_init__(self):
        super().__post_init__()
        check_optimizer(self)


@dataclass
class PretrainSettings(OptimizerSettings, RunSettings, TrainingArguments):
    """`TrainingArguments` with this project's defaults for training on rows of tokens."""

    pad_vocabulary_to: int | None = field(
        default=None,
        metadata={"help": "Pad the output layer to a multiple of this; by default 128 on a GPU, 1 for no padding."},
    )
    dataloader_num_workers: int = field(
        default_factory=lambda: 2 * torch.accelerator.is_available(),
        metadata={"help": "Processes per rank that load rows ahead; by default 2 with a GPU, else 0."},
    )
    lr_scheduler_type: str = "cosine_with_min_lr"
    lr_scheduler_kwargs: dict[str, Any] | str | None = None
    warmup_steps: float = 0.05
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    adam_beta2: float = 0.95


@dataclass
class SFTSettings(OptimizerSettings, LoRASettings, RunSettings, SFTConfig):
    """TRL's `SFTConfig` with this project's defaults: the loss is on the assistant's words alone."""

    assistant_only_loss: bool = True
    bf16: bool | None = None

    default_budget = Budget(num_train_epochs=3.0)


def parse_settings(*kinds: type, arguments: Sequence[str] | None = None) -> tuple:
    """Read `--config FILE.yaml` and flags that override it into the dataclasses `kinds`.

    Raises:
        `InputError`: a missing or malformed file, an unknown key or flag, or a value of the wrong type; the message
            names the file and the key.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = _Parser(kinds)
    arguments = [part for argument in arguments for part in _split_config(argument)]
    _check_flags(arguments, parser)
    if "--config" in arguments:
        _find_config(arguments)
        _check_config(arguments[arguments.index("--config") + 1 :], parser, kinds)
    shard_on_cpu()
    try:
        return parser.parse_args_and_config(arguments)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"settings: {error}") from None


class _Parser(TrlParser):
    """TRL's parser, except that it keeps the list of its flags and raises instead of printing its usage and exiting.

    Args:
        kinds (sequence of `type`): the dataclasses to read.

    Attributes:
        declared (`list[argparse.Action]`): what `add_argument` returned for every flag.
    """

    def __init__(self, kinds: Sequence[type]):
        self.declared: list[argparse.Action] = []
        # An abbreviated flag could come to mean another one when a setting is added.
        super().__init__(kinds, allow_abbrev=False)

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        action = super().add_argument(*names, **settings)
        self.declared.append(action)
        return action

    def error(self, message: str) -> NoReturn:
        raise InputError(message) from None


def _split_config(argument: str) -> list[str]:
    # TRL's parser does not know the form `--config=FILE`.
    return ["--config", argument.removeprefix("--config=")] if argument.startswith("--config=") else [argument]


def _find_config(arguments: list[str]) -> None:
    """Replace the value of `--config` by a shipped file, if no local file has that name."""
    index = arguments.index("--config") + 1
    given = arguments[index : index + 1]
    for found in (str(local_or_shipped(name, "recipes")) for name in given):
        if found != str(Path(given[0])) and launch_environment.rank() == 0:
            print(f"--config {given[0]}: no such file here; using the shipped {found}", file=sys.stderr, flush=True)
        arguments[index] = found


def _check_flags(arguments: list[str], parser: _Parser) -> None:
    known = {"--config", *(flag for action in parser.declared for flag in action.option_strings)}
    for argument in arguments:
        flag = argument.partition("=")[0]
        if flag.startswith("--") and flag not in known:
            raise InputError(f"unknown flag {flag}{_suggestion(flag, known)}")


def _check_config(values: list[str], parser: _Parser, kinds: Sequence[type]) -> None:
    if not values:
        raise InputError("--config needs a YAML file")
    path = Path(values[0])
    content = read_yaml(path)
    expected = {name: kind for one in kinds for name, kind in typing.get_type_hints(one).items()}
    converters = {action.dest: action.type for action in reversed(parser.declared) if action.dest != "help"}
    for key, value in content.items():
        if key == "env":
            continue
        if key not in converters:
            raise InputError(f"{path}: unknown setting {key!r}{_suggestion(str(key), converters)}")
        if not _fits(value, expected[key], converters[key]):
            kind = expected[key].__name__ if isinstance(expected[key], type) else expected[key]
            raise InputError(f"{path}: {key} is {value!r} ({type(value).__name__}); expected {kind}")


def _fits(value: Any, kind: Any, convert: Callable[[str], Any] | None) -> bool:
    """Whether a value of a YAML file has a field's type; argparse converts strings and checks nothing else."""
    members = set(typing.get_args(kind)) if typing.get_origin(kind) in (typing.Union, types.UnionType) else {kind}
    if isinstance(value, str) and str not in members and convert is not None:
        try:
            convert(value)
        except (ValueError, argparse.ArgumentTypeError):
            return False
        return True
    scalars = members & {bool, int, float, str, type(None)}
    if scalars != members and type(value) not in (bool, int, float, type(None)):
        return True  # lists, mappings, enumerations: their dataclass checks them
    return type(value) in scalars or (type(value) is int and float in scalars)


def _suggestion(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _fit_to_machine(settings: TrainingArguments) -> None:
    """Without a GPU, tell the Trainer so; otherwise its ranks would not find each other."""
    if torch.accelerator.is_available():
        return
    settings.dataloader_pin_memory = False
    settings.bf16 = bool(settings.bf16)  # TRL turns it on by default, but it does not speed up a CPU
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true":
        settings.ddp_backend = "gloo"  # accelerate does not use DeepSpeed if use_cpu is set
    else:
        settings.use_cpu = True
