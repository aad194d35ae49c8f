"""Inference in a tiny HMM from the definition: sums over all paths, in plain Python.

A path of `T` tokens is `T + 1` states, one before each token and one after the last: `H ** (T + 1)` of them. A token
that was not observed is -1.
"""

import itertools
import math

import numpy as np

from hmm_datasets.hmm import processes
from hmm_datasets.hmm.model import HMM

LEFT_TO_RIGHT = HMM(
    start=[1, 0, 0],
    transition=[[0.5, 0.5, 0], [0, 0.7, 0.3], [0, 0, 1]],
    emission=[[0.9, 0.1, 0], [0, 0.6, 0.4], [0.3, 0, 0.7]],
)


def edge(hmm: HMM, symbol: int, state: int, after: int) -> float:
    """`P(emit symbol, go to after | in state)`."""
    if symbol < 0:
        return sum(edge(hmm, x, state, after) for x in range(hmm.num_symbols))
    if hmm.edges is None:
        return float(hmm.emission[state, symbol] * hmm.transition[state, after])
    return float(hmm.edges[symbol, state, after])


def path_probabilities(hmm: HMM, tokens) -> dict[tuple[int, ...], float]:
    """`P(path, tokens)` of every path."""
    result = {}
    for path in itertools.product(range(hmm.num_states), repeat=len(tokens) + 1):
        probability = float(hmm.start[path[0]])
        for symbol, state, after in zip(tokens, path[:-1], path[1:], strict=True):
            probability *= edge(hmm, symbol, state, after)
        result[path] = probability
    return result


def likelihood(hmm: HMM, tokens) -> float:
    return sum(path_probabilities(hmm, tokens).values())


def log_likelihood(hmm: HMM, tokens) -> float:
    probability = likelihood(hmm, tokens)
    return math.log(probability) if probability > 0 else -math.inf


def state_distribution(hmm: HMM, tokens, position: int) -> np.ndarray:
    """Distribution of the state before token `position`, given all the tokens; zeros where they are impossible."""
    distribution = np.zeros(hmm.num_states)
    for path, probability in path_probabilities(hmm, tokens).items():
        distribution[path[position]] += probability
    return distribution / distribution.sum() if distribution.sum() > 0 else distribution


def beliefs(hmm: HMM, tokens) -> np.ndarray:
    return np.stack([state_distribution(hmm, tokens[:t], t) for t in range(len(tokens) + 1)])


def posteriors(hmm: HMM, tokens) -> np.ndarray:
    return np.array([state_distribution(hmm, tokens, t) for t in range(len(tokens))]).reshape(
        len(tokens), hmm.num_states
    )


def next_token_probs(hmm: HMM, tokens) -> np.ndarray:
    """`P(x_0 .. x_t) / P(x_0 .. x_{t-1})`, for every symbol and `t = 0 .. T`."""
    rows = []
    for t in range(len(tokens) + 1):
        past = likelihood(hmm, tokens[:t])
        rows.append([likelihood(hmm, [*tokens[:t], x]) / past if past > 0 else 0.0 for x in range(hmm.num_symbols)])
    return np.array(rows)


def emitting_path_probabilities(hmm: HMM, tokens) -> dict[tuple[int, ...], float]:
    """`P(states that emit the tokens, tokens)`: the state after the last token summed out."""
    result: dict[tuple[int, ...], float] = {}
    for path, probability in path_probabilities(hmm, tokens).items():
        result[path[:-1]] = result.get(path[:-1], 0.0) + probability
    return result


def expected_counts(hmm: HMM, rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Expected counts of first states, of moves between the states that emit, and of (state, symbol)."""
    start = np.zeros(hmm.num_states)
    moves = np.zeros((hmm.num_states, hmm.num_states))
    emitted = np.zeros((hmm.num_states, hmm.num_symbols))
    for tokens in rows:
        paths = emitting_path_probabilities(hmm, tokens)
        total = sum(paths.values())
        for path, probability in paths.items():
            start[path[0]] += probability / total
            for here, after in itertools.pairwise(path):
                moves[here, after] += probability / total
            for here, symbol in zip(path, tokens, strict=True):
                emitted[here, symbol] += probability / total * (symbol >= 0)
    return start, moves, emitted


def random_edges(num_states: int, num_symbols: int, seed: int, zeros: float = 0.0) -> HMM:
    """An edge-emitting HMM that is not unifilar; `zeros` is the share of edges that are missing."""
    generator = np.random.default_rng(seed)
    rows = generator.dirichlet(np.ones(num_symbols * num_states), num_states)
    rows[generator.random(rows.shape) < zeros] = 0
    rows[:, 0] += 1e-3
    edges = rows.reshape(num_states, num_symbols, num_states).transpose(1, 0, 2)
    return HMM(start=generator.dirichlet(np.ones(num_states)), edges=edges, normalize=True)


def expected_edge_counts(hmm: HMM, rows) -> np.ndarray:
    """Expected numbers of moves `i -> j` that emit `x`, at `[x, i, j]`, the move after the last token included."""
    counts = np.zeros((hmm.num_symbols, hmm.num_states, hmm.num_states))
    for tokens in rows:
        paths = path_probabilities(hmm, tokens)
        total = sum(paths.values())
        for path, probability in paths.items():
            for symbol, here, after in zip(tokens, path[:-1], path[1:], strict=True):
                for x in range(hmm.num_symbols) if symbol < 0 else [symbol]:
                    share = edge(hmm, x, here, after) / (edge(hmm, symbol, here, after) or 1)
                    counts[x, here, after] += probability / total * share
    return counts


def optimal_loss(hmm: HMM, length: int) -> list[float]:
    """`H[X_t | X_0 .. X_{t-1}]` for every `t < length`: differences of the entropies of all words."""
    entropies = [0.0]
    for size in range(1, length + 1):
        distribution = np.array(
            [likelihood(hmm, word) for word in itertools.product(range(hmm.num_symbols), repeat=size)]
        )
        entropies.append(float(-(distribution[distribution > 0] * np.log(distribution[distribution > 0])).sum()))
    return np.diff(entropies).tolist()


TINY = {
    "dense": processes.random(3, 3, alpha=0.5, seed=3),
    "left to right": LEFT_TO_RIGHT,
    "mess3": processes.mess3(0.15, 0.6),
    "dense edges": random_edges(3, 2, seed=5),
    "sparse edges": random_edges(3, 3, seed=8, zeros=0.6),
}
"""HMMs of both kinds whose paths can be enumerated."""
