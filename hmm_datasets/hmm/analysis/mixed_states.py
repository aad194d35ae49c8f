"""The mixed states of an HMM: the beliefs an observer can hold, and how each symbol leads from one to the next.

The tree of all words of `depth` symbols, with beliefs that coincide merged (the mixed-state presentation; Crutchfield,
Riechers and Ellison 2016, "Exact complexity: the spectral decomposition of intrinsic computation"; Jurgens and
Crutchfield, J. Stat. Phys. 183, 2021). It is unifilar: belief and symbol determine the next belief. Some HMMs have
finitely many mixed states, then the tree closes and nothing is left to expand; others, mess3 among them, have as many
as words, `E ** depth`.

Every belief is expanded once: time is `O(M E H^2)` for `M` beliefs, memory `O(M (H + E + depth))`.
"""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ...errors import InputError
from ..checks import integer

if TYPE_CHECKING:
    from ..model import HMM

TOLERANCE = 1e-10
"""Beliefs nearer than this in every state are one: far above rounding, far below what tells two beliefs apart."""

_WORK_BYTES = 1 << 26  # for the beliefs that one step leads to, before they are merged


class MixedStates(NamedTuple):
    """The distinct beliefs after at most `depth` symbols, `M` of them, in the order of the words that reach them.

    Attributes:
        beliefs (`np.ndarray` of shape `(M, H)`): distribution of the state, given the tokens so far; the first is
            `start`.
        words (`list` of `tuple` of `int`): the first, hence shortest, word that leads to each.
        distribution (`np.ndarray` of shape `(depth + 1, M)`): probability of each belief after `t` symbols; rows sum
            to one.
        next_token_probs (`np.ndarray` of shape `(M, E)`): distribution of the next symbol.
        following (`np.ndarray` of shape `(M, E)`): number of the belief that each symbol leads to; -1 where the symbol
            is impossible, or the belief lies at `depth` and was not expanded.
    """

    beliefs: Float[np.ndarray, "M H"]
    words: list[tuple[int, ...]]
    distribution: Float[np.ndarray, "D M"]
    next_token_probs: Float[np.ndarray, "M E"]
    following: Int[np.ndarray, "M E"]

    @property
    def closed(self) -> bool:
        """Whether every possible symbol leads to a belief that is listed, so that a greater depth adds none."""
        return bool((self.following[self.next_token_probs > 0] >= 0).all())


def mixed_states(hmm: "HMM", depth: int, *, tolerance: float = TOLERANCE, max_states: int = 1_000_000) -> MixedStates:
    """The mixed states of `hmm` to a depth.

    Args:
        hmm ([`~hmm_datasets.hmm.model.HMM`]): the process.
        depth (`int`): symbols seen at most.
        tolerance (`float`, *optional*, defaults to 1e-10): beliefs nearer in every state are one.
        max_states (`int`, *optional*, defaults to 1,000,000): where to give up.

    Returns:
        [`MixedStates`].

    Raises:
        `InputError`: there are more than `max_states`; it says to which depth they were fewer.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> tree = mixed_states(processes.rrxor(), 20)
    >>> len(tree.beliefs), tree.closed
    (36, True)

    ```
    """
    depth = integer("depth", depth, 0, 31)
    if not 0 < tolerance < 1:
        raise InputError(f"tolerance is {tolerance}; expected a number between 0 and 1")
    grown = Tree(hmm, hmm.start[None], np.ones(1), tolerance)
    while grown.depth < depth and grown.grow(max_states):
        pass
    if grown.depth < depth and not grown.closed:
        raise InputError(
            f"{hmm} has more than {max_states:,} mixed states at depth {grown.depth + 1}; "
            f"expected depth {grown.depth} or less, or a larger max_states"
        )
    distribution = np.stack(list(itertools.islice(grown.distributions(), depth + 1)))
    return MixedStates(grown.beliefs, grown.words(), distribution, grown.next_token_probs, grown.following)


