"""Chains of variable order: the mean over all trees, the published examples of context-tree weighting, and draws."""

import itertools
import math
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from scipy import stats

from hmm_datasets import InputError, load_source
from hmm_datasets.hmm.families import ContextTrees, HigherOrderChains
from hmm_datasets.hmm.sampling import random_words

GOLDEN_TREES = [
    [(1, 1), (3, 0), (3, 2), (3, 4), (3, 6)],
    [(0, 0)],
    [(2, 0), (2, 1), (2, 3), (3, 2), (3, 6)],
]
GOLDEN_TOKENS = [
    [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    [1, 1, 0, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1],
    [1, 1, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 1, 0, 1, 0, 0],
]


def trees(stop: float, symbols: int, order: int, context: tuple[int, ...] = ()) -> list[tuple[float, list[tuple]]]:
    """Every tree below a context: its prior probability, and its leaves, the oldest token of each first."""
    if len(context) == order:
        return [(1.0, [context])]
    below = [trees(stop, symbols, order, (symbol, *context)) for symbol in range(symbols)]
    split = [
        ((1 - stop) * math.prod(p for p, _ in parts), [leaf for _, leaves in parts for leaf in leaves])
        for parts in itertools.product(*below)
    ]
    return [(stop, [context]), *split]


def log_marginal(word: tuple[int, ...], leaves: list[tuple], order: int, symbols: int, alpha: float) -> float:
    """The Dirichlet-multinomial probability of the tokens after each leaf, by its gamma functions."""
    counts = defaultdict(Counter)
    for t in range(order, len(word)):
        leaf = next(leaf for leaf in leaves if word[t - len(leaf) : t] == leaf)
        counts[leaf][word[t]] += 1
    total = -min(order, len(word)) * math.log(symbols)
    for of_leaf in counts.values():
        total += math.lgamma(symbols * alpha) - math.lgamma(symbols * alpha + of_leaf.total())
        total += sum(math.lgamma(alpha + count) - math.lgamma(alpha) for count in of_leaf.values())
    return total


def marginal(word: tuple[int, ...], family: ContextTrees) -> float:
    sizes = family.order, family.num_symbols, family.alpha
    every = trees(family.stop, family.num_symbols, family.order)
    return sum(p * math.exp(log_marginal(word, leaves, *sizes)) for p, leaves in every)


@pytest.mark.parametrize(
    ("order", "symbols", "alpha", "stop", "length"),
    [(2, 2, 0.5, 0.5, 12), (2, 2, 1.0, 0.1, 12), (3, 2, 0.5, 0.3, 9), (1, 3, 2.0, 0.7, 10), (2, 3, 0.1, 0.5, 7)],
)
def test_the_distribution_is_the_mean_over_all_trees(order, symbols, alpha, stop, length):
    family = ContextTrees(order, symbols, alpha, stop=stop)
    assert sum(p for p, _ in trees(stop, symbols, order)) == pytest.approx(1, abs=1e-14)
    tokens = np.random.default_rng(order).integers(symbols, size=(3, length))
    tokens[1] = tokens[1, np.arange(length) % 3]  # which some trees explain far better than others
    found = family.next_token_probs(tokens)
    for row, distributions in zip(tokens.tolist(), found, strict=True):
        for t, distribution in enumerate(distributions):
            past = tuple(row[:t])
            expected = [marginal((*past, x), family) / marginal(past, family) for x in range(symbols)]
            np.testing.assert_allclose(distribution, expected, atol=1e-12, rtol=1e-10)


@pytest.mark.outside(
    "https://www.itsoc.org/publications/nltr/97_mar/01ref/node12.html",
    "the weighted probability of 0100110 after 110 by its authors: 7/2048",
    "the product of the predictions of context_trees(3, 2, alpha=0.5)",
)
@pytest.mark.outside(
    "https://github.com/a-robu/ctw",
    "5/64 for 110 after 00, by hand; 0.9281081081081081 for the next of 010101010101 after 01",
    "the same numbers to 14 digits",
)
@pytest.mark.parametrize(
    ("past", "sequence", "weighted"),
    [
        # The example of Willems, Shtarkov and Tjalkens 1995, to depth 3.
        ("010", "0110100", 95 / 32768),
        ("110", "0100110", 7 / 2048),
        # A calculation by hand in the tests of https://github.com/a-robu/ctw, and a prediction in its README.
        ("00", "110", 5 / 64),
        ("01", "010101010101", None),
    ],
)
def test_published_examples_of_context_tree_weighting(past, sequence, weighted):
    """With the estimator of Krichevsky and Trofimov and equal weights, given the first tokens."""
    family, depth = ContextTrees(len(past), 2, alpha=0.5, stop=0.5), len(past)
    tokens = np.array([list(map(int, past + sequence))])
    probs = family.next_token_probs(tokens)[0]
    if weighted is None:
        np.testing.assert_allclose(probs[-1], [0.9281081081081081, 0.0718918918918919], rtol=1e-14)
        return
    drawn = np.take_along_axis(probs[depth:-1], tokens[0, depth:, None], 1)
    assert drawn.prod() == pytest.approx(weighted, rel=1e-14)
    assert family.log_likelihood(tokens)[0] == pytest.approx(math.log(weighted / 2**depth), rel=1e-14)


@pytest.mark.parametrize("order", [1, 3])
def test_without_leaves_above_them_contexts_are_those_of_chains_of_this_order(order):
    chains, family = HigherOrderChains(order, 2, 0.5), ContextTrees(order, 2, 0.5, stop=0)
    tokens = chains.sample(4, 50, seed=1)
    np.testing.assert_array_equal(family.sample(4, 50, seed=1), tokens)
    np.testing.assert_array_equal(family.next_token_probs(tokens), chains.next_token_probs(tokens))


def test_where_the_empty_context_is_a_leaf_tokens_are_independent():
    family = ContextTrees(2, 3, 0.5, stop=1)
    rows = family.chain_at(4, 0).rows
    np.testing.assert_array_equal(rows, np.broadcast_to(rows[0], rows.shape))
    tokens = family.sample(3, 40, seed=4)
    counts = (tokens[:, 2:, None] == np.arange(3)).cumsum(1)
    expected = (counts + 0.5) / (counts.sum(-1, keepdims=True) + 1.5)
    np.testing.assert_allclose(family.next_token_probs(tokens)[:, 3:], expected, rtol=1e-14)


@pytest.mark.parametrize("alpha", [1e-100, 1e-3, 1e100])
@pytest.mark.parametrize("stop", [0.0, 1e-300, 0.5, 1 - 1e-15, 1.0])
def test_distributions_stay_distributions_where_weights_and_probabilities_are_extreme(alpha, stop):
    tokens = np.random.default_rng(0).integers(2, size=(3, 200))
    tokens[0] = np.arange(200) % 2
    probs = ContextTrees(3, 2, alpha, stop=stop).next_token_probs(tokens)
    assert (probs > 0).all()
    np.testing.assert_allclose(probs.sum(-1), 1, rtol=1e-12)


def test_rows_shorter_than_the_order_and_tensors():
    family = ContextTrees(3, 2)
    tokens = torch.tensor([[0, 1, 1, 0, 1, 1, 0, 1]])
    whole = family.next_token_probs(tokens)
    for length in range(9):
        part = family.next_token_probs(tokens[:, :length].to(torch.uint8))
        assert part.shape == (1, length + 1, 2)
        np.testing.assert_allclose(part, whole[:, : length + 1], rtol=1e-14)
    np.testing.assert_array_equal(family.next_token_probs(tokens.numpy()), whole)


def leaves_of(rows: np.ndarray) -> set[tuple[int, int]]:
    """The leaves of a binary tree, as depth and code, from contexts that have the same row."""
    depth = (len(rows) - 1).bit_length()
    groups = defaultdict(list)
    for code, row in enumerate(rows.tolist()):
        groups[tuple(row)].append(code)
    leaves = set()
    for codes in groups.values():
        size = depth - (len(codes) - 1).bit_length()
        assert codes == [code for code in range(len(rows)) if code % 2**size == codes[0]], "they end alike"
        leaves.add((size, codes[0]))
    return leaves


def test_trees_are_drawn_from_the_prior():
    """A chi-square test with p above 1e-4, for a fixed seed. No two leaves have the same row."""
    family = ContextTrees(3, 2, 0.5, stop=0.3)
    drawn = Counter(frozenset(leaves_of(family.chain_at(11, index).rows)) for index in range(2000))
    prior = {
        frozenset((len(leaf), sum(x << i for i, x in enumerate(reversed(leaf)))) for leaf in leaves): p
        for p, leaves in trees(0.3, 2, 3)
    }
    assert len(prior) == 26
    assert drawn.keys() <= prior.keys()
    expected = np.array(list(prior.values())) * drawn.total()
    assert stats.chisquare([drawn[tree] for tree in prior], expected).pvalue > 1e-4


@pytest.mark.thorough
def test_words_have_the_frequencies_of_their_probabilities():
    """A chi-square test with p above 1e-4, for a fixed seed."""
    family = ContextTrees(2, 2, 0.5, stop=0.4)
    words = np.array(list(itertools.product(range(2), repeat=6)))
    expected = np.exp(family.log_likelihood(words))
    assert expected.sum() == pytest.approx(1, abs=1e-12)
    drawn = Counter(map(tuple, family.sample(2000, 6, seed=3).tolist()))
    assert stats.chisquare([drawn[tuple(word)] for word in words.tolist()], expected * 2000).pvalue > 1e-4


def test_sequences_are_drawn_from_the_chains_of_their_groups():
    family = ContextTrees(2, 3, group=2)
    tokens = family.sample(4, 400, seed=3)
    for index, row in enumerate(tokens):
        chain = family.chain_at(3, index)
        np.testing.assert_array_equal(chain.table, family.chain_at(3, index // 2 * 2).table)
        oracle = family.oracle_next_token_probs(row[None], 3, index)
        np.testing.assert_allclose(oracle, chain.next_token_probs(row[None]), atol=1e-10)
    np.testing.assert_array_equal(tokens[3], family.sample(1, 400, seed=3, first=3)[0])


@pytest.mark.thorough
def test_the_predictor_is_between_the_oracle_and_predictors_of_other_priors():
    """Mean losses after the first tokens, in nats, on 200 sequences of a fixed seed."""
    family = ContextTrees(3, 3, 0.5, stop=0.5)
    tokens = family.sample(200, 100, seed=6)

    def loss(probs: np.ndarray) -> float:
        return -np.log(np.take_along_axis(probs[:, 3:-1], tokens[:, 3:, None].astype(int), 2)).mean()

    others = [ContextTrees(3, 3, 0.5, stop=stop) for stop in (0.0, 0.05, 0.95, 1.0)]
    best = loss(family.next_token_probs(tokens))
    assert loss(family.oracle_next_token_probs(tokens, 6)) < best - 0.02
    assert all(best < loss(other.next_token_probs(tokens)) - 0.005 for other in others)


def test_the_random_words_of_nodes_are_those_of_their_counters():
    """They differ from block to block, and those of block 0 are what other choices draw."""
    numbers, stream = np.array([5, 5, 1 << 40], np.uint64), np.uint64(1)
    words = random_words(stream, numbers, np.uint64(9), np.array([0, 1, 0]))
    np.testing.assert_array_equal(words[[0, 2]], random_words(stream, numbers[[0, 2]], np.uint64(9)))
    assert len(np.unique(words)) == 12


def test_golden_trees_and_sequences():
    """They never change: datasets, and the runs that refer to them, would be others."""
    family = ContextTrees(3, 2, 0.5, stop=0.4)
    assert [sorted(leaves_of(family.chain_at(7, index).rows)) for index in range(3)] == GOLDEN_TREES
    assert family.sample(3, 24, seed=7).tolist() == GOLDEN_TOKENS
    np.testing.assert_allclose(family.chain_at(7, 0).rows[0, 0], 0.9991479819025778, rtol=1e-14)


def test_a_saved_family_comes_back_and_has_a_name(tmp_path):
    family = ContextTrees(3, 2, stop=0.25)
    family.save_pretrained(tmp_path)
    assert load_source(tmp_path) == family == load_source("context_trees(3, 2, stop=0.25)")
    assert family != ContextTrees(3, 2)
    assert family != HigherOrderChains(3, 2)
    assert len({one.fingerprint() for one in (family, ContextTrees(3, 2), HigherOrderChains(3, 2))}) == 3


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        (-0.1, "stop is -0.1; expected a finite number, 0 or more"),
        (1.5, "stop is 1.5; expected a probability, 0 .. 1"),
        (math.nan, "stop is nan; expected"),
        (True, "stop is True; expected"),
        ("half", "stop is 'half'; expected"),
    ],
)
def test_what_is_no_probability_is_refused(stop, said):
    with pytest.raises(InputError, match=said):
        ContextTrees(3, 2, stop=stop)
    with pytest.raises(InputError, match="expected at most 1,024, lower one"):
        ContextTrees(4, 6)
