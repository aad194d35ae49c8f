"""The HMMs over joint states that the FAQ shows, beside sums over all segments and over all paths of the chains."""

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest

from hmm_datasets import HMM, processes

FAQ = (Path(__file__).parents[2] / "docs" / "how_to" / "faq.md").read_text(encoding="utf-8")
WORDS = list(itertools.product(range(2), repeat=5))


@pytest.fixture(scope="module")
def shown() -> dict:
    """What the names in the code of that answer are."""
    answer = re.search(r"### Is there a hidden semi-Markov.*?(?=\n###)", FAQ, flags=re.DOTALL).group()
    values = {"np": np, "processes": processes, "print": lambda *_: None}
    for code in re.findall(r"```python\n(.*?)```", answer, flags=re.DOTALL):
        exec(code, values)
    return values


@pytest.mark.outside(
    "https://github.com/probml/dynamax/issues/21",
    "hidden semi-Markov models",
    "an HMM over states and the tokens left of their segments, with an exact optimum; the FAQ shows it",
)
def test_the_semi_markov_model_of_the_faq_has_the_likelihoods_of_all_segmentations(shown):
    duration, jump, hmm = shown["duration"], shown["jump"], shown["segments"]
    start = hmm.start.reshape(duration.shape)

    def remaining(word, state, left):
        # `left` tokens of this segment are to come; a state emits its own symbol.
        if any(x != state for x in word[:left]):
            return 0.0
        if left >= len(word):
            return 1.0
        after = np.argwhere(jump[state][:, None] * duration > 0)
        return sum(jump[state, j] * duration[j, d] * remaining(word[left:], j, d + 1) for j, d in after.tolist())

    exact = [sum(p * remaining(word, i, d + 1) for (i, d), p in np.ndenumerate(start)) for word in WORDS]
    np.testing.assert_allclose(np.exp(hmm.log_likelihood(WORDS)), exact, atol=1e-14)
    assert sum(exact) == pytest.approx(1)
    # Shares of time: segments alternate, of 2 tokens for state 0, and of 1 or 2 for state 1.
    np.testing.assert_allclose(start, [[2 / 7, 2 / 7], [2 / 7, 1 / 7]], atol=1e-14)


def test_the_factorial_hmm_of_the_faq_has_the_likelihoods_of_all_paths(shown):
    tables, emission, hmm = (shown["slow"], shown["fast"]), shown["emission"], shown["factorial"]
    starts = [np.linalg.matrix_power(table, 200)[0] for table in tables]
    joint = list(itertools.product(range(2), range(2)))

    def likelihood(word):
        total = 0.0
        for path in itertools.product(joint, repeat=len(word)):
            chance = math.prod(start[i] for start, i in zip(starts, path[0], strict=True))
            for here, after in itertools.pairwise(path):
                chance *= math.prod(table[i, j] for table, i, j in zip(tables, here, after, strict=True))
            total += chance * math.prod(emission[(*state, x)] for state, x in zip(path, word, strict=True))
        return total

    words = WORDS[::4]
    np.testing.assert_allclose(np.exp(hmm.log_likelihood(words)), list(map(likelihood, words)), rtol=1e-10)


def given_probability(driven, start, inputs, outputs):
    """The probability of outputs given inputs, summed over all paths of states."""
    total = 0.0
    for path in itertools.product(range(len(start)), repeat=len(outputs) + 1):
        steps = zip(inputs, outputs, path[:-1], path[1:], strict=True)
        total += start[path[0]] * math.prod(driven[step] for step in steps)
    return total


@pytest.mark.outside(
    "https://github.com/jmschrei/pomegranate/issues/416",
    "an input-output HMM, whose transitions depend on an input",
    "an HMM over pairs of an input and an output, exact given the inputs; the FAQ shows it",
)
def test_the_pairs_of_the_faq_have_the_likelihoods_of_outputs_given_inputs(shown):
    driven, inputs, hmm = shown["driven"], shown["inputs"], shown["pairs"]
    for given in ([0, 1, 1], [1, 1, 0]):
        words = list(itertools.product(range(2), repeat=3))
        found = hmm.log_likelihood(2 * np.array(given) + np.array(words)) - np.log(inputs[given]).sum()
        exact = [given_probability(driven, hmm.start, given, word) for word in words]
        np.testing.assert_allclose(np.exp(found), exact, atol=1e-14)
        assert sum(exact) == pytest.approx(1)


@pytest.mark.outside(
    "https://github.com/Mogeng/IOHMM/issues/29",
    "observations of an input-output HMM of which a binary vector says which were made",
    "an HMM over pairs with one output more, for those that were not made: its table is the sum over outputs",
)
def test_outputs_that_were_not_made_are_summed_over_with_one_output_more(shown):
    driven, inputs = shown["driven"], shown["inputs"]
    half = np.concatenate([driven, driven.sum(1, keepdims=True)], axis=1) / 2  # whether one is made is a fair coin
    hmm = HMM(start=shown["pairs"].start, edges=np.concatenate(inputs[:, None, None, None] * half))
    given, outputs, lost = np.array([[0, 1, 1, 0]]), np.array([[1, 2, 0, 2]]), 2
    found = hmm.log_likelihood(3 * given + outputs) - np.log(inputs[given] / 2).sum()
    words = itertools.product(*([0, 1] if x == lost else [x] for x in outputs[0].tolist()))
    exact = sum(given_probability(driven, hmm.start, given[0], word) for word in words)
    np.testing.assert_allclose(np.exp(found), exact, rtol=1e-12)


def test_the_coupled_process_of_the_faq_has_the_likelihoods_of_all_paths(shown):
    driven, parent, hmm = shown["driven"], shown["parent"], shown["coupled"]
    start, pairs = hmm.start.reshape(2, 2), list(itertools.product(range(2), repeat=2))

    def likelihood(given, outputs):
        total = 0.0
        for path in itertools.product(pairs, repeat=len(outputs) + 1):
            chance = start[path[0]]
            for u, x, (p, i), (q, j) in zip(given, outputs, path[:-1], path[1:], strict=True):
                chance *= parent[u, p, q] * driven[u, x, i, j]
            total += chance
        return total

    for given, outputs in itertools.product(itertools.product(range(2), repeat=2), repeat=2):
        found = np.exp(hmm.log_likelihood([2 * np.array(given) + np.array(outputs)])[0])
        assert found == pytest.approx(likelihood(given, outputs), abs=1e-14)
