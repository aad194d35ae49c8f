import pickle
from itertools import islice

import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from hmm_datasets.data.sequences import ENDLESS, TEST_FIRST, HMMSequences
from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families import PermutedSymbols
from hmm_datasets.hmm.families.episodic_tasks import AssociativeRecall

MESS3 = processes.mess3(0.15, 0.6)


class Counting:
    """Draws as an HMM does and notes what it was asked for."""

    padding = None

    def __init__(self, hmm):
        self.hmm = hmm
        self.num_symbols = hmm.num_symbols
        self.calls = []

    def sample(self, num_sequences, length, seed=0, first=0):
        self.calls.append((first, num_sequences))
        return self.hmm.sample(num_sequences, length, seed=seed, first=first)


def ids(rows) -> np.ndarray:
    return np.stack([row["input_ids"].numpy() for row in rows])


@pytest.mark.parametrize("source", [MESS3, PermutedSymbols(MESS3)], ids=["hmm", "family"])
def test_row_i_is_sequence_first_plus_i_after_a_beginning_token(source):
    view = HMMSequences(source, 9, seed=4, first=1000)
    expected = source.sample(5, 9, seed=4, first=1003)
    found = ids([view[i] for i in range(3, 8)])
    np.testing.assert_array_equal(found[:, 1:], expected)
    assert (found[:, 0] == source.num_symbols).all()
    assert view.bos_token_id == 3
    assert view.vocab_size == 4
    assert found.dtype == np.int64


def test_without_a_beginning_token_rows_are_the_symbols_alone():
    view = HMMSequences(MESS3, 9, bos=False)
    np.testing.assert_array_equal(ids([view[5]])[0], MESS3.sample(1, 9, first=5)[0])
    assert view.bos_token_id is None
    assert view.vocab_size == 3


@pytest.mark.parametrize("bos", [True, False])
def test_labels_are_the_input_ids_but_for_the_first_and_share_no_memory_with_them(bos):
    row = HMMSequences(MESS3, 9, bos=bos)[2]
    assert sorted(row) == ["input_ids", "labels"]
    assert row["labels"].tolist() == [-100, *row["input_ids"][1:].tolist()]
    before = row["input_ids"].tolist()
    row["labels"][:3] = -100
    assert row["input_ids"].tolist() == before


def test_only_scored_tokens_are_labels_in_every_view_of_a_task():
    task = AssociativeRecall(4, 3, num_pairs=2)
    rows = HMMSequences(task, 8, seed=1, only_scored=True)
    finite = HMMSequences(task, 8, seed=1, num_sequences=4, only_scored=True)
    for view in (rows, rows.by_index(), finite):
        for row in view.__getitems__([2, 3]):
            scored = row["labels"] != -100
            assert scored.nonzero()[:, 0].tolist() == [6, 8]
            assert torch.equal(row["labels"][scored], row["input_ids"][scored])
    assert (HMMSequences(task, 8, seed=1)[2]["labels"][1:] != -100).all()
    with pytest.raises(
        InputError,
        match="an edge-emitting HMM of 3 states over 3 symbols, which scores no tokens",
    ):
        HMMSequences(MESS3, 8, only_scored=True)


indices = st.lists(st.one_of(st.integers(0, 12), st.integers(ENDLESS - 4, ENDLESS - 1)), min_size=1, max_size=12)


@given(indices=indices, first=st.sampled_from([0, 7, TEST_FIRST]), bos=st.booleans())
@settings(deadline=None, derandomize=True, max_examples=50)
def test_a_batch_is_its_rows_one_by_one(indices, first, bos):
    view = HMMSequences(MESS3, 5, seed=1, first=first, bos=bos)
    np.testing.assert_array_equal(ids(view.__getitems__(indices)), ids([view[index] for index in indices]))


def test_neighbouring_rows_are_drawn_in_one_call():
    source = Counting(MESS3)
    HMMSequences(source, 5, first=10).__getitems__([0, 1, 2, 3, 7, 8, 4, 4])
    assert source.calls == [(10, 4), (17, 2), (14, 1), (14, 1)]


def test_the_far_end_of_a_view_costs_one_row():
    source = Counting(MESS3)
    view = HMMSequences(source, 5)
    view[2**40 - 1]
    assert source.calls == [(2**40 - 1, 1)]


def test_a_view_without_a_number_of_sequences_has_no_end_and_is_read_in_order():
    view = HMMSequences(MESS3, 6, seed=2, first=7)
    assert isinstance(view, IterableDataset)
    with pytest.raises(TypeError, match="no len"):
        len(view)
    for rows in (view, pickle.loads(pickle.dumps(view))):
        np.testing.assert_array_equal(ids(list(islice(rows, 600)))[:, 1:], MESS3.sample(600, 6, seed=2, first=7))


