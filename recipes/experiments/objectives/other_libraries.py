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
from torch import Tensor
from trials import Desk, drawn_pairs


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
        """Take all steps; AdamW without decay, and a cosine to zero."""
        task, budget = self._desk.task, self._desk.budget
        pairs = torch.tensor(np.stack(drawn_pairs(task, budget.steps * budget.batch_size, budget.seed)))
        reference = task.reference_log_probs
        optimizer = torch.optim.AdamW(self.model.parameters(), budget.learning_rate, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, budget.steps)
        for chosen, rejected in pairs.split(budget.batch_size, dim=1):
            policy = task.log_probs(self.model.model.table.weight.double())
            loss = self._loss(policy[chosen], policy[rejected], reference[chosen], reference[rejected]).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            schedule.step()


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
