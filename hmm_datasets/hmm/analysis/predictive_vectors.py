"""The predictive vectors of a generalized HMM: whether its probabilities are valid, its entropy rate and least loss.

A predictive vector is what the past says about the future, as a belief is for an HMM. They form a tree of words, in
which equal vectors are merged, grown as in `mixed_states`. Whether all words of a generalized HMM have non-negative
probabilities is undecidable (Denis and Esposito, Fundamenta Informaticae 86, 2008). So the words of a tree of bounded
depth and size are checked. Operators in a basis of condition number `c` determine probabilities to about `c^2` times
the rounding of a number, and a word of probability zero gets one of that size and any sign: conditioned on it, nothing
is known. The spread between copies of the process with other rounding shows how large that is (as in Vignes, Math.
Comput. Simul. 35, 1993).

The entropy rate is exact in two cases. Where there are finitely many predictive vectors, they are the states of a
unifilar chain, and the rate is the mean entropy of the next symbol. Where a symbol has an operator of rank one, every
occurrence of it leads to the same vector, so that the process starts anew. The rate is then the expected sum of the
entropies between two occurrences, over their mean distance, which is one over the probability of the symbol (renewal
reward; Kac 1947). Words that are not in the tree add between 0 and `ln E` nats per token, which gives two bounds.
"""

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ...errors import InputError
from ..arrays import normalized
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

_COPIES = 3
_ERROR = 4 * np.finfo(float).eps  # of the largest entry: the order of the rounding of a change of basis
_MARGIN = 8.0  # of rounding over the largest spread of the copies
_UNKNOWN = 1e-2
_COMMON = 1e-6  # probability of a word that is not rare
_LEAST_PRECISION = 1e-3

_MAX_VECTORS = 1 << 14  # of a tree for the entropy rate
_MAX_CLOSED = 1024  # predictive vectors of a process that has finitely many of them
_MAX_STEPS = 1 << 17  # between two occurrences of a symbol
_ENOUGH = 1e-9  # nats: bounds that are nearer to each other are taken for the entropy rate


class PredictiveTree(Tree):
    """Predictive vectors grown level by level from given ones.

    Where operators have negative entries, a row of `beliefs` holds a vector and after it those of the copies of the
    process that differ from it by rounding. How far their probabilities are from each other is how well the operators
    determine them, after any word.
    """

    def __init__(
        self, process: "GeneralizedHMM", roots: Float[np.ndarray, "R H"], weights: Float[np.ndarray, "R"] | None = None
    ):
        self._copies, self._scales = _copies(process), process.scales
        # Coordinates of predictive vectors have any scale, unlike probabilities.
        scale = max(1.0, float(np.abs(roots * self._scales).max()))
        generator = np.random.default_rng(1)
        others = [_moved(roots, 1 / self._scales, generator) for _ in self._copies]
        others = [rows / (rows @ copy.final)[:, None] for rows, copy in zip(others, self._copies, strict=True)]
        rows = np.concatenate([roots, *others], axis=1)
        super().__init__(process, rows, np.ones(1) if weights is None else weights, min(TOLERANCE * scale, 0.5))

    @property
    def reached(self) -> Float[np.ndarray, "M H"]:
        return self._parts(self.beliefs)[0]

    def signed_probs(self, rows: slice) -> tuple[Float[np.ndarray, "M E"], Float[np.ndarray, "M E"]]:
        """The products that are next-token probabilities, and how large such a product may be by rounding alone."""
        return self._signed(self.beliefs[rows])

    def _signed(self, beliefs: Float[np.ndarray, "M W"]) -> tuple[np.ndarray, np.ndarray]:
        own_part, *others = self._parts(beliefs)
        probs, sizes = own_part @ self.hmm.columns.T, np.abs(own_part) @ np.abs(self.hmm.columns.T)
        spread = np.zeros_like(probs)
        for vectors, copy in zip(others, self._copies, strict=True):
            spread = np.maximum(spread, np.abs(vectors @ copy.columns.T - probs))
        return probs, np.maximum(ROUNDING * sizes, _MARGIN * spread)

    def _parts(self, beliefs: Float[np.ndarray, "M W"]) -> list[Float[np.ndarray, "M H"]]:
        return np.split(beliefs, 1 + len(self._copies), axis=1)

    def _compared(self, beliefs: Float[np.ndarray, "M W"]) -> Float[np.ndarray, "M H"]:
        return np.ascontiguousarray(self._parts(beliefs)[0] * self._scales)

    def _probs(self, beliefs: Float[np.ndarray, "M W"]) -> Float[np.ndarray, "M E"]:
        probs, rounding = self._signed(beliefs)
        probs[probs <= rounding] = 0.0
        # After a word so rare that its future is not determined there is none.
        probs[rounding.max(axis=1) > _UNKNOWN] = 0.0
        return normalized(probs)

    def _advance(
        self, beliefs: Float[np.ndarray, "M W"], indices: Int[np.ndarray, "N"], symbols: Int[np.ndarray, "N"]
    ) -> Float[np.ndarray, "N W"]:
        after = []
        for vectors, process in zip(self._parts(beliefs), (self.hmm, *self._copies), strict=True):
            moved = (vectors @ process.operators)[symbols, indices]
            after.append(moved / (moved @ process.final)[:, None])
        return np.concatenate(after, axis=1)


