import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset

from hmm_datasets.data.interleaving import RESOLUTION, InterleavedRows
from hmm_datasets.data.sequences import HMMSequences
from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes

LONG = range(10**9)

weights = st.lists(st.floats(0.01, 1), min_size=1, max_size=8)


class Rows:
    """Rows that name themselves, with tokens to count."""

    def __init__(self, name: str, size: int, tokens_per_row: float):
        self.name, self.size, self.tokens_per_row = name, size, tokens_per_row
        self.asked: list[list[int]] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[str, int]:
        return self.name, index

    def __getitems__(self, indices: list[int]) -> list[tuple[str, int]]:
        self.asked.append(indices)
        return [self[index] for index in indices]


def source_and_row(mixture: InterleavedRows, index: int) -> tuple[int, int]:
    (source,), (row,) = mixture.sources_and_rows([index])
    return int(source), int(row)


# Shares


@pytest.mark.thorough
@given(weights)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_a_period_holds_every_share_rounded_to_its_resolution(weights):
    mixture = InterleavedRows([LONG] * len(weights), weights)
    shares = np.array(weights) / np.sum(weights)
    assert RESOLUTION % mixture.period == 0
    assert sum(mixture.counts) == mixture.period
    assert np.abs(np.array(mixture.counts) / mixture.period - shares).max() < 1 / RESOLUTION
    assert np.bincount(mixture.schedule, minlength=len(weights)).tolist() == mixture.counts


@pytest.mark.parametrize(
    ("weights", "counts"),
    [
        ([0.7, 0.3], [7, 3]),
        ([7, 2, 1], [7, 2, 1]),
        ([1, 1, 1], [33334, 33333, 33333]),
        ([0.999, 0.001], [999, 1]),
        ([0.12345, 0.87655], [2469, 17531]),
        ([5], [1]),
        ([0.1] * 10, [1] * 10),
    ],
)
def test_counts_of_a_period_are_exact_and_in_lowest_terms(weights, counts):
    assert InterleavedRows([LONG] * len(weights), weights).counts == counts


@pytest.mark.thorough
@given(weights)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_any_first_rows_hold_every_share_to_within_a_row(weights):
    mixture = InterleavedRows([LONG] * len(weights), weights)
    # Tijdeman's bound for S sources.
    bound = 1 - 1 / max(1, 2 * len(weights) - 2)
    assert most_rows_off(mixture.schedule, np.array(mixture.counts) / mixture.period) <= bound + 1e-9 < 1


def most_rows_off(schedule, shares) -> float:
    taken = np.cumsum(np.eye(len(shares))[schedule], axis=0)
    return np.abs(taken - np.arange(1, len(schedule) + 1)[:, None] * shares).max()


def test_shares_that_a_schedule_by_largest_deficit_would_miss_by_more_than_a_row_are_kept():
    shares = np.array([0.01, 0.3, 0.01, 0.37, 0.01, 0.3])
    taken, greedy = np.zeros(6), []
    for slot in range(1000):
        greedy.append(int(np.argmax(shares * (slot + 1) - taken)))
        taken[greedy[-1]] += 1
    assert most_rows_off(greedy, shares) > 1.05
    assert most_rows_off(InterleavedRows([LONG] * 6, shares).schedule, shares) < 0.9 + 1e-9


def test_hundreds_of_sources_are_mixed():
    shares = np.random.default_rng(0).dirichlet(np.ones(300)) + 1e-4
    mixture = InterleavedRows([LONG] * 300, shares)
    assert most_rows_off(mixture.schedule[:3000], np.array(mixture.counts) / mixture.period) < 1


def test_the_order_of_a_mixture_is_fixed_for_good():
    sources, _ = InterleavedRows([LONG] * 3, [0.5, 0.3, 0.2]).sources_and_rows(range(10))
    assert sources.tolist() == [0, 1, 0, 2, 0, 1, 0, 2, 1, 0]


# Rows


@given(weights, st.integers(0, 4000))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_every_source_is_read_in_its_order_without_gaps(weights, first):
    mixture = InterleavedRows([LONG] * len(weights), weights)
    before = mixture.realized(first)
    sources, rows = mixture.sources_and_rows(range(first, first + 300))
    for source in range(len(weights)):
        read = rows[sources == source].tolist()
        begin = int(before[source]["rows"])
        assert read == list(range(begin, begin + len(read)))


@pytest.mark.thorough
def test_a_row_depends_on_its_index_alone():
    mixture = InterleavedRows([range(0, 5000), range(10_000, 15_000)], [0.6, 0.4])
    forward = [mixture[index] for index in range(2500)]
    order = np.random.default_rng(0).permutation(2500)
    assert [mixture[int(index)] for index in order] == [forward[index] for index in order]
    again = InterleavedRows([range(0, 5000), range(10_000, 15_000)], [3, 2])
    assert [again[index] for index in range(2500)] == forward
    assert pickle.loads(pickle.dumps(mixture))[777] == forward[777]