class Tree:
    """Mixed states grown level by level from `R` beliefs of given probabilities.

    The attributes `beliefs`, `next_token_probs` and `following` are those of [`MixedStates`].
    """

    def __init__(
        self,
        hmm: "HMM",
        roots: Float[np.ndarray, "R H"],
        weights: Float[np.ndarray, "R"],
        tolerance: float = TOLERANCE,
    ):
        self.hmm = hmm
        self.depth = 0
        self.weights = weights
        self.beliefs = roots
        self.next_token_probs = roots @ hmm.emission
        self.following = np.full(self.next_token_probs.shape, -1)
        self._origins: list[tuple[int, ...]] = [()] * len(roots)
        self._expanded = 0
        self._cells = _Cells(tolerance)
        self._cells.numbers(roots, 0)

    @property
    def closed(self) -> bool:
        """Whether no belief is left to expand."""
        return self._expanded == len(self.beliefs)

    def grow(self, max_states: int) -> bool:
        """Expand the last level; `False` where nothing is left or there would be too many beliefs, for good then."""
        if self.closed:
            return False
        count, parts, origins = len(self.beliefs), [], []
        following = np.full((count - self._expanded, self.hmm.num_symbols), -1)
        size = max(1, min(_WORK_BYTES // (8 * self.hmm.num_states), max_states) // self.hmm.num_symbols)
        for first in range(self._expanded, count, size):
            rows = slice(first, min(first + size, count))
            places, symbols = np.nonzero(self.next_token_probs[rows])
            after = self._advance(self.beliefs[rows], places, symbols)
            numbers, new = self._cells.numbers(after, count + len(origins))
            following[first - self._expanded + places, symbols] = numbers
            parts.append(after[new])
            origins += zip((first + places[new]).tolist(), symbols[new].tolist(), strict=True)
            if count + len(origins) > max_states:
                return False
        self.following[self._expanded :] = following
        self.beliefs = np.concatenate([self.beliefs, *parts])
        self.next_token_probs = self.beliefs @ self.hmm.emission
        self.following = np.pad(self.following, ((0, len(origins)), (0, 0)), constant_values=-1)
        self._origins += origins
        self._expanded = count
        self.depth += 1
        return True

    def _advance(self, beliefs: np.ndarray, places: np.ndarray, symbols: np.ndarray) -> np.ndarray:
        # The belief after each symbol, where it is possible.
        hmm = self.hmm
        if hmm.edges is None:
            weights = (beliefs[places] * hmm.emission.T[symbols]) @ hmm.transition
        else:
            weights = (beliefs @ hmm.edges)[symbols, places]
        return weights / weights.sum(axis=1, keepdims=True)

    def distributions(self) -> Iterator[Float[np.ndarray, "M"]]:
        """The distribution of the belief after 0, 1, 2, .. symbols: as far as `depth`, without end where the tree
        is closed."""
        distribution = np.zeros(len(self.beliefs))
        distribution[: len(self.weights)] = self.weights
        known = self.following >= 0
        for length in itertools.count():
            yield distribution
            if length == self.depth and not self.closed:
                return
            flow = (distribution[:, None] * self.next_token_probs)[known]
            distribution = np.bincount(self.following[known], weights=flow, minlength=len(distribution))

    def words(self) -> list[tuple[int, ...]]:
        """The first word that leads to each belief."""
        words = []
        for origin in self._origins:
            words.append((*words[origin[0]], origin[1]) if origin else ())
        return words


class _Cells:
    """Numbers for points, the same for points in one cell of either of two grids half a cell apart.

    Points that differ by rounding fall on two sides of a border in both grids with a chance of about
    `(rounding / cell)^2` a pair.
    """

    def __init__(self, cell: float):
        # A cell that is no round number: beliefs that are, 1/2 or 1/3, lie on no border.
        self._cell = cell * 0.7390851332151607
        self._grids: tuple[dict[bytes, int], dict[bytes, int]] = ({}, {})

    def numbers(self, points: np.ndarray, next_number: int) -> tuple[np.ndarray, np.ndarray]:
        """The number of every point, new ones from `next_number` on, and the places of the new ones."""
        scaled = points / self._cell
        numbers, new = np.empty(len(points), dtype=np.int64), []
        keys = (np.floor(scaled).astype(np.int64), np.round(scaled).astype(np.int64))
        for place, pair in enumerate(zip(*keys, strict=True)):
            pair = tuple(key.tobytes() for key in pair)
            found = [grid[key] for grid, key in zip(self._grids, pair, strict=True) if key in grid]
            if not found:
                found = [next_number + len(new)]
                new.append(place)
                for grid, key in zip(self._grids, pair, strict=True):
                    grid[key] = found[0]
            numbers[place] = found[0]
        return numbers, np.array(new, dtype=np.int64)
