"""Faults from the history of trainers, put back into TRL one at a time: does the trial see them?

Each is a small change to a trainer that passes without it, named with the thread where it was reported or mended.
A fault that moves the point where training ends is one that the trial must catch. Some do not move it: they cancel,
or add noise without a direction, and no measurement of where training ends can see them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer
from trials import TRIALS, Desk

TRL = "https://github.com/huggingface/trl"


@dataclass(frozen=True)
class Fault:
    """A change to a trial.

    Attributes:
        trial (`str`): the trial that passes without it.
        thread (`str`): where it was reported or mended.
        settings (`dict`, *optional*): settings that have the fault.
        change (callable, *optional*): changes the trainer before it trains.
    """

    trial: str
    thread: str
    settings: dict[str, Any] = field(default_factory=dict)
    change: Callable[[Trainer], None] = lambda trainer: None

    def make(self, desk: Desk) -> Trainer:
        """The trainer with the fault."""
        trainer = TRIALS[self.trial](desk, **self.settings)
        self.change(trainer)
        return trainer


def _with_answers(change: Callable[[list[int]], list[int]]) -> Callable[[Trainer], None]:
    def apply(trainer: Trainer) -> None:
        names = ("chosen_ids", "rejected_ids")
        trainer.train_dataset = trainer.train_dataset.map(lambda row: {name: change(row[name]) for name in names})

    return apply


def _without_first_token(trainer: Trainer) -> None:
    collate = trainer.data_collator

    def shifted(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        batch = collate(rows)
        mask = batch["completion_mask"]
        batch["completion_mask"] = mask * mask.roll(1, dims=1)
        return batch

    trainer.data_collator = shifted


def _colder_rollouts(trainer: Trainer) -> None:
    trainer.generation_config.temperature = 0.7  # while log-probabilities are those at 1


def _noisy_reference(trainer: Trainer) -> None:
    model = trainer.ref_model.model
    forward = model.forward

    def dropped(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        logits = output.last_hidden_state
        noisy = torch.nn.functional.dropout(logits[..., :-1], 0.1)
        output.last_hidden_state = torch.cat([noisy, logits[..., -1:]], dim=-1)
        return output

    model.forward = dropped


def _rounded_sums(trainer: Trainer) -> None:
    for model in (trainer.model, trainer.ref_model):
        forward = model.forward

        def rounded(*args: Any, forward: Callable[..., Any] = forward, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            if getattr(output, "log_probs", None) is not None:
                output.log_probs = output.log_probs.bfloat16()
            return output

        model.forward = rounded


def _rounded_weights(trainer: Trainer) -> None:
    trainer.model.to(torch.bfloat16)


FAULTS: dict[str, Fault] = {
    "divergence without its correction": Fault(
        "grpo unscaled", f"{TRL}/issues/4967", {"use_bias_correction_kl": False}
    ),
    "mean of each sequence first": Fault("grpo unscaled", f"{TRL}/issues/3130", {"loss_type": "grpo"}),
    "tokens of each micro-batch": Fault(
        "grpo unscaled",
        f"{TRL}/issues/3021",
        {"loss_type": "bnpo", "per_device_train_batch_size": 16, "gradient_accumulation_steps": 32},
    ),
    "groups of two, scaled": Fault("grpo", f"{TRL}/pull/7068", {"num_generations": 2}),
    "rollouts at another temperature": Fault("rloo", f"{TRL}/pull/3029", change=_colder_rollouts),
    "rollouts at another temperature, divergence in the loss": Fault(
        "grpo unscaled", f"{TRL}/pull/3029", change=_colder_rollouts
    ),
    "top-p rollouts": Fault("rloo", f"{TRL}/issues/6789", {"top_p": 0.8}),
    "truncated rollouts counted": Fault("rloo", f"{TRL}/pull/6439", {"max_completion_length": 4}),
    "truncated rollouts left out": Fault(
        "rloo", f"{TRL}/pull/3248", {"max_completion_length": 4, "mask_truncated_completions": True}
    ),
    "end missing": Fault("dpo", f"{TRL}/issues/4481", change=_with_answers(lambda ids: ids[:-1])),
    "end doubled": Fault("dpo", f"{TRL}/issues/4481", change=_with_answers(lambda ids: [*ids, ids[-1]])),
    "end doubled, likelihood": Fault(
        "dpo sft", f"{TRL}/issues/4481", change=_with_answers(lambda ids: [*ids, ids[-1]])
    ),
    "mask shifted": Fault("dpo", f"{TRL}/pull/2708", change=_without_first_token),
    "dropout in the reference": Fault("dpo", f"{TRL}/issues/2042", change=_noisy_reference),
    "sums in bfloat16": Fault("dpo", f"{TRL}/pull/942", change=_rounded_sums),
    "weights in bfloat16": Fault("dpo", f"{TRL}/pull/2669", change=_rounded_weights),
}
"""Faults by name."""
