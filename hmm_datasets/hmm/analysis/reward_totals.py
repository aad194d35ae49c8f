"""What optimizing a reward can come to, exactly: reward, divergence, and another reward that was meant.

Reward a sequence `x` of `L` tokens of an HMM `p` by `r(x) = sum_t w[x_t]`. A policy that prefers sequences by this
reward alone, `q(x) = p(x) f(r(x))`, is known from how it weighs the totals `v` of the reward. Let `P(v)` be the
probability that `p` comes to the total `v`, and `G(v)` the mean of any other reward over the sequences that do:

- The optimum of `E[r] - beta KL(q || p)` gives a total the weight `Q(v) = P(v) exp(v / beta) / Z`.
- The best of `n` independent sequences has `Q(v) = F(v)^n - F(v-)^n`, where `F(v)` is the probability of a total up to
  `v`, and `F(v-)` that of one below it. Among equals any is taken.
- Both have `E_q[r] = sum_v Q(v) v`, the other reward `sum_v Q(v) G(v)`, and `KL(q || p)` is the sum of
  `Q(v) log(Q(v) / P(v))`.

With many different totals the divergence of the best of `n` comes near `log n - (n - 1) / n`, which it never exceeds
(Beirami et al., "Theoretical guarantees on the best-of-n alignment policy", arXiv 2401.01879).

`P` and `G` come from one forward pass over pairs of a state and a total so far: `O(L K C H)` time and `O(K H)` memory
for `K` totals and `C` different rewards of symbols, and `O(L K H^2)` for the moves (`O(L K C H^2)` if edges emit).
Rewards that are multiples of one step have few totals, `O(L)`; others up to `O(L^(C - 1))`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ...array_input import finite, numbers
from ...errors import InputError
from ...intervals import rising_root
from ..integers import integer
from ..model import HMM

_SAME = 1e-9  # of the largest reward; totals that are nearer to each other are taken to be the same
_MAX_NUMBERS = 20_000_000  # totals times states, or times kinds of symbols
_STRENGTHS = np.geomspace(1e-3, 1e3, 601)  # of a tilt, in inverse standard deviations of the reward


class RewardOutcome(NamedTuple):
    """What a policy comes to.

    Attributes:
        reward (`float`): `E_q[r]` of a sequence.
        gold (`float`): mean of the other reward, the same as `reward` if there is none.
        divergence (`float`): `KL(q || p)` in nats per sequence.
    """

    reward: float
    gold: float
    divergence: float


class TurningPoint(NamedTuple):
    """Where optimizing a reward further makes another one worse.

    Attributes:
        beta (`float`): weight of the divergence there; infinite if the other reward falls from the beginning.
        outcome ([`RewardOutcome`]): of the tilted distribution with this `beta`.
    """

    beta: float
    outcome: RewardOutcome


@dataclass(frozen=True)
class RewardTotals:
    """The distribution of the total reward of a sequence, and the mean of another reward given it.

    Made by [`reward_totals`].

    Attributes:
        totals (`np.ndarray` of shape `(K,)`, float64): the totals that have a probability, ascending.
        log_probs (`np.ndarray` of shape `(K,)`, float64): `log P(v)` in nats.
        gold (`np.ndarray` of shape `(K,)`, float64): `G(v)`, the totals themselves if there is no other reward.
    """

    totals: Float[np.ndarray, "K"]
    log_probs: Float[np.ndarray, "K"]
    gold: Float[np.ndarray, "K"] = field(repr=False)

    @property
    def reference(self) -> RewardOutcome:
        """What the HMM itself comes to."""
        return self._outcome(self.log_probs)

    @property
    def max_divergence(self) -> float:
        """Nats per sequence of the policy that keeps only the sequences of the highest total, `-log P(max v)`."""
        return max(0.0, -float(self.log_probs[-1]))

    def tilted(self, beta: float) -> RewardOutcome:
        """The optimum of the reward minus `beta` times the divergence; see [`~hmm_datasets.TiltedHMM`].

        Args:
            beta (`float`): weight of the divergence from the HMM, above 0.
        """
        if not 0 < beta < math.inf:
            raise InputError(f"beta is {beta}; expected a number above 0, the weight of the divergence from the HMM")
        return self._outcome(self._tilted(1 / beta))

    def best_of(self, n: int) -> RewardOutcome:
        """The best by reward of `n` independent sequences of the HMM.

        Args:
            n (`int`): how many are drawn.
        """
        n = integer("n", n, 1, 53)
        # log F(v) from the side on which nothing cancels, then the powers' difference from log(F(v) / F(v-)).
        below, above = np.logaddexp.accumulate(self.log_probs), np.full(len(self.totals), -np.inf)
        above[:-1] = np.logaddexp.accumulate(self.log_probs[:0:-1])[::-1]
        few_above = above < -math.log(2)
        log_upto = np.where(few_above, np.log1p(-np.exp(np.where(few_above, above, -np.inf))), below)
        share = np.minimum(np.exp(self.log_probs - log_upto), 1.0)
        share[0] = 1.0
        with np.errstate(divide="ignore"):
            return self._outcome(n * log_upto + np.log(-np.expm1(n * np.log1p(-share))))

    def at_divergence(self, divergence: float) -> RewardOutcome:
        """The highest reward that a policy can have with no more divergence from the HMM than this.

        It is that of the tilted distribution with this divergence, or from `max_divergence` on the highest total.

        Args:
            divergence (`float`): nats per sequence, 0 or more.
        """
        if not divergence >= 0:
            raise InputError(f"divergence is {divergence}; expected nats per sequence, 0 or more")
        if divergence == 0:
            return self.reference
        if divergence >= self.max_divergence:
            return RewardOutcome(float(self.totals[-1]), float(self.gold[-1]), self.max_divergence)

        def excess(strength: float) -> float:
            return self._outcome(self._tilted(strength)).divergence - divergence

        most = 1.0 / self._deviation
        while excess(most) < 0:
            most *= 2
        return self._outcome(self._tilted(rising_root(excess, 0.0, most)))

    def turning_point(self) -> TurningPoint | None:
        """The tilted distribution with the most of the other reward, beyond which it falls.

        Its derivative by `1 / beta` is the covariance of the two rewards under the tilted distribution. None if the
        other reward never falls again, or falls below what it was at most only to rise above that.
        """
        strengths = _STRENGTHS / self._deviation
        slopes = np.array([self._covariance(strength) for strength in strengths])
        turns = np.flatnonzero((slopes[:-1] > 0) & (slopes[1:] <= 0))
        found = [0.0, *(rising_root(self._covariance, *strengths[[turn + 1, turn]].tolist()) for turn in turns)]
        outcomes = [self.reference, *(self._outcome(self._tilted(strength)) for strength in found[1:])]
        best = max(range(len(found)), key=lambda one: outcomes[one].gold)
        if outcomes[best].gold <= self.gold[-1] or (best == 0 and self._covariance(0.0) > 0):
            return None
        return TurningPoint(1 / found[best] if found[best] else math.inf, outcomes[best])

    @cached_property
    def _deviation(self) -> float:
        probs = np.exp(self.log_probs)
        return float(np.sqrt(probs @ (self.totals - probs @ self.totals) ** 2)) or 1.0

    def _tilted(self, strength: float) -> Float[np.ndarray, "K"]:
        # From the highest total, so that a strong tilt leaves no large numbers to cancel.
        weights = self.log_probs + strength * (self.totals - self.totals[-1])
        return weights - np.logaddexp.reduce(weights)

    def _covariance(self, strength: float) -> float:
        weights = np.exp(self._tilted(strength))
        return float(weights @ ((self.totals - weights @ self.totals) * (self.gold - weights @ self.gold)))

    def _outcome(self, log_weights: Float[np.ndarray, "K"]) -> RewardOutcome:
        weights = np.exp(log_weights)
        log_ratios = np.where(weights > 0, log_weights, self.log_probs) - self.log_probs
        reward, gold, nats = (float(weights @ values) for values in (self.totals, self.gold, log_ratios))
        return RewardOutcome(reward, gold, max(0.0, nats))


def reward_totals(hmm: HMM, rewards: Any, length: int, *, gold: Any = None) -> RewardTotals:
    """The distribution of the total reward of sequences of an HMM, and what another reward is on average beside it.

    Args:
        hmm ([`~hmm_datasets.HMM`]): `p`.
        rewards (array of shape `(E,)`): reward of every symbol, the proxy that is optimized.
        length (`int`): `L`, symbols per sequence.
        gold (array of shape `(E,)`, *optional*): another reward of every symbol, the one that was meant.

    Returns:
        [`RewardTotals`]: `P(v)` and `G(v)` of the module's description. They are exact, also where `P(v)` is below
            the smallest float. Totals within 1e-9 of the largest reward are taken to be equal.

    Raises:
        `InputError`: an argument has a wrong shape or value, or there are too many different totals.

    ```python
    >>> from hmm_datasets import processes
    >>> totals = reward_totals(processes.mess3(0.05, 0.85), rewards=[0, 1, 2], length=64, gold=[0, 1.5, 0.5])
    >>> [round(number, 3) for number in totals.tilted(beta=10.0)], [round(number, 3) for number in totals.best_of(4)]
    ([91.001, 43.373, 1.272], [81.98, 45.458, 0.636])
    >>> beta, outcome = totals.turning_point()
    >>> round(beta, 3), round(outcome.gold, 3)
    (19.882, 44.482)

    ```
    """
    if not isinstance(hmm, HMM):
        raise InputError(f"hmm is a {type(hmm).__name__}; expected an HMM")
    given = {"rewards": rewards} if gold is None else {"rewards": rewards, "gold": gold}
    both = np.stack([_as_rewards(name, values, hmm.num_symbols) for name, values in given.items()])
    length = integer("length", length, 1, 32)
    kinds, kind_of = np.unique(both, axis=1, return_inverse=True)
    emit = _Emission(hmm, kind_of, kinds.shape[1])
    totals, scale = np.zeros(1), np.zeros(1)
    # P(state, total) for every total, divided by its sum, and the sums of the other reward that belong to it.
    joint_KH, moment_KH = hmm.start[None], np.zeros((1, hmm.num_states))
    most = _MAX_NUMBERS // max(hmm.num_states, kinds.shape[1])
    for position in range(length):
        totals, place_KC = _merged(totals[:, None] + kinds[0], _SAME * np.abs(kinds[0]).max())
        if len(totals) > most:
            raise InputError(
                f"rewards: after {position + 1} of {length} symbols there are {len(totals):,} different totals; "
                f"expected at most {most:,} with {hmm.num_states:,} states and {kinds.shape[1]:,} kinds of symbols. "
                "Rewards that are multiples of one step have few totals; round them, as np.round(rewards, 1)"
            )
        tops = np.full(len(totals), -np.inf)
        np.maximum.at(tops, place_KC, scale[:, None])
        shares_KC = np.exp(scale[:, None] - tops[place_KC])
        sums_KH, moments_KH = (np.zeros((len(totals), hmm.num_states)) for _ in range(2))
        for kind, (parts_KH, of_moment_KH) in enumerate(emit.parts(joint_KH, moment_KH)):
            places, shares = place_KC[:, kind], shares_KC[:, kind, None]
            np.add.at(sums_KH, places, shares * parts_KH)
            np.add.at(moments_KH, places, shares * (of_moment_KH + kinds[-1, kind] * parts_KH))
        joint_KH, moment_KH = emit.moved(sums_KH), emit.moved(moments_KH)
        sums = joint_KH.sum(1)
        possible = sums > 0
        totals, sums = totals[possible], sums[possible]
        joint_KH, moment_KH = joint_KH[possible] / sums[:, None], moment_KH[possible] / sums[:, None]
        scale = tops[possible] + np.log(sums)
    return RewardTotals(totals, scale, totals.copy() if gold is None else moment_KH.sum(1))


class _Emission:
    # What symbols of each kind of reward make of joint distributions of states, `(K, H)`; then the states move.
    def __init__(self, hmm: HMM, kind_of: Int[np.ndarray, "E"], kinds: int):
        is_kind = np.eye(kinds)[kind_of]
        self._edges = None if hmm.edges is None else np.einsum("ec,eij->cij", is_kind, hmm.edges)
        self._emission, self._transition = hmm.emission @ is_kind, hmm.transition

    def parts(self, *joints: Float[np.ndarray, "K H"]) -> Iterator[list[Float[np.ndarray, "K H"]]]:
        for kind, column in enumerate(self._emission.T):
            yield [joint * column if self._edges is None else joint @ self._edges[kind] for joint in joints]

    def moved(self, joint: Float[np.ndarray, "K H"]) -> Float[np.ndarray, "K H"]:
        return joint @ self._transition if self._edges is None else joint


def _merged(
    candidates: Float[np.ndarray, "K C"], tolerance: float
) -> tuple[Float[np.ndarray, "M"], Int[np.ndarray, "K C"]]:
    # The different values, ascending, and the place of each candidate among them.
    order = np.argsort(candidates, axis=None)
    ordered = candidates.ravel()[order]
    begins = np.diff(ordered, prepend=-np.inf) > tolerance
    place = np.empty(candidates.size, np.int64)
    place[order] = np.cumsum(begins) - 1
    return ordered[begins], place.reshape(candidates.shape)


def _as_rewards(name: str, rewards: Any, symbols: int) -> Float[np.ndarray, "E"]:
    table = finite(name, numbers(name, rewards))
    if table.shape != (symbols,):
        raise InputError(f"{name} has shape {table.shape}; expected ({symbols},), one for each symbol")
    return table
