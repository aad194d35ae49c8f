"""Every kind of process from its definition, in plain Python and NumPy, to compare the package with.

A process is a set of hidden states, with the probability of each as the first one, and the ways to leave each: a
probability, a symbol and the state after. States may be anything, such as the stack of a grammar or the counts of an
urn, and are found as they are reached. Nothing of the package is used but the tables of the processes.
"""

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import numpy as np

State = Hashable
Move = tuple[float, int, State]
"""A probability, a symbol, and the state after it."""


class Reference(NamedTuple):
    """A process by its states: `starts`, `moves` out of a state, and the `final` weight of one (1 unless signed)."""

    starts: list[tuple[float, State]]
    moves: Callable[[Any], list[Move]]
    final: Callable[[Any], float] = lambda state: 1.0


class Filtered(NamedTuple):
    """`log_likelihood` in nats, `probs` (T+1, E), a belief for each of `T + 1` positions, and the smallest belief."""

    log_likelihood: float
    probs: np.ndarray
    beliefs: list[dict[State, float]]
    smallest: float


def reference(process: Any) -> Reference:
    """The states of a process."""
    return _machine(*_KINDS[type(process).__name__](process))


def _machine(starts: Any, moves: Callable[[Any], Any], *final: Callable[[Any], float]) -> Reference:
    return Reference([(float(p), s) for p, s in starts if p != 0], cache(lambda state: list(moves(state))), *final)


def _product(*factors: float) -> float:
    # At least the smallest number above 0 where no factor is 0, so that what was lost is seen.
    product = math.prod(map(float, factors))
    return product or (5e-324 if all(factors) else 0.0)


def _edges(hmm: Any) -> np.ndarray:
    return hmm.emission.T[:, :, None] * hmm.transition if hmm.edges is None else hmm.edges


def _edge_table(start: np.ndarray, edges: np.ndarray) -> tuple[Any, ...]:
    def leave(i: int) -> Iterator[Move]:
        return ((float(p), x, j) for (x, j), p in np.ndenumerate(edges[:, i]) if p != 0)

    return [(p, i) for i, p in enumerate(start)], leave


def _chain(chain: Any) -> tuple[Any, ...]:
    order = chain.order

    def leave(state: tuple[tuple[int, ...], int]) -> Iterator[Move]:
        # The first `order` tokens were drawn together; `shown` of them have been seen.
        context, shown = state
        if shown < order:
            return iter([(1.0, context[shown], (context, shown + 1))])
        row = chain.table[context] if order > 0 else chain.table
        return ((float(p), x, ((*context, x)[len(context) + 1 - order :], order)) for x, p in enumerate(row) if p > 0)

    contexts = itertools.product(range(chain.num_symbols), repeat=order)
    return [(chain.start[c] if order > 0 else 1.0, (c, 0)) for c in contexts], leave


def _each(emission: np.ndarray, after: Any) -> Iterator[Move]:
    return ((_product(q, p), x, s) for x, q in enumerate(emission) if q > 0 for p, s in after if p > 0)


def _blocked(process: Any) -> tuple[Any, ...]:
    size = process.block_size

    def leave(r: int) -> Iterator[Move]:
        return (
            (_product(process.enter[r, i], process.emission[x, i % size], process.leave[i, after]), x, after)
            for x, k in enumerate(process.blocks.tolist())
            for i in range(k * size, (k + 1) * size)
            for after in range(process.rank)
            if process.enter[r, i] > 0 and process.emission[x, i % size] > 0 and process.leave[i, after] > 0
        )

    return [(p, r) for r, p in enumerate(process.start)], leave


