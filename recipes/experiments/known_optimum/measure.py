"""DPO and GRPO of a policy whose optimum is known, with the trainers of the recipes, and measurements along training.

The reference is an HMM, or the model that training starts from. Preferences are labelled by the reward under the
Bradley-Terry model, so that DPO leads to the optimum. For GRPO the divergence from the reference can be part of the
reward, `r(x) - beta log(policy(x) / reference(x))`, which is the objective whose optimum is known. Or it is TRL's own
term in the loss, which leaves out that a token changes the divergence of those after it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from preferences import preference_pairs
from symbol_predictions import symbol_log_probs
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, TrainerCallback

from hmm_datasets.errors import InputError
from hmm_datasets.files import append_jsonl
from hmm_datasets.hmm.causal_lm import HMMForCausalLM
from hmm_datasets.hmm.tilted import TiltedHMM
from hmm_datasets.training.post_training.trainers import PolicyTuner, PreferenceTuner
from hmm_datasets.training.pretrained import load_pretrained
from hmm_datasets.training.record import truncate_after_step
from hmm_datasets.training.settings import DPOSettings, GRPOSettings

COMMON = {
    "bf16": False,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 10,
    "adam_beta2": 0.95,
    "weight_decay": 0.0,
    "activation_checkpointing": False,
}
"""Settings of both trainers that `settings` may override. On GPUs bfloat16 is the default, which rounds log-ratios."""

MEASUREMENTS_NAME = "measurements.jsonl"


class Measurements(TrainerCallback):
    """Writes what `measure(model)` returns before training, `count` times during it and at the end, in its folder.

    Args:
        measure (callable): takes the model and returns what is kept.
        count (`int`): how many times during training, evenly spaced.
    """

    def __init__(self, measure: Callable[[PreTrainedModel], dict[str, Any]], count: int):
        self._measure, self._count = measure, count

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        truncate_after_step(Path(args.output_dir, MEASUREMENTS_NAME), state.global_step)
        if state.global_step == 0:
            self._add(args, model, 0)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % max(1, state.max_steps // self._count) == 0 or state.global_step == state.max_steps:
            self._add(args, model, state.global_step)

    def _add(self, args, model, step: int) -> None:
        append_jsonl(Path(args.output_dir, MEASUREMENTS_NAME), {"step": step, **self._measure(model)})


def preference_tuner(
    folder: str | Path,
    optimum: TiltedHMM,
    *,
    output_dir: str | Path,
    steps: int,
    batch_size: int,
    learning_rate: float,
    reference: str = "hmm",
    settings: dict[str, Any] | None = None,
    seed: int = 0,
) -> PreferenceTuner:
    """The trainer for DPO on pairs of sequences of the HMM, every pair once.

    Args:
        folder (path): the pretrained model, with its tokenizer.
        optimum ([`~hmm_datasets.hmm.tilted.TiltedHMM`]): the HMM, the rewards and `beta`.
        output_dir (path): folder of the run.
        steps, batch_size (`int`): optimizer steps, and pairs of each.
        learning_rate (`float`): the peak.
        reference (`str`, *optional*, defaults to `"hmm"`): `"hmm"`, or `"model"` for the pretrained model.
        settings (`dict`, *optional*): more settings of `DPOSettings`.
        seed (`int`, *optional*, defaults to 0): seed of the pairs and of the trainer.
    """
    model, tokenizer = load_pretrained(AutoModelForCausalLM, str(folder)), load_pretrained(AutoTokenizer, str(folder))
    chosen = {**COMMON, **(settings or {})}
    return PreferenceTuner(
        model=model,
        ref_model=_hmm_model(optimum) if reference == "hmm" else None,
        args=DPOSettings(
            beta=optimum.beta,
            max_length=None,
            **_arguments(output_dir, steps, batch_size, learning_rate, seed),
            **chosen,
        ),
        train_dataset=preference_pairs(optimum, steps * batch_size, seed=seed),
        processing_class=tokenizer,
    )


def policy_tuner(
    folder: str | Path,
    optimum: TiltedHMM,
    *,
    output_dir: str | Path,
    steps: int,
    batch_size: int,
    learning_rate: float,
    reference: str = "hmm",
    divergence_in: str = "reward",
    settings: dict[str, Any] | None = None,
    seed: int = 0,
) -> PolicyTuner:
    """The trainer for GRPO on rollouts after the beginning token; by default all rollouts of a step are one group.

    Args:
        divergence_in (`str`, *optional*, defaults to `"reward"`): `"reward"`, or `"loss"` for TRL's term, whose
            reference is the model that training starts from.
        settings (`dict`, *optional*): more settings of `GRPOSettings`.
        folder, optimum, output_dir, steps, batch_size, learning_rate, reference, seed: as for [`preference_tuner`];
            `batch_size` counts rollouts.

    Raises:
        `InputError`: the divergence from the HMM in the loss.
    """
    if divergence_in == "loss" and reference == "hmm":
        raise InputError("divergence_in is loss and reference is hmm; TRL's term takes the model: set reference model")
    model, tokenizer = load_pretrained(AutoModelForCausalLM, str(folder)), load_pretrained(AutoTokenizer, str(folder))
    symbols = optimum.num_symbols
    # TRL needs an EOS token. An HMM has none, so it gets one that is never drawn.
    tokenizer.eos_token = tokenizer.bos_token
    frozen = load_pretrained(AutoModelForCausalLM, str(folder)) if reference == "model" else _hmm_model(optimum)
    frozen = frozen.requires_grad_(False).eval()

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        tokens = torch.tensor(completion_ids, device=model.device)
        total = optimum.reward(tokens)
        if divergence_in == "reward":
            reference_log_probs = sequence_log_probs(frozen.to(model.device), tokens)
            total = total - optimum.beta * (sequence_log_probs(model, tokens) - reference_log_probs)
        return total.tolist()

    chosen = {"num_generations": batch_size, "generation_kwargs": {}, **COMMON, **(settings or {})}
    chosen["generation_kwargs"] |= {"suppress_tokens": [symbols], "min_new_tokens": optimum.length}
    return PolicyTuner(
        model=model,
        args=GRPOSettings(
            max_completion_length=optimum.length,
            beta=0.0 if divergence_in == "reward" else optimum.beta,
            **_arguments(output_dir, steps, batch_size, learning_rate, seed),
            **chosen,
        ),
        reward_funcs=[reward],
        train_dataset=Dataset.from_dict({"prompt": [""] * batch_size}),
        processing_class=tokenizer,
    )


def _hmm_model(optimum: TiltedHMM) -> HMMForCausalLM:
    return HMMForCausalLM.from_hmm(optimum.hmm, bos_token_id=optimum.num_symbols)


def _arguments(output_dir: str | Path, steps: int, batch_size: int, learning_rate: float, seed: int) -> dict[str, Any]:
    """The arguments of both trainers' settings that the caller chooses."""
    return {
        "output_dir": str(output_dir),
        "max_steps": steps,
        "global_batch_size": batch_size,
        "per_device_train_batch_size": batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
    }


@torch.no_grad()
def sequence_log_probs(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """`log P(tokens)` of every row in nats, after the beginning token, among symbols alone."""
    was_training = model.training
    model.eval()
    log_probs = symbol_log_probs(model, tokens, model.config.bos_token_id)
    model.train(was_training)
    return log_probs.gather(-1, tokens.unsqueeze(-1)).sum((1, 2))