class _Copy(NamedTuple):
    """A process that differs from another by rounding."""

    operators: Float[np.ndarray, "E H H"]
    final: Float[np.ndarray, "H"]
    columns: Float[np.ndarray, "E H"]


def _copies(process: "GeneralizedHMM") -> list[_Copy]:
    """Copies whose entries have errors as those of a product of matrices; none where nothing can cancel."""
    if (process.operators >= 0).all() and (process.final >= 0).all() and (process.initial >= 0).all():
        return []
    generator, copies, scales = np.random.default_rng(0), [], process.scales
    for _ in range(_COPIES):
        operators = _moved(process.operators, scales[:, None] / scales, generator)
        final = _moved(process.final, scales, generator)
        copies.append(_Copy(operators, final, operators @ final))
    return copies


def _moved(table: np.ndarray, scales: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    # Zeros are kept, since they are those of a structure: a change of basis leaves none.
    largest = np.abs(table / scales).max()
    return table + _ERROR * largest * scales * generator.uniform(-1, 1, table.shape) * (table != 0)


def check_words(process: "GeneralizedHMM") -> tuple[int | None, float]:
    """Check that no word has a negative probability, breadth first.

    Returns:
        `tuple`: the length up to which all words were checked, or None if longer ones lead to no other vectors; and
            the probability up to which one is rounding, as in [`~hmm_datasets.hmm.generalized.GeneralizedHMM`].

    Raises:
        `InputError`: a word has a negative probability; the message gives a shortest one. Or the operators determine
            the probabilities of words that are not rare to no more than `1e-3`.
    """
    tree = PredictiveTree(process, process.initial[None])
    checked, precision, undetermined = 0, 0.0, None
    odds = np.ones(1)  # the probability of the first word that leads to each vector
    while True:
        probs, rounding = tree.signed_probs(slice(checked, None))
        known = rounding.max(axis=1) <= _UNKNOWN
        if not known.all() and undetermined is None:
            undetermined = tree.depth
        wrong = np.argwhere((probs < -REFUSED / ROUNDING * rounding) & known[:, None])
        if len(wrong) > 0:
            row, symbol = (int(number) for number in wrong[0])
            word = (*tree.words()[checked + row], symbol)
            raise InputError(
                f"the operators give the word {list(word)} a negative probability ({probs[row, symbol]:.3g} given the "
                "tokens before the last); expected operators of a process"
            )
        common = odds[checked:] >= _COMMON
        precision = max(precision, float(rounding[common].max(initial=0.0)))
        if precision > _LEAST_PRECISION:
            raise InputError(
                f"the operators determine the probabilities of symbols no better than to {precision:.1g}, since "
                f"entries of up to {np.abs(process.operators).max():.3g} cancel; expected 1e-3 or less, as in "
                "a basis of smaller condition number"
            )
        checked = len(tree.beliefs)
        if tree.depth + 1 >= SEARCH_DEPTH or not tree.grow(SEARCH_VECTORS):
            length = None if tree.closed else tree.depth + 1
            if undetermined is not None:
                length = undetermined if length is None else min(length, undetermined)
            return length, precision
        odds = np.concatenate([odds, tree.odds_of_new(checked, odds)])


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
    tree.grow_to(_MAX_CLOSED, _MAX_CLOSED)
    if not tree.closed:
        return None
    return float(cesaro_limit(*tree.chain()) @ entropy(tree.next_token_probs))


def reset_bounds(process: "GeneralizedHMM") -> EntropyRateBounds | None:
    """Bounds on the entropy rate of a stationary process with a symbol after which it starts anew; None without one.

    The tree from the vector after that symbol grows until the bounds agree to rounding or it is too large.
    """
    for symbol, operator in enumerate(process.operators):
        _, values, right = np.linalg.svd(operator)
        probability = float(process.initial @ process.columns[symbol])
        if probability > 1e-6 and (values[1:] <= max(ROUNDING, process.precision) * values[0]).all():
            root = right[:1] / (right[0] @ process.final)
            break
    else:
        return None
    tree = PredictiveTree(process, root)
    depth = 8
    while True:
        tree.grow_to(depth, _MAX_VECTORS)
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
    loss = sampled_optimal_loss(process, length, num_sequences, seed)
    loss.nats[: len(exact)], loss.standard_error[: len(exact)] = exact, 0.0
    return loss
