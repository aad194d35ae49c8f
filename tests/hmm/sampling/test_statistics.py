"""Chi-square tests of what is drawn: starts, transitions, emissions, permutations, and that neighbours know nothing
of each other.

There are 46 comparisons with the exact distribution. Each must have a p-value above `LEAST = 1e-4`, which a right
sampler misses somewhere with probability 0.5 %; the seeds are fixed, so that a right one never does. Every kind of
test is also shown a distribution or a sampler that is slightly wrong, and must reject it with p below `MOST_WRONG =
1e-8`.

States are made visible: symbol `i * E + x` says that state `i` emitted `x`.
"""

import itertools

import numpy as np
import pytest
from scipy import stats

from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families import HMMMixture, PermutedEmissions, PermutedSymbols
from hmm_datasets.hmm.model import HMM

LEAST, MOST_WRONG = 1e-4, 1e-8

STATES, SYMBOLS = 6, 5
NUM_SEQUENCES, LENGTH = 4000, 50


def visible(kind: str) -> HMM:
    generator = np.random.default_rng(3)
    start = generator.dirichlet(np.ones(STATES))
    shown = np.repeat(np.eye(STATES), SYMBOLS, axis=1)
    if kind == "states":
        emission = shown * np.tile(generator.dirichlet(np.ones(SYMBOLS), STATES), STATES)
        transition = generator.dirichlet(np.ones(STATES), STATES)
        return HMM(start=start, transition=transition, emission=emission)
    rows = generator.dirichlet(np.ones(SYMBOLS * STATES), STATES).reshape(STATES, SYMBOLS, STATES)
    edges = np.zeros((STATES * SYMBOLS, STATES, STATES))
    for state in range(STATES):
        edges[state * SYMBOLS : (state + 1) * SYMBOLS, state] = rows[state]
    return HMM(start=start, edges=edges)