def _factored(process: Any) -> tuple[Any, ...]:
    parts = list(map(reference, process.factors))
    offsets = [int(o) * (process.symbols == "tuple") for o in np.cumsum([0, *process.sizes[:-1]])]
    count, noise = process.num_symbols, process.noise

    def steps(state: tuple[State, ...]) -> list[tuple[float, tuple[int, ...], tuple[State, ...]]]:
        found: list[Any] = [(1.0, (), ())]
        for part, here in zip(parts, state, strict=True):
            found = [
                (_product(p, q), (*symbols, x), (*after, s))
                for p, symbols, after in found
                for q, x, s in part.moves(here)
            ]
        return found

    def leave(state: tuple[tuple[State, ...], tuple[int, ...]]) -> Iterator[Move]:
        here, rest = state
        if rest:  # of a step of several tokens
            yield 1.0, rest[0], (here, rest[1:])
            return
        for p, symbols, after in steps(here):
            if process.symbols == "product":
                code = int(np.ravel_multi_index(symbols, process.sizes))
                for y in range(count) if noise > 0 else [code]:
                    yield p * ((1 - noise) * (y == code) + noise / count), y, (after, ())
            else:
                tokens = tuple(x + o for x, o in zip(symbols, offsets, strict=True))
                yield p, tokens[0], (after, tokens[1:])

    joint = itertools.product(*(part.starts for part in parts))
    return [(_product(*(p for p, _ in chosen)), (tuple(s for _, s in chosen), ())) for chosen in joint], leave


def _mixture(weights: Any, components: Any) -> tuple[Any, ...]:
    parts = list(components)

    def leave(state: tuple[int, State]) -> Iterator[Move]:
        c, own = state
        return ((p, x, (c, s)) for p, x, s in parts[c].moves(own))

    return [
        (_product(w, p), (c, s))
        for c, (w, part) in enumerate(zip(weights, parts, strict=True))
        for p, s in part.starts
    ], leave


def _permuted(family: Any) -> tuple[Any, ...]:
    hmm, symbols = family.hmm, type(family).__name__ == "PermutedSymbols"
    orders = [list(order) for order in itertools.permutations(range(hmm.num_symbols if symbols else hmm.num_states))]
    shuffled = [hmm.emission[order].T[:, :, None] * hmm.transition for order in orders] if not symbols else []
    found = shuffled or [_edges(hmm)[order] for order in orders]
    return _mixture([1 / len(orders)] * len(orders), [_machine(*_edge_table(hmm.start, edges)) for edges in found])


def _urns(family: Any) -> tuple[Any, ...]:
    sizes = family.num_states if isinstance(family.num_states, tuple) else (family.num_states,) * 2
    alpha, subsets = float(family.alpha or 0), []
    for size in range(sizes[0], sizes[1] + 1):
        chosen = list(itertools.combinations(range(family.num_symbols), size))
        subsets += [(1 / (sizes[1] - sizes[0] + 1) / len(chosen), subset) for subset in chosen]

    def leave(state: tuple[tuple[int, ...], int | None, tuple[tuple[int, int], ...]]) -> Iterator[Move]:
        # The symbols in use, the last one, and the pairs seen so far: every row of the table is a Pólya urn.
        subset, last, seen = state
        if last is None:
            return ((1 / len(subset), x, (subset, x, ())) for x in subset)
        total = sum(pair[0] == last for pair in seen) + alpha * len(subset)
        return (
            ((seen.count((last, x)) + alpha) / total, x, (subset, x, tuple(sorted((*seen, (last, x))))))
            for x in subset
        )

    return [(p, (subset, None, ())) for p, subset in subsets], leave


def _context_trees(family: Any) -> tuple[Any, ...]:
    order, alpha, stop = family.order, float(family.alpha), getattr(family, "stop", 0.0)
    symbols = range(family.num_symbols)

    def trees(context: tuple[int, ...]) -> list[tuple[float, tuple[tuple[int, ...], ...]]]:
        # The prior probability and the leaves of every tree below a context.
        if len(context) == order:
            return [(1.0, (context,))]
        split = itertools.product(*(trees((x, *context)) for x in symbols))
        below = [(_product(1 - stop, *(p for p, _ in parts)), sum((own for _, own in parts), ())) for parts in split]
        return [(stop, (context,)), *below]

    def leave(state: tuple[tuple[Any, ...], tuple[int, ...], tuple[Any, ...]]) -> Iterator[Move]:
        # The leaves, the last tokens, and what followed which leaf so far: each leaf is a Pólya urn.
        leaves, past, seen = state
        if len(past) < order:
            return ((1 / len(symbols), x, (leaves, (*past, x), ())) for x in symbols)
        leaf = next(leaf for leaf in leaves if past[order - len(leaf) :] == leaf)
        total = sum(other == leaf for other, _ in seen) + alpha * len(symbols)
        return (
            ((seen.count((leaf, x)) + alpha) / total, x, (leaves, (*past[1:], x), tuple(sorted((*seen, (leaf, x))))))
            for x in symbols
        )

    return [(p, (leaves, (), ())) for p, leaves in trees(())], leave


