"""The predictive vectors of a generalized HMM: whether its probabilities are valid, its entropy rate and least loss.

A predictive vector is what the past says about the future, as a belief is for an HMM. They form a tree of words, in
which equal vectors are merged, grown as in `mixed_states`. Whether all words of a generalized HMM have non-negative
probabilities is undecidable (Denis and Esposito, Fundamenta Informaticae 86, 2008). So the words of a tree of bounded
depth and size are checked.

The entropy rate is exact in two cases. Where there are finitely many predictive vectors, they are the states of a
unifilar chain, and the rate is the mean entropy of the next symbol. Where a symbol has an operator of rank one, every
occurrence of it leads to the same vector, so that the process starts anew. The rate is then the expected sum of the
entropies between two occurrences, over their mean distance, which is one over the probability of the symbol (renewal
reward; Kac 1947). Words that are not in the tree add between 0 and `ln E` nats per token, which gives two bounds.
"""

import math
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from ...errors import InputError
from ..integers import integer
from ..kernels.linear import REFUSED, ROUNDING
from .entropy import (
    EntropyRate,
    EntropyRateBounds,
    OptimalLoss,
    exact_losses,
    sampled_entropy_rate,
    sampled_optimal_loss,
)
from .mixed_states import TOLERANCE, Tree
from .stationary import cesaro_limit, entropy

if TYPE_CHECKING:
    from ..generalized import GeneralizedHMM

SEARCH_DEPTH = 64
"""Length of the longest words whose probabilities are checked when a generalized HMM is made."""

SEARCH_VECTORS = 4096
"""Maximum number of predictive vectors in that search; it ends at a smaller depth where there are more."""

_MAX_VECTORS = 1 << 14  # of a tree for the entropy rate
_MAX_CLOSED = 1024  # predictive vectors of a process that has finitely many of them
_MAX_STEPS = 1 << 17  # between two occurrences of a symbol
_ENOUGH = 1e-9  # nats: bounds that are nearer to each other are taken for the entropy rate


class PredictiveTree(Tree):
    """Predictive vectors grown level by level from given ones."""

    def __init__(
        self, process: "GeneralizedHMM", roots: Float[np.ndarray, "R H"], weights: Float[np.ndarray, "R"] | None = None
    ):
        # Coordinates of predictive vectors have any scale, unlike probabilities.
        scale = max(1.0, float(np.abs(roots).max()))
        super().__init__(process, roots, np.ones(1) if weights is None else weights, min(TOLERANCE * scale, 0.5))

    def _probs(self, beliefs: Float[np.ndarray, "M H"]) -> Float[np.ndarray, "M E"]:
        probs, sizes = signed_probs(self.hmm, beliefs)
        probs[probs <= ROUNDING * sizes] = 0.0
        return probs / probs.sum(axis=1, keepdims=True)

    def _advance(
        self, beliefs: Float[np.ndarray, "M H"], indices: Int[np.ndarray, "N"], symbols: Int[np.ndarray, "N"]
    ) -> Float[np.ndarray, "N H"]:
        vectors = (beliefs @ self.hmm.operators)[symbols, indices]
        return vectors / (vectors @ self.hmm.final)[:, None]


def signed_probs(
    process: "GeneralizedHMM", vectors: Float[np.ndarray, "M H"]
) -> tuple[Float[np.ndarray, "M E"], Float[np.ndarray, "M E"]]:
    """The products that are next-token probabilities, and the sums of the absolute values of their terms."""
    return vectors @ process.columns.T, np.abs(vectors) @ np.abs(process.columns.T)


def check_words(process: "GeneralizedHMM") -> int | None:
    """Check that no word has a negative probability, breadth first.

    Returns:
        `int`, *optional*: length up to which all words were checked; None if longer ones lead to no other vectors.

    Raises:
        `InputError`: a word has a negative probability; the message gives a shortest one.
    """
    tree = PredictiveTree(process, process.initial[None])
    checked = 0
    while True:
        probs, sizes = signed_probs(process, tree.beliefs[checked:])
        wrong = np.argwhere(probs < -REFUSED * sizes)
        if len(wrong) > 0:
            row, symbol = (int(number) for number in wrong[0])
            word = (*tree.words()[checked + row], symbol)
            raise InputError(
                f"the operators give the word {list(word)} a negative probability ({probs[row, symbol]:.3g} given the "
                "tokens before the last); expected operators of a process"
            )
        checked = len(tree.beliefs)
        if tree.depth + 1 >= SEARCH_DEPTH or not tree.grow(SEARCH_VECTORS):
            return None if tree.closed else tree.depth + 1


