import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from hmm_datasets.data.packing import repeated_windows
from hmm_datasets.data.windows import IGNORED, StridedWindows, TokenWindows
from hmm_datasets.errors import InputError
from hmm_datasets.text.stream import TokenStream, write_tokens

EOS = 1999


def message(function, *args, **settings) -> str:
    with pytest.raises(InputError) as caught:
        function(*args, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write(folder, documents, **changes) -> TokenStream:
    settings = {"vocab_size": 2000, "eos_id": EOS, "tokenizer_hash": "none", "corpus": "test", "shard_tokens": 150}
    write_tokens(documents, folder, **settings | changes)
    return TokenStream(folder)


@pytest.fixture
def stream(tmp_path) -> TokenStream:
    """1,003 tokens in documents of 17 and several shards; except for EOS each token equals its position."""
    ends = [*range(16, 1002, 17), 1002]
    return write(
        tmp_path / "n",
        [list(range(begin, end)) for begin, end in zip([0, *(e + 1 for e in ends)], ends, strict=False)],
    )


def numbers(stream: TokenStream) -> list[int]:
    return stream.read(0, stream.num_tokens).tolist()


# Contiguous windows


def test_a_window_is_a_slice_of_the_stream_and_the_rest_is_dropped(stream):
    assert len(stream.index.shards) > 3
    windows = TokenWindows(stream, 10)
    assert (len(windows), windows.num_windows, windows.dropped_tokens) == (100, 100, 3)
    for index in (0, 42, 99):
        item = windows[index]
        assert set(item) == {"input_ids", "labels"}
        assert item["input_ids"].dtype == item["labels"].dtype == torch.int64
        assert item["labels"].tolist() == [IGNORED, *item["input_ids"][1:].tolist()]
        assert item["input_ids"].tolist() == numbers(stream)[10 * index : 10 * index + 10]
    assert windows[-1]["input_ids"].tolist() == windows[99]["input_ids"].tolist()


def test_labels_can_be_masked_without_changing_the_inputs(stream):
    item = TokenWindows(stream, 10)[0]
    item["labels"][:] = IGNORED
    assert item["input_ids"].tolist() == list(range(10))


def test_the_rows_of_a_batch_are_views_of_one_array(stream):
    rows = TokenWindows(stream, 10, seed=1).__getitems__(range(8))
    storages = {row[name].untyped_storage().data_ptr() for row in rows for name in row}
    assert len(storages) == 2


@pytest.mark.parametrize("index", [100, -101, 10**15])
def test_an_index_outside_is_an_index_error(stream, index):
    with pytest.raises(IndexError):
        TokenWindows(stream, 10)[index]


def test_a_loop_over_windows_ends(stream):
    assert len(list(TokenWindows(stream, 10))) == 100


def test_an_index_that_is_not_an_integer_is_refused(stream):
    with pytest.raises(TypeError):
        TokenWindows(stream, 10)[0.5]


def test_items_together_are_the_items_one_by_one(stream):
    windows = TokenWindows(stream, 10, seed=3, epochs=3)
    indices = [0, 299, 17, 100, 17, -1]
    together = windows.__getitems__(indices)
    assert [item["input_ids"].tolist() for item in together] == [windows[i]["input_ids"].tolist() for i in indices]


def test_every_epoch_sees_each_window_once_in_its_own_order(stream):
    windows = TokenWindows(stream, 10, seed=5, epochs=4)
    assert len(windows) == 400
    epochs = windows.window_indices(range(400)).reshape(4, 100)
    assert (np.sort(epochs, axis=1) == np.arange(100)).all()
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 4


def test_without_a_seed_each_epoch_is_in_the_order_of_the_stream(stream):
    assert TokenWindows(stream, 10, epochs=2).window_indices(range(200)).tolist() == [*range(100)] * 2


def test_windows_survive_pickling(stream):
    windows = TokenWindows(stream, 10, seed=5, epochs=2)
    again = pickle.loads(pickle.dumps(windows))
    assert all(torch.equal(again[index]["input_ids"], windows[index]["input_ids"]) for index in range(200))
    assert again.fingerprint() == windows.fingerprint()


@pytest.mark.thorough
def test_a_dataloader_with_workers_gives_the_windows_in_order(stream):
    windows = TokenWindows(stream, 10, seed=5)
    loader = DataLoader(windows, batch_size=8, num_workers=2, multiprocessing_context="spawn")
    batches = [batch["input_ids"] for batch in loader]
    assert [row.tolist() for batch in batches for row in batch] == [item["input_ids"].tolist() for item in windows]


def test_more_epochs_change_no_row(stream):
    short, long = repeated_windows(stream, 10, 25, seed=1), repeated_windows(stream, 10, 410, seed=1)
    assert (len(short), len(long)) == (100, 500)
    assert [row["input_ids"].tolist() for row in short] == [long[index]["input_ids"].tolist() for index in range(100)]
    assert short.fingerprint() == long.fingerprint()


def test_the_fingerprint_tells_whatever_changes_a_row(stream, tmp_path):
    other = write(tmp_path / "other", [list(range(1, 1002))])
    windows = [
        TokenWindows(stream, 10),
        TokenWindows(stream, 11),
        TokenWindows(stream, 10, seed=0),
        TokenWindows(stream, 10, seed=1),
        TokenWindows(other, 10),
        StridedWindows(stream, 10, 5),
        StridedWindows(stream, 10, 6),
        StridedWindows(stream, 10, 5, by_document=True),
    ]
    assert len({rows.fingerprint() for rows in windows}) == len(windows)
    assert TokenWindows(TokenStream(stream.folder), 10).fingerprint() == windows[0].fingerprint()


def test_impossible_windows_are_refused(stream):
    assert "at least 2 tokens" in message(TokenWindows, stream, 1)
    assert "has only 1003 tokens" in message(TokenWindows, stream, 1004)
    assert "epochs is 0" in message(TokenWindows, stream, 10, epochs=0)
    assert len(TokenWindows(stream, 1003)) == 1
    assert "stride=11: expected 1 to 10" in message(StridedWindows, stream, 10, 11)
    assert "stride is 0" in message(StridedWindows, stream, 10, 0)
    assert "has only 1003 tokens" in message(StridedWindows, stream, 1004, 1)
    assert len(StridedWindows(stream, 1004 - 1, 1)) == 1


# Strided windows


def scored(windows: StridedWindows) -> list[tuple[int, int]]:
    """Of every scored token its value and how many tokens its window holds before it."""
    rows = windows.__getitems__(range(len(windows)))
    return [
        (int(row["labels"][position]), position)
        for row in rows
        for position in np.flatnonzero(row["labels"].numpy() != IGNORED)
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(("length", "stride"), [(10, 5), (10, 1), (10, 9), (64, 16), (1003, 2), (1002, 3)])
def test_every_token_of_the_stream_is_scored_once_with_the_context_stated(stream, length, stride):
    windows = StridedWindows(stream, length, stride)
    found = scored(windows)
    assert [token for token, _ in found] == numbers(stream)[1:]
    for position, (_, context) in enumerate(found, start=1):
        assert context >= min(position, length - stride)
        assert context < length
    rows = windows.__getitems__(range(len(windows)))
    text = numbers(stream)
    cuts = {tuple(text[start : start + length]) for start in range(len(text) - length + 1)}
    assert all(tuple(row["input_ids"].tolist()) in cuts for row in rows), "every window is whole"


@pytest.mark.thorough
@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    length=st.integers(2, 20),
    data=st.data(),
)
def test_every_token_of_every_document_is_scored_once_from_its_document_alone(tmp_path_factory, sizes, length, data):
    stride = data.draw(st.integers(1, length - 1))
    first = np.concatenate([[0], np.cumsum(sizes)])
    documents = [list(range(begin, begin + size)) for begin, size in zip(first[:-1], sizes, strict=True)]
    stream = write(tmp_path_factory.mktemp("tokens") / "a", documents, shard_tokens=30)
    windows = StridedWindows(stream, length, stride, by_document=True)
    found = []
    numbers = windows.texts(np.arange(len(windows))).tolist()
    for number, row in zip(numbers, windows.__getitems__(range(len(windows))), strict=True):
        tokens, labels = row["input_ids"].tolist(), row["labels"].tolist()
        text = [EOS, *documents[number], EOS]
        begin = 0 if tokens[0] == EOS else tokens[0] - documents[number][0] + 1
        seen = text[begin : begin + length]
        assert tokens == seen + [EOS] * (length - len(seen))
        for position in np.flatnonzero(np.array(labels) != IGNORED).tolist():
            assert labels[position] == tokens[position]
            found.append((number, begin + position))
            assert position >= min(begin + position, length - stride)
    assert found == [(number, position) for number, size in enumerate(sizes) for position in range(1, size + 2)]


@pytest.mark.parametrize("length", [2, 7, 40, 1003, 1002])
def test_windows_side_by_side_score_all_but_the_first_token_of_each_whole_one(stream, length):
    windows = StridedWindows(stream, length, length)
    text = numbers(stream)
    begins = set(range(0, len(text) - length + 1, length))
    assert [token for token, _ in scored(windows)] == [
        token for position, token in enumerate(text) if position not in begins
    ]


def test_windows_side_by_side_begin_anew_with_every_document(tmp_path):
    sizes = [1, 3, 6, 14]
    stream = write(tmp_path / "a", [list(range(10 * i, 10 * i + size)) for i, size in enumerate(sizes)])
    windows = StridedWindows(stream, 4, 4, by_document=True)
    assert len(scored(windows)) == sum(size + 2 - max(1, (size + 2) // 4) for size in sizes)


def test_the_end_of_a_stream_shorter_than_a_window_is_read(tmp_path):
    stream = write(tmp_path / "a", [[1, 2, 3], [4]])
    rows = [row["labels"].tolist() for row in StridedWindows(stream, 6, 2, by_document=True)]
    assert rows == [[IGNORED, 1, 2, 3, EOS, IGNORED], [IGNORED, 4, EOS, *[IGNORED] * 3]]


# Reading costs


BATCHES = """
import sys
import torch
from torch.utils.data import DataLoader, Subset
from transformers import default_data_collator
from hmm_datasets.text.stream import TokenStream
from hmm_datasets.data.packing import repeated_windows
from hmm_datasets.data.windows import TokenWindows

def resident():
    # Without the pages of files, which the kernel takes back as it likes.
    lines = dict(line.split(":") for line in open("/proc/self/status"))
    return int(lines["RssAnon"].split()[0]) << 10

windows = repeated_windows(TokenStream(sys.argv[1]), 64, 10_500 * 8, seed=3, packed=sys.argv[2] == "packed")
batches = iter(DataLoader(windows, batch_size=8, collate_fn=default_data_collator))
for _ in range(500):
    next(batches)
before = resident()
for _ in range(2_000):
    next(batches)
print(resident() - before)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["contiguous", "packed"])
def test_thousands_of_batches_take_no_more_memory_than_the_first(tmp_path, child_environment, kind):
    tokens = np.random.default_rng(0).integers(0, EOS, 100_000)
    write(tmp_path / "a", np.array_split(tokens, 50), shard_tokens=30_000)
    done = subprocess.run(
        [sys.executable, "-c", BATCHES, tmp_path / "a", kind],
        env={**child_environment, "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    # 2,000 batches hold 16 MB.
    assert int(done.stdout) < 2 << 20