def draw(hmm: HMM, seed: int, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """States and symbols `(N, L)`."""
    return np.divmod(hmm.sample(NUM_SEQUENCES, LENGTH, seed=seed, first=first).astype(np.int64), SYMBOLS)


def p_of_rows(counts: np.ndarray, distributions: np.ndarray) -> float:
    """That the counts in each row were drawn by the distribution in it; the totals of the rows are given."""
    expected = counts.sum(axis=1, keepdims=True) * distributions
    assert (counts[distributions == 0] == 0).all()
    cells = distributions > 0
    statistic = ((counts - expected)[cells] ** 2 / expected[cells]).sum()
    return stats.chi2.sf(statistic, cells.sum() - len(distributions))


def p_of_independence(one: np.ndarray, other: np.ndarray) -> float:
    return stats.chi2_contingency(table(one, other)).pvalue


def table(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    rows, columns = one.max() + 1, other.max() + 1
    return np.bincount((one * columns + other).ravel(), minlength=rows * columns).reshape(rows, columns)


def tilted(distributions: np.ndarray, by: float = 1.05) -> np.ndarray:
    """Distributions a little wrong: every other probability by a twentieth, rows rescaled."""
    wrong = distributions * np.where(np.arange(distributions.shape[1]) % 2, by, 1.0)
    return wrong / wrong.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("kind", ["states", "edges"])
@pytest.mark.parametrize("seed", [0, 2**63 + 11])
def test_starts_follow_their_distribution(kind, seed):
    hmm = visible(kind)
    counts = np.bincount(hmm.sample(100_000, 1, seed=seed)[:, 0] // SYMBOLS, minlength=STATES)[None]
    assert p_of_rows(counts, hmm.start[None]) > LEAST
    assert p_of_rows(counts, tilted(hmm.start[None])) < MOST_WRONG


@pytest.mark.parametrize("seed", [0, 2**63 + 11])
def test_transitions_and_emissions_follow_their_distributions_and_are_independent_given_the_state(seed):
    hmm = visible("states")
    states, symbols = draw(hmm, seed)
    moves = table(states[:, :-1], states[:, 1:])
    assert p_of_rows(moves, hmm.transition) > LEAST
    assert p_of_rows(moves, tilted(hmm.transition)) < MOST_WRONG
    emitted = table(states, symbols)
    emission = np.stack([hmm.emission[i, i * SYMBOLS : (i + 1) * SYMBOLS] for i in range(STATES)])
    assert p_of_rows(emitted, emission) > LEAST
    assert p_of_rows(emitted, tilted(emission)) < MOST_WRONG
    both = table(states[:, :-1], symbols[:, :-1] * STATES + states[:, 1:])
    joint = np.einsum("ix,ij->ixj", emission, hmm.transition).reshape(STATES, -1)
    assert p_of_rows(both, joint) > LEAST


@pytest.mark.parametrize("seed", [0, 2**63 + 11])
def test_edges_follow_their_distribution(seed):
    hmm = visible("edges")
    states, symbols = draw(hmm, seed)
    taken = table(states[:, :-1], symbols[:, :-1] * STATES + states[:, 1:])
    distribution = np.stack([hmm.edges[i * SYMBOLS : (i + 1) * SYMBOLS, i].ravel() for i in range(STATES)])
    assert p_of_rows(taken, distribution) > LEAST
    assert p_of_rows(taken, tilted(distribution, 1.1)) < MOST_WRONG


def test_hundreds_of_states_follow_their_distributions_too():
    size = 200
    transition = np.random.default_rng(1).dirichlet(np.full(size, 0.5), size)
    hmm = HMM(start=np.full(size, 1 / size), transition=transition, emission=np.eye(size))
    tokens = hmm.sample(40_000, 100, seed=8).astype(np.int64)
    moves = table(tokens[:, :-1], tokens[:, 1:])
    # Cells with fewer than five expected are put together, row by row: the statistic is not chi-square there.
    small = moves.sum(axis=1, keepdims=True) * transition < 5
    merged = [np.c_[np.where(small, 0, x), np.where(small, x, 0).sum(axis=1)] for x in (moves, transition)]
    assert p_of_rows(*merged) > LEAST
    assert p_of_rows(merged[0], tilted(merged[1], 1.1)) < MOST_WRONG


COIN = HMM(transition=[[1.0]], emission=np.full((1, 16), 1 / 16))


def coins(seed: int = 5, first: int = 0, step: int = 1) -> np.ndarray:
    return COIN.sample(3000, 40, seed=seed, first=first, step=step).astype(np.int64)


@pytest.mark.parametrize(
    "other",
    [
        {"first": 1},
        {"first": 2},
        {"first": 16},
        {"first": 2**32},
        {"first": 2**63},
        {"seed": 6},
        {"seed": 4},
        {"seed": 5 + 2**32},
        {"seed": 5 + 2**63},
        {"seed": 6, "first": 2**64 - 1},
    ],
    ids=str,
)
def test_neighbouring_sequences_and_seeds_know_nothing_of_each_other(other):
    # Sequence i beside sequence i of the other stream, or beside i + first of the same one: disjoint pairs.
    mine = coins(step=2**40)
    assert p_of_independence(mine, coins(**{"step": 2**40, **other})) > LEAST


def test_places_of_a_sequence_know_nothing_of_each_other():
    tokens = coins()
    for lag in (1, 2, 4):
        assert p_of_independence(tokens[:, :-lag], tokens[:, lag:]) > LEAST
    # Nor does a position know the position after it in the next sequence.
    assert p_of_independence(tokens[:-1:2, :-1], tokens[1::2, 1:]) > LEAST


def test_dependence_of_a_fiftieth_of_the_tokens_would_be_seen():
    mine, other = coins(), coins(first=2**40)
    copied = np.where(np.random.default_rng(0).random(mine.shape) < 0.02, mine, other)
    assert p_of_independence(mine, copied) < MOST_WRONG


@pytest.mark.parametrize("kind", ["states", "edges"])
def test_neighbours_with_memory_know_nothing_of_each_other(kind):
    # First states alone: later ones depend on them, within a sequence.
    hmm = visible(kind)
    tokens = hmm.sample(80_000, 1, seed=3)[:, 0].astype(np.int64) // SYMBOLS
    assert p_of_independence(tokens[::2], tokens[1::2]) > LEAST
    following = hmm.sample(80_000, 1, seed=4)[:, 0].astype(np.int64) // SYMBOLS
    assert p_of_independence(tokens, following) > LEAST


# Permutations


def permutations(make, size: int, count: int, seed: int = 11, first: int = 0) -> np.ndarray:
    family = make(HMM(transition=np.full((size, size), 1 / size), emission=np.eye(size)))
    return np.array([family.permutation_at(seed, first + index) for index in range(count)])


def p_of_uniform_permutations(drawn: np.ndarray) -> float:
    names = {order: position for position, order in enumerate(itertools.permutations(range(drawn.shape[1])))}
    return stats.chisquare(np.bincount([names[tuple(order)] for order in drawn], minlength=len(names))).pvalue


@pytest.mark.parametrize("make", [PermutedSymbols, PermutedEmissions])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_all_permutations_come_equally_often(make, size):
    assert p_of_uniform_permutations(permutations(make, size, 6000)) > LEAST


def test_the_naive_shuffle_would_be_seen():
    # Every step swaps with any position, rather than with those left: 27 ways for 6 permutations.
    generator = np.random.default_rng(0)
    drawn = np.tile(np.arange(3), (6000, 1))
    for order in drawn:
        for last in range(3):
            other = generator.integers(3)
            order[last], order[other] = order[other], order[last]
    assert p_of_uniform_permutations(drawn) < MOST_WRONG


@pytest.mark.parametrize("make", [PermutedSymbols, PermutedEmissions])
def test_every_value_comes_equally_often_at_every_place_of_a_long_permutation(make):
    size, count = 60, 6000
    drawn = permutations(make, size, count, seed=2**40)
    counts_of_pairs = table(np.tile(np.arange(size), (count, 1)), drawn)
    statistic = ((counts_of_pairs - count / size) ** 2 / (count / size)).sum()
    # Rows and columns both have given totals; the matrix of a permutation has the variance of (n-1)^2 free cells.
    assert stats.chi2.sf(statistic * (size - 1) / size, (size - 1) ** 2) > LEAST


@pytest.mark.parametrize("make", [PermutedSymbols, PermutedEmissions])
def test_permutations_of_neighbouring_groups_and_seeds_know_nothing_of_each_other(make):
    drawn = permutations(make, 6, 6000)
    assert p_of_independence(drawn[::2, 0], drawn[1::2, 0]) > LEAST
    assert p_of_independence(drawn[:, 0], permutations(make, 6, 6000, seed=12)[:, 0]) > LEAST


def test_symbols_and_emissions_are_permuted_apart():
    drawn = [permutations(make, 6, 6000)[:, 0] for make in (PermutedSymbols, PermutedEmissions)]
    assert p_of_independence(*drawn) > LEAST


def test_components_of_a_mixture_come_by_their_weights_and_know_nothing_of_neighbours():
    parts = tuple(processes.random(2, 3, seed=seed) for seed in range(3))
    family = HMMMixture(parts, (0.2, 0.3, 0.5))
    drawn = family.components_at(6000, seed=1)
    assert p_of_rows(np.bincount(drawn)[None], np.array([family.weights])) > LEAST
    assert p_of_rows(np.bincount(drawn)[None], np.array([[0.25, 0.25, 0.5]])) < MOST_WRONG
    assert p_of_independence(drawn[::2], drawn[1::2]) > LEAST
