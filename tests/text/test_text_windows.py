import pickle

import numpy as np
import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.text.shards import TokenStream, write_tokens
from hmm_datasets.text.windows import TokenWindows


def message(function, *args, **settings) -> str:
    with pytest.raises(InputError) as caught:
        function(*args, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def stream(tmp_path) -> TokenStream:
    """1,003 tokens, each its own place modulo 1,000."""
    numbers = [number % 1000 for number in range(1002)]
    write_tokens([numbers], tmp_path / "n", vocab_size=2000, eos_id=1999, tokenizer_hash="none", corpus="test")
    return TokenStream(tmp_path / "n")


def test_a_window_is_a_slice_of_the_stream_and_the_rest_is_dropped(stream):
    windows = TokenWindows(stream, 10)
    assert (len(windows), windows.num_windows, windows.dropped_tokens) == (100, 100, 3)
    for index in (0, 42, 99):
        item = windows[index]
        assert set(item) == {"input_ids", "labels"}
        assert item["input_ids"].dtype == item["labels"].dtype == np.int64
        assert item["input_ids"].tolist() == item["labels"].tolist() == list(range(10 * index, 10 * index + 10))
    assert windows[-1]["input_ids"].tolist() == windows[99]["input_ids"].tolist()


def test_labels_can_be_masked_without_changing_the_inputs(stream):
    item = TokenWindows(stream, 10)[1]
    item["labels"][:] = -100
    assert item["input_ids"].tolist() == list(range(10, 20))


@pytest.mark.parametrize("index", [100, -101, 10**15])
def test_an_index_outside_is_an_index_error(stream, index):
    with pytest.raises(IndexError):
        TokenWindows(stream, 10)[index]


def test_a_loop_over_windows_ends(stream):
    assert len(list(TokenWindows(stream, 10))) == 100


def test_an_index_that_is_no_integer_is_refused(stream):
    with pytest.raises(TypeError):
        TokenWindows(stream, 10)[0.5]


def test_items_together_are_the_items_one_by_one(stream):
    windows = TokenWindows(stream, 10, seed=3, epochs=3)
    indices = [0, 299, 17, 100, 17, -1]
    together = windows.__getitems__(indices)
    assert [item["input_ids"].tolist() for item in together] == [windows[i]["input_ids"].tolist() for i in indices]


def test_every_epoch_sees_each_window_once_in_an_order_of_its_own(stream):
    windows = TokenWindows(stream, 10, seed=5, epochs=4)
    assert len(windows) == 400
    epochs = windows.places(range(400)).reshape(4, 100)
    assert (np.sort(epochs, axis=1) == np.arange(100)).all()
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 4


def test_without_a_seed_each_epoch_is_in_the_order_of_the_stream(stream):
    assert TokenWindows(stream, 10, epochs=2).places(range(200)).tolist() == [*range(100)] * 2


def test_windows_survive_pickling(stream):
    windows = TokenWindows(stream, 10, seed=5, epochs=2)
    again = pickle.loads(pickle.dumps(windows))
    assert all(np.array_equal(again[index]["input_ids"], windows[index]["input_ids"]) for index in range(200))


def test_a_dataloader_with_workers_gives_the_windows_in_order(stream):
    from torch.utils.data import DataLoader

    windows = TokenWindows(stream, 10, seed=5)
    loader = DataLoader(windows, batch_size=8, num_workers=2, multiprocessing_context="spawn")
    batches = [batch["input_ids"] for batch in loader]
    assert [row.tolist() for batch in batches for row in batch] == [item["input_ids"].tolist() for item in windows]


def test_windows_that_cannot_be_are_refused(stream):
    assert "at least 2 tokens" in message(TokenWindows, stream, 1)
    assert "has only 1003 tokens" in message(TokenWindows, stream, 1004)
    assert "epochs=0" in message(TokenWindows, stream, 10, epochs=0)
    assert len(TokenWindows(stream, 1003)) == 1