def test_a_far_row_costs_one_row():
    view = HMMSequences(processes.mess3(0.15, 0.6), 5)
    mixture = InterleavedRows([view, HMMSequences(processes.even(), 5)], [0.75, 0.25], num_rows=14 * 10**11)
    source, row = source_and_row(mixture, 10**12)
    assert (source, row) == (0, 75 * 10**10)
    assert mixture[10**12]["input_ids"].tolist() == view[row]["input_ids"].tolist()


def test_a_mixture_that_nothing_ends_needs_a_number_of_rows():
    endless, ending = (
        HMMSequences(processes.mess3(0.15, 0.6), 5),
        HMMSequences(processes.mess3(0.15, 0.6), 5, num_sequences=30),
    )
    with pytest.raises(InputError, match="the mixture would be endless; pass num_rows="):
        InterleavedRows([endless, endless], [1, 1])
    assert len(InterleavedRows([endless, endless], [1, 1], num_rows=100)) == 100
    assert 59 <= len(InterleavedRows([endless, ending], [1, 1])) <= 61


def test_rows_get_positions_where_another_source_has_them():
    class Packed(Rows):
        has_positions = True

        def __getitems__(self, indices):
            return [{"input_ids": [7] * 3, "position_ids": [0, 1, 0]} for _ in indices]

    plain = HMMSequences(processes.mess3(0.15, 0.6), 2, num_sequences=100)
    mixture = InterleavedRows([plain, Packed("packed", 100, 3)], [1, 1])
    assert mixture.has_positions
    assert not InterleavedRows([plain, plain], [1, 1]).has_positions
    positions = [list(map(int, row["position_ids"])) for row in mixture.__getitems__(range(4))]
    assert positions == [[0, 1, 2], [0, 1, 0]] * 2


def test_a_batch_asks_each_source_once():
    first, second = Rows("first", 100, 1), Rows("second", 100, 1)
    mixture = InterleavedRows([first, second], [0.5, 0.5])
    batch = mixture.__getitems__(range(40, 48))
    assert batch == [mixture[index] for index in range(40, 48)]
    assert first.asked[0] == [20, 21, 22, 23] == second.asked[0]


def test_a_mixture_of_mixtures_multiplies_the_shares():
    inner = InterleavedRows([Rows("a", 10**6, 10), Rows("b", 10**6, 20)], [0.5, 0.5])
    outer = InterleavedRows([inner, Rows("c", 10**6, 40)], [0.8, 0.2])
    names = [name for name, _ in outer.__getitems__(range(1000))]
    assert [names.count(name) for name in "abc"] == [400, 400, 200]
    assert (inner.tokens_per_row, outer.tokens_per_row) == (15, 0.8 * 15 + 0.2 * 40)


# Tokens


def test_shares_of_tokens_give_longer_rows_fewer_turns():
    text, chat = Rows("text", 10**6, 1024), Rows("chat", 10**6, 256)
    mixture = InterleavedRows([text, chat], [0.3, 0.7], by="tokens")
    rows = 50_000
    names = [name for name, _ in mixture.__getitems__(range(rows))]
    tokens = {source.name: names.count(source.name) * source.tokens_per_row for source in (text, chat)}
    assert tokens["text"] / sum(tokens.values()) == pytest.approx(0.3, abs=1e-3)
    assert [part["tokens"] for part in mixture.realized(rows)] == list(tokens.values())
    assert [part["token_share"] for part in mixture.realized(rows)] == pytest.approx([0.3, 0.7], abs=1e-3)
    assert names.count("text") < 0.11 * rows


def test_a_source_that_does_not_count_its_tokens_cannot_be_mixed_by_them():
    message = error([Rows("text", 9, 5), LONG], [1, 1], by="tokens")
    assert message == "source 1 (range) has no tokens_per_row; mix by='examples'"
    realized = InterleavedRows([Rows("text", 9, 5), LONG], [1, 1]).realized(4)
    assert [part["tokens"] for part in realized] == [10, None]
    assert [part["token_share"] for part in realized] == [None, None]


@pytest.mark.parametrize("num_rows", [1, 7, 10, 1234, 5000])
def test_the_realized_proportions_are_those_of_the_rows_read(num_rows):
    sources = [Rows("a", 3000, 8), Rows("b", 9000, 2), Rows("c", 1000, 4)]
    mixture = InterleavedRows(sources, [0.5, 0.3, 0.2], num_rows=5000)
    names = [name for name, _ in mixture.__getitems__(range(num_rows))]
    for source, part in zip(sources, mixture.realized(num_rows), strict=True):
        rows = names.count(source.name)
        assert part["rows"] == rows
        assert part["row_share"] == rows / num_rows
        assert part["tokens"] == rows * source.tokens_per_row
        assert part["epochs"] == rows / len(source)


