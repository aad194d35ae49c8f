"""One small process of every composed kind, and its probability of a word from the definition, in plain Python."""

import itertools
import math
from collections.abc import Callable

import brute_force
import numpy as np

from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families import HMMMixture
from hmm_datasets.hmm.families.mixture import ChainMixture, ProcessMixture
from hmm_datasets.hmm.model import HMM
from hmm_datasets.hmm.process import Process
from hmm_datasets.hmm.structured.blocked import BlockedHMM
from hmm_datasets.hmm.structured.factored import FactoredProcess
from hmm_datasets.hmm.structured.markov import MarkovChain


def random_rows(*shape: int, seed: int, zero: tuple[int, ...] | None = None) -> np.ndarray:
    rows = np.random.default_rng(seed).dirichlet(np.ones(shape[-1]), shape[:-1])
    if zero is not None:
        rows[zero] = 0
        rows /= rows.sum(axis=-1, keepdims=True)
    return rows


PAIR = [processes.mess3(0.15, 0.6), processes.golden_mean(0.3)]

EXAMPLES: dict[str, Process] = {
    "independent": FactoredProcess(PAIR),
    "tuples": FactoredProcess(PAIR, symbols="tuple"),
    "shared tuples": FactoredProcess(PAIR, symbols="shared"),
    "noisy": FactoredProcess(PAIR, noise=0.2),
    "order 0": MarkovChain([0.2, 0.3, 0.5]),
    "order 1": MarkovChain(random_rows(3, 3, seed=9, zero=(1, 2)), random_rows(1, 3, seed=10)[0]),
    "order 3": MarkovChain(random_rows(2, 2, 2, 2, seed=11), random_rows(1, 8, seed=12).reshape(2, 2, 2)),
    "chains": ChainMixture(random_rows(4, 3, 3, seed=13, zero=(1, 0, 2)), [0.1, 0.2, 0.3, 0.4]),
    "mixture": HMMMixture((processes.even(), processes.golden_mean(0.3), processes.random(2, 2)), (0.5, 0.2, 0.3)),
    "any mixture": ProcessMixture(
        [MarkovChain(random_rows(2, 2, 2, seed=14)), processes.even(), FactoredProcess([processes.random(2, 2)])],
        [0.2, 0.3, 0.5],
    ),
}


def blocked(blocks: list[int], block_size: int, rank: int, seed: int) -> BlockedHMM:
    states = (max(blocks) + 1) * block_size
    emission = np.random.default_rng(seed).gamma(1.0, size=(len(blocks), block_size))
    same = np.equal.outer(blocks, blocks)
    start, enter = random_rows(rank, seed=seed + 1), random_rows(rank, states, seed=seed + 2, zero=(0, 1))
    leave = random_rows(states, rank, seed=seed + 3, zero=(0, rank - 1))
    return BlockedHMM(start, enter, leave, emission / (same @ emission), blocks)


EXAMPLES["blocked"] = blocked([0, 1, 0, 2, 1], 2, 3, seed=21)

LENGTH = {name: 4 if process.num_symbols > 5 else 6 for name, process in EXAMPLES.items()}
LENGTH |= {
    "noisy": 2,
    "tuples": 4,
    "independent": 3,
    "blocked": 3,
}


def word_probability(name: str) -> Callable[[tuple[int, ...]], float]:
    """The probability of a word, from the definition of the process."""
    process = EXAMPLES[name]
    if isinstance(process, FactoredProcess):
        return lambda word: factored_probability(process, word)
    if isinstance(process, MarkovChain):
        return lambda word: chain_probability(process.table, process.start, word)
    if isinstance(process, ChainMixture):
        chains = list(zip(process.weights, process.tables, process.start, strict=True))
        return lambda word: sum(weight * chain_probability(table, start, word) for weight, table, start in chains)
    if isinstance(process, BlockedHMM):
        return lambda word: blocked_probability(process, word)
    parts = process.parts()
    assert isinstance(process, HMMMixture | ProcessMixture)
    return lambda word: sum(
        weight * part_probability(part, word) for weight, part in zip(process.weights, parts, strict=True)
    )


def part_probability(part: Process, word: tuple[int, ...]) -> float:
    if isinstance(part, HMM):
        return brute_force.likelihood(part, word)
    if isinstance(part, MarkovChain):
        return chain_probability(part.table, part.start, word)
    return brute_force.likelihood(part.parts()[0], word)  # a factored process of one factor


def chain_probability(table: np.ndarray, start: np.ndarray, word: tuple[int, ...]) -> float:
    order = table.ndim - 1
    # A word shorter than the order is the beginning of several contexts.
    result = float(start[word[:order]].sum())
    for t in range(order, len(word)):
        result *= float(table[word[t - order : t + 1]])
    return result


def factored_probability(process: FactoredProcess, word: tuple[int, ...]) -> float:
    """Sums over all words of the factors that are read as this one, noise by enumeration of what it hides."""
    if process.symbols == "product":
        clean = list(itertools.product(*map(range, process.sizes)))
        total = 0.0
        for shown in itertools.product(range(len(clean)), repeat=len(word)) if process.noise else [word]:
            pairs = zip(shown, word, strict=True)
            kept = math.prod((1 - process.noise) * (x == y) + process.noise / len(clean) for x, y in pairs)
            total += kept * steps_probability(process, [clean[x] for x in shown])
        return total
    sizes, offsets = process.sizes, np.cumsum([0, *process.sizes[:-1]]) * (process.symbols == "tuple")
    missing = -len(word) % process.num_factors
    total = 0.0
    for rest in itertools.product(*(range(size) for size in sizes[len(sizes) - missing :])):
        own = [x - offsets[t % len(sizes)] for t, x in enumerate(word)] + list(rest)
        if any(not 0 <= x < sizes[t % len(sizes)] for t, x in enumerate(own)):
            continue
        steps = [tuple(int(x) for x in own[t : t + len(sizes)]) for t in range(0, len(own), len(sizes))]
        total += steps_probability(process, steps)
    return total


def steps_probability(process: FactoredProcess, steps: list[tuple[int, ...]]) -> float:
    result = 1.0
    for k, factor in enumerate(process.factors):
        assert isinstance(factor, HMM)
        result *= brute_force.likelihood(factor, tuple(step[k] for step in steps))
    return result


def blocked_probability(process: BlockedHMM, word: tuple[int, ...]) -> float:
    """Sums over all paths of classes and of states in the blocks of the symbols."""
    size = process.block_size
    places = [range(k * size, (k + 1) * size) for k in process.blocks[list(word)].tolist()]
    total = 0.0
    for states in itertools.product(*places):
        for classes in itertools.product(range(process.rank), repeat=len(word) + 1):
            probability = float(process.start[classes[0]])
            for t, (x, i) in enumerate(zip(word, states, strict=True)):
                emitted = process.emission[x, i % size]
                probability *= float(process.enter[classes[t], i] * emitted * process.leave[i, classes[t + 1]])
            total += probability
    return total
