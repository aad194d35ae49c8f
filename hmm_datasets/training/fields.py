"""Settings that this package adds to those of transformers and TRL, and their defaults: declarations alone.

The module imports neither torch nor transformers, so that help and launchers can read it. `training.settings`
completes and checks the classes.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar

from ..runtime.setting_rules import NumberRange, Void
from ..runtime.settings import setting
from .post_training.lora import LoRASettings

CHUNKED_VOCABULARY = 4096
"""Vocabulary from which losses are computed in chunks unless the settings say otherwise. Measured on a CPU, this takes
0.8 of the time of all logits at 4,096 tokens, and the same at 1,000."""

_COUNT, _SHARE, _POSITIVE = NumberRange(1), NumberRange(0, 1), NumberRange(above=0)


def _num_workers() -> int:
    import torch  # slow, and not needed to declare the default

    return 2 * torch.accelerator.is_available()


@dataclass
class RunFields:
    """Settings of all trainers.

    The user chooses the global batch; accumulation follows from it, the world size and the micro-batch
    (`per_device_train_batch_size`).
    """

    global_batch_size: int = setting(64, "Rows per optimizer step, over all ranks and gradient accumulation.", least=1)
    resume: bool = setting(True, "Continue from the newest whole checkpoint in output_dir, if there is one.")
    allow_changed: list[str] = setting(
        [], "Names, such as data.seed, that may differ from those of the run that is continued."
    )
    components: list[str] = setting(
        [], "Components of the training step, by the names that installed distributions register."
    )
    keep_every: int | None = setting(
        None, "Keep checkpoints of steps divisible by this, whatever save_total_limit says.", least=1
    )
    saves_per_doubling: int = setting(
        0, "Checkpoints per doubling of the step, evenly spaced on a log axis, all of which are kept; 0 for none."
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
    train_tokens: int | None = setting(None, "Budget: number of tokens to train on, over all ranks.", least=1)
    train_budget: str | None = setting(
        None,
        "Budget: a number and a unit, of examples (also if several are packed into a row), tokens_per_parameter, "
        "flops, hours or cost (both at assumed_rate), as in '12 hours'. Without any budget 20 tokens_per_parameter.",
    )
    num_train_epochs: float = setting(0.0, "Budget: passes over the training data.")
    assumed_rate: float | str | None = setting(
        None,
        "Assumed rate of training for the plan: a device, such as H200, or H200:0.5 for 0.5 of its peak (0.4 by "
        "default); the folder of an earlier run; or tokens per second over all devices.",
    )
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
    spike_margin: int = setting(5, "Steps before and after a spike that are skipped.")
    log_indices: bool = setting(False, "Write the indices of the rows each rank trains on to indices-RANK.jsonl.")
    sample_prompts: list[str] = setting(
        [],
        "Prompts that the model continues at every evaluation by 48 tokens, as its generation_config says, or a file "
        "of them: .txt with one per line.",
    )

    bf16: bool | None = setting(None, "Compute in bfloat16; by default on GPUs that have it. false for float32.")
    dtype: str | None = setting(
        None,
        "Type of weights and moments: float32, or bfloat16 for half the memory, in which small updates are lost; by "
        "default float32, and for the frozen base of an adapter that of its file.",
    )
    train_sampling_strategy: str = "sequential"
    include_num_input_tokens_seen: str = "non_padding"
    logging_steps: float = 10
    logging_nan_inf_filter: bool = False

    optimizer: str = setting("adamw", "Optimizer of the hidden matrices: adamw, or muon with AdamW for the rest.")

    number_ranges: ClassVar = {
        "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps": _COUNT,
        "torch_empty_cache_steps eval_accumulation_steps dataset_num_proc dataloader_prefetch_factor": _COUNT,
        "ddp_bucket_cap_mb ddp_timeout max_length pad_to_multiple_of": _COUNT,
        "max_steps local_rank": NumberRange(-1),
        "logging_steps eval_steps save_steps": _POSITIVE,
        "adam_beta1 adam_beta2": NumberRange(below=1),
        "seed": NumberRange(0, below=1 << 32),  # that of NumPy
    }
    voids = (
        Void("spike_margin", "unless on_spike is rollback"),
        Void("allow_changed", "without resume"),
        Void("keep_every", "without save_total_limit"),
        Void("save_steps", "unless save_strategy is steps"),
        Void("eval_steps", "unless eval_strategy is steps"),
        Void("logging_steps", "unless logging_strategy is steps"),
        Void("hub_model_id hub_strategy hub_private_repo hub_always_push hub_revision", "without push_to_hub"),
        Void("trackio_* project", "unless report_to is trackio or all"),
        Void(
            "dataloader_prefetch_factor dataloader_persistent_workers dataloader_multiprocessing_context",
            "without dataloader_num_workers",
        ),
        Void(
            "activation_checkpointing_kwargs gradient_checkpointing_kwargs",
            "without activation_checkpointing or gradient_checkpointing",
        ),
        Void("liger_kernel_config", "without use_liger_kernel"),
        Void("warmup_steps", "if lr_scheduler_type is constant or reduce_lr_on_plateau"),
        Void("adam_*", "if optim is adafactor or sgd or adagrad or rmsprop"),
    )


@dataclass
class PretrainFields(RunFields):
    """Settings of pretraining and midtraining."""

    epochs_ok: float = setting(
        1.0,
        "Times that a budget of tokens, FLOPs, hours or cost may read each corpus; beyond, a run is refused.",
        above=0,
    )
    dataloader_num_workers: int = field(
        default_factory=_num_workers,
        metadata={"help": "Processes per rank that load rows ahead; by default 2 with a GPU, else 0."},
    )
    chunked_loss: bool | None = setting(
        None,
        "Compute the loss without holding the logits of all tokens; by default for vocabularies of "
        f"{CHUNKED_VOCABULARY:,} tokens or more.",
    )
    lr_scheduler_type: str = "cosine_with_min_lr"
    warmup_steps: float = 0.05
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    adam_beta2: float = 0.95

    completed_by = "hmm_datasets.training.settings:PretrainSettings"


@dataclass
class SFTFields(LoRASettings, RunFields):
    """Settings of fine-tuning: the loss is on the assistant's words alone."""

    assistant_only_loss: bool = True

    voids = (
        Void("packing_strategy", "without packing or eval_packing"),
        Void("pad_to_multiple_of", "with packing", "packed rows have no padding"),
    )
    completed_by = "hmm_datasets.training.settings:SFTSettings"


