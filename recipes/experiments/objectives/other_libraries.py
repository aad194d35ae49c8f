"""Objectives of other libraries on trial: what one needs is a page like this.

A library whose trainers do not take a model of transformers often has its losses as functions. [`LossTrainer`] trains
the policy on one of those, with the data, the optimizer and the schedule of TRL's trainers.
"""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from theory import SMOOTHING
from torch import Tensor, nn
from trials import Budget, Desk, drawn_pairs


def descend(model: nn.Module, budget: Budget, loss_of: Callable[[int], Tensor], *others: Tensor) -> None:
    """Lower the loss of each step as TRL's trainers do: AdamW without decay, and a cosine to zero.

    The gradient of the model's parameters is clipped, that of the others is not.
    """
    optimizer = torch.optim.AdamW([*model.parameters(), *others], budget.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, budget.steps)
    for step in range(budget.steps):
        loss = loss_of(step)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


class LossTrainer:
    """Trains a policy on a loss of pairs.

    Args:
        desk ([`trials.Desk`]): task, budget and reference.
        loss (callable): takes the log-probabilities of chosen and rejected sequences under the policy, then under the
            reference, four tensors of shape `(B,)`, and returns a loss for each pair.

    Attributes:
        model ([`policy.TableForCausalLM`]): the policy.
    """

    def __init__(self, desk: Desk, loss: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]):
        self.model, self._desk, self._loss = desk.policy(), desk, loss

    def train(self) -> None:
        """Take all steps."""
        task, budget = self._desk.task, self._desk.budget
        drawn = drawn_pairs(task, budget.steps * budget.batch_size, budget.seed)
        batches = torch.tensor(np.stack(drawn)).split(budget.batch_size, dim=1)
        reference = task.reference_log_probs

        def loss_of(step: int) -> Tensor:
            chosen, rejected = batches[step]
            policy = task.log_probs(self.model.model.table.weight.double())
            return self._loss(policy[chosen], policy[rejected], reference[chosen], reference[rejected]).mean()

        descend(self.model, budget, loss_of)


def torchtune_dpo(desk: Desk, **settings: Any) -> LossTrainer:
    """`torchtune.rlhf.loss.DPOLoss`; `pip install torchtune==0.6.1 torchao==0.10.0`."""
    from torchtune.rlhf.loss import DPOLoss

    loss = DPOLoss(beta=desk.task.beta, **settings)
    return LossTrainer(desk, lambda *log_probs: loss(*log_probs)[0])


OTHER_LIBRARIES: dict[str, tuple[str, Callable[[Desk], LossTrainer]]] = {
    "torchtune dpo": ("dpo", torchtune_dpo),
    "torchtune dpo smoothed": ("dpo smoothed", partial(torchtune_dpo, label_smoothing=SMOOTHING)),
}
"""Objective and trainer by the name of the trial, whose first word is the package."""


def is_installed(name: str) -> bool:
    """Whether the package of a trial can be imported."""
    return find_spec(name.partition(" ")[0]) is not None
