"""Random processes of every kind, and every public method beside its definition in `reference`.

By hand, more of them, with other random numbers each time, and a table of what was tried:

    python -m pytest tests/hmm/test_differential.py -s --timeout 0 --cases 100000
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import reference as by_definition
import torch
from hypothesis import HealthCheck, assume, given, seed, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from hmm_datasets.errors import InputError
from hmm_datasets.hmm.families import (
    ContextTrees,
    HigherOrderChains,
    HMMMixture,
    PermutedEmissions,
    PermutedSymbols,
    RandomChains,
)
from hmm_datasets.hmm.families.episodic_tasks import AssociativeRecall, Bijection, Copying, EpisodicTask
from hmm_datasets.hmm.families.family import Family
from hmm_datasets.hmm.families.mixture import ChainMixture, ProcessMixture
from hmm_datasets.hmm.generalized import GeneralizedHMM
from hmm_datasets.hmm.grammar import PCFG
from hmm_datasets.hmm.model import HMM
from hmm_datasets.hmm.process import Process
from hmm_datasets.hmm.structured.blocked import BlockedHMM
from hmm_datasets.hmm.structured.factored import FactoredProcess
from hmm_datasets.hmm.structured.markov import MarkovChain
from hmm_datasets.hmm.tilted import TiltedHMM

STYLES = ("dense", "zeros", "one", "rare", "tiny", "sticky", "even")
LOST = {torch.float64: 1e-280, torch.float32: 1e-30}
"""Below these a weight of a path may be rounded to 0, in the package as in the reference."""


class Tables:
    """Random tables of distributions whose last axis has the named style."""

    def __init__(self, draw: Any):
        self.styles = draw(st.lists(st.sampled_from(STYLES), min_size=4, max_size=4))
        self.random = np.random.default_rng(draw(st.integers(0, 2**63)))
        self.count = 0

    def rows(self, *shape: int) -> np.ndarray:
        style = self.styles[self.count % len(self.styles)]
        self.count += 1
        rows = self.random.dirichlet(np.ones(shape[-1]), shape[:-1])
        if style == "zeros":
            rows[self.random.random(rows.shape) < 0.5] = 0
            rows[..., self.random.integers(shape[-1])] += 0.1
        elif style == "one":
            rows = np.eye(shape[-1])[self.random.integers(shape[-1], size=shape[:-1])]
        elif style in ("rare", "tiny"):
            # Draws compare integers of 32 bits, so that probabilities near 2^-32 are rounded up or down.
            least, most = ((-12, -5), (-9.7, -9.3))[self.random.integers(2)] if style == "rare" else (-200, -12)
            rows = np.where(
                self.random.random(rows.shape) < 0.5, 10 ** self.random.uniform(least, most, rows.shape), rows
            )
        elif style == "sticky" and len(shape) > 1 and shape[-1] == shape[-2]:
            rows = rows * 10 ** self.random.uniform(-16, -1, (*shape[:-1], 1))
            rows[..., np.arange(shape[-1]), np.arange(shape[-1])] = 0
            rows[self.random.random(rows.shape) < 0.3] = 0
            rows += np.eye(shape[-1]) * (1 - rows.sum(axis=-1, keepdims=True))
        elif style == "even":
            rows = np.ones_like(rows)
        rows = rows / rows.sum(axis=-1, keepdims=True)
        # Tables from files sum to one nearly, and are taken as they are.
        return rows * (1 + self.random.uniform(-9e-10, 9e-10)) if style == "rare" else rows

    def edges(self, *shape: int) -> np.ndarray:
        """Tables `(..., E, H, H)` whose rows are over symbols and next states."""
        *first, symbols, states, _ = shape
        rows = self.rows(*first, states, symbols * states)
        return np.moveaxis(rows.reshape(*first, states, symbols, states), -2, -3)


def sizes(draw: Any, most: int = 3) -> tuple[int, int]:
    return draw(st.integers(1, most)), draw(st.integers(1, most))


def hmm(draw: Any, num_symbols: int | None = None, *, most: int = 3, states_emit: bool = False) -> HMM:
    tables, (states, symbols) = Tables(draw), sizes(draw, most)
    symbols = num_symbols or symbols
    start = draw(st.sampled_from(("given", "one", "stationary")))
    first = {"given": tables.rows(states), "one": np.eye(states)[-1], "stationary": None}[start]
    if not states_emit and draw(st.booleans()):
        return HMM(start=first, edges=tables.edges(symbols, states, states))
    return HMM(start=first, transition=tables.rows(states, states), emission=tables.rows(states, symbols))


def generalized(draw: Any) -> GeneralizedHMM:
    """An HMM seen in another basis, so that vectors and operators have negative entries."""
    base = GeneralizedHMM.from_hmm(hmm(draw))
    basis = np.eye(base.num_states) + np.random.default_rng(draw(st.integers(0, 2**32))).uniform(
        -0.2, 0.2, (base.num_states, base.num_states)
    ) * draw(st.sampled_from((0, 1)))
    back = np.linalg.inv(basis)
    return GeneralizedHMM(back @ base.operators @ basis, base.initial @ basis, back @ base.final)


def markov(draw: Any, num_symbols: int | None = None) -> MarkovChain:
    tables, symbols, order = Tables(draw), num_symbols or draw(st.integers(1, 3)), draw(st.integers(0, 3))
    start = tables.rows(symbols**order).reshape((symbols,) * order) if order and draw(st.booleans()) else None
    return MarkovChain(tables.rows(*(symbols,) * (order + 1)), start)


def blocked(draw: Any) -> BlockedHMM:
    tables, (blocks, block_size), rank = Tables(draw), sizes(draw), draw(st.integers(1, 3))
    members = [draw(st.integers(1, 2)) for _ in range(blocks)]
    columns = [tables.rows(block_size, count).T for count in members]
    moves = tables.rows(rank, blocks * block_size), tables.rows(blocks * block_size, rank)
    return BlockedHMM(tables.rows(rank), *moves, np.concatenate(columns), np.repeat(np.arange(blocks), members))


def factored(draw: Any) -> FactoredProcess:
    first, kind = hmm(draw, most=2), draw(st.sampled_from(("product", "tuple", "shared")))
    noise = draw(st.sampled_from((0, 0, 0.25, 1))) if kind == "product" else 0
    return FactoredProcess([first, hmm(draw, most=2)], symbols=kind, noise=noise)


def chain_mixture(draw: Any) -> ChainMixture:
    tables, (chains, symbols) = Tables(draw), sizes(draw)
    start = tables.rows(chains, symbols) if draw(st.booleans()) else None
    return ChainMixture(tables.rows(chains, symbols, symbols), tables.rows(chains), start)


def hmm_mixture(draw: Any) -> HMMMixture:
    tables, (count, symbols) = Tables(draw), sizes(draw)
    return HMMMixture([hmm(draw, symbols, most=2) for _ in range(count)], tables.rows(count), draw(st.integers(1, 2)))


def process_mixture(draw: Any) -> ProcessMixture:
    symbols = draw(st.integers(1, 3))
    components = [hmm(draw, symbols, most=2), markov(draw, symbols)][: draw(st.integers(1, 2))]
    return ProcessMixture(components, Tables(draw).rows(len(components)))


def chains(draw: Any) -> RandomChains:
    states, more = draw(st.integers(1, 3)), draw(st.integers(0, 1))
    size = (states, states + more) if draw(st.booleans()) else states + more
    alphabet = draw(st.sampled_from((None, states + more, 4)))
    return RandomChains(size, alpha=draw(st.sampled_from((1e-3, 0.5, 1.0, 100.0))), alphabet=alphabet)


def context_trees(draw: Any) -> HigherOrderChains:
    order, symbols = draw(st.sampled_from(((1, 1), (1, 2), (1, 3), (2, 2))))
    alpha, stop = (draw(st.sampled_from(values)) for values in ((1e-3, 0.5, 1.0, 100.0), (None, 0.0, 0.1, 0.5, 1.0)))
    return HigherOrderChains(order, symbols, alpha) if stop is None else ContextTrees(order, symbols, alpha, stop=stop)


def grammar(draw: Any) -> PCFG:
    """Rules lead to nonterminals of higher numbers only, the last of which has words alone."""
    tables, nonterminals, symbols = Tables(draw), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    rules, rule_probs, words, word_probs = [], [], [], []
    for a in range(nonterminals):
        pairs = [(b, c) for b in range(a + 1, nonterminals) for c in range(nonterminals) if (a, b, c) != (0, 1, 0)]
        probs = tables.rows(min(len(pairs), 2) + symbols)
        chosen = [(a, *pair) for pair in pairs[:2]] + [(a, x) for x in range(symbols)]
        for made_of, p in zip(chosen, probs.tolist(), strict=True):
            for rows, own, length in ((rules, rule_probs, 3), (words, word_probs, 2)):
                if len(made_of) == length and p > 0:
                    rows.append(made_of)
                    own.append(p)
    return PCFG(np.reshape(rules, (-1, 3)).astype(int), rule_probs, words, word_probs, num_symbols=symbols + 1)


def task(draw: Any) -> Process:
    kind, (one, two) = draw(st.integers(0, 2)), sizes(draw)
    if kind == 0:
        return Copying(one, two)
    if kind == 1:
        return Bijection(one, draw(st.integers(1, one)))
    pairs = draw(st.integers(1, min(one, 2)))
    return AssociativeRecall(one, two, pairs, draw(st.integers(0, pairs)))


KINDS: dict[str, tuple[Any, float]] = {
    "HMM": (hmm, 0.44),
    "generalized": (generalized, 0.06),
    "Markov chain": (markov, 0.08),
    "blocked": (blocked, 0.05),
    "factored": (factored, 0.11),
    "mixture of chains": (chain_mixture, 0.04),
    "mixture of HMMs": (hmm_mixture, 0.05),
    "mixture of processes": (process_mixture, 0.04),
    "permuted symbols": (lambda draw: PermutedSymbols(hmm(draw), draw(st.integers(1, 2))), 0.02),
    "permuted emissions": (lambda draw: PermutedEmissions(hmm(draw, states_emit=True)), 0.02),
    "random chains": (chains, 0.02),
    "trees of contexts": (context_trees, 0.02),
    "grammar": (grammar, 0.02),
    "task": (task, 0.02),
    "tilted": (None, 0.01),
}


def compare(found: Any, expected: Any, dtype: torch.dtype = torch.float64, *, loose: float = 1.0) -> None:
    # A table may sum to one but for 1e-9.
    tolerance = (1e-8 if dtype == torch.float64 else 1e-4) * loose
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=tolerance, atol=tolerance)


class Rows:
    """Ragged rows of tokens: some drawn from a process, some of them random, and what the definition says of each."""

    def __init__(self, draw: Any, process: Process):
        self.length, count = draw(st.integers(0, 5)), draw(st.integers(1, 4))
        random = np.random.default_rng(draw(st.integers(0, 2**63)))
        self.tokens = process.sample(count, self.length, seed=int(random.integers(2**63))).astype(np.int64)
        self.tokens[0] = random.integers(process.num_symbols, size=self.length)
        self.reference = by_definition.reference(process)
        self.gaps = random.random(self.tokens.shape) < 0.4
        self.found = self.filtered(self.tokens, process)
        self.smallest = min(one.smallest for one in self.found)

    def filtered(self, tokens: np.ndarray, process: Process) -> list[by_definition.Filtered]:
        return [by_definition.filtered(self.reference, row.tolist(), process.num_symbols) for row in tokens]


def check_process(process: Process, rows: Rows) -> None:
    """What every process has: its law, its draws, and the arguments that make it again."""
    # Signed vectors lose digits where weights cancel; the smallest weight that a float64 keeps beside 1 is 2e-16.
    assume(rows.smallest > (1e-7 if isinstance(process, GeneralizedHMM) else LOST[torch.float64]))
    if isinstance(process, GeneralizedHMM):
        # What is left where they cancel altogether is rounding here, and zero to the package.
        assume(not any(((np.abs(one.probs) > 0) & (np.abs(one.probs) < 1e-9)).any() for one in rows.found))
    loose = 1e3 if isinstance(process, GeneralizedHMM) else 1.0
    for tokens in (rows.tokens, torch.from_numpy(rows.tokens)):
        compare(process.log_likelihood(tokens), [one.log_likelihood for one in rows.found], loose=loose)
        compare(process.next_token_probs(tokens), [one.probs for one in rows.found], loose=loose)
    check_gaps(process, rows, loose)
    empty = rows.tokens[:0]
    assert process.log_likelihood(empty).shape == (0,)
    assert process.next_token_probs(empty).shape == (0, rows.length + 1, process.num_symbols)
    if process.belief_width is not None:
        assert process.beliefs(rows.tokens).shape == (len(rows.tokens), rows.length + 1, process.belief_width)
        assert process.beliefs(empty).shape == (0, rows.length + 1, process.belief_width)
    again = type(process).from_parts(process.settings(), process.arrays(), process.parts()) if not isinstance(
        process, HMM | Family
    ) else process  # fmt: skip
    assert again.fingerprint() == process.fingerprint()
    check_draws(process, rows.reference)
    exact = process.optimal_loss(2, num_sequences=64)
    errors = exact.standard_error
    expected = by_definition.optimal_loss(rows.reference, 2, process.num_symbols)
    sampled = not isinstance(process, HMM | MarkovChain | EpisodicTask)  # which may miss what is rare
    assert np.all(np.abs(exact.nats - expected) <= 8 * errors + 1e-7 + 0.2 * sampled)


def check_gaps(process: Process, rows: Rows, loose: float) -> None:
    """Tokens that were not observed are summed over, or refused by a process that cannot."""
    tokens = np.where(rows.gaps, -1, rows.tokens)
    if isinstance(process, RandomChains | HigherOrderChains | PCFG | EpisodicTask):
        if rows.gaps.any():
            with pytest.raises(InputError, match=r"tokens\[\d+, \d+\] is -1"):
                process.next_token_probs(tokens)
        return
    found = rows.filtered(tokens, process)
    assume(min(one.smallest for one in found) > (1e-7 if isinstance(process, GeneralizedHMM) else 1e-280))
    compare(process.log_likelihood(tokens), [one.log_likelihood for one in found], loose=loose)
    compare(process.next_token_probs(tokens), [one.probs for one in found], loose=loose)
    if process.belief_width is not None:
        # A belief that a missing token leaves as it was; entries have other orders in the definition.
        beliefs = process.beliefs(tokens)
        assert beliefs.shape == (len(tokens), rows.length + 1, process.belief_width)
        np.testing.assert_array_equal(np.isnan(beliefs), False)


def check_draws(process: Process, reference: by_definition.Reference) -> None:
    """Sequences are pure functions of their index, and words have the frequencies of their probabilities."""
    length = 3 if process.num_symbols < 4 else 2
    drawn = process.sample(512, length, seed=7)
    np.testing.assert_array_equal(process.sample(3, length, seed=7, first=5, step=2), drawn[5:11:2])
    np.testing.assert_array_equal(process.sample(4, length - 1, seed=7), drawn[:4, :-1])
    assert process.sample(0, length).shape == (0, length)
    assert process.sample(2, 0).shape == (2, 0)
    if process.has_states:
        symbols, states = process.sample_with_states(16, length, seed=7)
        np.testing.assert_array_equal(symbols, drawn[:16])
        assert (states < process.max_states).all()
    if getattr(process, "group", 1) == 1:
        check_frequencies(drawn, by_definition.word_probabilities(reference, length, process.num_symbols))


def check_frequencies(drawn: np.ndarray, words: dict[tuple[int, ...], float]) -> None:
    counts = Counter(map(tuple, drawn.tolist()))
    # A probability below 2^-32 may be drawn as 2^-32; it does not come in this many draws.
    assert all(words.get(word, 0.0) > 1e-11 for word in counts), (counts, words)
    rest = np.array([p for p in words.values() if 0 < p * len(drawn) < 5])
    common = [(p * len(drawn), counts[word]) for word, p in words.items() if p * len(drawn) >= 5]
    if rest.sum() * len(drawn) >= 5:
        common.append((rest.sum() * len(drawn), len(drawn) - sum(count for _, count in common)))
    if len(common) > 1:
        statistic = sum((count - mean) ** 2 / mean for mean, count in common)
        assert statistic < chi2.isf(1e-10, len(common) - 1), (counts, words)


def check_hmm(process: HMM, rows: Rows, draw: Any) -> None:
    """What an HMM has besides, in both precisions, on rows of unequal length."""
    lengths = np.array([draw(st.integers(0, rows.length)) for _ in rows.tokens])
    tokens = np.where(rows.gaps, -1, rows.tokens) if draw(st.booleans()) else rows.tokens.copy()
    cut = [row[:end].tolist() for row, end in zip(tokens, lengths, strict=True)]
    for row, end in zip(tokens, lengths, strict=True):
        row[end:] = -7
    found = [by_definition.filtered(rows.reference, row, process.num_symbols) for row in cut]
    paths = [by_definition.paths(rows.reference, row) for row in cut]
    weights = [weight for one in paths for weight in one.values()]
    for dtype in (torch.float64, torch.float32):
        if min([rows.smallest, *weights]) < LOST[dtype]:
            continue
        options = {"lengths": lengths, "dtype": dtype}
        compare(process.log_likelihood(tokens, **options), [one.log_likelihood for one in found], dtype)
        beliefs, probs = process.beliefs(tokens, **options), process.next_token_probs(tokens, **options)
        posteriors = process.posteriors(tokens, **options)
        for i, (one, end) in enumerate(zip(found, lengths, strict=True)):
            compare(probs[i, : end + 1], one.probs, dtype)
            compare(beliefs[i, : end + 1], [_dense(b, process.num_states) for b in one.beliefs], dtype)
            compare(posteriors[i, :end], _posteriors(paths[i], end, process.num_states), dtype)
        check_paths(process, tokens, options, paths, lengths)
        check_counts(process, tokens, options, paths, cut)
    compare(process.stationary(), by_definition.cesaro_limit(process.start, process.transition))
    losses = process.optimal_loss(3)
    assert (losses.standard_error == 0).all()
    expected = by_definition.optimal_loss(rows.reference, 3, process.num_symbols)
    compare(losses.nats, expected, loose=1e2)
    rate = process.entropy_rate(num_sequences=4, length=8, burn_in=2)
    if process.is_unifilar():
        own = -(process.emission * np.log(np.where(process.emission > 0, process.emission, 1))).sum(axis=1)
        compare(rate.value, process.stationary() @ own)
        assert rate.standard_error == 0
    bounds = process.entropy_rate_bounds(3)
    lower, upper = [rate.value] * 2 if process.is_unifilar() else _bounds_of_rate(process, 2)
    compare([bounds.lower, bounds.upper], [lower, upper], loose=1e2)
    assert HMM(**process.tables()).fingerprint() == process.fingerprint()


def _bounds_of_rate(process: HMM, tokens: int) -> tuple[float, float]:
    # Given that many tokens of a stationary sequence, with and without the state that it began in.
    def loss(start: np.ndarray) -> float:
        again = by_definition.reference(HMM(**(process.tables() | {"start": start})))
        return by_definition.optimal_loss(again, tokens + 1, process.num_symbols)[tokens]

    stationary = process.stationary()
    own = np.eye(process.num_states)
    return sum(p * loss(first) for p, first in zip(stationary, own, strict=True)), loss(stationary)


def _dense(belief: dict[Any, float], size: int) -> list[float]:
    return [belief.get(i, 0.0) for i in range(size)]


def _posteriors(paths: dict[Any, float], end: int, states: int) -> np.ndarray:
    total, found = sum(paths.values()), np.zeros((end, states))
    for path, weight in paths.items():
        found[np.arange(end), list(path[:end])] += weight / total
    return found


def check_paths(process: HMM, tokens: Any, options: dict, paths: list[dict], lengths: np.ndarray) -> None:
    """The most probable paths of the states that emit."""
    dtype = options["dtype"]
    best = process.viterbi(tokens, **options)
    for i, (found, end) in enumerate(zip(paths, lengths, strict=True)):
        emitting: Counter = Counter()
        for path, weight in found.items():
            emitting[path[:-1]] += weight
        expected = max((math.log(weight) for weight in emitting.values()), default=-math.inf)
        compare(best.log_probability[i], expected, dtype)
        if emitting:
            compare(math.log(emitting[tuple(best.states[i, :end].tolist())]), expected, dtype)


def check_counts(process: HMM, tokens: Any, options: dict, paths: list[dict], cut: list[list[int]]) -> None:
    """Expected counts, summed over the rows that are possible."""
    states, symbols = process.num_states, process.num_symbols
    start, edges = np.zeros(states), np.zeros((symbols, states, states))
    moves, emission = np.zeros((states, states)), np.zeros((states, symbols))
    for row, found in zip(cut, paths, strict=True):
        total = sum(found.values())
        for path, weight in found.items():
            share = weight / total
            start[path[0]] += share if row else 0
            for t, x in enumerate(row):
                if x >= 0:
                    edges[x, path[t], path[t + 1]] += share
                    emission[path[t], x] += share
                elif process.edges is not None:
                    moved = process.edges[:, path[t], path[t + 1]]
                    edges[:, path[t], path[t + 1]] += share * moved / moved.sum()
                    emission[path[t]] += share * moved / moved.sum()
                if process.edges is not None or t + 1 < len(row):
                    moves[path[t], path[t + 1]] += share
    counts = process.expected_counts(tokens, **options)
    for own, expected in ((counts.transition, moves), (counts.emission, emission)):
        compare(own, expected, options["dtype"])
    if all(cut):
        compare(counts.start, start, options["dtype"])
    if process.edges is not None:
        compare(counts.edges, edges, options["dtype"])


def tilted_words(tilted: TiltedHMM) -> dict[tuple[int, ...], float]:
    """`p(x) exp(r(x) / beta) / Z` of every possible word of `L` tokens."""
    hmm = by_definition.reference(tilted.hmm)
    logs = {
        word: math.log(p) + tilted_reward(tilted, word) / tilted.beta
        for word, p in by_definition.word_probabilities(hmm, tilted.length, tilted.num_symbols).items()
        if p > 0
    }
    most = max(logs.values())
    total = sum(math.exp(value - most) for value in logs.values())
    return {word: math.exp(value - most) / total for word, value in logs.items()}


def tilted_reward(tilted: TiltedHMM, word: Sequence[int]) -> float:
    if tilted.rewards.ndim == 1:
        return float(sum(tilted.rewards[x] for x in word))
    return float(sum(tilted.rewards[x, y] for x, y in itertools.pairwise(word)))


def check_tilted(draw: Any) -> None:
    """The tilted distribution of whole sequences, beside the sum over all of them."""
    base = hmm(draw, most=2)
    random = np.random.default_rng(draw(st.integers(0, 2**63)))
    shape = (base.num_symbols,) * draw(st.integers(1, 2))
    scale = draw(st.sampled_from((0.0, 1.0, 50.0, 800.0)))
    tilted = TiltedHMM(base, random.normal(size=shape) * scale, length=draw(st.integers(1, 4)), beta=1.0)
    words = tilted_words(tilted)
    assume(min(words.values()) > 1e-250)
    tokens = np.array(list(words))
    compare(tilted.log_likelihood(tokens), np.log(list(words.values())), loose=10)
    compare(tilted.reward(tokens), [tilted_reward(tilted, word) for word in words])
    mean = sum(p * tilted_reward(tilted, word) for word, p in words.items())
    compare(tilted.expected_reward, mean, loose=10)
    compare(tilted.next_token_probs(tokens).sum(-1), np.ones((len(tokens), tilted.length + 1)))
    with np.errstate(divide="ignore"):
        own = np.log(tilted.next_token_probs(tokens)[:, :-1])
        plain = np.log(base.next_token_probs(tokens)[:, :-1])
    compare(tilted.divergence(own, tokens), np.zeros(tokens.shape))
    optimum = np.exp(own)
    terms = np.where(
        plain == -np.inf, 0.0, np.exp(plain) * (np.maximum(plain, -1e300) - np.where(optimum > 0, own, 0))
    )
    assume(not ((optimum == 0) & (plain > -np.inf)).any())
    compare(tilted.divergence(plain, tokens), terms.sum(-1), loose=10)
    compare(tilted.divergence(np.maximum(plain, -800), tokens), terms.sum(-1), loose=10)
    check_frequencies(tilted.sample(512, seed=3), words)


def check_family(family: Family, rows: Rows) -> None:
    """A predictor that is told the HMM of a row, and the HMMs of sequences."""
    found = family.oracle_next_token_probs(rows.tokens, seed=3, first=4)
    for i, row in enumerate(rows.tokens):
        told = by_definition.reference(family.hmm_at(3, 4 + i))
        one = by_definition.filtered(told, row.tolist(), family.num_symbols)
        if one.smallest > LOST[torch.float64]:
            compare(found[i], one.probs)


def run_cases(kind: str, cases: int, number: int | None) -> Counter:
    """Try that many processes of a kind; returns how many were compared, and with what."""
    make, tried = KINDS[kind][0], Counter()

    @settings(
        max_examples=cases, deadline=None, database=None, derandomize=number is None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def check(data):
        tried["drawn"] += 1
        if make is None:
            check_tilted(data.draw)
        else:
            try:
                process = make(data.draw)
            except InputError as error:
                # To rounding, a generalized HMM may be no process, and the sentences of a grammar may not end.
                if "negative probability" in str(error) or "length of sentences is infinite" in str(error):
                    return
                raise
            rows = Rows(data.draw, process)
            if isinstance(process, HMM):
                check_hmm(process, rows, data.draw)
            if isinstance(process, Family):
                check_family(process, rows)
            check_process(process, rows)
        tried["compared"] += 1

    (check if number is None else seed(number)(check))()
    return tried


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_every_method_agrees_with_its_definition(kind, request):
    asked = request.config.getoption("--cases")
    cases = max(round((asked or 250) * KINDS[kind][1]), 1)
    tried = run_cases(kind, cases, None if asked is None else int(np.random.default_rng().integers(2**32)))
    print(f"{kind}: {tried['drawn']:,} processes drawn, {tried['compared']:,} compared in every method")
    assert tried["compared"] >= 0.5 * cases
