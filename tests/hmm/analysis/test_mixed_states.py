import itertools

import brute_force
import numpy as np
import pytest
from brute_force import random_edges
from hypothesis import given, settings
from hypothesis import strategies as st

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.analysis import mixed_states
from hmm_datasets.hmm.model import HMM

SOURCES = {
    "states": HMM(**{**processes.random(3, 2, alpha=0.5, seed=1).tables(), "start": np.array([0.6, 0.3, 0.1])}),
    "mess3": processes.mess3(0.15, 0.6),
    "rrxor": processes.rrxor(),
    "casino": processes.dishonest_casino(),
    "sparse edges": random_edges(3, 3, seed=8, zeros=0.6),
}
sources = pytest.mark.parametrize("hmm", SOURCES.values(), ids=SOURCES)


@sources
def test_the_tree_is_that_of_all_words(hmm):
    depth = 3
    tree = hmm.mixed_states(depth)
    assert tree.distribution.shape == (depth + 1, len(tree.beliefs))
    np.testing.assert_allclose(tree.distribution.sum(1), 1, atol=1e-12)
    for length in range(depth + 1):
        distribution = np.zeros(len(tree.beliefs))
        for word in itertools.product(range(hmm.num_symbols), repeat=length):
            probability = brute_force.likelihood(hmm, word)
            if probability == 0:
                continue
            belief = brute_force.beliefs(hmm, word)[-1]
            number = int(np.abs(tree.beliefs - belief).max(1).argmin())
            np.testing.assert_allclose(tree.beliefs[number], belief, atol=1e-12)
            distribution[number] += probability
            # The symbols lead there too.
            walked = 0
            for symbol in word:
                walked = tree.following[walked, symbol]
            assert walked == number
        np.testing.assert_allclose(tree.distribution[length], distribution, atol=1e-12)


@sources
def test_each_belief_is_listed_once_with_the_first_word_that_leads_to_it(hmm):
    tree = hmm.mixed_states(4)
    np.testing.assert_array_equal(tree.beliefs[0], hmm.start)
    apart = np.abs(tree.beliefs[:, None] - tree.beliefs).max(2) + np.eye(len(tree.beliefs))
    assert apart.min() > 1e-9
    assert len(set(tree.words)) == len(tree.words)
    assert tree.words == sorted(tree.words, key=lambda word: (len(word), word))
    for number, word in enumerate(tree.words):
        np.testing.assert_allclose(tree.beliefs[number], hmm.beliefs([word])[0, -1], atol=1e-12)
        assert tree.distribution[: len(word), number].max(initial=0) == 0, "reached by a shorter word"
        assert tree.distribution[len(word), number] > 0
    np.testing.assert_allclose(tree.next_token_probs, tree.beliefs @ hmm.emission, atol=1e-14)


def test_rrxor_has_36_mixed_states():
    # The number that Shai et al. 2024 count.
    tree = processes.rrxor().mixed_states(20)
    assert len(tree.beliefs) == 36
    assert tree.closed
    assert max(map(len, tree.words)) == 6
    assert not processes.rrxor().mixed_states(6).closed, "the last level is not expanded"


def test_every_word_of_mess3_leads_to_its_own_belief():
    tree = processes.mess3(0.15, 0.6).mixed_states(6)
    assert np.bincount([len(word) for word in tree.words]).tolist() == [3**length for length in range(7)]
    assert not tree.closed
    # All beliefs of one length are equally many as words, whose probabilities they carry.
    assert (tree.distribution > 0).sum(1).tolist() == [3**length for length in range(7)]


@pytest.mark.parametrize(
    ("hmm", "count"),
    [(processes.golden_mean(), 3), (processes.even(), 4), (processes.zero_one_random(), 7), (processes.rrxor(), 36)],
)
def test_a_closed_tree_continues_forever(hmm, count):
    tree = hmm.mixed_states(200)
    assert (len(tree.beliefs), tree.closed) == (count, True)
    np.testing.assert_allclose(tree.distribution.sum(1), 1, atol=1e-12)
    # Known positions of the tree carry the mean belief.
    np.testing.assert_allclose(tree.distribution @ tree.beliefs, np.tile(hmm.start, (201, 1)), atol=1e-12)


def test_the_simple_nonunifilar_source_counts_the_ones_since_a_zero():
    tree = processes.simple_nonunifilar().mixed_states(12)
    # n ones from the start, and one state for every number of ones after a zero; n ones and a zero are state A.
    assert len(tree.beliefs) == 13 + 1
    np.testing.assert_allclose(tree.beliefs[tree.words.index(())], [0.5, 0.5], atol=1e-12)
    assert tree.following[1:, 0].max() == tree.words.index((0,))


@given(seed=st.integers(0, 10**6), chunk=st.integers(1, 5))
@settings(deadline=None, derandomize=True, max_examples=8)
def test_the_tree_does_not_depend_on_how_many_beliefs_are_expanded_at_once(seed, chunk):
    hmm = random_edges(3, 3, seed=seed, zeros=0.5)
    whole = hmm.mixed_states(4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixed_states, "_WORK_BYTES", chunk * 8 * 9)
        parts = hmm.mixed_states(4)
    np.testing.assert_allclose(parts.beliefs, whole.beliefs, atol=1e-14)
    np.testing.assert_array_equal(parts.following, whole.following)
    assert parts.words == whole.words


def test_beliefs_that_differ_by_rounding_are_one():
    # Three ways to the same beliefs, in other orders of the same products.
    hmm = HMM(transition=np.full((3, 3), 1 / 3), emission=[[0.1, 0.9], [0.7, 0.3], [0.2, 0.8]])
    assert len(hmm.mixed_states(12).beliefs) <= 2
    # Enough points that some lie on a border of either grid.
    points = np.random.default_rng(0).dirichlet(np.ones(4), 20_000)
    cells = mixed_states.Cells(1e-10)
    numbers, new = cells.numbers(points, 0)
    assert len(new) == 20_000
    again, new = cells.numbers(points * (1 + 1e-13), 20_000)
    np.testing.assert_array_equal(again, numbers)
    assert len(new) == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: processes.mess3(0.15, 0.6).mixed_states(-1), "depth is -1; expected an integer in [0, 2**31)"),
        (
            lambda: processes.mess3(0.15, 0.6).mixed_states(6, max_states=100),
            "more than 100 mixed states at depth 4; expected",
        ),
        (lambda: mixed_states.mixed_states(processes.even(), 3, tolerance=0), "tolerance is 0; expected a number"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(InputError) as caught:
        make()
    assert message in str(caught.value)


def test_beliefs_that_underflow_are_no_nan():
    hmm = HMM(start=[1.0, 0.0, 0.0], transition=np.full((3, 3), 1 / 3), emission=[[1.0, 5e-324], [1, 0], [1, 0]])
    tree = hmm.mixed_states(2)
    assert not np.isnan(tree.beliefs).any()
    assert not np.isnan(tree.distribution).any()
