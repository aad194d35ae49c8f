"""First guesses for Baum-Welch: random tables, or tables counted after clustering the contexts of tokens.

[`guess_from_contexts`] assigns a state to every token by clustering, and counts. It is the first round of segmental
k-means (Juang and Rabiner, IEEE Trans. ASSP 38, 1990), with clusters of bigram contexts:

1. The kind of a token is the pair of the symbol before it and its own symbol. Missing tokens have none.
2. The point of a kind has two halves. One is the square root of the distribution of the next symbol, whose Euclidean
   distances are Hellinger distances. The other is the own symbol as a unit vector. With more than 64 symbols each half
   is projected onto 64 random directions (Johnson and Lindenstrauss 1984), which changes distances by about 20%.
3. The points are clustered by k-means, weighted by the counts of the kinds: k-means++ (Arthur and Vassilvitskii, SODA
   2007), then 20 rounds of Lloyd's algorithm.
4. The state of a token is the cluster of its kind. First states, moves and symbols are counted along the data. Each
   row is mixed with a random one that has a weight of a tenth, so that every probability is positive and no two states
   are equal.

Time is `O(N L)` for the counts and `O(K H D)` per round, with `K <= E^2` kinds and `D <= 128` dimensions.
"""

from collections.abc import Collection

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..model import HMM

_DIRECTIONS = 64
_ROUNDS = 20
_RANDOM_SHARE = 0.1
_CHUNK = 1 << 14  # kinds whose distances to all centres are computed at once


def random_guess(num_states: int, num_symbols: int, *, seed: int = 0) -> HMM:
    """A first guess with rows drawn uniformly from the simplex (Dirichlet distributions of concentration 1).

    With flatter rows the states would be almost equal, and Baum-Welch would start on a plateau.
    """
    generator = np.random.default_rng(seed)

    def rows(count: int, width: int) -> np.ndarray:
        return generator.dirichlet(np.ones(width), count)

    return HMM(
        start=rows(1, num_states)[0],
        transition=rows(num_states, num_states),
        emission=rows(num_states, num_symbols),
        normalize=True,
    )


def redrawn(hmm: HMM, fixed: Collection[str] = (), *, seed: int = 0) -> HMM:
    """A first guess with the zeros of `hmm` and its `fixed` tables, and all else drawn as by [`random_guess`].

    Args:
        hmm ([`HMM`]): a state-emitting HMM.
        fixed (collection of `str`, *optional*): tables to keep: start, transition, emission.
        seed (`int`, *optional*, defaults to 0): seed of the draws.
    """
    tables = hmm.tables()
    for name, table in random_guess(hmm.num_states, hmm.num_symbols, seed=seed).tables().items():
        if name not in fixed:
            drawn = np.where(tables[name] > 0, table, 0.0)
            tables[name] = drawn / drawn.sum(-1, keepdims=True)
    return HMM(**tables, vocabulary=hmm.vocabulary)


