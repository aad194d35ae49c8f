"""Where each objective should end: the stationary point of its expectation, over all sequences at once.

Every sequence is enumerated, so an objective's expectation over data and rollouts is a finite sum. Each is written
here from its paper (named beside it) in terms of `log P` of sequences and tokens, independently of any library. What
is sampled from the policy itself has probabilities through which no gradient flows. The point where the gradient with
respect to the logits of all nodes is zero is found by following the gradient from the reference, in implicit steps
that grow (pseudo-transient continuation; Kelley and Keyes, SIAM J. Numer. Anal. 35, 1998). An objective that can be
improved for ever, by probabilities that go to zero, has no target.

Pairs are two independent sequences of the reference `p`, and `x` is preferred to `y` with probability
`sigmoid(r(x) - r(y))` (Bradley and Terry, Biometrika 39, 1952).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from policy import beginnings, ending_hmm, next_symbol_logits, sequences
from torch import Tensor
from torch.nn.functional import logsigmoid

_TOLERANCE = 1e-11  # of the gradient at a target
_FIRST_DAMPING, _DECAY, _MAX_STEPS = 10.0, 0.9, 400
_FURTHEST = 20.0  # logarithm of a ratio of probabilities, beyond which an objective is taken to have no target


@dataclass(frozen=True)
class Task:
    """A reference, a reward for every symbol, and the weight of the divergence.

    Attributes:
        reference (`torch.Tensor` of shape `(N, E)`, float64): `log p(next symbol | beginning)` at every node.
        rewards (tuple of `E` floats): reward of a symbol; that of a sequence is their sum.
        beta (`float`): weight of the divergence from the reference.
        length (`int`): the most symbols of a sequence, `L`.
    """

    reference: Float[Tensor, "N E"]
    rewards: tuple[float, ...]
    beta: float
    length: int

    @cached_property
    def words(self) -> list[tuple[int, ...]]:
        """All `S` sequences."""
        return sequences(len(self.rewards), self.length)

    @cached_property
    def places(self) -> tuple[Int[Tensor, "S L"], Int[Tensor, "S L"], Bool[Tensor, "S L"]]:
        """Node and symbol at each position of each sequence, and at which positions it has a choice."""
        node_of = {word: n for n, word in enumerate(beginnings(len(self.rewards), self.length))}
        nodes, symbols = (torch.zeros(len(self.words), self.length, dtype=torch.long) for _ in range(2))
        has = torch.zeros(len(self.words), self.length, dtype=torch.bool)
        for s, word in enumerate(self.words):
            for t, symbol in enumerate(word[: self.length - 1]):
                nodes[s, t], symbols[s, t], has[s, t] = node_of[word[:t]], symbol, True
        return nodes, symbols, has

    @cached_property
    def sizes(self) -> Float[Tensor, "S"]:
        """Symbols of each sequence."""
        return torch.tensor([len(word) for word in self.words], dtype=torch.float64)

    @cached_property
    def reward(self) -> Float[Tensor, "S"]:
        """Reward of each sequence."""
        return torch.tensor([sum(self.rewards[symbol] for symbol in word) for word in self.words], dtype=torch.float64)

    def token_log_probs(self, logits: Float[Tensor, "N E"]) -> Float[Tensor, "S L"]:
        """`log P` of each token of each sequence under the policy with these logits; 0 where it has no choice."""
        nodes, symbols, has = self.places
        return logits.log_softmax(-1)[nodes, symbols] * has

    def log_probs(self, logits: Float[Tensor, "N E"]) -> Float[Tensor, "S"]:
        """`log P` of each sequence."""
        return self.token_log_probs(logits).sum(1)

    @cached_property
    def reference_log_probs(self) -> Float[Tensor, "S"]:
        """`log p` of each sequence."""
        return self.log_probs(self.reference)

    @cached_property
    def pairs(self) -> Float[Tensor, "S S"]:
        """Probability that a pair has `[chosen, rejected]`."""
        p = self.reference_log_probs.exp()
        return 2 * p[:, None] * p * torch.sigmoid(self.reward[:, None] - self.reward)

    def logits_of(self, log_probs: Float[Tensor, "S"]) -> Float[Tensor, "N E"]:
        """The policy with these probabilities of sequences."""
        nodes, symbols, has = self.places
        flows = torch.zeros_like(self.reference)
        weights = log_probs.exp()[:, None].expand(-1, self.length)
        flows.index_put_((nodes[has], symbols[has]), weights[has], accumulate=True)
        return flows.log()

    def tilted(self) -> Float[Tensor, "N E"]:
        """The optimum of `E[r] - beta KL(q || p)`: `p(x) exp(r(x) / beta) / Z`."""
        return self.logits_of((self.reference_log_probs + self.reward / self.beta).log_softmax(0))

    def divergence(self, policy: Float[Tensor, "N E"], other: Float[Tensor, "N E"]) -> float:
        """`KL(policy || other)` in nats per token of the policy, exact."""
        here, there = self.log_probs(policy), self.log_probs(other)
        return float((here.exp() * (here - there)).sum() / (here.exp() * self.sizes).sum())

    def expected_reward(self, policy: Float[Tensor, "N E"]) -> float:
        """`E[r]` of a sequence, exact."""
        return float((self.log_probs(policy).exp() * self.reward).sum())


def standard_task() -> Task:
    """An HMM of two states and two letters, whose sequences have at most 6 symbols; the first letter is rewarded."""
    length = 6
    hmm = ending_hmm(
        transition=[[0.8, 0.2], [0.4, 0.6]],
        emission=[[0.7, 0.3], [0.2, 0.8]],
        ends=[0.1, 0.25],
        start=[0.5, 0.4, 0.1],
        length=length,
    )
    return Task(next_symbol_logits(hmm, length), rewards=(0.7, -0.7, 0.0), beta=1.0, length=length)


Objective = Callable[[Task, Float[Tensor, "N E"], Float[Tensor, "N E"]], Tensor]
"""What a trainer lowers, in expectation, by the gradient with respect to the logits of its policy, which come first.
Then follow the logits of the policy that wrote the rollouts: the same, but no gradient flows through them."""


def target(task: Task, objective: Objective) -> Float[Tensor, "N E"] | None:
    """The stationary point of an objective that is reached from the reference; None if there is none nearby."""
    symbols = task.reference.shape[1]

    def logits_of(free: Tensor) -> Tensor:
        # A softmax does not change if all logits of a node do, so the last one of each stays.
        return torch.cat([free.view(-1, symbols - 1), torch.zeros(len(task.reference), 1).double()], 1)

    def gradient(free: Tensor) -> Tensor:
        return torch.func.grad(lambda x: objective(task, logits_of(x), logits_of(free)))(free)

    slope = torch.func.jacrev(gradient)
    free = (task.reference[:, :-1] - task.reference[:, -1:]).flatten()
    here = gradient(free)
    for step in range(_MAX_STEPS):
        # An implicit step of gradient descent, each longer than the one before.
        damping = _FIRST_DAMPING * _DECAY**step
        free = free - torch.linalg.solve(slope(free) + damping * torch.eye(len(free)).double(), here)
        here = gradient(free)
        if not here.isfinite().all() or free.abs().max() > _FURTHEST:
            return None
        if here.abs().max() < _TOLERANCE:
            return logits_of(free).log_softmax(-1)
    return None


# Objectives on pairs, as functions of what both sequences score.


def _of_pairs(
    loss: Callable[..., Tensor], score: Callable[[Task, Tensor], Tensor], *, flipped: float = 0.0, **settings: Any
) -> Objective:
    # `flipped` is the share of pairs whose labels are exchanged.
    def objective(task: Task, logits: Tensor, drawn: Tensor) -> Tensor:
        scores, pairs = score(task, logits), (1 - flipped) * task.pairs + flipped * task.pairs.T
        return (pairs * loss(task, scores[:, None], scores, **settings)).sum()

    return objective


def _ratios(task: Task, logits: Tensor) -> Tensor:
    return task.log_probs(logits) - task.reference_log_probs


def _ratios_per_token(task: Task, logits: Tensor) -> Tensor:
    return _ratios(task, logits) / task.sizes


def _log_probs_per_token(task: Task, logits: Tensor) -> Tensor:
    return task.log_probs(logits) / task.sizes


def _logistic(task: Task, chosen: Tensor, rejected: Tensor, *, smoothing: float = 0.0) -> Tensor:
    # DPO (arXiv 2305.18290, eq. 7); with smoothing, cDPO (Mitchell's note of 2023, eq. 3).
    margin = task.beta * (chosen - rejected)
    return -(1 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin)


def _robust(task: Task, chosen: Tensor, rejected: Tensor, *, smoothing: float) -> Tensor:
    # arXiv 2403.00409, eq. 12: unbiased if so many labels were flipped.
    margin = task.beta * (chosen - rejected)
    return (-(1 - smoothing) * logsigmoid(margin) + smoothing * logsigmoid(-margin)) / (1 - 2 * smoothing)


def _ipo(task: Task, chosen: Tensor, rejected: Tensor) -> Tensor:
    # arXiv 2310.12036, eq. 17.
    return (chosen - rejected - 1 / (2 * task.beta)) ** 2


def _exo(task: Task, chosen: Tensor, rejected: Tensor, *, smoothing: float) -> Tensor:
    # arXiv 2402.00856, eq. 16: the reverse divergence from labels of which so many are flipped.
    margin = task.beta * (chosen - rejected)
    first, second = margin.sigmoid(), (-margin).sigmoid()
    of_first, of_second = logsigmoid(margin) - np.log(1 - smoothing), logsigmoid(-margin) - np.log(smoothing)
    return first * of_first + second * of_second


def _nca(task: Task, chosen: Tensor, rejected: Tensor) -> Tensor:
    # arXiv 2402.05369, eq. 15 for two answers.
    chosen, rejected = task.beta * chosen, task.beta * rejected
    return -logsigmoid(chosen) - 0.5 * logsigmoid(-chosen) - 0.5 * logsigmoid(-rejected)


def _bco(task: Task, chosen: Tensor, rejected: Tensor) -> Tensor:
    # arXiv 2404.04656, eq. 8, without the shift of rewards.
    return -logsigmoid(task.beta * chosen) - logsigmoid(-task.beta * rejected)


def _sppo(task: Task, chosen: Tensor, rejected: Tensor) -> Tensor:
    # arXiv 2405.00675, eq. 4.7, where the probability of winning is 1 or 0.
    return (chosen - 0.5 / task.beta) ** 2 + (rejected + 0.5 / task.beta) ** 2


def _apo_zero(task: Task, chosen: Tensor, rejected: Tensor) -> Tensor:
    # arXiv 2408.06266, eq. 7.
    return -torch.sigmoid(task.beta * chosen) + torch.sigmoid(task.beta * rejected)


def _apo_down(task: Task, chosen: Tensor, rejected: Tensor) -> Tensor:
    # arXiv 2408.06266, eq. 8.
    return torch.sigmoid(task.beta * chosen) - torch.sigmoid(task.beta * (chosen - rejected))


def _discopop(task: Task, chosen: Tensor, rejected: Tensor, *, temperature: float = 0.05) -> Tensor:
    # arXiv 2406.08414, eq. 5: logistic and exponential loss, blended by the margin.
    margin = task.beta * (chosen - rejected)
    share = torch.sigmoid(margin / temperature)
    return -(1 - share) * logsigmoid(margin) + share * torch.exp(-margin)


def _of_divergence(derivative: Callable[[Tensor], Tensor]) -> Callable[[Task, Tensor], Tensor]:
    # arXiv 2309.16240: DPO for `E[r] - beta D_f`, where f'(ratio) takes the place of its logarithm.
    return lambda task, logits: derivative(_ratios(task, logits).exp())


def _likelihood_of_chosen(task: Task, logits: Tensor, drawn: Tensor) -> Tensor:
    # Mean over the tokens of all chosen sequences.
    chosen = task.pairs.sum(1)
    return -(chosen * task.log_probs(logits)).sum() / (chosen * task.sizes).sum()


# KTO (arXiv 2402.01306, eq. 8). Its point of reference is the divergence on sequences of the data, at least 0. Over
# all data, which are drawn from p, it is -KL(p || q), so it is 0.
_kto = _of_pairs(_apo_zero, _ratios)


def _and_likelihood(pairs: Objective) -> Objective:
    # Without a reference, beside a likelihood: CPO (arXiv 2401.08417, eq. 4), and TPO (arXiv 2405.16681), where that
    # is of a third answer.
    return lambda task, logits, drawn: pairs(task, logits, drawn) + _likelihood_of_chosen(task, logits, drawn)


def _simpo(task: Task, chosen: Tensor, rejected: Tensor, *, gamma: float) -> Tensor:
    # arXiv 2405.14734, eq. 6.
    return -logsigmoid(task.beta * (chosen - rejected) - gamma)


def _alpha_rewards(task: Task, logits: Tensor, *, alpha: float) -> Tensor:
    # AlphaPO (arXiv 2501.03884, eq. 7), of the geometric mean of the probabilities of tokens.
    return (1 - torch.exp(-alpha * _log_probs_per_token(task, logits))) / alpha


def _centered(task: Task, logits: Tensor, drawn: Tensor) -> Tensor:
    # A reward model as the policy that is best for its rewards; their mean is free (arXiv 2312.09244, eq. 2).
    rewards, p = task.beta * _ratios(task, logits), task.reference_log_probs.exp()
    rewards = rewards - (p * rewards).sum()
    sums = (task.pairs * (rewards[:, None] + rewards) ** 2).sum()
    return -(task.pairs * logsigmoid(rewards[:, None] - rewards)).sum() + CENTERING * sums


def _orpo(task: Task, logits: Tensor, drawn: Tensor) -> Tensor:
    # arXiv 2403.07691, eqs. 6 and 7.
    mean = _log_probs_per_token(task, logits)
    odds = mean - torch.log1p(-mean.exp())
    ratio = -(task.pairs * logsigmoid(odds[:, None] - odds)).sum()
    return _likelihood_of_chosen(task, logits, drawn) + task.beta * ratio


def _weighted(task: Task, logits: Tensor, drawn: Tensor) -> Tensor:
    # WPO (arXiv 2406.11827, eq. 2 and section 3.2): pairs count as the policy would write them; a token is compared
    # with the mean probability of one.
    nodes, _, has = task.places
    sampled = (2 * drawn.log_softmax(-1)).logsumexp(-1)[nodes] * has
    weight = ((task.token_log_probs(drawn) - sampled).sum(1) / task.sizes).exp()
    ratio = _ratios(task, logits)
    return (task.pairs * weight[:, None] * weight * _logistic(task, ratio[:, None], ratio)).sum()


# Objectives on rollouts, whose probabilities are those of the policy, without a gradient.


def _expectation(task: Task, drawn: Tensor, value: Tensor) -> Tensor:
    return (task.log_probs(drawn).exp() * value).sum()


def _reinforced(task: Task, logits: Tensor, drawn: Tensor) -> Tensor:
    # REINFORCE of `r - beta log(q / p)` (Ahmadian et al., arXiv 2402.14740, eq. 6), whatever the baseline.
    value = task.reward - task.beta * _ratios(task, drawn)
    baseline = _expectation(task, drawn, value)
    return -_expectation(task, drawn, (value - baseline) * task.log_probs(logits))


def _regressed(task: Task, logits: Tensor, drawn: Tensor) -> Tensor:
    # A*-PO (arXiv 2505.20686), where the optimal value is that of all sequences.
    value = task.beta * (task.reference_log_probs + task.reward / task.beta).logsumexp(0)
    return _expectation(task, drawn, (task.beta * _ratios(task, logits) - task.reward + value) ** 2)


def _group_relative(
    task: Task,
    logits: Tensor,
    drawn: Tensor,
    *,
    scaled: bool = False,
    corrected: bool = True,
    mean_of: str = "sequence",
) -> Tensor:
    """GRPO (arXiv 2402.03300, eqs. 3 and 4) in a large group, where each rollout is used once.

    The term of the divergence is at each token `p/q - log(p/q) - 1`, times the ratio of the policy to what drew the
    rollout if it is corrected (arXiv 2512.02556). `mean_of` a sequence's tokens and then of sequences, or of all
    `tokens`, or the `sum` of a sequence's tokens (arXiv 2503.20783 divides it by a constant, which `beta` shares).
    """
    tokens, (_, _, has) = task.token_log_probs(logits), task.places
    mean = _expectation(task, drawn, task.reward)
    advantage = task.reward - mean
    if scaled:
        advantage = advantage / (_expectation(task, drawn, advantage**2).sqrt() + 1e-4)
    gap = task.token_log_probs(task.reference) - tokens
    divergence = gap.exp() - gap - 1
    if corrected:
        divergence = divergence * (tokens - task.token_log_probs(drawn)).exp()
    sums = ((-advantage[:, None] * tokens + task.beta * divergence) * has).sum(1)
    if mean_of == "sequence":
        sums = sums / task.sizes
    elif mean_of == "tokens":
        sums = sums / _expectation(task, drawn, task.sizes)
    return _expectation(task, drawn, sums)


def _of_rollout_pairs(
    task: Task, logits: Tensor, drawn: Tensor, loss: Callable[[Task, Tensor, Tensor], Tensor]
) -> Tensor:
    # Online DPO (arXiv 2402.04792): of two rollouts that with the greater reward is chosen; either, if they are equal.
    ratio, weight = _ratios(task, logits), task.log_probs(drawn).exp()
    ahead = task.reward[:, None] - task.reward
    wins = torch.where(ahead.abs() < 1e-9, 0.5, (ahead > 0).double())
    return (2 * weight[:, None] * weight * wins * loss(task, ratio[:, None], ratio)).sum()


SIMPO_GAMMA, ALPHA, SMOOTHING, CENTERING = 0.5, 0.25, 0.1, 0.01
"""Settings of SimPO, AlphaPO, smoothed labels and centered rewards, which `trials.py` gives to the trainers."""

OBJECTIVES: dict[str, Objective] = {
    "dpo": _of_pairs(_logistic, _ratios),
    "dpo smoothed": _of_pairs(_logistic, _ratios, smoothing=SMOOTHING),
    "dpo robust": _of_pairs(_robust, _ratios, smoothing=SMOOTHING, flipped=SMOOTHING),
    "dpo ipo": _of_pairs(_ipo, _ratios_per_token),
    "dpo exo": _of_pairs(_exo, _ratios, smoothing=SMOOTHING),
    "dpo nca": _of_pairs(_nca, _ratios),
    "dpo bco": _of_pairs(_bco, _ratios),
    "dpo sppo": _of_pairs(_sppo, _ratios),
    "dpo apo_zero": _of_pairs(_apo_zero, _ratios),
    "dpo apo_down": _of_pairs(_apo_down, _ratios),
    "dpo discopop": _of_pairs(_discopop, _ratios),
    "dpo sigmoid_norm": _of_pairs(_logistic, _ratios_per_token),
    "dpo sft": _likelihood_of_chosen,
    "dpo weighted": _weighted,
    "dpo forward KL": _of_pairs(_logistic, _of_divergence(lambda ratio: 1 - 1 / ratio)),
    "dpo Jensen-Shannon": _of_pairs(_logistic, _of_divergence(lambda ratio: torch.log(2 * ratio / (1 + ratio)))),
    "dpo alpha 0.5": _of_pairs(_logistic, _of_divergence(lambda ratio: (ratio**-0.5 - 1) / -0.5)),
    "kto": _kto,
    "kto apo_zero_unpaired": _kto,
    "cpo": _and_likelihood(_of_pairs(_logistic, Task.log_probs)),
    "simpo": _of_pairs(_simpo, _log_probs_per_token, gamma=SIMPO_GAMMA),
    "alphapo": _of_pairs(_simpo, partial(_alpha_rewards, alpha=ALPHA), gamma=SIMPO_GAMMA),
    "orpo": _orpo,
    "tpo": _and_likelihood(_of_pairs(_logistic, Task.log_probs)),
    "tpo-l": _and_likelihood(_of_pairs(_simpo, _log_probs_per_token, gamma=SIMPO_GAMMA)),
    "reward model": _of_pairs(_logistic, _ratios),
    "reward model, centered": _centered,
    "a2po": _regressed,
    "rloo": _reinforced,
    "rloo normalized": _reinforced,
    "grpo": partial(_group_relative, scaled=True, mean_of="tokens"),
    "grpo unscaled": partial(_group_relative, mean_of="tokens"),
    "grpo uncorrected": partial(_group_relative, corrected=False, mean_of="tokens"),
    "grpo dr_grpo": partial(_group_relative, mean_of="sum"),
    "grpo mean of sequences": _group_relative,
    "grpo cispo": partial(_group_relative, mean_of="tokens"),
    "grpo cispo, default": partial(_group_relative, mean_of="tokens"),
    "grpo sapo": _group_relative,
    "gmpo": partial(_group_relative, scaled=True, corrected=False),
    "online dpo": partial(_of_rollout_pairs, loss=_logistic),
    "online ipo": partial(_of_rollout_pairs, loss=_ipo),
}
"""Objectives by name; see `trials.py` for the trainer of each."""


def _reordered(task: Task) -> Tensor:
    # The loss of sorted probabilities (arXiv 2402.12030, eq. 3) moves the largest to the teacher's largest, and so on;
    # which symbol has it stays as in the reference.
    order = task.reference.argsort(dim=-1, descending=True)
    values = task.tilted().log_softmax(-1).sort(dim=-1, descending=True).values
    return torch.empty_like(values).scatter(-1, order, values)


def _reordered_after_the_first(task: Task) -> Tensor:
    # As that, where the distribution after each token of an answer counts, and so never that of the first.
    logits = _reordered(task)
    logits[0] = task.reference[0]
    return logits


TARGETS: dict[str, Callable[[Task], Float[Tensor, "N E"]]] = {
    "gold": _reordered_after_the_first,
    "gold bayesian": _reordered,
}
"""Where distillation ends, if not in the teacher."""


def target_of(task: Task, name: str) -> Float[Tensor, "N E"] | None:
    """Where the trial of this name should end: its objective's [`target`], or what it distils, the tilted one.

    None if its objective has none.
    """
    return target(task, OBJECTIVES[name]) if name in OBJECTIVES else TARGETS.get(name, Task.tilted)(task)
