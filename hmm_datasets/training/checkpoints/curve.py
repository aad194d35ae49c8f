"""What determines the loss curve of a run: data, model, and every setting but a short list of exceptions.

A new setting, also one that a later version of transformers or TRL adds, is therefore part of the identity of a run
unless it is added here. What stands here can be changed whenever a run is continued.
"""

import json
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from ...runtime.credentials import masked
from ...runtime.run_identity import Identity

if TYPE_CHECKING:
    from ..run_context import RunContext

WITHOUT_EFFECT = frozenset((
    # The budget: a run may be extended, which stretches its learning rate schedule. Also time and cost.
    *("max_steps", "num_train_epochs", "train_tokens", "train_budget", "assumed_rate", "price_per_hour", "time_limit"),
    "epochs_ok",
    # Where a run is, what it continues from, and how.
    *("output_dir", "run_name", "project", "resume", "resume_from_checkpoint"),
    *("allow_changed", "ignore_data_skip", "restore_callback_states_from_checkpoint"),
    "optimizer_from",  # the hash of its weights is part of the data
    # Saving.
    *("save_strategy", "save_steps", "save_total_limit", "save_only_model", "save_on_each_node", "keep_every"),
    "saves_per_doubling",
    *("load_best_model_at_end", "metric_for_best_model", "greater_is_better", "enable_jit_checkpoint"),
    "merge_adapter",
    # What is done about a spike, which the error at a loss that is not finite advises to change.
    *("on_spike", "spike_margin"),
    # Evaluations.
    *("do_train", "do_eval", "do_predict", "eval_strategy", "eval_steps", "eval_delay", "eval_on_start"),
    *("eval_accumulation_steps", "eval_do_concat_batches", "eval_use_gather_object", "eval_packing"),
    *("batch_eval_metrics", "include_for_metrics", "prediction_loss_only", "per_device_eval_batch_size"),
    *("bf16_full_eval", "fp16_full_eval", "evaluations_per_doubling", "num_generations_eval"),
    "sample_prompts",
    # Logs and trackers.
    *("logging_strategy", "logging_steps", "logging_first_step", "logging_nan_inf_filter", "log_level"),
    *("log_level_replica", "log_on_each_node", "report_to", "disable_tqdm", "debug", "skip_memory_metrics"),
    *("include_num_input_tokens_seen", "log_indices", "log_completions", "log_unique_prompts"),
    *("log_multimodal", "log_completions_hub_repo", "num_completions_to_print", "trackio_space_id"),
    *("trackio_static_space_id", "trackio_bucket_id"),
    # The Hub.
    *("push_to_hub", "hub_model_id", "hub_strategy", "hub_token", "hub_private_repo", "hub_always_push"),
    *("hub_revision", "trust_remote_code"),
    # Devices, processes and workers. The framework that shards a model is compared by itself.
    *("use_cpu", "local_rank", "ddp_backend", "ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_static_graph"),
    *("ddp_broadcast_buffers", "ddp_timeout", "deepspeed", "fsdp", "fsdp_config", "parallelism_config"),
    *("dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers"),
    *("dataloader_prefetch_factor", "dataloader_multiprocessing_context", "dataset_num_proc"),
    *("auto_find_batch_size", "torch_empty_cache_steps", "activation_offloading"),
    # Follow from the global batch and the number of processes.
    *("gradient_accumulation_steps", "steps_per_generation"),
    # Aliases of activation_checkpointing.
    *("gradient_checkpointing", "gradient_checkpointing_kwargs"),
    # How and where rollouts are computed.
    *("ds3_gather_for_generation", "vllm_mode", "vllm_model_impl", "vllm_server_base_url", "vllm_server_host"),
    *("vllm_server_port", "vllm_server_timeout", "vllm_group_port", "vllm_gpu_memory_utilization"),
    *("vllm_tensor_parallel_size", "vllm_max_model_length", "vllm_enable_sleep_mode"),
    # Change the loss of a step by rounding alone.
    *("per_device_train_batch_size", "chunked_loss", "activation_checkpointing"),
    *("activation_checkpointing_kwargs", "torch_compile", "torch_compile_backend", "torch_compile_mode"),
    *("use_liger_kernel", "liger_kernel_config", "full_determinism", "padding_free", "pad_to_multiple_of"),
    *("precompute_ref_log_probs", "precompute_ref_batch_size"),
))  # fmt: skip
"""Settings that cannot change the loss of a step by more than rounding."""

_SCOPE = {"settings": "all that change the loss by more than rounding"}


def curve_identity(run: "RunContext", data: dict[str, Any]) -> dict[str, Any]:
    """What determines the loss curve of a run: data, model, and all settings but those listed in this module.

    World size, micro-batch, workers and the frequency of logging and saving are not part of it, since they change the
    curve only by rounding. The section `scope` tells this identity from those of versions that listed their settings.
    """
    # These change with the version of transformers and with the way of loading, and do not affect training.
    ignored = ("_name_or_path", "transformers_version", "use_cache", "dtype")
    model = {name: value for name, value in run.model.config.to_diff_dict().items() if name not in ignored}
    settings = masked(run.args.to_dict())
    settings = {name: value for name, value in settings.items() if name not in WITHOUT_EFFECT}
    return {"data": data, "model": model, "settings": settings, "scope": _SCOPE}


def comparable(before: Identity, now: Identity, kind: type) -> Identity:
    """A saved identity with the names that are in the settings now.

    A setting that did not exist when it was saved had the effect of its default. Versions that listed their settings
    left out others, and did not know a precision that only the launcher was asked for; what is not known is taken to
    be unchanged. So is a setting that does not exist any more.

    Args:
        before (mapping), now (mapping): saved and current identity, as saved.
        kind (`type`): class of the settings.
    """
    if "settings" not in before or "settings" not in now:
        return before
    saved, current = dict(before["settings"]), now["settings"]
    if "scope" in before:
        missing = {item.name: _default(item) for item in fields(kind)}
    else:
        missing = dict(current)
        if not (saved.get("bf16") or saved.get("fp16")):
            saved |= {name: current[name] for name in ("bf16", "fp16") if name in current}
    return {**before, "settings": {name: saved.get(name, missing.get(name)) for name in current}}


def _default(field: Any) -> Any:
    made = field.default if field.default_factory is MISSING else field.default_factory()
    return None if made is MISSING else json.loads(json.dumps(made, default=str))