def guess_from_contexts(
    tokens: Int[Tensor, "N L"],
    lengths: Int[Tensor, "N"] | None,
    num_states: int,
    num_symbols: int,
    *,
    seed: int = 0,
) -> HMM:
    """A first guess from k-means of the contexts of tokens; the docstring of the module gives the algorithm.

    Args:
        tokens (`torch.Tensor` of shape `(N, L)` or `(M,)`): symbols, `E` where they are missing; rows, or a column.
        lengths (`torch.Tensor` of shape `(N,)`, *optional*): number of tokens in each row; the rest is padding.
        num_states (`int`): `H`.
        num_symbols (`int`): `E`.
        seed (`int`, *optional*, defaults to 0): seed of the projection, of k-means++ and of the random rows.

    Returns:
        [`HMM`]: an HMM whose probabilities are all positive.
    """
    generator = np.random.default_rng(seed)
    symbols = tokens.long().cpu().numpy()
    ends = np.full(len(symbols), symbols.shape[-1]) if lengths is None else lengths.cpu().numpy()
    if symbols.ndim == 2:
        symbols = symbols[np.arange(symbols.shape[1]) < ends[:, None]]
    is_first = np.zeros(len(symbols), dtype=bool)
    is_first[(np.cumsum(ends) - ends)[ends > 0]] = True
    live = symbols < num_symbols
    before = np.where(is_first, num_symbols, np.roll(symbols, 1))  # a first token has no symbol before it
    kinds, kind_of_live, counts = np.unique(
        before[live] * num_symbols + symbols[live], return_inverse=True, return_counts=True
    )
    kind = np.zeros_like(symbols)
    kind[live] = kind_of_live
    followed = live[:-1] & live[1:] & ~is_first[1:]  # where there is a next token
    following = _successors(kind[:-1][followed], symbols[1:][followed], len(kinds), num_symbols, generator)
    points = np.hstack([following, _directions(num_symbols, generator)[kinds % num_symbols]])
    state = _k_means(torch.from_numpy(points), torch.from_numpy(counts), num_states, generator)[kind]
    random = random_guess(num_states, num_symbols, seed=int(generator.integers(1 << 32)))

    def table(rows: np.ndarray, columns: np.ndarray, other: Float[np.ndarray, "H W"]) -> Float[np.ndarray, "H W"]:
        width = other.shape[1]
        count = np.bincount(rows * width + columns, minlength=other.size).reshape(other.shape)
        total = count.sum(1, keepdims=True)
        return np.where(total > 0, (1 - _RANDOM_SHARE) * count / np.maximum(total, 1) + _RANDOM_SHARE * other, other)

    first = state[is_first & live]
    return HMM(
        start=table(np.zeros_like(first), first, random.start[None])[0],
        transition=table(state[:-1][followed], state[1:][followed], random.transition),
        emission=table(state[live], symbols[live], random.emission),
        normalize=True,
    )


def _directions(num_symbols: int, generator: np.random.Generator) -> Float[np.ndarray, "E D"]:
    """A vector of length about 1 for each symbol: a unit vector, or a random vector if there are many symbols."""
    if num_symbols <= _DIRECTIONS:
        return np.eye(num_symbols)
    return generator.standard_normal((num_symbols, _DIRECTIONS)) / np.sqrt(_DIRECTIONS)


def _successors(
    kind: Int[np.ndarray, "M"], following: Int[np.ndarray, "M"], num_kinds: int, num_symbols: int, generator
) -> Float[np.ndarray, "K D"]:
    """The square root of the distribution of the symbol after each kind, projected onto the symbols' directions."""
    pairs, counts = np.unique(kind * num_symbols + following, return_counts=True)
    kind, following = np.divmod(pairs, num_symbols)
    root = np.sqrt(counts / np.bincount(kind, counts, num_kinds)[kind])
    directions = _directions(num_symbols, generator)
    # One column at a time, since the table of all pairs and all directions would not fit in memory.
    return np.stack([np.bincount(kind, root * column[following], num_kinds) for column in directions.T], axis=1)


def _k_means(
    points: Float[Tensor, "K D"], weights: Int[Tensor, "K"], num_clusters: int, generator: np.random.Generator
) -> Int[np.ndarray, "K"]:
    """The cluster of every point, by weighted k-means++ and Lloyd's algorithm."""
    weights = weights.double()
    distance = torch.full_like(weights, torch.inf)
    chosen: list[int] = []
    for _ in range(min(num_clusters, len(points))):
        odds = weights if not chosen else weights * distance
        total = odds.cumsum(0)
        if total[-1] == 0:
            break  # every point is a centre already
        chosen.append(min(int(torch.searchsorted(total, generator.random() * total[-1])), len(points) - 1))
        distance = torch.minimum(distance, (points - points[chosen[-1]]).square().sum(1))
    centres = points[chosen].clone()
    for _ in range(_ROUNDS):
        cluster = _nearest(points, centres)
        mass = torch.zeros(len(centres), dtype=weights.dtype).index_add_(0, cluster, weights)
        sums = torch.zeros_like(centres).index_add_(0, cluster, points * weights[:, None])
        moved = torch.where(mass[:, None] > 0, sums / mass[:, None], centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    return _nearest(points, centres).numpy()


def _nearest(points: Float[Tensor, "K D"], centres: Float[Tensor, "C D"]) -> Int[Tensor, "K"]:
    # |p - c|^2 = |p|^2 - 2 p c + |c|^2, and |p|^2 is the same for every centre.
    norms = centres.square().sum(1)
    return torch.cat([(norms - 2 * chunk @ centres.T).argmin(1) for chunk in points.split(_CHUNK)])
