"""Draws given tokens beside the enumerated distributions: what follows a prefix, and paths as the guide draws them.

Comparisons are by chi-square with fixed seeds. Each must have a p-value above `LEAST`, and draws from a slightly wrong
HMM one below `MOST_WRONG`.
"""

import itertools
import re
from collections import Counter
from pathlib import Path

import brute_force
import numpy as np
import pytest
import torch
from brute_force import TINY
from scipy import stats
from test_empty_batches import KINDS

from hmm_datasets import HMM, GeneralizedHMM, processes
from hmm_datasets.errors import InputError

LEAST, MOST_WRONG = 1e-3, 1e-8
DRAWS = 4000
tiny = pytest.mark.parametrize("hmm", TINY.values(), ids=TINY)


def p_value(drawn: np.ndarray, weights: dict[tuple[int, ...], float]) -> float:
    """That the rows were drawn with probabilities in proportion to the weights."""
    total, counts = sum(weights.values()), Counter(map(tuple, drawn.tolist()))
    assert all(weights.get(row, 0) > 0 for row in counts), "drawn, although impossible"
    cells = [(counts[row], weight / total * len(drawn)) for row, weight in weights.items() if weight > 0]
    rare = [cell for cell in cells if cell[1] < 5]
    cells = [cell for cell in cells if cell[1] >= 5] + ([tuple(np.sum(rare, axis=0))] if rare else [])
    found, expected = np.array(cells, float).T
    return stats.chi2.sf(((found - expected) ** 2 / expected).sum(), max(len(cells) - 1, 1))


def gapped(hmm: HMM, length: int = 4) -> list[int]:
    tokens = hmm.sample(1, length, seed=5)[0].astype(int)
    tokens[1] = tokens[2] = -1
    return tokens.tolist()


def continuations(hmm: HMM, tokens: list[int]) -> Counter[tuple[int, ...]]:
    """`P(observed tokens, word)` of every word of two symbols that may follow them."""
    weights = Counter()
    for word in itertools.product(*(range(hmm.num_symbols) if x < 0 else [x] for x in [*tokens, -1, -1])):
        weights[word[-2:]] += brute_force.likelihood(hmm, word)
    return weights


@pytest.mark.outside(
    "https://github.com/tensorflow/probability/issues/876",
    "samples of the hidden states given the emissions",
    "lines of the guide on `HMM.beliefs`, with the enumerated distribution of paths",
)
@pytest.mark.outside(
    "https://github.com/probml/dynamax/issues/8",
    "forward filtering and backward sampling, with a test",
    "lines of the guide on `HMM.beliefs`, with the enumerated distribution of paths",
)
def test_paths_as_the_guide_draws_them_have_their_distribution():
    guide = Path(__file__).parents[3] / "docs" / "how_to" / "hmms.md"
    (block,) = re.findall(r"^def draw_path\(.*?^    return path$", guide.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    found = {}
    exec(block, found)
    hmm, draws = TINY["dense"], np.random.default_rng(1)
    for tokens in (hmm.sample(1, 4, seed=5)[0].tolist(), gapped(hmm)):
        row = [None if x < 0 else x for x in tokens]
        drawn = np.array([found["draw_path"](hmm, row, draws) for _ in range(DRAWS)])
        assert p_value(drawn, brute_force.emitting_path_probabilities(hmm, tokens)) > LEAST
        shares = (drawn[:, :, None] == np.arange(hmm.num_states)).mean(axis=0)
        np.testing.assert_allclose(shares, brute_force.posteriors(hmm, tokens), atol=0.04)


@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/379",
    "a sequence drawn given observations at any positions, and what follows observations",
    "`sample(prefix=...)` draws what follows observations, of which some may be missing; the guide has the others",
)
@tiny
def test_prefixes_are_continued_with_their_distribution(hmm):
    tokens = gapped(hmm)
    assert p_value(hmm.sample(DRAWS, 2, seed=3, prefix=tokens), continuations(hmm, tokens)) > LEAST


def test_the_test_of_distributions_rejects_another_hmm():
    hmm = TINY["dense"]
    near = HMM(start=hmm.start, transition=0.8 * hmm.transition + 0.2 / 3, emission=hmm.emission)
    tokens = gapped(hmm)
    assert p_value(near.sample(40_000, 2, prefix=tokens), continuations(hmm, tokens)) < MOST_WRONG


