"""How well an HMM can be predicted: its entropy rate, bounds on it, and the minimum loss at every position.

For a unifilar HMM the entropy rate has a closed form: the mean entropy of the symbol given the state, under the
stationary distribution (Shannon 1948, theorem 5). For other HMMs it has none. But for a stationary process and every
`n`

    H[X_n | X_0 .. X_{n-1}, S_0]  <=  entropy rate  <=  H[X_n | X_0 .. X_{n-1}]

and both sides converge to it as `n` grows (Birch, Ann. Math. Stat. 33, 1962; Cover and Thomas, Elements of Information
Theory, theorem 4.5.1). Each side is the mean entropy of the filter's next-symbol distribution, where the filter starts
in the known state (left) or in the stationary distribution (right). The mean is computed exactly, over the tree of
mixed states, where that tree is small. Otherwise it is estimated from sampled sequences, with a standard error.
Computations are in float64; sampling takes `O(N L H^2)` time and `O(N H)` memory for `N` sequences of `L` tokens.
"""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...errors import InputError
from ...runtime.progress import progress_bar
from ..inference import Parameters, beliefs, next_token_probs
from ..integers import integer
from ..model import HMM
from ..process import Process
from .mixed_states import Tree
from .stationary import entropy

_MAX_STATES = 1 << 17  # mixed states to average over, which takes about a second
_FEW_STATES = 1 << 14  # which take a tenth of that
_MAX_NUMBERS = 1 << 24  # numbers in all their beliefs
_POSITIONS = 1024
_TIGHT = 1e-4  # nats: exact bounds that are nearer to each other are better than estimates
_BLOCK_BYTES = 1 << 24  # of the beliefs or distributions of consecutive positions


class EntropyRate(NamedTuple):
    """Nats per token, and the standard error of the estimate (0 where the value is a closed form)."""

    value: float
    standard_error: float


class EntropyRateBounds(NamedTuple):
    """Bounds on the entropy rate in nats per token, and their standard errors (0 where the bounds are exact)."""

    lower: float
    upper: float
    lower_error: float
    upper_error: float


class OptimalLoss(NamedTuple):
    """The minimum expected loss at every position.

    Attributes:
        nats (`np.ndarray` of shape `(L,)`): `H[X_t | X_0 .. X_{t-1}]`.
        standard_error (`np.ndarray` of shape `(L,)`): of the estimate; 0 where the value is exact.
    """

    nats: Float[np.ndarray, "L"]
    standard_error: Float[np.ndarray, "L"]


def entropy_rate(
    hmm: HMM, num_sequences: int = 256, length: int = 2048, burn_in: int = 512, seed: int = 0
) -> EntropyRate:
    """The entropy rate; see [`~hmm_datasets.hmm.model.HMM.entropy_rate`]."""
    stationary = hmm.stationary()
    if hmm.is_unifilar():
        return EntropyRate(float(stationary @ entropy(hmm.emission)), 0.0)
    tokens, _, parameters = _stationary_sample(hmm, stationary, num_sequences, length, burn_in, seed)
    kept = list(itertools.islice(_distribution_entropies(parameters, tokens), burn_in, None))
    return EntropyRate(*_mean(torch.stack(kept).numpy()))


def sampled_entropy_rate(process: Process, num_sequences: int, length: int, burn_in: int, seed: int) -> EntropyRate:
    """The entropy rate of any stationary process; see [`~hmm_datasets.hmm.process.Process.entropy_rate`]."""
    if not process.is_stationary:
        raise InputError(f"{process!r} is not stationary and has no entropy rate; optimal_loss gives that by position")
    check_sample(num_sequences, length, burn_in)
    return EntropyRate(*_mean(sampled_entropies(process, num_sequences, length, seed)[:, burn_in:].T))


def sampled_optimal_loss(process: Process, length: int, num_sequences: int, seed: int) -> OptimalLoss:
    """The minimum expected loss by position; see [`~hmm_datasets.hmm.process.Process.optimal_loss`]."""
    length, num_sequences = integer("length", length, 0, 31), integer("num_sequences", num_sequences, 2, 63)
    entropies = sampled_entropies(process, num_sequences, length, seed)
    return OptimalLoss(entropies.mean(axis=0), entropies.std(axis=0, ddof=1) / np.sqrt(num_sequences))


