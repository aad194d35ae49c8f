"""The mixed states of a process: the beliefs that an observer can reach, and the moves between them by symbols.

They form the tree of all words of up to `depth` symbols, in which equal beliefs are merged (the mixed-state
presentation; Crutchfield, Riechers and Ellison 2016, "Exact complexity: the spectral decomposition of intrinsic
computation"; Jurgens and Crutchfield, J. Stat. Phys. 183, 2021). The tree is unifilar: belief and symbol determine the
next belief. Some HMMs have finitely many mixed states; then the tree closes and nothing is left to expand. Others,
such as mess3, have as many as there are words, `E ** depth`.

Every belief is expanded once, so time is `O(M E H^2)` for `M` beliefs, and memory `O(M (H + E + depth))`.
"""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ...errors import InputError
from ..arrays import normalized
from ..integers import integer

if TYPE_CHECKING:
    from ..model import HMM

TOLERANCE = 1e-10
"""Beliefs that differ by less than this in every state are merged. It is far above rounding errors, and far below the
difference of distinct beliefs."""

_WORK_BYTES = 1 << 26  # of the beliefs that one step leads to, before they are merged


class MixedStates(NamedTuple):
    """The distinct beliefs after at most `depth` symbols, `M` of them, in the order of the words that reach them.

    Attributes:
        beliefs (`np.ndarray` of shape `(M, H)`): distribution of the state, given the tokens so far; the first is
            `start`.
        words (`list` of `tuple` of `int`): for each belief the first word that leads to it, which is also a shortest.
        distribution (`np.ndarray` of shape `(depth + 1, M)`): probability of each belief after `t` symbols; rows sum
            to one.
        next_token_probs (`np.ndarray` of shape `(M, E)`): distribution of the next symbol.
        following (`np.ndarray` of shape `(M, E)`): index of the belief that each symbol leads to; -1 where the symbol
            is impossible, or where the belief is at `depth` and was not expanded.
    """

    beliefs: Float[np.ndarray, "M H"]
    words: list[tuple[int, ...]]
    distribution: Float[np.ndarray, "D M"]
    next_token_probs: Float[np.ndarray, "M E"]
    following: Int[np.ndarray, "M E"]

    def __repr__(self) -> str:
        end = "closed" if self.closed else "more at greater depth"
        return f"MixedStates({len(self.beliefs):,} beliefs up to depth {len(self.distribution) - 1}, {end})"

    @property
    def closed(self) -> bool:
        """Whether every possible symbol leads to a listed belief, so that a greater depth adds none."""
        return bool((self.following[self.next_token_probs > 0] >= 0).all())


def mixed_states(hmm: "HMM", depth: int, *, tolerance: float = TOLERANCE, max_states: int = 1_000_000) -> MixedStates:
    """The mixed states of `hmm` up to a depth.

    Args:
        hmm ([`~hmm_datasets.hmm.model.HMM`]): the process.
        depth (`int`): maximum number of symbols seen.
        tolerance (`float`, *optional*, defaults to 1e-10): beliefs that differ by less in every state are merged.
        max_states (`int`, *optional*, defaults to 1,000,000): maximum number of mixed states.

    Returns:
        [`MixedStates`].

    Raises:
        `InputError`: there are more than `max_states`; the message gives the depth up to which there are fewer.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> tree = mixed_states(processes.rrxor(), 20)
    >>> len(tree.beliefs), tree.closed
    (36, True)

    ```
    """
    if not 0 < tolerance < 1:
        raise InputError(f"tolerance is {tolerance}; expected a number between 0 and 1")
    return grown_states(Tree(hmm, hmm.start[None], np.ones(1), tolerance), depth, max_states)


def grown_states(grown: "Tree", depth: int, max_states: int) -> MixedStates:
    """A tree up to a depth; see [`mixed_states`]."""
    depth, max_states = integer("depth", depth, 0, 31), integer("max_states", max_states, 1, 63)
    grown.grow_to(depth, max_states)
    if grown.depth < depth and not grown.closed:
        raise InputError(
            f"{grown.hmm} has more than {max_states:,} mixed states at depth {grown.depth + 1}; "
            f"expected depth {grown.depth} or less, or a larger max_states"
        )
    distribution = np.stack(list(itertools.islice(grown.distributions(), depth + 1)))
    return MixedStates(grown.reached, grown.words(), distribution, grown.next_token_probs, grown.following)