def test_epochs_are_those_of_the_source_where_it_holds_several():
    source = Rows("a", 300, 8)
    source.epochs = 3
    assert InterleavedRows([source], [1]).realized(150)[0]["epochs"] == 1.5


# Exhausted sources


def test_a_mixture_stops_where_a_source_has_no_next_row():
    mixture = InterleavedRows([range(25), range(10**6)], [0.5, 0.5])
    rows = list(mixture)
    assert [
        row for source, row in zip(mixture.schedule[np.arange(len(rows)) % 2], rows, strict=True) if source == 0
    ] == [*range(25)]
    sources, _ = InterleavedRows([LONG, LONG], [0.5, 0.5]).sources_and_rows([len(mixture)])
    assert sources[0] == 0, "the next row would be of the source that ended"
    for index in (len(mixture), -1):
        with pytest.raises(IndexError, match=f"index {index} is outside a mixture of {len(mixture)} rows"):
            mixture[index]
    assert len(InterleavedRows([range(25), range(10**6)], [0.5, 0.5], num_rows=30)) == 30


@given(weights, st.data())
@settings(deadline=None, derandomize=True, max_examples=40)
def test_a_mixture_that_stops_reads_no_row_twice_and_one_more_would(weights, data):
    sizes = [data.draw(st.integers(1, 60)) for _ in weights]
    mixture = InterleavedRows([range(size) for size in sizes], weights)
    endless = InterleavedRows([LONG] * len(weights), weights)
    _, rows = endless.sources_and_rows(range(len(mixture)))
    sources, _ = mixture.sources_and_rows(range(len(mixture)))
    assert all(rows[sources == source].max(initial=-1) < size for source, size in enumerate(sizes))
    source, row = source_and_row(endless, len(mixture))
    assert row == sizes[source]


def test_a_mixture_that_may_not_end_early_is_refused_when_made():
    message = error([range(10), LONG], [1, 1], num_rows=100)
    assert message.startswith("source 0 has 10 rows and ends before row 20 of 100; give it more epochs")
    mixture = InterleavedRows([range(10), LONG], [1, 1], num_rows=20)
    assert len(list(mixture)) == 20


@pytest.mark.outside(
    "https://github.com/huggingface/datasets/issues/7954",
    "sources of 3, 4 and 3 rows mixed until all are read, by a strategy that stopped at the shortest without a word",
    "no strategies: a mixture ends where a source does, and a number of rows that a source cannot fill is refused",
)
def test_the_rows_of_a_mixture_are_those_of_its_shortest_source_or_the_number_that_was_asked_for():
    sources = [range(3), range(10, 14), range(20, 23)]
    assert list(InterleavedRows(sources, [1, 1, 1])) == [0, 10, 20, 1, 11, 21, 2, 12, 22]
    assert error(sources, [1, 1, 1], num_rows=10).startswith("source 0 has 3 rows and ends before row 9 of 10")
    longer = [ConcatDataset([source, source]) for source in sources]
    assert list(InterleavedRows(longer, [1, 1, 1], num_rows=12)) == [0, 10, 20, 1, 11, 21, 2, 12, 22, 0, 13, 20]


# Errors


def error(sources, weights, **settings) -> str:
    with pytest.raises(InputError) as caught:
        InterleavedRows(sources, weights, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("sources", "weights", "settings", "message"),
    [
        ([LONG, LONG], [1, 0], {}, "weights are [1, 0] for 2 sources; expected one above 0 for each"),
        ([LONG, LONG], [1, -1], {}, "expected one above 0 for each"),
        ([LONG, LONG], [1, float("nan")], {}, "expected one above 0 for each"),
        ([LONG, LONG], [1, float("inf")], {}, "expected one above 0 for each"),
        ([LONG, LONG], [1], {}, "weights are [1] for 2 sources"),
        ([], [], {}, "weights are [] for 0 sources"),
        ([LONG, LONG], [1, 1e-6], {}, "source 1: its share is less than a row in 100000"),
        ([LONG, range(0)], [0.7, 0.3], {}, "source 1 has no rows; leave it out"),
        ([LONG], [1], {"by": "words"}, "by='words': expected 'examples' or 'tokens'"),
        ([LONG], [1], {"num_rows": 0}, "num_rows is 0; expected an integer in [1"),
    ],
)
def test_an_impossible_mixture_is_refused(sources, weights, settings, message):
    assert message in error(sources, weights, **settings)


def test_realized_proportions_of_more_rows_than_there_are_are_refused():
    with pytest.raises(InputError, match="num_rows=11: expected 0 to 10"):
        InterleavedRows([range(10)], [1]).realized(11)