def sampled_entropies(process: Process, num_sequences: int, length: int, seed: int) -> Float[np.ndarray, "N L"]:
    """The entropy of the exact distribution of every token of sampled sequences, a few sequences at a time."""
    entropies = np.empty((num_sequences, length))
    rows = max(1, _BLOCK_BYTES // (8 * (length + 1) * process.num_symbols))
    with progress_bar(num_sequences, " sequences", desc="entropies", leave=False) as bar:
        for first in range(0, num_sequences, rows):
            count = min(rows, num_sequences - first)
            probs = process.next_token_probs(process.sample(count, length, seed, first))[:, :length]
            entropies[first : first + count] = entropy(probs)
            bar.update(count)
    return entropies


def bounds_of_rate(process: Process, rate: EntropyRate) -> EntropyRateBounds:
    """Bounds on the entropy rate of any process, of which `rate` is known: twice its value if that is a closed form.

    Raises:
        `InputError`: no bounds are known.
    """
    if rate.standard_error == 0:
        return EntropyRateBounds(rate.value, rate.value, 0.0, 0.0)
    return process.entropy_rate_bounds(length=512) if isinstance(process, HMM) else process.entropy_rate_bounds()


def made_to_agree(rate: EntropyRate, bounds: EntropyRateBounds) -> tuple[EntropyRate, EntropyRateBounds]:
    """An estimate of an entropy rate and bounds on it, of which by chance the one may not lie within the others.

    Then what has the larger error is moved to the other: the estimate to the nearest bound, or both bounds by the
    same amount.

    ```python
    >>> made_to_agree(EntropyRate(0.5, 0.01), EntropyRateBounds(0.502, 0.503, 0.0, 0.0))[0]
    EntropyRate(value=0.502, standard_error=0.01)

    ```
    """
    gap, below = bounds.upper - bounds.lower, rate.value < bounds.lower
    if not below and rate.value <= bounds.upper:
        return rate, bounds
    nearest, error = (bounds.lower, bounds.lower_error) if below else (bounds.upper, bounds.upper_error)
    if error <= rate.standard_error:
        return EntropyRate(nearest, rate.standard_error), bounds
    lower, upper = (rate.value, rate.value + gap) if below else (rate.value - gap, rate.value)
    return rate, bounds._replace(lower=lower, upper=upper)


def entropy_rate_bounds(
    hmm: HMM, length: int = 2048, burn_in: int | None = None, num_sequences: int = 256, seed: int = 0
) -> EntropyRateBounds:
    """Bounds on the entropy rate; see [`~hmm_datasets.hmm.model.HMM.entropy_rate_bounds`]."""
    length = integer("length", length, 1, 31)
    if hmm.is_unifilar():
        value = entropy_rate(hmm).value
        return EntropyRateBounds(value, value, 0.0, 0.0)
    stationary = hmm.stationary()
    for most in sorted({min(_FEW_STATES, _MAX_STATES), _MAX_STATES}):
        uppers = exact_losses(Tree(hmm, stationary[None], np.ones(1)), length, most)
        lowers = exact_losses(Tree(hmm, np.eye(hmm.num_states), stationary), length, most)
        depth = min(len(uppers), len(lowers))
        # What bounds the rate at a depth does so at every length. Rounding may exchange bounds that are nearly equal.
        low, high = float(min(lowers[depth - 1], uppers[depth - 1])), float(uppers[depth - 1])
        if depth == length or high - low <= _TIGHT:
            return EntropyRateBounds(low, high, 0.0, 0.0)
    default_burn_in = burn_in is None
    burn_in = length // 4 if burn_in is None else burn_in
    tokens, first_states, parameters = _stationary_sample(hmm, stationary, num_sequences, length, burn_in, seed)
    first = torch.nn.functional.one_hot(first_states, hmm.num_states).double()
    above, below = (
        torch.stack(list(_distribution_entropies(parameters, tokens, initial))).numpy() for initial in (None, first)
    )
    # Sequences are prefixes of those of a greater length, so that the least gap of all windows never grows with it.
    gaps = np.concatenate([[0.0], np.cumsum((above - below).mean(axis=1))])
    ends = np.arange(max(depth, 1), length + 1)
    begins = ends // 4 if default_burn_in else np.minimum(burn_in, ends - 1)
    width = min(high - low, max(0.0, float(((gaps[ends] - gaps[begins]) / (ends - begins)).min())))
    (upper, upper_error), (_, lower_error) = (_mean(entropies[burn_in:]) for entropies in (above, below))
    upper = min(max(upper, low + width), high)
    return EntropyRateBounds(upper - width, upper, lower_error, upper_error)


class ExcessEntropy(NamedTuple):
    """Excess entropy in nats, and how far the true value may be from it."""

    value: float
    error: float


def excess_entropy(hmm: HMM) -> ExcessEntropy:
    """How much the past says about the future; see [`~hmm_datasets.hmm.process.Process.excess_entropy`].

    The sum is exact over the positions of which the tree of mixed states is small. Bounds on the entropy rate at the
    last of them, and the geometric decrease of their gap, give the error.
    """
    stationary = hmm.stationary()
    uppers = exact_losses(Tree(hmm, stationary[None], np.ones(1)), _POSITIONS)
    if hmm.is_unifilar():
        lowers = np.full(len(uppers), entropy_rate(hmm).value)
    else:
        lowers = exact_losses(Tree(hmm, np.eye(hmm.num_states), stationary), len(uppers))
    depth = min(len(uppers), len(lowers))
    gaps = np.maximum(uppers[:depth] - lowers[:depth], 0.0)
    # Until rounding is all that is left of the gap.
    depth = int(np.argmax(gaps < 1e-13)) + 1 if (gaps < 1e-13).any() else depth
    rate, half = (uppers[depth - 1] + lowers[depth - 1]) / 2, gaps[depth - 1] / 2
    ratio = gaps[depth - 1] / gaps[depth - 2] if depth > 1 and gaps[depth - 2] > 0 else 0.0
    tail = gaps[depth - 1] * ratio / (1 - ratio) if ratio < 1 else math.inf
    return ExcessEntropy(float((uppers[:depth] - rate).sum() + tail / 2), float(depth * half + tail / 2))


def sampled_excess_entropy(process: Process, length: int = 128) -> ExcessEntropy:
    """That of any stationary process, of its optimal losses at `length` positions and its entropy rate."""
    if not process.is_stationary:
        raise InputError(f"{process!r} is not stationary and has no excess entropy; optimal_loss has each token's")
    rate, loss = process.entropy_rate(), process.optimal_loss(length)
    gaps = loss.nats - rate.value
    error = float(loss.standard_error.sum()) + length * rate.standard_error
    return ExcessEntropy(float(gaps.sum()), error + abs(float(gaps[-1])) * length)


def optimal_loss(hmm: HMM, length: int, num_sequences: int = 1024, seed: int = 0) -> OptimalLoss:
    """The minimum expected loss at every position; see [`~hmm_datasets.hmm.model.HMM.optimal_loss`]."""
    length = integer("length", length, 0, 31)
    exact = exact_losses(Tree(hmm, hmm.start[None], np.ones(1)), length)
    nats, errors = np.zeros(length), np.zeros(length)
    nats[: len(exact)] = exact
    if len(exact) < length:
        num_sequences = integer("num_sequences", num_sequences, 2, 63)
        tokens = torch.from_numpy(hmm.sample(num_sequences, length, seed=seed).astype(np.int64))
        entropies = itertools.islice(_distribution_entropies(hmm.parameters(), tokens), len(exact), None)
        for t, row in enumerate(entropies, start=len(exact)):
            nats[t], errors[t] = float(row.mean()), float(row.std()) / np.sqrt(num_sequences)
    return OptimalLoss(nats, errors)


def exact_losses(tree: Tree, length: int, max_states: int | None = None) -> Float[np.ndarray, "L"]:
    """The mean entropy of the next symbol at the first `length` positions; at fewer if the tree becomes too large."""
    limit = min(
        _MAX_STATES if max_states is None else max_states,
        _MAX_NUMBERS // (tree.hmm.num_states + 2 * tree.hmm.num_symbols),
    )
    tree.grow_to(length - 1, limit)
    symbol_entropy = entropy(tree.next_token_probs)
    return np.array([distribution @ symbol_entropy for distribution in itertools.islice(tree.distributions(), length)])


def _distribution_entropies(
    hmm: Parameters, tokens: Int[Tensor, "B T"], initial: Tensor | None = None
) -> Iterator[Tensor]:
    # For every position, the entropy (B,) of the distribution of its token given the tokens before it.
    belief_BH = hmm.start.expand(len(tokens), -1) if initial is None else initial
    positions = max(1, _BLOCK_BYTES // (hmm.start.element_size() * len(tokens) * max(hmm.emission.shape)))
    with progress_bar(tokens.shape[1], " positions", desc="entropy rate", leave=False) as bar:
        for block in tokens.split(positions, dim=1):
            belief = beliefs(hmm, block, initial=belief_BH)
            yield from torch.special.entr(next_token_probs(hmm, belief[:, :-1])).sum(-1).T
            belief_BH = belief[:, -1]
            bar.update(block.shape[1])


def _stationary_sample(
    hmm: HMM, stationary: Float[np.ndarray, "H"], num_sequences: int, length: int, burn_in: int, seed: int
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B"], Parameters]:
    check_sample(num_sequences, length, burn_in)
    steady = HMM(**{**hmm.tables(), "start": stationary})
    tokens, states = steady.sample_with_states(num_sequences, length, seed=seed)
    first = torch.from_numpy(states[:, 0].astype(np.int64))
    return torch.from_numpy(tokens.astype(np.int64)), first, steady.parameters()


def check_sample(num_sequences: int, length: int, burn_in: int) -> None:
    integer("length", length, 1, 31), integer("num_sequences", num_sequences, 2, 63)
    if integer("burn_in", burn_in, 0, 31) >= length:
        raise InputError(f"burn_in is {burn_in}, length {length}; expected 0 <= burn_in < length")


def _mean(entropies: Float[np.ndarray, "T B"]) -> tuple[float, float]:
    # Mean over positions and sequences, and its standard error over sequences.
    means = entropies.mean(axis=0)
    return float(means.mean()), float(means.std(ddof=1) / len(means) ** 0.5)
