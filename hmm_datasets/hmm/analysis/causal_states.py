"""The causal states of an HMM: the classes of pasts after which the future has the same distribution.

Two beliefs predict the same if they agree on the span of the vectors `P(word | state)` over all words, which takes at
most `H` words. So the causal states are the recurrent ones in the tree of mixed states in which such beliefs are
merged, and with the moves between them they are the epsilon machine, the minimal unifilar presentation (Shalizi and
Crutchfield, J. Stat. Phys. 104, 2001). The tree may close from the stationary distribution, or, where an observer
never quite synchronizes, from the states of the HMM: a finite unifilar presentation whose states predict differently
is the epsilon machine (Travers and Crutchfield, arXiv 1111.4500). Where one of the trees closes, all of this is exact.
An HMM may also have infinitely many causal states. Time is that of the tree, `O(M E H^2)` for `M` of them.
"""

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from ...errors import InputError
from ..arrays import operators
from ..integers import integer
from .mixed_states import TOLERANCE, Cells, Tree
from .stationary import eliminate, entropy

if TYPE_CHECKING:
    from ..model import HMM

MAX_CAUSAL_STATES = 1024
"""Causal states up to which an epsilon machine is looked for by default."""

_MAX_STATES = 1 << 14  # of a tree
_MAX_DEPTH = 2048
_SLOW = 0.99  # ratio of consecutive terms from which a sum is not taken for a convergent one
_ROUNDING = 1e-13


class StatisticalComplexity(NamedTuple):
    """Entropy of the causal states in nats, and how far the true value may be from it."""

    value: float
    error: float


class CausalTree(Tree):
    """Mixed states of which those with the same future are merged, from `R` beliefs of given probabilities."""

    def __init__(self, hmm: "HMM", roots: Float[np.ndarray, "R H"], weights: Float[np.ndarray, "R"]):
        self._observable = observable_span(hmm)
        numbers, first = Cells(TOLERANCE).numbers(self._compared(roots), 0)
        super().__init__(hmm, roots[first], np.bincount(numbers, weights=weights))

    def _compared(self, beliefs: Float[np.ndarray, "M H"]) -> Float[np.ndarray, "M R"]:
        return beliefs @ self._observable


def observable_span(hmm: "HMM") -> Float[np.ndarray, "H R"]:
    """An orthonormal basis of the span of `P(word | state)`, over all words."""
    tables = operators(hmm)
    basis = np.full((hmm.num_states, 1), hmm.num_states**-0.5)
    done = 0
    while done < basis.shape[1]:
        for vector in tables @ basis[:, done]:
            size = np.linalg.norm(vector)
            for _ in range(2):  # once more, since the first difference has its rounding
                vector = vector - basis @ (basis.T @ vector)
            if np.linalg.norm(vector) > 1e-9 * max(size, 1e-9):
                basis = np.column_stack([basis, vector / np.linalg.norm(vector)])
        done += 1
    return basis


def epsilon_machine(hmm: "HMM", max_states: int = MAX_CAUSAL_STATES) -> "HMM":
    """The minimal unifilar presentation; see [`~hmm_datasets.hmm.model.HMM.epsilon_machine`]."""
    tree = _grown(hmm, integer("max_states", max_states, 1, 31), max_states)
    if not tree.closed:
        raise InputError(
            f"{hmm!r} has more than {max_states:,} causal states within {tree.depth + 1} symbols, and perhaps no "
            "finite epsilon machine; raise max_states, or use mixed_states and statistical_complexity"
        )
    shares, _ = eliminate(*tree.chain())
    rows, symbols = np.nonzero(tree.next_token_probs)
    moves = tree.following[rows, symbols]
    kept = np.flatnonzero(shares > 0)
    number = np.full(len(shares), -1)
    number[kept] = np.arange(len(kept))
    edges = np.zeros((hmm.num_symbols, len(kept), len(kept)))
    inner = number[rows] >= 0
    rows, symbols, moves = rows[inner], symbols[inner], moves[inner]
    edges[symbols, number[rows], number[moves]] = tree.next_token_probs[rows, symbols]
    return type(hmm)(start=shares[kept], edges=edges, vocabulary=hmm.vocabulary, normalize=True)


def statistical_complexity(hmm: "HMM") -> StatisticalComplexity:
    """The entropy of the causal states; see [`~hmm_datasets.hmm.model.HMM.statistical_complexity`]."""
    tree = _grown(hmm, MAX_CAUSAL_STATES, _MAX_STATES)
    if tree.closed:
        return StatisticalComplexity(max(float(entropy(eliminate(*tree.chain())[0])), 0.0), 0.0)
    values = [float(entropy(row)) for row in itertools.islice(tree.distributions(), min(tree.depth, _MAX_DEPTH) + 1)]
    return StatisticalComplexity(values[-1], _tail(np.abs(np.diff(values))))


def _grown(hmm: "HMM", max_closed: int, max_states: int) -> CausalTree:
    """A closed tree of at most `max_closed` states if there is one, else that from the stationary distribution.

    A tree whose beliefs only approach the causal states closes too, once they are nearer than the tolerance. So of two
    that close, the one with fewer recurrent states is exact, or of as many that from the states.
    """
    stationary = hmm.stationary()
    unknown, known = (stationary[None], np.ones(1)), (np.eye(hmm.num_states), stationary)

    def grown(roots: tuple[np.ndarray, np.ndarray], limit: int) -> CausalTree:
        tree = CausalTree(hmm, *roots)
        tree.grow_to(_MAX_DEPTH, limit)
        return tree

    closed = [tree for tree in (grown(known, max_closed), grown(unknown, max_closed)) if tree.closed]
    if closed:
        return min(closed, key=lambda tree: np.count_nonzero(eliminate(*tree.chain())[0]))
    return grown(unknown, max_states)


def _tail(terms: Float[np.ndarray, "N"]) -> float:
    """The sum of the terms that follow, if they decrease geometrically as the last ones do; inf if they do not."""
    if len(terms) == 0 or terms[-1] < _ROUNDING:
        return _ROUNDING * len(terms)
    last = terms[-4:]
    ratio = float((last[-1] / last[0]) ** (1 / max(len(last) - 1, 1))) if last[0] > 0 else 1.0
    return float(last[-1] * ratio / (1 - ratio)) if ratio < _SLOW else math.inf