class Tree:
    """Mixed states of an HMM grown level by level from `R` beliefs of given probabilities.

    A subclass for another process (`predictive_vectors`) replaces `_compared`, `_probs` and `_advance`. The attributes
    `beliefs`, `next_token_probs` and `following` are those of [`MixedStates`].
    """

    def __init__(
        self,
        hmm: Any,
        roots: Float[np.ndarray, "R H"],
        weights: Float[np.ndarray, "R"],
        tolerance: float = TOLERANCE,
    ):
        self.hmm = hmm
        self.depth = 0
        self.weights = weights
        self.beliefs = roots
        self.next_token_probs = self._probs(roots)
        self.following = np.full(self.next_token_probs.shape, -1)
        self._origins: list[tuple[int, ...]] = [()] * len(roots)
        self._expanded = 0
        self._cells = Cells(tolerance)
        self._cells.numbers(self._compared(roots), 0)

    @property
    def reached(self) -> Float[np.ndarray, "M H"]:
        """The beliefs of [`MixedStates`]."""
        return self.beliefs

    @property
    def closed(self) -> bool:
        """Whether no belief is left to expand."""
        return self._expanded == len(self.beliefs)

    def grow(self, max_states: int) -> bool:
        """Expand the last level; `False` if nothing is left to expand or there would be more than `max_states`."""
        if self.closed:
            return False
        count, parts, origins = len(self.beliefs), [], []
        following = np.full((count - self._expanded, self.hmm.num_symbols), -1)
        size = max(1, min(_WORK_BYTES // (8 * self.beliefs.shape[1]), max_states) // self.hmm.num_symbols)
        for first in range(self._expanded, count, size):
            rows = slice(first, min(first + size, count))
            indices, symbols = np.nonzero(self.next_token_probs[rows])
            after = self._advance(self.beliefs[rows], indices, symbols)
            numbers, new = self._cells.numbers(self._compared(after), count + len(origins))
            following[first - self._expanded + indices, symbols] = numbers
            parts.append(after[new])
            origins += zip((first + indices[new]).tolist(), symbols[new].tolist(), strict=True)
            if count + len(origins) > max_states:
                return False
        self.following[self._expanded :] = following
        self.beliefs = np.concatenate([self.beliefs, *parts])
        self.next_token_probs = self._probs(self.beliefs)
        self.following = np.pad(self.following, ((0, len(origins)), (0, 0)), constant_values=-1)
        self._origins += origins
        self._expanded = count
        self.depth += 1
        return True

    def grow_to(self, depth: int, max_states: int) -> None:
        """[`grow`] to a depth, or as far as there is something to expand and there are no more than `max_states`."""
        while self.depth < depth and self.grow(max_states):
            pass

    def _compared(self, beliefs: Float[np.ndarray, "M W"]) -> Float[np.ndarray, "M H"]:
        """The coordinates by which two beliefs are equal."""
        return beliefs

    def _probs(self, beliefs: Float[np.ndarray, "M H"]) -> Float[np.ndarray, "M E"]:
        """The distribution of the next symbol after each belief."""
        return beliefs @ self.hmm.emission

    def _advance(self, beliefs: np.ndarray, indices: np.ndarray, symbols: np.ndarray) -> np.ndarray:
        # For each pair of index and symbol, the belief that follows that belief and symbol.
        hmm = self.hmm
        if hmm.edges is None:
            weights = (beliefs[indices] * hmm.emission.T[symbols]) @ hmm.transition
        else:
            weights = (beliefs @ hmm.edges)[symbols, indices]
        # All weights may underflow after a symbol whose probability does not.
        return normalized(weights)

    def distributions(self) -> Iterator[Float[np.ndarray, "M"]]:
        """The distribution of the belief after 0, 1, 2, .. symbols, up to `depth`, or endlessly if the tree is
        closed."""
        distribution = np.pad(self.weights, (0, len(self.beliefs) - len(self.weights)))
        known = self.following >= 0
        for length in itertools.count():
            yield distribution
            if length == self.depth and not self.closed:
                return
            flow = (distribution[:, None] * self.next_token_probs)[known]
            distribution = np.bincount(self.following[known], weights=flow, minlength=len(distribution))

    def chain(self) -> tuple[Float[np.ndarray, "M"], Float[np.ndarray, "M M"]]:
        """The chain of beliefs of a closed tree: the distribution of the first one, and the transition matrix."""
        rows, symbols = np.nonzero(self.next_token_probs)
        moves = np.zeros((len(self.beliefs), len(self.beliefs)))
        np.add.at(moves, (rows, self.following[rows, symbols]), self.next_token_probs[rows, symbols])
        return next(self.distributions()), moves

    def odds_of_new(self, first: int, odds: Float[np.ndarray, "M"]) -> Float[np.ndarray, "N"]:
        """The probabilities of the first words that lead to the beliefs from `first` on, from those of the others."""
        origins = np.array(self._origins[first:], dtype=np.int64).reshape(-1, 2)
        return odds[origins[:, 0]] * self.next_token_probs[origins[:, 0], origins[:, 1]]

    def words(self) -> list[tuple[int, ...]]:
        """The first word that leads to each belief."""
        words = []
        for origin in self._origins:
            words.append((*words[origin[0]], origin[1]) if origin else ())
        return words


class Cells:
    """Numbers points so that points in one cell of either of two grids, half a cell apart, have the same number.

    Two points that differ by rounding alone are separated by borders of both grids with a probability of about
    `(rounding / cell)^2`.
    """

    def __init__(self, cell: float):
        # The size is not a round number, so that beliefs such as 1/2 or 1/3 do not lie on a border.
        self._cell = cell * 0.7390851332151607
        self._grids: tuple[dict[bytes, int], dict[bytes, int]] = ({}, {})

    def numbers(self, points: np.ndarray, next_number: int) -> tuple[np.ndarray, np.ndarray]:
        """The number of every point, and the indices of new points, which are numbered from `next_number` on."""
        scaled = points / self._cell
        numbers, new = np.empty(len(points), dtype=np.int64), []
        keys = (np.floor(scaled).astype(np.int64), np.round(scaled).astype(np.int64))
        for index, pair in enumerate(zip(*keys, strict=True)):
            pair = tuple(key.tobytes() for key in pair)
            known_numbers = [grid[key] for grid, key in zip(self._grids, pair, strict=True) if key in grid]
            if not known_numbers:
                known_numbers = [next_number + len(new)]
                new.append(index)
                for grid, key in zip(self._grids, pair, strict=True):
                    grid[key] = known_numbers[0]
            numbers[index] = known_numbers[0]
        return numbers, np.array(new, dtype=np.int64)
