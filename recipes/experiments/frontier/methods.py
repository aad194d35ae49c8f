"""How the proxy reward is optimized, each way at eight strengths."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from other_libraries import descend
from torch import Tensor, nn
from trials import Desk, dpo, grpo, rloo

BETAS = (4.0, 2.0, 1.4, 1.0, 0.7, 0.5, 0.35, 0.25)
"""Weights of the divergence, the weakest optimization first."""
STEPS = (3, 6, 10, 15, 20, 30, 40, 60)
"""Optimizer steps where nothing but their number keeps a policy near the reference."""
DRAWS = (2, 3, 4, 8, 16, 32, 64, 128)
"""Sequences of which the best is taken."""


@dataclass(frozen=True)
class Strength:
    """How much a method optimizes: the weight of the divergence, and the steps, if they are not those of all."""

    beta: float
    steps: int | None = None

    def __str__(self) -> str:
        return f"{self.steps} steps" if self.steps else f"beta {self.beta:g}"


@dataclass(frozen=True)
class Method:
    """A trainer at several strengths.

    Attributes:
        make (callable): makes the trainer from a desk.
        strengths (tuple of [`Strength`], *optional*): weights of the divergence by default.
        package (`str`, *optional*): what it needs beside the package.
    """

    make: Callable[[Desk], Any]
    strengths: tuple[Strength, ...] = tuple(map(Strength, BETAS))
    package: str = "trl"

    @property
    def is_installed(self) -> bool:
        """Whether its package can be imported."""
        return find_spec(self.package) is not None


class ProximalTrainer:
    """Proximal policy optimization (PPO; Schulman et al., arXiv 1707.06347) with the parts of torchtune.

    Loss, advantages and rewards, with the divergence in the reward of every token, are torchtune's (`pip install
    torchtune==0.6.1 torchao==0.10.0`), with the settings of its recipe. The critic is a table too: a value for every
    beginning of a sequence. Rollouts are drawn with the exact probabilities of all sequences.

    Args:
        desk ([`trials.Desk`]): task, budget and reference; a step has as many rollouts as the batch size.
        epochs (`int`, *optional*, defaults to 1): optimizer steps on each batch of rollouts.

    Attributes:
        model ([`policy.TableForCausalLM`]): the policy.
    """

    def __init__(self, desk: Desk, *, epochs: int = 1):
        self.model, self._desk, self._epochs = desk.policy(), desk, epochs
        self._values = nn.Parameter(torch.zeros(len(desk.task.reference), dtype=torch.float64))

    def train(self) -> None:
        """Take all steps."""
        from torchtune.rlhf.loss import PPOLoss

        nodes, _, has = self._desk.task.places
        loss_of_batch = PPOLoss(epsilon=0.2, value_coeff=0.1, value_clip_range=0.2)
        generator, batch = torch.Generator().manual_seed(self._desk.budget.seed), None

        def loss_of(step: int) -> Tensor:
            nonlocal batch
            if step % self._epochs == 0:
                batch = self._rollouts(generator)
            drawn, before, values, advantages, returns = batch
            now, critic, mask = self._log_probs()[drawn], self._values[nodes[drawn]], has[drawn]
            return loss_of_batch(before, now, advantages, values, critic, returns, mask, mask)[0]

        descend(self.model, self._desk.budget, loss_of, self._values)

    @torch.no_grad()
    def _rollouts(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        # Which sequences are drawn, and of each token its log-probability, value, advantage and return.
        from torchtune import rlhf

        task, (nodes, _, has) = self._desk.task, self._desk.task.places
        tokens, reference = self._log_probs(), task.token_log_probs(task.reference)
        drawn = torch.multinomial(
            tokens.sum(1).exp(), self._desk.budget.batch_size, replacement=True, generator=generator
        )
        before, mask = tokens[drawn], has[drawn]
        values = self._values[nodes[drawn]] * mask
        rewards, _, _ = rlhf.get_rewards_ppo(task.reward[drawn], before, reference[drawn], task.beta, mask.sum(1) - 1)
        return drawn, before, values, *rlhf.estimate_advantages(values, rewards * mask, 1.0, 0.95, masks=mask)

    def _log_probs(self) -> Tensor:
        return self._desk.task.token_log_probs(self.model.model.table.weight.double())


METHODS: dict[str, Method] = {
    "dpo": Method(dpo),
    "grpo": Method(grpo),
    "grpo unscaled": Method(partial(grpo, scale_rewards="none")),
    "grpo clipped": Method(partial(grpo, scale_rewards="none", num_iterations=4)),
    "grpo stopped": Method(grpo, tuple(Strength(0.0, steps) for steps in STEPS)),
    "rloo": Method(rloo),
    "ppo": Method(ProximalTrainer, package="torchtune"),
    "ppo clipped": Method(partial(ProximalTrainer, epochs=4), package="torchtune"),
}
"""Trainers by name; those of [`trials`] are TRL's.

GRPO's divergence is in the loss, RLOO's and PPO's in the reward. "unscaled" does not divide advantages by the standard
deviation of rewards, "clipped" uses each batch of rollouts for four steps, and "stopped" has no divergence.
"""
