"""The n-gram models that `benchmarks/blocked.py` prints beside HMMs are distributions, also after unseen words."""

import importlib
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def kneser_ney(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("blocked").kneser_ney


def chances(kneser_ney, train: np.ndarray, rows: np.ndarray, position: int, order: int, symbols: int) -> np.ndarray:
    """The distribution of the token at a position after those of the rows before it, (N, E)."""
    found = []
    for symbol in range(symbols):
        asked = rows.copy()
        asked[:, position] = symbol
        found.append(np.exp(-kneser_ney(train, asked, symbols, order))[:, position])
    return np.stack(found, axis=1)


@pytest.mark.outside(
    "https://github.com/nltk/nltk/issues/367",
    "a smoothed n-gram model whose P(foo | bar, baz) is 2.625",
    "the Kneser-Ney models of `benchmarks/blocked.py` sum to one after each context, seen or not",
)
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_probabilities_sum_to_one_after_every_context(kneser_ney, order):
    generator = np.random.default_rng(0)
    train = generator.choice(7, (40, 9), p=[0.4, 0.2, 0.15, 0.1, 0.1, 0.05, 0.0])
    rows = generator.integers(0, 7, (30, 9))
    for position in (0, 1, 2, 5):
        found = chances(kneser_ney, train, rows, position, order, 7)
        np.testing.assert_allclose(found.sum(1), 1, rtol=1e-12)
        assert (found > 0).all() or order == 1, "symbol 6 does not occur"


@pytest.mark.outside(
    "https://github.com/nltk/nltk/issues/2332",
    "a division by zero for a word after words that never stood before it in this order",
    "the score of the same sentence is that of shorter contexts",
)
def test_a_context_that_did_not_occur_is_shortened(kneser_ney):
    i, do, t, go, dont, know, what = range(7)
    train = np.array([[i, do, t, go], [i, dont, know, know], [i, do, t, go]])
    asked = np.array([[i, dont, go, what]])  # "dont go" and "what" were never seen
    whole = kneser_ney(train, asked, 7, 4)
    assert np.isfinite(whole).all()
    np.testing.assert_allclose(whole[0, 3], kneser_ney(train, np.array([[know, know, go, what]]), 7, 4)[0, 3])


def test_a_bigram_is_that_of_the_formula(kneser_ney):
    """Chen and Goodman 1998, equations 21 to 26, by hand: discounts from counts of counts, continuations below."""
    train = np.array([[0, 1, 0, 1, 2, 0], [0, 2, 2, 1, 0, 0]])
    bos, pairs = 3, {}
    for row in train.tolist():
        for pair in zip([bos, *row], row, strict=False):
            pairs[pair] = pairs.get(pair, 0) + 1

    def discounts(counts):
        n = [max(1, sum(count == k for count in counts)) for k in (1, 2, 3, 4)]
        y = n[0] / (n[0] + 2 * n[1])
        rest = [(k + 1) - (k + 2) * y * n[k + 1] / n[k] for k in range(3)]
        return [0, *(min(max(d, 0), k + 1) for k, d in enumerate(rest))]

    continued = {x: sum(pair[1] == x for pair in pairs) for x in range(3)}
    low, high = discounts(continued.values()), discounts(pairs.values())

    def unigram(x):
        total = sum(continued.values())
        spared = sum(low[min(c, 3)] for c in continued.values())
        return (continued[x] - low[min(continued[x], 3)]) / total + spared / total / 3

    def bigram(x, before):
        seen = {pair[1]: count for pair, count in pairs.items() if pair[0] == before}
        total, spared = sum(seen.values()), sum(high[min(c, 3)] for c in seen.values())
        count = seen.get(x, 0)
        return (count - high[min(count, 3)]) / total + spared / total * unigram(x)

    asked = np.array([[2, 1, 1, 0, 2, 0]])
    expected = [bigram(x, before) for x, before in zip(asked[0], [bos, *asked[0]], strict=False)]
    np.testing.assert_allclose(np.exp(-kneser_ney(train, asked, 3, 2))[0], expected, rtol=1e-12)
