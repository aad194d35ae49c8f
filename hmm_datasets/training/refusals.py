"""Settings of transformers and TRL that reach a training step and are refused here, and why.

They are checked when they are created, before data are read or a model is made. What is not refused does not touch
what a step computes, counts or evaluates, or has a check of its own beside the component it belongs to. The reference
of the documentation shows the table beside what works, and a test tries each row of both.
"""

import importlib.util
from collections.abc import Mapping
from typing import Any

from accelerate import ParallelismConfig
from transformers import Trainer
from transformers.trainer_pt_utils import AcceleratorConfig

from ..errors import InputError, first_line
from ..files import read_json
from ..foreign.json import parse_json
from .refusal_rules import (
    Refusal,
    counts_padding,
    differs_by_rank,
    is_false,
    is_given,
    is_set,
    is_shuffled,
    sets_accumulation,
)

_OF_GLOBAL_BATCH = "the global batch is global_batch_size rows"
_WHOLE_EVALUATION = "an evaluation is of all held-out rows together"
_OWN_RESUME = "a run continues from the newest checkpoint in its output_dir by itself"

REFUSALS = (
    Refusal("label_smoothing_factor", 0.1, "the optimum of a smoothed loss is another than that of the data", is_set),
    Refusal(
        *("neftune_noise_alpha", 5.0, "rollouts would be drawn from another policy than is trained", is_set),
        trainers=("grpo",),
    ),
    Refusal(
        "train_sampling_strategy",
        "group_by_length",
        "its batches differ with the number of processes, so a run could not continue on another; packing (sft) "
        "wastes no room either",
        lambda value: value in ("group_by_length", "batch_rebalance"),
    ),
    Refusal(
        *("train_sampling_strategy", "random", "prompts are read in an order of their own", is_shuffled),
        trainers=("grpo",),
    ),
    Refusal("length_column_name", "size", "rows are not grouped by length", lambda value: value != "length"),
    Refusal("accelerator_config.split_batches", True, f"{_OF_GLOBAL_BATCH}, whatever the processes", is_set),
    Refusal("accelerator_config.dispatch_batches", True, "every rank computes or reads its rows itself", is_set),
    Refusal("accelerator_config.even_batches", False, "ranks evaluate the same number of batches", is_false),
    Refusal(
        *("accelerator_config.use_seedable_sampler", False, "a random order could not be drawn again", is_false)
    ),
    Refusal(
        "accelerator_config.gradient_accumulation_kwargs",
        {"num_steps": 4},
        "only sync_each_batch can be set, since accumulation follows from global_batch_size",
        sets_accumulation,
    ),
    Refusal(
        *("average_tokens_across_devices", False, "a token's weight would depend on its rank", differs_by_rank)
    ),
    Refusal("auto_find_batch_size", True, f"{_OF_GLOBAL_BATCH}; lower per_device_train_batch_size", is_set),
    Refusal("parallelism_config", ParallelismConfig(), "rows are divided among ranks, each has whole ones", is_given),
    Refusal("dataloader_drop_last", True, "held-out rows would be left out of evaluations", is_set),
    Refusal("dataloader_in_order", False, "rows are read in order", is_false),
    Refusal("ignore_data_skip", True, "rows would be read twice after a resume", is_set),
    Refusal("resume_from_checkpoint", "checkpoint-3", _OWN_RESUME, is_set),
    Refusal(
        *("restore_callback_states_from_checkpoint", True, "a run restores what its callbacks have saved", is_set)
    ),
    Refusal("enable_jit_checkpoint", True, "a run saves at SIGTERM by itself", is_set),
    Refusal(
        *("include_num_input_tokens_seen", "all", "the plan counts tokens without padding", counts_padding),
        trainers=("sft", "dpo"),
    ),
    Refusal("include_num_input_tokens_seen", "no", "tokens are counted", lambda value: value == "no", ("pretrain",)),
    Refusal("label_names", ["targets"], "labels are the column labels", lambda value: value not in (None, ["labels"])),
    Refusal("max_grad_norm", None, "it is a number; 0 for no clipping", lambda value: value is None),
    Refusal(
        "optim",
        "galore_adamw_layerwise",
        "it steps within the backward pass, before the gradient is known to be finite",
        lambda value: "layerwise" in value or "lomo" in value,
    ),
    Refusal("batch_eval_metrics", True, _WHOLE_EVALUATION, is_set),
    Refusal("eval_do_concat_batches", False, _WHOLE_EVALUATION, is_false),
    Refusal("eval_use_gather_object", True, "what ranks evaluate are tensors", is_set),
    Refusal("bf16_full_eval", True, "evaluations have the precision of training (bf16)", is_set),
    Refusal("fp16_full_eval", True, "evaluations have the precision of training (fp16)", is_set),
    Refusal(
        "model_init_kwargs",
        {"dtype": "bfloat16"},
        "the model is loaded before TRL's trainer has it (see dtype for the type of its weights)",
        is_set,
        trainers=("sft", "dpo", "grpo"),
    ),
    Refusal(
        *("chat_template_path", "template.jinja", "the recipe has chat_template", is_set), trainers=("sft",)
    ),
    Refusal(
        *("max_tool_calling_iterations", 3, "the recipe has no tools; TRL's GRPOTrainer takes them", is_given),
        trainers=("grpo",),
    ),
    Refusal(
        *("sync_ref_model", True, "the reference would not survive a resume", is_set), trainers=("dpo", "grpo")
    ),
)  # fmt: skip
"""The rows, one for each setting and reason."""


