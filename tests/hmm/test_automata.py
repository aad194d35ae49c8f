import itertools

import numpy as np
import pytest

from hmm_datasets import InputError
from hmm_datasets.hmm.processes import dyck


def stack_law(word: tuple[int, ...], depth: int, kinds: int, p: float) -> float:
    """The probability of a word, from the definition: a stack of open brackets."""
    stack: list[int] = []
    probability = 1.0
    for symbol in word:
        opening = 1.0 if not stack else 0.0 if len(stack) == depth else p
        if symbol < kinds:
            probability *= opening / kinds
            stack.append(symbol)
        else:
            probability *= (1 - opening) if stack and stack.pop() == symbol - kinds else 0.0
        if probability == 0:
            return 0.0
    return probability


@pytest.mark.parametrize(("depth", "kinds", "p"), [(1, 1, 0.5), (2, 2, 0.3), (3, 1, 0.6), (3, 2, 0.45), (2, 3, 1.0)])
def test_words_have_the_probability_of_their_brackets(depth, kinds, p):
    words = list(itertools.product(range(2 * kinds), repeat=5))
    found = np.exp(dyck(depth, kinds, p).log_likelihood(words))
    assert found == pytest.approx([stack_law(word, depth, kinds, p) for word in words], abs=1e-14)


@pytest.mark.parametrize(("depth", "kinds", "p"), [(1, 3, 0.5), (4, 2, 0.3), (6, 1, 0.6), (3, 4, 0.45)])
def test_the_entropy_rate_is_the_closed_form(depth, kinds, p):
    weights = [1.0]
    opening = [1.0, *[p] * (depth - 1), 0.0]
    for d in range(depth):
        weights.append(weights[-1] * opening[d] / (1 - opening[d + 1]))
    weights = np.array(weights) / np.sum(weights)
    binary = -(p * np.log(p) + (1 - p) * np.log(1 - p))
    expected = binary * weights[1:-1].sum() + np.log(kinds) * (weights * opening).sum()
    hmm = dyck(depth, kinds, p)
    assert hmm.is_unifilar()
    assert hmm.entropy_rate().value == pytest.approx(expected, abs=1e-12)


@pytest.mark.thorough
def test_sequences_are_prefixes_of_balanced_brackets():
    hmm = dyck(4, kinds=5)
    assert (hmm.num_states, hmm.num_symbols) == (1 + 5 + 25 + 125 + 625, 10)
    assert hmm.vocabulary == ("(", "[", "{", "<", "(4", ")", "]", "}", ">", ")4")
    for row in hmm.sample(20, 200, seed=1):
        stack = []
        for symbol in row.tolist():
            if symbol < 5:
                stack.append(symbol)
                assert len(stack) <= 4
            else:
                assert stack.pop() == symbol - 5


@pytest.mark.parametrize("arguments", [(0,), (2, 0), (2, 1, 1.5), (20, 2), (1000, 1, -0.1)])
def test_impossible_brackets_are_refused(arguments):
    with pytest.raises(InputError, match=r"depth|kinds is 0|p is"):
        dyck(*arguments)


def test_one_kind_of_brackets_may_be_nested_deeply():
    assert dyck(64).num_states == 65
    assert dyck(300, p=0.4).sample(1, 50).shape == (1, 50)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((2000,), "depth 2000 of 1 kinds needs more than 2,000 states"),
        ((10**9, 2), "needs more than 2,000 states"),
        ((1, 1999), "tables of 15,992,000,000 entries"),
        ((2.5,), r"depth is 2.5; expected an integer in \[1, 2\*\*31\)"),
        ((2, 1.5), "kinds is 1.5; expected an integer"),
    ],
)
def test_languages_that_are_too_large_are_refused_with_the_reason(arguments, message):
    with pytest.raises(InputError, match=message):
        dyck(*arguments)