@dataclass
class DPOFields(LoRASettings, RunFields):
    """Settings of training on preferences: the reference is computed once, before training, and cached."""

    precompute_ref_log_probs: bool = True

    z_loss: ClassVar = 0.0
    """No setting of this trainer: preferences have no labels to add the z-loss to."""

    number_ranges: ClassVar = {
        "precompute_ref_batch_size ref_model_sync_steps": _COUNT,
        "ref_model_mixup_alpha ld_alpha": _SHARE,
        "label_smoothing": NumberRange(below=0.5),
        "discopop_tau": _POSITIVE,
        "f_alpha_divergence_coef loss_weights": NumberRange(-math.inf),
    }
    voids = (
        Void("precompute_ref_batch_size", "without precompute_ref_log_probs"),
        Void("ref_model_*", "without sync_ref_model"),
        Void("label_smoothing", "unless loss_type is robust or exo_pair or aot or aot_unpaired"),
        Void("discopop_tau", "unless loss_type is discopop"),
        Void("f_alpha_divergence_coef", "unless f_divergence_type is alpha_divergence"),
    )
    completed_by = "hmm_datasets.training.settings:DPOSettings"


@dataclass
class GRPOFields(LoRASettings, RunFields):
    """Settings of training on rewards.

    A row of the global batch is a completion, so one of 64 with 8 completions per prompt has 8 prompts.
    """

    shuffle_dataset: bool | None = False  # the order is that of the rows, shuffled anew in every epoch
    num_generations_eval: int | None = 1
    on_spike: str = "ignore"  # the loss of rollouts is near zero, whatever they are like
    log_completions: bool = True
    num_completions_to_print: int | None = 0
    include_num_input_tokens_seen: str = "no"  # TRL counts prompts and completions when they are generated

    # No settings of this trainer: the lengths of rollouts are not known before, and they are drawn anew, not skipped.
    train_tokens: ClassVar = None
    train_budget: ClassVar = None
    assumed_rate: ClassVar = None
    batch_ramp: ClassVar = ()
    z_loss: ClassVar = 0.0
    spike_margin: ClassVar = 0
    log_indices: ClassVar = False

    number_ranges: ClassVar = {
        "num_generations num_generations_eval generation_batch_size steps_per_generation num_iterations": _COUNT,
        "max_completion_length vllm_max_model_length vllm_tensor_parallel_size ref_model_sync_steps": _COUNT,
        "vllm_server_port vllm_group_port": NumberRange(1, 65535),
        "top_p vllm_gpu_memory_utilization": NumberRange(most=1, above=0),
        "min_p top_entropy_quantile ref_model_mixup_alpha": _SHARE,
        "temperature repetition_penalty sapo_temperature_neg sapo_temperature_pos vllm_server_timeout": _POSITIVE,
        "reward_weights": NumberRange(-math.inf),
    }
    voids = (
        Void("vllm_*", "without use_vllm"),
        Void("vllm_server_* vllm_group_port", "unless vllm_mode is server"),
        Void(
            "vllm_gpu_memory_utilization vllm_max_model_length vllm_tensor_parallel_size vllm_enable_sleep_mode",
            "if vllm_mode is server",
        ),
        Void("vllm_server_host vllm_server_port", "with vllm_server_base_url"),
        Void("ref_model_*", "without sync_ref_model"),
        Void("use_bias_correction_kl", "without beta"),
        Void("entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target", "without use_adaptive_entropy"),
        Void("num_completions_to_print log_unique_prompts log_completions_hub_repo", "without log_completions"),
        Void("transformers_continuous_batching_config", "without use_transformers_continuous_batching"),
        Void("sapo_*", "unless loss_type is sapo"),
        Void("vespo_*", "unless loss_type is vespo"),
        Void("epsilon delta", "if loss_type is sapo or vespo or cispo"),
        Void("epsilon_high", "if loss_type is sapo or vespo"),
    )
    completed_by = "hmm_datasets.training.settings:GRPOSettings"