def check_refusals(settings: Any) -> None:
    """Refuse what the table says; before the Trainer's own checks, so that its names are those of the table.

    Args:
        settings ([`~hmm_datasets.training.settings.RunSettings`]): settings as given.

    Raises:
        `InputError`: a setting is refused.
    """
    for row in REFUSALS:
        name, _, key = row.name.partition(".")
        if settings.recipe not in row.trainers or not hasattr(settings, name):
            continue  # older versions of transformers and TRL do not have all settings
        value = getattr(settings, name)
        value = _value_of(value, key) if key else value
        if row.applies(value):
            raise InputError(f"{row.name} is {getattr(value, 'value', value)!r}, but {row.reason}; leave it out")


def _value_of(config: Any, key: str) -> Any:
    """A value of `accelerator_config`, which may be a mapping, its JSON, a file of it, or the object made of it."""
    if isinstance(config, str):
        config = parse_json(config, "accelerator_config") if config.startswith("{") else read_json(config)
    if isinstance(config, Mapping):
        config = AcceleratorConfig(**config)
    return getattr(AcceleratorConfig() if config is None else config, key)


def check_packages(settings: Any) -> None:
    """Refuse an optimizer or kernels whose package is not there.

    Args:
        settings ([`~hmm_datasets.training.settings.RunSettings`]): settings that are complete.

    Raises:
        `InputError`: such a package is missing.
    """
    try:
        Trainer.get_optimizer_cls_and_kwargs(settings)
    except ImportError as error:
        raise InputError(f"optim is {settings.optim.value}: {first_line(error)}") from None
    except ValueError:  # of an optimizer that asks for the model
        pass
    if settings.use_liger_kernel and importlib.util.find_spec("liger_kernel") is None:
        raise InputError("use_liger_kernel is set, but liger-kernel is not installed; pip install it, or leave it out")


def check_planned(settings: Any) -> None:
    """Refuse what does not go together with a plan, which decides the order of rows and counts tokens.

    Raises:
        `InputError`: rows are shuffled by the Trainer, or padding is counted.
    """
    if is_shuffled(settings.train_sampling_strategy):
        raise InputError(
            f"train_sampling_strategy is {settings.train_sampling_strategy}, but rows are read in the order of the "
            "plan, which has the windows of a text shuffled already; leave it out"
        )
    if counts_padding(settings.include_num_input_tokens_seen):
        raise InputError(
            f"include_num_input_tokens_seen is {settings.include_num_input_tokens_seen}, but the plan counts tokens "
            "without padding; leave it out"
        )