def _grammar(grammar: Any) -> tuple[Any, ...]:
    # Leftmost derivations: the state is the stack of nonterminals still to be expanded. No left recursion.
    def words(stack: tuple[int, ...]) -> Iterator[Move]:
        top, rest = stack[0], stack[1:]
        for (a, x), p in zip(grammar.words.tolist(), grammar.word_probs.tolist(), strict=True):
            if a == top:
                yield p, x, rest
        for (a, b, c), p in zip(grammar.rules.tolist(), grammar.rule_probs.tolist(), strict=True):
            if a == top:
                yield from ((p * q, x, after) for q, x, after in words((b, c, *rest)))

    return [(1.0, (0,))], lambda stack: words(stack) if stack else iter([(1.0, grammar.num_symbols - 1, (0,))])


def _task(task: Any) -> tuple[Any, ...]:
    # The state is what is still to be shown of an episode, of which all are equally likely.
    def some(values: Any, length: int) -> list[tuple[int, ...]]:
        return list(itertools.permutations(values, length))

    def mixed(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(x for pair in zip(one, other, strict=True) for x in pair)

    kind = type(task).__name__
    if kind == "Copying":
        strings = itertools.product(range(task.num_letters), repeat=task.string_length)
        drawn = [(*string, task.num_letters, *string) for string in strings]
    elif kind == "Bijection":
        inputs, outputs = (some(range(v, v + task.num_values), task.num_pairs) for v in (0, task.num_values))
        drawn = [mixed(x, y) for x in inputs for y in outputs]
    else:
        keys, asked = some(range(task.num_keys), task.num_pairs), some(range(task.num_pairs), task.num_queries)
        values = list(itertools.product(range(task.num_keys, task.num_symbols), repeat=task.num_pairs))
        drawn = [
            mixed(k, v) + mixed(tuple(k[i] for i in a), tuple(v[i] for i in a))
            for k in keys
            for v in values
            for a in asked
        ]

    def leave(rest: tuple[int, ...]) -> list[Move]:
        if rest:
            return [(1.0, rest[0], rest[1:])]
        return [(1 / len(drawn), episode[0], episode[1:]) for episode in drawn]

    return [(1.0, ())], leave


_KINDS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "HMM": lambda p: _edge_table(p.start, _edges(p)),
    "GeneralizedHMM": lambda p: (*_edge_table(p.initial, p.operators), lambda i: float(p.final[i])),
    "MarkovChain": _chain,
    "BlockedHMM": _blocked,
    "FactoredProcess": _factored,
    "ChainMixture": lambda p: _mixture(p.weights, [reference(p.chain(c)) for c in range(p.num_chains)]),
    "HMMMixture": lambda p: _mixture(p.weights, map(reference, p.hmms)),
    "ProcessMixture": lambda p: _mixture(p.weights, map(reference, p.components)),
    "PermutedSymbols": _permuted,
    "PermutedEmissions": _permuted,
    "RandomChains": _urns,
    "HigherOrderChains": _context_trees,
    "ContextTrees": _context_trees,
    "PCFG": _grammar,
    "Bijection": _task,
    "Copying": _task,
    "AssociativeRecall": _task,
}


def filtered(process: Reference, tokens: Sequence[int], num_symbols: int) -> Filtered:
    """What is known before each token, scaled at every step; a token of -1 was not observed."""
    belief = _summed(process.starts)
    beliefs, rows, total = [], [], 0.0
    smallest = min(abs(weight) for weight in belief.values())
    for symbol in [*tokens, None]:
        row, following = np.zeros(num_symbols), [{} for _ in range(num_symbols)]
        for state, weight in belief.items():
            for p, x, after in process.moves(state):
                following[x][after] = following[x].get(after, 0.0) + weight * p
                smallest = min(smallest, abs(weight * p))
        for x, reached in enumerate(following):
            row[x] = sum(weight * process.final(state) for state, weight in reached.items())
        beliefs.append(belief)
        rows.append(row)
        if symbol is None:
            return Filtered(total, np.array(rows), beliefs, smallest)
        reached = following[symbol]
        if symbol < 0:
            reached = _summed([(weight, state) for weights in following for state, weight in weights.items()])
        scale = row[symbol] if symbol >= 0 else row.sum()
        total = total + math.log(scale) if scale > 0 else -math.inf
        belief = {state: weight / scale for state, weight in reached.items()} if scale > 0 else {}
    raise AssertionError


