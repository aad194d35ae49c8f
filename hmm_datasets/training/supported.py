"""Which settings of transformers and TRL that reach a training step work here, and which are refused, and why.

Settings are checked when they are created, before data are read or a model is made. A setting that is not in the table
does not touch what a step computes, counts or evaluates, or has a check of its own beside the component it belongs to.
The reference of the documentation shows the table, and a test tries each row.
"""

import importlib.util
from collections.abc import Mapping
from typing import Any

from accelerate import ParallelismConfig
from transformers import Trainer
from transformers.trainer_pt_utils import AcceleratorConfig

from ..compat.transformers import SMOOTHS_WHOLE_STEPS
from ..errors import InputError, first_line
from ..files import read_json
from ..foreign.json import parse_json
from .support import (
    Support,
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

TABLE = (
    Support(
        "label_smoothing_factor",
        0.1,
        "the logged loss is `1 - e` times the cross-entropy and `e` times its mean over all tokens of the vocabulary, "
        "from all logits; held-out losses stay cross-entropies",
    ),
    Support(
        *("label_smoothing_factor", 0.1, "only rows with labels have it; DPO has label_smoothing", is_set),
        trainers=("dpo", "grpo"),
    ),
    Support("neftune_noise_alpha", 5.0, "noise is added to embeddings in training, not in evaluations"),
    Support(
        *("neftune_noise_alpha", 5.0, "rollouts would be drawn from another policy than is trained", is_set),
        trainers=("grpo",),
    ),
    Support(
        "train_sampling_strategy",
        "random",
        "the Trainer shuffles rows that have an end, and there is no plan; a plan refuses it",
    ),
    Support(
        "train_sampling_strategy",
        "group_by_length",
        "its batches differ with the number of processes, so a run could not continue on another; packing (sft) "
        "wastes no room either",
        lambda value: value in ("group_by_length", "batch_rebalance"),
    ),
    Support(
        *("train_sampling_strategy", "random", "prompts are read in an order of their own", is_shuffled),
        trainers=("grpo",),
    ),
    Support("length_column_name", "size", "rows are not grouped by length", lambda value: value != "length"),
    Support("accelerator_config.split_batches", True, f"{_OF_GLOBAL_BATCH}, whatever the processes", is_set),
    Support("accelerator_config.dispatch_batches", True, "every rank computes or reads its rows itself", is_set),
    Support("accelerator_config.even_batches", False, "ranks evaluate the same number of batches", is_false),
    Support(
        *("accelerator_config.use_seedable_sampler", False, "a random order could not be drawn again", is_false)
    ),
    Support("accelerator_config.non_blocking", True, "copies to a GPU overlap with work"),
    Support(
        "accelerator_config.gradient_accumulation_kwargs",
        {"sync_each_batch": True},
        "`sync_each_batch` reduces gradients after every micro-batch",
    ),
    Support(
        "accelerator_config.gradient_accumulation_kwargs",
        {"num_steps": 4},
        "only sync_each_batch can be set, since accumulation follows from global_batch_size",
        sets_accumulation,
    ),
    Support(
        "average_tokens_across_devices",
        False,
        "has no effect on one process; on several it is refused, since a token's weight would depend on its rank",
    ),
    Support(
        *("average_tokens_across_devices", False, "a token's weight would depend on its rank", differs_by_rank)
    ),
    Support("auto_find_batch_size", True, f"{_OF_GLOBAL_BATCH}; lower per_device_train_batch_size", is_set),
    Support("parallelism_config", ParallelismConfig(), "rows are divided among ranks, each has whole ones", is_given),
    Support("dataloader_drop_last", True, "held-out rows would be left out of evaluations", is_set),
    Support("dataloader_in_order", False, "rows are read in order", is_false),
    Support("dataloader_num_workers", 2, "processes read rows ahead, in the same order"),
    Support("ignore_data_skip", True, "rows would be read twice after a resume", is_set),
    Support("resume_from_checkpoint", "checkpoint-3", _OWN_RESUME, is_set),
    Support(
        *("restore_callback_states_from_checkpoint", True, "a run restores what its callbacks have saved", is_set)
    ),
    Support("enable_jit_checkpoint", True, "a run saves at SIGTERM by itself", is_set),
    Support(
        *("include_num_input_tokens_seen", "all", "the plan counts tokens without padding", counts_padding),
        trainers=("sft", "dpo"),
    ),
    Support(
        "include_num_input_tokens_seen",
        "all",
        "padding is counted too, of rows without a plan; a plan refuses it",
    ),
    Support("include_num_input_tokens_seen", "no", "tokens are counted", lambda value: value == "no", ("pretrain",)),
    Support("label_names", ["targets"], "labels are the column labels", lambda value: value not in (None, ["labels"])),
    Support("max_grad_norm", 0.0, "gradients are not clipped, and their norm is logged"),
    Support("max_grad_norm", None, "it is a number; 0 for no clipping", lambda value: value is None),
    Support("optim", "adafactor", "any optimizer of transformers whose package is installed"),
    Support(
        "optim",
        "galore_adamw_layerwise",
        "it steps within the backward pass, before the gradient is known to be finite",
        lambda value: "layerwise" in value or "lomo" in value,
    ),
    Support("batch_eval_metrics", True, _WHOLE_EVALUATION, is_set),
    Support("eval_do_concat_batches", False, _WHOLE_EVALUATION, is_false),
    Support("eval_use_gather_object", True, "what ranks evaluate are tensors", is_set),
    Support("bf16_full_eval", True, "evaluations have the precision of training (bf16)", is_set),
    Support("fp16_full_eval", True, "evaluations have the precision of training (fp16)", is_set),
    Support("eval_accumulation_steps", 1, "moves what is evaluated off the GPU after so many batches"),
    Support("eval_on_start", True, "evaluates the model that training starts from"),
    Support("eval_delay", 2, "no evaluation before this step"),
    Support("prediction_loss_only", True, "evaluations have losses alone, none of the other measures"),
    Support("include_for_metrics", ["inputs", "loss"], "`compute_metrics` is given these too"),
    Support("activation_checkpointing", True, "activations are computed again in the backward pass"),
    Support("torch_empty_cache_steps", 1, "gives unused memory of a GPU back after so many steps"),
    Support("full_determinism", True, "only deterministic kernels"),
    Support("use_cache", True, "has no effect on losses; a saved model has its cache either way"),
    Support(
        "model_init_kwargs",
        {"dtype": "bfloat16"},
        "the model is loaded before TRL's trainer has it (see dtype for the type of its weights)",
        is_set,
        trainers=("sft", "dpo", "grpo"),
    ),
    Support(
        *("chat_template_path", "template.jinja", "the recipe has chat_template", is_set), trainers=("sft",)
    ),
    Support(
        *("max_tool_calling_iterations", 3, "the recipe has no tools; TRL's GRPOTrainer takes them", is_given),
        trainers=("grpo",),
    ),
    Support(
        *("sync_ref_model", True, "the reference would not survive a resume", is_set), trainers=("dpo", "grpo")
    ),
)  # fmt: skip
"""The rows, one for each setting and outcome."""


def check_supported(settings: Any) -> None:
    """Refuse what the table says; before the Trainer's own checks, so that its names are those of the table.

    Args:
        settings ([`~hmm_datasets.training.settings.RunSettings`]): settings as given.

    Raises:
        `InputError`: a setting is refused.
    """
    for row in TABLE:
        name, _, key = row.name.partition(".")
        if row.refused is None or settings.recipe not in row.trainers or not hasattr(settings, name):
            continue  # older versions of transformers and TRL do not have all settings
        value = getattr(settings, name)
        value = _value_of(value, key) if key else value
        if row.refused(value):
            raise InputError(f"{row.name} is {getattr(value, 'value', value)!r}, but {row.outcome}; leave it out")


def _value_of(config: Any, key: str) -> Any:
    """A value of `accelerator_config`, which may be a mapping, its JSON, a file of it, or the object made of it."""
    if isinstance(config, str):
        config = parse_json(config, "accelerator_config") if config.startswith("{") else read_json(config)
    if isinstance(config, Mapping):
        config = AcceleratorConfig(**config)
    return getattr(AcceleratorConfig() if config is None else config, key)


def check_packages(settings: Any) -> None:
    """Refuse an optimizer or kernels whose package is not there, and label smoothing that is wrong in its version.

    Args:
        settings ([`~hmm_datasets.training.settings.RunSettings`]): settings that are complete.

    Raises:
        `InputError`: such a package is missing or too old.
    """
    if settings.label_smoothing_factor and not SMOOTHS_WHOLE_STEPS:
        raise InputError("label_smoothing_factor is set; expected transformers 5.15 or newer, or leave it out")
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