def test_a_view_that_ends_is_map_style_and_so_is_an_endless_one_by_index():
    for view in (HMMSequences(MESS3, 6, seed=2, num_sequences=2**40), HMMSequences(MESS3, 6, seed=2).by_index()):
        assert not isinstance(view, IterableDataset)
        assert len(view) == 2**40
        np.testing.assert_array_equal(ids([view[10**9]])[:, 1:], MESS3.sample(1, 6, seed=2, first=10**9))


@pytest.mark.thorough
def test_workers_share_an_endless_view_block_by_block():
    MESS3.sample(3000, 200)
    loader = DataLoader(HMMSequences(MESS3, 20, seed=2), batch_size=64, num_workers=2)
    found = torch.cat([batch["input_ids"] for batch in islice(loader, 16)]).numpy()[:, 1:]
    assert sorted(found.tolist()) == sorted(MESS3.sample(1024, 20, seed=2).tolist())


def test_held_out_rows_are_not_those_of_training():
    train = {row.tobytes() for row in ids(HMMSequences(MESS3, 40).__getitems__(range(500)))}
    held_out = {row.tobytes() for row in ids(HMMSequences(MESS3, 40, first=TEST_FIRST).__getitems__(range(500)))}
    assert len(train) == len(held_out) == 500
    assert not train & held_out
    assert ENDLESS < TEST_FIRST


def test_integers_of_numpy_and_torch_serve_as_indices():
    view = HMMSequences(MESS3, 9, first=TEST_FIRST)
    for index in (np.int64(6), np.uint8(6), torch.tensor(6)):
        np.testing.assert_array_equal(ids([view[index]]), ids([view[6]]))


def test_a_finite_data_set_has_the_given_length():
    view = HMMSequences(MESS3, 4, num_sequences=3)
    assert len(view) == len(list(view)) == 3
    for index in (3, -1, 2**63):
        with pytest.raises(IndexError, match=f"index {index} is outside a data set of 3 rows"):
            view[index]


def test_a_view_survives_pickling():
    view = HMMSequences(MESS3, 7, seed=3, first=5, num_sequences=10)
    back = pickle.loads(pickle.dumps(view))
    np.testing.assert_array_equal(ids(list(back)), ids(list(view)))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_the_rows_in_order(workers):
    view = HMMSequences(MESS3, 6, seed=2, num_sequences=22)
    # Drawn on threads before the workers fork.
    MESS3.sample(3000, 200)
    loader = DataLoader(view, batch_size=4, num_workers=workers)
    found = torch.cat([batch["input_ids"] for batch in loader]).numpy()
    np.testing.assert_array_equal(found[:, 1:], MESS3.sample(22, 6, seed=2))


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_step_trains_on_the_same_rows_for_every_number_of_ranks(world_size):
    view = HMMSequences(MESS3, 6, seed=2).by_index()
    batches = BatchSampler(SequentialSampler(view), 12 // world_size, drop_last=False)
    by_rank = [
        [ids(view.__getitems__(batch)) for batch in islice(BatchSamplerShard(batches, world_size, rank), 3)]
        for rank in range(world_size)
    ]
    for step in range(3):
        rows = np.concatenate([by_rank[rank][step] for rank in range(world_size)])
        np.testing.assert_array_equal(rows[:, 1:], MESS3.sample(12, 6, seed=2, first=12 * step))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 0}, "length is 0; expected an integer in [1, 2**32)"),
        ({"num_sequences": 0}, "num_sequences is 0; expected an integer in [1, 2**64)"),
        ({"seed": -1}, "seed is -1; expected an integer in [0, 2**64)"),
        ({"seed": 2**64}, f"seed is {2**64}"),
        ({"first": -1}, "first is -1; expected"),
        (
            {"first": 2**64 - 2, "num_sequences": 3},
            f"first is {2**64 - 2}, num_sequences 3; expected first",
        ),
    ],
)
def test_settings_out_of_range_are_refused_by_name(arguments, message):
    with pytest.raises(InputError) as caught:
        HMMSequences(**{"source": MESS3, "length": 5, **arguments})
    assert message in str(caught.value)


def test_the_last_sequences_of_the_stream_can_be_read():
    view = HMMSequences(MESS3, 5, first=2**64 - 3, num_sequences=3)
    np.testing.assert_array_equal(ids(list(view))[:, 1:], MESS3.sample(3, 5, first=2**64 - 3))