@pytest.mark.parametrize("hmm", [TINY["dense"], TINY["dense edges"]], ids=["states", "edges"])
def test_a_continuation_depends_on_its_prefix_seed_and_index_alone(hmm):
    prefix = hmm.sample(9, 3, seed=1)
    prefix[4] = prefix[5] = prefix[0]
    drawn = hmm.sample(9, 5, seed=8, first=3, step=2, prefix=prefix)
    for row in range(9):
        one = hmm.sample(1, 5, seed=8, first=3 + 2 * row, prefix=prefix[row])
        np.testing.assert_array_equal(one[0], drawn[row])
    np.testing.assert_array_equal(hmm.sample(9, 4, seed=8, first=3, step=2, prefix=prefix), drawn[:, :4])
    out = torch.zeros(9, 5, dtype=torch.uint8)
    hmm.sample(9, 5, seed=8, first=3, step=2, prefix=prefix.tolist(), out=out, num_threads=2)
    np.testing.assert_array_equal(out, drawn)
    assert hmm.sample(0, 5, prefix=[0]).shape == (0, 5)
    assert hmm.sample(3, 2, prefix=[]).shape == (3, 2)


@pytest.mark.thorough
def test_sequences_continued_with_the_seed_they_were_drawn_with_keep_their_distribution():
    # Of three parts, each drawn given those before it with the same seed and indices.
    hmm = TINY["dense"]
    drawn = hmm.sample(DRAWS, 1, seed=6)
    for length in (1, 2):
        drawn = np.hstack([drawn, hmm.sample(DRAWS, length, seed=6, prefix=drawn)])
    words = itertools.product(range(hmm.num_symbols), repeat=4)
    assert p_value(drawn, {word: brute_force.likelihood(hmm, word) for word in words}) > LEAST


def test_draws_are_the_same_on_every_machine():
    # What changes them changes the version of the format.
    continued = [[1, 2, 2, 2, 2, 2], [0, 0, 2, 2, 2, 2], [2, 2, 2, 2, 0, 2]]
    assert TINY["dense"].sample(3, 6, seed=7, prefix=[0, -1, 2]).tolist() == continued


CONTINUED = {
    "order 0", "order 1", "order 3", "state-emitting", "edge-emitting", "one state, one symbol",
    "generalized", "non-negative generalized",
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(CONTINUED))
def test_processes_of_other_kinds_continue_a_prefix_with_their_distribution(name):
    process = KINDS[name]
    prefix = process.sample(1, 4, seed=4)[0].astype(int)
    prefix[1] = -1
    drawn = process.sample(DRAWS, 1, seed=5, prefix=prefix)
    chances = process.next_token_probs(prefix[None])[0, -1]
    assert p_value(drawn, {(x,): p for x, p in enumerate(chances)}) > LEAST
    np.testing.assert_array_equal(process.sample(1, 1, seed=5, first=99, prefix=prefix)[0], drawn[99])


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(KINDS.keys() - CONTINUED - {"rewarded symbols", "rewarded pairs"}))
def test_the_others_refuse_a_prefix_in_one_line(name):
    with pytest.raises(InputError, match=r"\A[^\n]*cannot continue a prefix of 3 tokens; expected [^\n]*\Z"):
        KINDS[name].sample(2, 1, prefix=KINDS[name].sample(1, 3)[0])


def test_what_cannot_be_drawn_is_refused_by_its_place():
    golden, dense = processes.golden_mean(), TINY["dense"]
    cases = {
        r"of prefix, row 1: tokens\[0, 1\] is 0, which HMM.* cannot emit after": lambda: golden.sample(
            2, 3, prefix=[[1, 1], [0, 0]]
        ),
        r"prefix has shape \(3, 2\); expected \(P,\)": lambda: dense.sample(2, 3, prefix=np.zeros((3, 2), int)),
        r"of prefix: tokens\[0, 0\] is 3": lambda: dense.sample(2, 3, prefix=[3]),
        "prefix are ragged": lambda: dense.sample(2, 3, prefix=[[0], [0, 1]]),
        r"cannot emit \[0, 0\]": lambda: GeneralizedHMM.from_hmm(golden).sample(1, 1, prefix=[0, 0]),
    }
    for message, call in cases.items():
        with pytest.raises(InputError, match=message):
            call()
