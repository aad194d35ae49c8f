"""A proxy and a gold reward on one small process, and what is known about them exactly."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float
from policy import ending_hmm, next_symbol_logits
from theory import Task
from torch import Tensor

from hmm_datasets import HMM
from hmm_datasets.hmm.analysis.reward_totals import RewardOutcome, RewardTotals, reward_totals

MEMBERS, NUM_ENSEMBLES = (1, 4, 16), 300
"""How many wrong rewards are averaged, and how many such averages are tried."""
STILL = 1e-6
"""Divergence in nats per sequence below which a policy is where it began."""
ERROR = 1.0
"""Standard deviation of the error of a wrong reward, for each letter."""


@dataclass(frozen=True)
class Rewards:
    """The process, the reward that is optimized, and the reward that was meant.

    Attributes:
        hmm ([`~hmm_datasets.HMM`]): the process; after the end of a sequence it emits more ends.
        task ([`theory.Task`]): the process as a policy's reference, with the proxy reward.
        gold (tuple of floats): gold reward of every symbol.
    """

    hmm: HMM
    task: Task
    gold: tuple[float, ...]

    @classmethod
    def standard(cls) -> "Rewards":
        """Three letters and an end: `a` is good, `c` is bad, and the proxy takes `c` to be the best."""
        length = 6
        hmm = ending_hmm(
            transition=[[0.8, 0.2], [0.4, 0.6]],
            emission=[[0.6, 0.35, 0.05], [0.2, 0.7, 0.1]],
            ends=[0.1, 0.25],
            start=[0.5, 0.4, 0.1],
            length=length,
        )
        task = Task(next_symbol_logits(hmm, length), rewards=(1.0, 0.0, 1.5, 0.0), beta=1.0, length=length)
        return cls(hmm, task, gold=(1.0, 0.0, -1.5, 0.0))

    @cached_property
    def totals(self) -> RewardTotals:
        """Proxy, with the gold reward beside it."""
        return reward_totals(self.hmm, self.task.rewards, self.task.length, gold=self.gold)

    @cached_property
    def gold_totals(self) -> RewardTotals:
        """The gold reward, if it were optimized."""
        return reward_totals(self.hmm, self.gold, self.task.length)

    def outcome(self, policy: Float[Tensor, "N E"]) -> RewardOutcome:
        """What a policy comes to, given its logits: sums over all sequences."""
        log_probs = self.task.log_probs(policy)
        nats = float((log_probs.exp() * (log_probs - self.task.reference_log_probs)).sum())
        gold = replace(self.task, rewards=self.gold).expected_reward(policy)
        return RewardOutcome(self.task.expected_reward(policy), gold, max(0.0, nats))


def share_of(totals: RewardTotals, outcome: RewardOutcome) -> float | None:
    """The gain of reward over the HMM's own, divided by the most that is possible at this divergence.

    None for a policy that has not moved, where both are rounding.
    """
    before = totals.reference.reward
    if outcome.divergence < STILL:
        return None
    return (outcome.reward - before) / (totals.at_divergence(outcome.divergence).reward - before)


def ensemble_gains(
    rewards: Rewards, members: int, draws: int, divergences: Float[np.ndarray, "D"]
) -> tuple[Float[np.ndarray, "N D"], Float[np.ndarray, "N"]]:
    """Gain of gold reward when the mean of so many wrong rewards is optimized, by the divergence that is spent.

    Each wrong reward is the gold one and an independent error of every letter, normally distributed, so that the mean
    error is normal too. Large errors are rare and cost much, so that plain draws seldom have one. Half of the draws
    therefore have twice the deviation, and all have weights, the ratio of the density to that of the draws (importance
    sampling).

    Returns:
        `np.ndarray` of shape `(N, D)` for `N` draws: the gains; and of shape `(N,)`: the weights, 1 on average.
    """
    generator, gold = np.random.default_rng([members, draws]), np.array(rewards.gold)
    before = rewards.gold_totals.reference.reward
    gains, scale = np.empty((draws, len(divergences))), ERROR / members**0.5
    normal = generator.normal(size=(draws, len(gold) - 1)) * np.where(np.arange(draws) % 2, 2, 1)[:, None]
    narrow = np.exp(-np.square(normal).sum(1) / 2)
    wide = np.exp(-np.square(normal).sum(1) / 8) / 2 ** normal.shape[1]
    weights = 2 * narrow / (narrow + wide)
    for draw, errors in enumerate(scale * normal):
        # Multiples of 1/64 keep the totals few.
        proxy = np.round(64 * (gold + np.append(errors, 0.0))) / 64
        totals = reward_totals(rewards.hmm, proxy, rewards.task.length, gold=gold)
        gains[draw] = [totals.at_divergence(nats).gold - before for nats in divergences]
    return gains, weights
