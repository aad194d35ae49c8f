"""DPO and GRPO of a policy whose optimum is known, with TRL's trainers, one call each.

The reference is an HMM, or the model that training starts from. Preferences are labelled by the reward under the
Bradley-Terry model, so that DPO leads to the optimum. For GRPO the divergence from the reference can be part of the
reward, `r(x) - beta log(policy(x) / reference(x))`, which is the objective whose optimum is known. Or it is TRL's own
term in the loss, which leaves out that a token changes the divergence of those after it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from preferences import preference_pairs
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PrinterCallback, TrainerCallback
from trl import DPOConfig, GRPOConfig, GRPOTrainer

from hmm_datasets.compat.trl import REFERENCE_COLUMNS, OpenDPOTrainer, set_reference
from hmm_datasets.evaluation.policy import symbol_log_probs
from hmm_datasets.hmm.causal_lm import HMMForCausalLM
from hmm_datasets.hmm.tilted import TiltedHMM
from hmm_datasets.training.models import load_pretrained

COMMON = {
    "bf16": False,
    "report_to": [],
    "save_strategy": "no",
    "logging_steps": 10**9,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 10,
    "adam_beta2": 0.95,
    "weight_decay": 0.0,
    "activation_checkpointing": False,
    "disable_tqdm": True,
}
"""Settings of both trainers that `settings` may override. TRL's defaults include bfloat16, which rounds log-ratios."""


class Measurements(TrainerCallback):
    """Calls `measure(model)` before training, `count` times during it, and at the end.

    Args:
        measure (callable): takes the model and returns what is kept.
        count (`int`): how many times during training, evenly spaced.
    """

    def __init__(self, measure: Callable[[PreTrainedModel], dict[str, Any]], count: int):
        self.rows: list[dict[str, Any]] = []
        self._measure, self._count = measure, count

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self._add(model, 0)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % max(1, state.max_steps // self._count) == 0 or state.global_step == state.max_steps:
            self._add(model, state.global_step)

    def _add(self, model, step: int) -> None:
        self.rows.append({"step": step, **self._measure(model)})


def optimize_preferences(
    folder: str | Path,
    optimum: TiltedHMM,
    *,
    output_dir: str | Path,
    steps: int,
    batch_size: int,
    learning_rate: float,
    reference: str = "hmm",
    settings: dict[str, Any] | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    seed: int = 0,
) -> PreTrainedModel:
    """DPO on pairs of sequences of the HMM, every pair once.

    Args:
        folder (path): the pretrained model, with its tokenizer.
        optimum ([`~hmm_datasets.hmm.tilted.TiltedHMM`]): the HMM, the rewards and `beta`.
        output_dir (path): folder for TRL.
        steps, batch_size (`int`): optimizer steps, and pairs of each.
        learning_rate (`float`): the peak.
        reference (`str`, *optional*, defaults to `"hmm"`): `"hmm"`, or `"model"` for the pretrained model.
        settings (`dict`, *optional*): more settings of `DPOConfig`.
        callbacks (sequence of `TrainerCallback`, *optional*): of the trainer.
        seed (`int`, *optional*, defaults to 0): seed of the pairs and of the trainer.
    """
    pairs = preference_pairs(optimum, steps * batch_size, seed=seed)
    if reference == "model":
        pairs = pairs.remove_columns(list(REFERENCE_COLUMNS))
    config = DPOConfig(
        beta=optimum.beta,
        max_length=None,
        precompute_ref_log_probs=True,
        **_arguments(output_dir, steps, batch_size, learning_rate, seed),
        **COMMON | (settings or {}),
    )
    model, tokenizer = load_pretrained(AutoModelForCausalLM, str(folder)), load_pretrained(AutoTokenizer, str(folder))
    trainer = OpenDPOTrainer(
        model=model, args=config, train_dataset=pairs, processing_class=tokenizer, callbacks=list(callbacks)
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return model


def optimize_rewards(
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
    callbacks: Sequence[TrainerCallback] = (),
    seed: int = 0,
) -> PreTrainedModel:
    """GRPO on rollouts after the beginning token; by default all rollouts of a step are one group.

    Args:
        divergence_in (`str`, *optional*, defaults to `"reward"`): `"reward"`, or `"loss"` for TRL's term.
        settings (`dict`, *optional*): more settings of `GRPOConfig`.
        folder, optimum, output_dir, steps, batch_size, learning_rate, reference, callbacks, seed: as for
            [`optimize_preferences`]; `batch_size` counts rollouts.
    """
    model, tokenizer = load_pretrained(AutoModelForCausalLM, str(folder)), load_pretrained(AutoTokenizer, str(folder))
    symbols = optimum.num_symbols
    # TRL needs an EOS token. An HMM has none, so it gets one that is never drawn.
    tokenizer.eos_token = tokenizer.bos_token
    hmm_model = HMMForCausalLM.from_hmm(optimum.hmm, bos_token_id=symbols)
    frozen = load_pretrained(AutoModelForCausalLM, str(folder)) if reference == "model" else hmm_model
    frozen = frozen.requires_grad_(False).eval().to(model.device)

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        tokens = torch.tensor(completion_ids, device=model.device)
        total = optimum.reward(tokens)
        if divergence_in == "reward":
            total = total - optimum.beta * (sequence_log_probs(model, tokens) - sequence_log_probs(frozen, tokens))
        return total.tolist()

    chosen = {"num_generations": batch_size, "generation_kwargs": {}, **COMMON, **(settings or {})}
    chosen["generation_kwargs"] |= {"suppress_tokens": [symbols], "min_new_tokens": optimum.length}
    config = GRPOConfig(
        max_completion_length=optimum.length,
        beta=0.0 if divergence_in == "reward" else optimum.beta,
        **_arguments(output_dir, steps, batch_size, learning_rate, seed),
        **chosen,
    )
    trainer = GRPOTrainer(
        model=model,
        args=config,
        reward_funcs=[reward],
        train_dataset=Dataset.from_dict({"prompt": [""] * batch_size}),
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )
    if divergence_in == "loss":
        set_reference(trainer, frozen)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return model


def _arguments(output_dir: str | Path, steps: int, batch_size: int, learning_rate: float, seed: int) -> dict[str, Any]:
    """The arguments of both trainers' settings that the caller chooses."""
    return {
        "output_dir": str(output_dir),
        "max_steps": steps,
        "per_device_train_batch_size": batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
        "use_cpu": not torch.accelerator.is_available(),
    }


@torch.no_grad()
def sequence_log_probs(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """`log P(tokens)` of every row in nats, after the beginning token, among symbols alone."""
    was_training = model.training
    model.eval()
    log_probs = symbol_log_probs(model, tokens, model.config.bos_token_id)
    model.train(was_training)
    return log_probs.gather(-1, tokens.unsqueeze(-1)).sum((1, 2))