def entropy_rate(process: "GeneralizedHMM", num_sequences: int, length: int, burn_in: int, seed: int) -> EntropyRate:
    """The entropy rate; see [`~hmm_datasets.hmm.generalized.GeneralizedHMM.entropy_rate`]."""
    if process.is_stationary:
        bounds = reset_bounds(process)
        if bounds is not None and bounds.upper - bounds.lower < _ENOUGH:
            return EntropyRate((bounds.lower + bounds.upper) / 2, 0.0)
        value = _closed_rate(process)
        if value is not None:
            return EntropyRate(value, 0.0)
    return sampled_entropy_rate(process, num_sequences, length, burn_in, seed)


def _closed_rate(process: "GeneralizedHMM") -> float | None:
    """The mean entropy over the predictive vectors; None unless there are few enough of them."""
    tree = PredictiveTree(process, process.initial[None])
    while tree.depth < _MAX_CLOSED and tree.grow(_MAX_CLOSED):
        pass
    if not tree.closed:
        return None
    moves = np.zeros((len(tree.beliefs), len(tree.beliefs)))
    rows, symbols = np.nonzero(tree.next_token_probs)
    np.add.at(moves, (rows, tree.following[rows, symbols]), tree.next_token_probs[rows, symbols])
    shares = cesaro_limit(np.eye(len(moves))[0], moves)
    return float(shares @ entropy(tree.next_token_probs))


def reset_bounds(process: "GeneralizedHMM") -> EntropyRateBounds | None:
    """Bounds on the entropy rate of a stationary process with a symbol after which it starts anew; None without one.

    The tree from the vector after that symbol grows until the bounds agree to rounding or it is too large.
    """
    for symbol, operator in enumerate(process.operators):
        _, values, right = np.linalg.svd(operator)
        probability = float(process.initial @ process.columns[symbol])
        if probability > 1e-6 and (values[1:] <= ROUNDING * values[0]).all():
            root = right[:1] / (right[0] @ process.final)
            break
    else:
        return None
    tree = PredictiveTree(process, root)
    depth = 8
    while True:
        while tree.depth < depth and tree.grow(_MAX_VECTORS):
            pass
        nats, steps = _sums_before(tree, symbol)
        # Steps of words that are not in the tree, out of the mean number of steps, 1 / probability.
        missing = max(0.0, 1 - steps * probability)
        if missing < 1e-13 or tree.depth < depth:
            lower = nats * probability
            return EntropyRateBounds(lower, lower + missing * math.log(process.num_symbols), 0.0, 0.0)
        depth *= 2


def _sums_before(tree: PredictiveTree, symbol: int) -> tuple[float, float]:
    """Expected sum of entropies, and of steps, from the root of the tree to the next `symbol`, within the tree."""
    entropies = entropy(tree.next_token_probs)
    known = tree.following >= 0
    known[:, symbol] = False
    weights = np.zeros(len(tree.beliefs))
    weights[0] = 1.0
    nats = steps = 0.0
    for _ in range(_MAX_STEPS):
        if weights.sum() < 1e-18:
            break
        nats, steps = nats + float(weights @ entropies), steps + float(weights.sum())
        flow = (weights[:, None] * tree.next_token_probs)[known]
        weights = np.bincount(tree.following[known], weights=flow, minlength=len(weights))
    return nats, steps


def optimal_loss(process: "GeneralizedHMM", length: int, num_sequences: int, seed: int) -> OptimalLoss:
    """The minimum expected loss at every position, exact as long as the tree of predictive vectors is small."""
    length = integer("length", length, 0, 31)
    exact = exact_losses(PredictiveTree(process, process.initial[None]), length)
    if len(exact) == length:
        return OptimalLoss(exact, np.zeros(length))
    found = sampled_optimal_loss(process, length, num_sequences, seed)
    found.nats[: len(exact)], found.standard_error[: len(exact)] = exact, 0.0
    return found
