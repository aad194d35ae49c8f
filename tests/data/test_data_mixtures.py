import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmm_datasets.data.mixtures import PERIOD, Mixture
from hmm_datasets.data.views import HMMSequences
from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes

LONG = range(10**9)

weights = st.lists(st.floats(0.01, 1), min_size=1, max_size=8)


@given(weights)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_a_period_holds_every_share_rounded_to_a_thousandth(weights):
    mixture = Mixture([LONG] * len(weights), weights)
    shares = np.array(weights) / np.sum(weights)
    assert sum(mixture.counts) == PERIOD
    assert np.abs(np.array(mixture.counts) - shares * PERIOD).max() < 1
    drawn = [mixture.place(index)[0] for index in range(PERIOD)]
    assert np.bincount(drawn, minlength=len(weights)).tolist() == mixture.counts


@pytest.mark.parametrize(
    ("weights", "counts"),
    [
        ([0.7, 0.3], [700, 300]),
        ([7, 2, 1], [700, 200, 100]),
        ([1, 1, 1], [334, 333, 333]),
        ([0.999, 0.001], [999, 1]),
        ([5], [1000]),
        ([0.1] * 10, [100] * 10),
    ],
)
def test_counts_of_a_period_are_exact(weights, counts):
    assert Mixture([LONG] * len(weights), weights).counts == counts


@given(weights)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_any_first_rows_hold_every_share_to_within_a_row(weights):
    mixture = Mixture([LONG] * len(weights), weights)
    # Tijdeman's bound for S sources.
    bound = 1 - 1 / max(1, 2 * len(weights) - 2)
    assert most_rows_off(mixture.schedule, np.array(mixture.counts) / PERIOD) <= bound + 1e-9 < 1


def most_rows_off(schedule, shares) -> float:
    taken = np.cumsum(np.eye(len(shares))[schedule], axis=0)
    return np.abs(taken - np.arange(1, len(schedule) + 1)[:, None] * shares).max()


def test_shares_that_a_schedule_by_largest_deficit_would_miss_by_more_than_a_row_are_kept():
    shares = np.array([0.01, 0.3, 0.01, 0.37, 0.01, 0.3])
    taken, greedy = np.zeros(6), []
    for slot in range(PERIOD):
        greedy.append(int(np.argmax(shares * (slot + 1) - taken)))
        taken[greedy[-1]] += 1
    assert most_rows_off(greedy, shares) > 1.05
    assert most_rows_off(Mixture([LONG] * 6, shares).schedule, shares) < 0.9 + 1e-9


@given(weights, st.integers(0, 4000))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_every_source_is_read_in_its_order_without_gaps(weights, first):
    mixture = Mixture([LONG] * len(weights), weights)
    places = [mixture.place(index) for index in range(first, first + 300)]
    for source in range(len(weights)):
        rows = [row for which, row in places if which == source]
        assert rows == list(range(rows[0], rows[0] + len(rows))) if rows else True
    # What came before is what the counts say.
    before = [mixture.place(index) for index in range(first)]
    for source, row in dict(reversed(places)).items():
        assert row == sum(which == source for which, _ in before)


def test_a_row_depends_on_its_index_alone():
    mixture = Mixture([range(0, 5000), range(10_000, 15_000)], [0.6, 0.4])
    forward = [mixture[index] for index in range(2500)]
    order = np.random.default_rng(0).permutation(2500)
    assert [mixture[int(index)] for index in order] == [forward[index] for index in order]
    again = Mixture([range(0, 5000), range(10_000, 15_000)], [3, 2])
    assert [again[index] for index in range(2500)] == forward
    assert pickle.loads(pickle.dumps(mixture))[777] == forward[777]


def test_a_far_row_costs_one_row():
    view = HMMSequences(processes.mess3(), 5)
    mixture = Mixture([view, HMMSequences(processes.even(), 5)], [0.75, 0.25])
    source, row = mixture.place(10**12)
    assert (source, row) == (0, 75 * 10**10)
    assert mixture[10**12]["input_ids"].tolist() == view[row]["input_ids"].tolist()


def test_a_mixture_ends_where_the_first_source_would():
    mixture = Mixture([range(2500), range(10**6)], [0.5, 0.5])
    assert len(mixture) == 5 * PERIOD
    assert len(list(mixture)) == 5 * PERIOD
    assert mixture[4999] in (2499, 2499)
    for index in (5000, -1):
        with pytest.raises(IndexError, match=f"index {index} is outside a mixture of 5000 rows"):
            mixture[index]


@pytest.mark.parametrize(
    ("sources", "weights", "message"),
    [
        ([LONG, LONG], [1, 0], "weights are [1, 0] for 2 sources; expected one above 0 for each"),
        ([LONG, LONG], [1, -1], "expected one above 0 for each"),
        ([LONG, LONG], [1, float("nan")], "expected one above 0 for each"),
        ([LONG, LONG], [1, float("inf")], "expected one above 0 for each"),
        ([LONG, LONG], [1], "weights are [1] for 2 sources"),
        ([], [], "weights are [] for 0 sources"),
        ([LONG, LONG], [1, 1e-4], "source 1 has 1000000000 rows and a share of 0 in 1000; give it more epochs"),
        ([LONG, range(299)], [0.7, 0.3], "source 1 has 299 rows and a share of 300 in 1000"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused_by_source(sources, weights, message):
    with pytest.raises(InputError) as caught:
        Mixture(sources, weights)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