def word_probabilities(process: Reference, length: int, num_symbols: int) -> dict[tuple[int, ...], float]:
    """The probability of every possible word."""
    found = {(): _summed(process.starts)}
    for _ in range(length):
        longer: dict[tuple[int, ...], dict[State, float]] = {}
        for word, weights in found.items():
            for state, weight in weights.items():
                for p, x, after in process.moves(state):
                    own = longer.setdefault((*word, x), {})
                    own[after] = own.get(after, 0.0) + weight * p
        found = longer
    return {word: sum(w * process.final(s) for s, w in weights.items()) for word, weights in found.items()}


def _summed(starts: list[tuple[float, State]]) -> dict[State, float]:
    found: dict[State, float] = {}
    for p, state in starts:
        found[state] = found.get(state, 0.0) + p
    return found


def optimal_loss(process: Reference, length: int, num_symbols: int) -> list[float]:
    """`H[X_t | X_0 .. X_{t-1}]` in nats for every `t < length`: differences of the entropies of words."""
    entropies = []
    for size in range(length + 1):
        words = np.array(list(word_probabilities(process, size, num_symbols).values()))
        entropies.append(float(-(words[words > 0] * np.log(words[words > 0])).sum()))
    return np.diff(entropies).tolist()


def paths(process: Reference, tokens: Sequence[int]) -> dict[tuple[State, ...], float]:
    """`P(path, tokens)` of every path of `T + 1` states, one before each token and one after the last."""
    found: dict[tuple[State, ...], float] = {(state,): p for p, state in process.starts}
    for symbol in tokens:
        longer: dict[tuple[State, ...], float] = {}
        for path, weight in found.items():
            for p, x, after in process.moves(path[-1]):
                if symbol in (x, -1):
                    longer[(*path, after)] = longer.get((*path, after), 0.0) + weight * p
        found = longer
    return found


def cesaro_limit(start: np.ndarray, transition: np.ndarray) -> np.ndarray:
    """The long-run share of time in each state, in rational arithmetic from the entries off the diagonal."""
    size = len(start)
    rates = [[Fraction(float(p) if i != j else 0) for j, p in enumerate(row)] for i, row in enumerate(transition)]
    mass = [Fraction(float(p)) for p in start]
    reach = np.eye(size, dtype=bool) | (np.asarray(transition) > 0)
    for k in range(size):
        reach |= reach[:, k, None] & reach[None, k]
    recurrent = [bool((reach[i] <= reach[:, i]).all()) for i in range(size)]
    remaining = list(range(size))
    for k in [i for i in range(size) if not recurrent[i]]:  # what leads into a transient state leads on from it
        remaining.remove(k)
        out = sum(rates[k][j] for j in remaining)
        for j in remaining:
            share = rates[k][j] / out
            mass[j] += mass[k] * share
            for i in remaining:
                rates[i][j] += rates[i][k] * share if i != j else 0
        mass[k] = Fraction(0)
    result = np.zeros(size)
    for members in {tuple(j for j in remaining if reach[i, j]) for i in remaining}:
        weights = _balanced([[rates[i][j] for j in members] for i in members])
        total = sum(mass[i] for i in members)
        for i, weight in zip(members, weights, strict=True):
            result[i] = float(total * weight / sum(weights))
    return result / result.sum()


def _balanced(rates: list[list[Fraction]]) -> list[Fraction]:
    # Weights whose flows balance, for an irreducible chain, by eliminating its last state.
    if len(rates) == 1:
        return [Fraction(1)]
    *others, last = rates
    out = sum(last[:-1])
    inner = [
        [rate + row[-1] * last[j] / out if i != j else Fraction(0) for j, rate in enumerate(row[:-1])]
        for i, row in enumerate(others)
    ]
    weights = _balanced(inner)
    return [*weights, sum(w * row[-1] for w, row in zip(weights, others, strict=True)) / out]
