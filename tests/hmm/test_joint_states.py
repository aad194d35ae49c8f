"""The HMMs over joint states that the FAQ shows, beside sums over all segments and over all paths of the chains."""

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest

FAQ = (Path(__file__).parents[2] / "docs" / "how_to" / "faq.md").read_text(encoding="utf-8")
WORDS = list(itertools.product(range(2), repeat=5))


@pytest.fixture(scope="module")
def shown() -> dict:
    """What the names in the code of that answer are."""
    answer = re.search(r"### Is there a hidden semi-Markov.*?(?=\n###)", FAQ, flags=re.DOTALL).group()
    values = {"np": np, "print": lambda *_: None}
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
