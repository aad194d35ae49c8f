"""Settings of the recipes: dataclasses that TRL's parser reads from a YAML file and flags, checked where made."""

import argparse
import contextlib
import difflib
import io
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from transformers import TrainingArguments
from trl import SFTConfig, TrlParser

from ..errors import InputError
from . import cpu_fsdp
from .budget import accumulation_steps, steps_for_tokens
from .interruptions import parse_time


@dataclass
class GlobalBatch:
    """Settings that keep the order of examples the same on any number of processes.

    Mixed into `TrainingArguments` and its kin. The global batch is what the user chooses; accumulation follows from
    it, the world size and the micro-batch (`per_device_train_batch_size`).
    """

    global_batch_size: int = field(
        default=64, metadata={"help": "Rows an optimizer step trains on, over all ranks and accumulation."}
    )
    resume: bool = field(
        default=True, metadata={"help": "Go on from the newest whole checkpoint in output_dir, if there is one."}
    )
    accept_changes: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Names, such as data.seed or settings.learning_rate, that may differ from the checkpoint's."
        },
    )
    keep_every: int | None = field(
        default=None, metadata={"help": "save_total_limit spares the checkpoints of steps that this divides."}
    )
    price_per_hour: float | None = field(
        default=None, metadata={"help": "What a device costs an hour, in any money, for the cost so far."}
    )
    time_limit: str | None = field(
        default=None, metadata={"help": "Save and stop before so long, as Slurm writes it: 3:55:00, 2-00:00:00."}
    )

    def __post_init__(self):
        steps = accumulation_steps(
            self.global_batch_size, int(os.environ.get("WORLD_SIZE", "1")), self.per_device_train_batch_size
        )
        if self.gradient_accumulation_steps not in (1, steps):
            raise InputError(
                f"gradient_accumulation_steps is {self.gradient_accumulation_steps}, but follows from "
                f"global_batch_size {self.global_batch_size}: {steps} here; set global_batch_size instead"
            )
        self.gradient_accumulation_steps = steps
        if self.time_limit is not None:
            parse_time(self.time_limit)
        if self.keep_every is not None and self.keep_every < 1:
            raise InputError(f"keep_every is {self.keep_every}; expected 1 or more, or nothing")
        _fit_to_machine(self)
        if self.ddp_find_unused_parameters is None:
            self.ddp_find_unused_parameters = False  # every parameter of these models takes part in every step
        super().__post_init__()
        if int(os.environ.get("WORLD_SIZE", "1")) != self.world_size:
            raise InputError(
                f"the launcher started {os.environ['WORLD_SIZE']} processes but they do not see each other (world "
                f"size {self.world_size}); use one of accelerate_configs/, or set use_cpu"
            )


@dataclass
class PretrainSettings(GlobalBatch, TrainingArguments):
    """`TrainingArguments` with this project's defaults, and the budget in tokens.

    Rows have one length and no padding, so every token of a row counts.
    """

    train_tokens: int | None = field(
        default=None, metadata={"help": "Tokens to train on, over all ranks; sets max_steps."}
    )
    evaluations_per_doubling: int = field(
        default=0, metadata={"help": "Evaluate so many times while the step doubles, from step 1; 0 for never."}
    )
    train_sampling_strategy: str = "sequential"
    include_num_input_tokens_seen: str = "all"
    lr_scheduler_type: str = "cosine_with_min_lr"
    lr_scheduler_kwargs: dict[str, Any] | str | None = field(default_factory=lambda: {"min_lr_rate": 0.1})
    warmup_steps: float = 0.05
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    adam_beta2: float = 0.95
    logging_steps: float = 10
    logging_nan_inf_filter: bool = False

    def __post_init__(self):
        if self.train_tokens is not None and self.max_steps > 0:
            raise InputError(f"train_tokens {self.train_tokens} and max_steps {self.max_steps} are both set; drop one")
        if self.train_tokens is None and self.max_steps <= 0:
            raise InputError("there is no budget; set train_tokens or max_steps")
        super().__post_init__()

    def plan(self, row_length: int) -> int:
        """Fix `max_steps` for rows of `row_length` tokens; return the rows the run will read."""
        if self.train_tokens is not None:
            self.max_steps = steps_for_tokens(self.train_tokens, self.global_batch_size, row_length)
        return self.max_steps * self.global_batch_size


@dataclass
class SFTSettings(GlobalBatch, SFTConfig):
    """TRL's `SFTConfig` with this project's defaults: the loss is on the assistant's words alone."""

    assistant_only_loss: bool = True
    include_num_input_tokens_seen: str = "non_padding"
    logging_steps: float = 10
    logging_nan_inf_filter: bool = False
    bf16: bool | None = None


def parse_settings(*kinds: type, arguments: Sequence[str] | None = None) -> tuple:
    """Read `--config FILE.yaml` and flags that override it into the dataclasses `kinds`.

    Raises:
        `InputError`: a missing or malformed file, an unknown key or flag, a value of the wrong type; it names the
            file and the key.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    # A flag cut short would set another than the one meant, should a longer name come to exist.
    parser = TrlParser(kinds, allow_abbrev=False)
    arguments = [part for argument in arguments for part in _split_config(argument)]
    _check_flags(arguments, parser)
    if "--config" in arguments:
        _check_config(arguments[arguments.index("--config") + 1 :][:1], parser, kinds)
    cpu_fsdp.enable()
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return parser.parse_args_and_config(arguments)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise InputError(complaint.getvalue().strip().splitlines()[-1].partition("error: ")[2]) from None
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"settings: {error}") from None


def _split_config(argument: str) -> list[str]:
    # TRL's parser knows `--config FILE` alone.
    return ["--config", argument.removeprefix("--config=")] if argument.startswith("--config=") else [argument]


def _check_flags(arguments: list[str], parser: TrlParser) -> None:
    known = {"--config", *parser._option_string_actions}
    for argument in arguments:
        flag = argument.partition("=")[0]
        if flag.startswith("--") and flag not in known:
            raise InputError(f"unknown flag {flag}{_suggestion(flag, known)}")


def _check_config(place: list[str], parser: TrlParser, kinds: Sequence[type]) -> None:
    if not place:
        raise InputError("--config needs a YAML file")
    path = Path(place[0])
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f":{mark.line + 1}"
        raise InputError(f"{path}{line}: not YAML ({getattr(error, 'problem', error)})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a mapping of settings, found {type(content).__name__}")
    expected = {name: kind for one in kinds for name, kind in typing.get_type_hints(one).items()}
    converters = {action.dest: action.type for action in reversed(parser._actions) if action.dest != "help"}
    for key, value in content.items():
        if key == "env":
            continue
        if key not in converters:
            raise InputError(f"{path}: unknown setting {key!r}{_suggestion(str(key), converters)}")
        if not _fits(value, expected[key], converters[key]):
            kind = expected[key].__name__ if isinstance(expected[key], type) else expected[key]
            raise InputError(f"{path}: {key} is {value!r} ({type(value).__name__}); expected {kind}")


def _fits(value: Any, kind: Any, convert: Callable[[str], Any] | None) -> bool:
    """Whether a value of a YAML file is of a field's type: argparse converts strings, and takes all else as it is."""
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
    """Without a GPU: say so to the Trainer, which else leaves ranks unaware of each other."""
    import torch

    if torch.accelerator.is_available():
        return
    settings.dataloader_pin_memory = False
    settings.bf16 = bool(settings.bf16)  # TRL turns it on where it is not set; it does not speed a CPU up
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true":
        settings.ddp_backend = "gloo"  # accelerate gives DeepSpeed up where use_cpu is set
    else:
        settings.use_cpu = True
