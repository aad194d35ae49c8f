import pickle
import shutil
from itertools import chain, islice

import numpy as np
import pytest
from datasets import Features, List, Value, load_dataset
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader

import hmm_datasets  # noqa: F401 (makes "token_shards" known)
from hmm_datasets.data.builders import token_shards
from hmm_datasets.data.builders.token_shards import TokenExamples
from hmm_datasets.errors import InputError
from hmm_datasets.text.stream import TokenStream, write_tokens

EOS = 999


def write(folder, count=120, seed=0, vocab_size=1000, tokenizer_hash="one", **changes) -> TokenStream:
    random = np.random.default_rng(seed)
    documents = [random.integers(0, EOS, size) for size in random.integers(1, 40, count)]
    settings = {"eos_id": EOS, "corpus": "test", "shard_tokens": 500}
    write_tokens(documents, folder, vocab_size=vocab_size, tokenizer_hash=tokenizer_hash, **settings | changes)
    return TokenStream(folder)


@pytest.fixture
def stream(tmp_path) -> TokenStream:
    return write(tmp_path / "tokens")


@pytest.fixture
def load(stream, tmp_path):
    def load(**settings):
        settings = {"data_dir": str(stream.folder), "split": "train", "streaming": True, **settings}
        return load_dataset("token_shards", cache_dir=str(tmp_path / "cache"), **settings)

    return load


@pytest.fixture
def read(monkeypatch) -> list[int]:
    """Tokens asked of `TokenStream`, a number a call."""
    calls = []
    gather, read = TokenStream.gather, TokenStream.read

    def counting_gather(self, starts, length, out=None):
        calls.append(len(starts) * length)
        return gather(self, starts, length, out)

    def counting_read(self, start, stop):
        calls.append(stop - start)
        return read(self, start, stop)

    monkeypatch.setattr(TokenStream, "gather", counting_gather)
    monkeypatch.setattr(TokenStream, "read", counting_read)
    return calls


def rows(dataset, count=None) -> list[list[int]]:
    return [row["input_ids"] for row in islice(dataset, count)]


def documents(stream) -> list[list[int]]:
    return [stream.document(number).tolist() for number in range(stream.num_documents)]


def windows(stream, length) -> list[list[int]]:
    tokens = stream.read(0, stream.num_tokens)
    return tokens[: len(tokens) // length * length].reshape(-1, length).tolist()


def error(function, *arguments, **settings) -> str:
    with pytest.raises(InputError) as caught:
        function(*arguments, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What it reads


@pytest.mark.thorough
@pytest.mark.parametrize("streaming", [True, False])
def test_rows_are_documents_or_windows_of_the_shards(load, stream, streaming):
    assert len(stream.index.shards) > 2
    assert rows(load(streaming=streaming)) == documents(stream)
    assert rows(load(streaming=streaming, length=16)) == windows(stream, 16)
    assert load(streaming=streaming).features == Features({"input_ids": List(Value("uint16"))})


@pytest.mark.thorough
@pytest.mark.parametrize(("vocab_size", "dtype"), [(256, "uint8"), (65_536, "uint16"), (65_537, "uint32")])
def test_the_smallest_type_that_can_store_the_vocabulary_is_taken(tmp_path, load, vocab_size, dtype):
    write_tokens([[vocab_size - 1]], tmp_path / "a", vocab_size=vocab_size, eos_id=0, tokenizer_hash="", corpus="test")
    for streaming in (True, False):
        found = load(data_dir=str(tmp_path / "a"), streaming=streaming)
        assert found.features["input_ids"].feature.dtype == dtype
        assert rows(found) == [[vocab_size - 1, 0]]


@pytest.mark.thorough
@pytest.mark.parametrize("streaming", [True, False])
def test_folders_beside_each_other_are_splits(tmp_path, load, streaming):
    train, test = write(tmp_path / "both" / "train"), write(tmp_path / "both" / "test", count=9, seed=1)
    (tmp_path / "both" / "notes.txt").write_text("something else")
    found = load(data_dir=str(tmp_path / "both"), split=None, streaming=streaming)
    assert list(found) == ["train", "test"]
    assert rows(found["train"]) == documents(train)
    assert rows(found["test"]) == documents(test)


def test_many_documents_are_prepared_in_several_tables_and_a_long_one_in_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(token_shards, "_TABLE_TOKENS", 100)
    sizes = [30, 30, 30, 500, 5, 5, 97, 1]
    folder = tmp_path / "a"
    write_tokens([[7] * size for size in sizes], folder, vocab_size=9, eos_id=0, tokenizer_hash="", corpus="test")
    tables = list(TokenExamples(TokenStream(folder), None, 1).tables())
    found = [row for table in tables for row in table["input_ids"].to_pylist()]
    assert found == [[7] * size + [0] for size in sizes]
    assert [table.num_rows for table in tables] == [3, 1, 2, 2]


@pytest.mark.thorough
@pytest.mark.parametrize("num_proc", [2, 3])
def test_several_processes_prepare_the_same_rows_in_the_same_order(load, stream, num_proc):
    found = load(streaming=False, num_proc=num_proc)
    assert rows(found) == documents(stream)
    assert len(found.cache_files) == num_proc, "each process writes a file"
    assert rows(load(streaming=False, num_proc=num_proc, length=16, num_shards=5)) == windows(stream, 16)


def test_rewritten_shards_give_new_data_not_the_stale_cache(load, stream, read, tmp_path):
    # Where `datasets` finds such a name it looks at nothing else.
    (tmp_path / "test.log").write_text("the same, before and after")
    shutil.copy2(tmp_path / "test.log", stream.folder)
    first = rows(load(streaming=False))
    read.clear()
    assert rows(load(streaming=False)) == first
    assert read == [], "the same shards: prepared once"
    other = write(stream.folder, seed=5, overwrite=True)
    shutil.copy2(tmp_path / "test.log", stream.folder)
    assert rows(load(streaming=False)) == documents(other) != first


# Resuming


def resumed(load, state, **settings):
    stream = load(**settings)
    stream.load_state_dict(state)
    return stream


@pytest.mark.thorough
@pytest.mark.parametrize("length", [None, 16])
@pytest.mark.parametrize("count", [0, 1, 50])
def test_a_resumed_stream_continues_at_the_next_row(load, stream, length, count):
    expected = documents(stream) if length is None else windows(stream, length)
    first = load(length=length)
    assert rows(first, count) == expected[:count]
    again = resumed(load, pickle.loads(pickle.dumps(first.state_dict())), length=length)
    assert rows(again) == expected[count:]


@pytest.mark.thorough
@pytest.mark.parametrize("length", [None, 16])
def test_resuming_reads_none_of_the_rows_before(tmp_path, load, read, length):
    stream = write(tmp_path / "long", count=3000, shard_tokens=10**5)
    expected = documents(stream) if length is None else windows(stream, length)
    settings = {"data_dir": str(stream.folder), "length": length}
    state = load(**settings).state_dict()
    state["examples_iterable"]["examples_iterable"]["next"] = len(expected) - 10
    read.clear()
    assert rows(resumed(load, state, **settings)) == expected[-10:]
    assert sum(read) == sum(map(len, expected[-10:]))


def test_opening_a_stream_reads_nothing(load, read):
    load()
    load(length=16)
    assert read == []


# Ranks, workers, order


@pytest.mark.thorough
@pytest.mark.parametrize("length", [None, 16])
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_out_the_rows_in_their_order(load, stream, world_size, length):
    expected = documents(stream) if length is None else windows(stream, length)
    shares = [rows(split_dataset_by_node(load(length=length), rank, world_size)) for rank in range(world_size)]
    assert shares == [expected[rank::world_size] for rank in range(world_size)]


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/datasets/issues/3423",
    "stream with several loader workers without every row coming once per worker",
    "each row comes once for any numbers of ranks, workers and shards: all combinations of four of each are tried",
)
@pytest.mark.parametrize(("world_size", "workers"), [(1, 2), (2, 2), (5, 0)])
def test_ranks_and_loader_workers_read_every_row_once(load, stream, world_size, workers):
    seen = []
    for rank in range(world_size):
        share = split_dataset_by_node(load(length=16).with_format("torch"), rank, world_size)
        loader = DataLoader(share, batch_size=3, num_workers=workers)
        seen += [row for batch in loader for row in batch["input_ids"].tolist()]
    assert sorted(seen) == sorted(windows(stream, 16))


@pytest.mark.thorough
def test_shuffling_permutes_the_whole_and_ranks_still_share_it(load, stream):
    def shuffled():
        return load(length=16).shuffle(seed=3, buffer_size=1)

    whole = rows(shuffled())
    assert sorted(whole) == sorted(windows(stream, 16))
    assert whole != windows(stream, 16)
    shares = [rows(split_dataset_by_node(shuffled(), rank, 2)) for rank in range(2)]
    assert sorted(chain(*shares)) == sorted(whole)
    assert rows(load(length=16).shuffle(seed=4, buffer_size=1)) != whole


# Errors


@pytest.mark.thorough
def test_folders_without_shards_are_named(load, tmp_path, stream):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("nothing here")
    message = error(load, data_dir=str(tmp_path / "empty"))
    assert message.startswith(f"{tmp_path / 'empty'}: no index.json; expected a folder written by tokenize_corpus")
    assert "pass data_dir=" in error(load, data_dir=None, data_files=str(stream.folder / "index.json"))
    write(tmp_path / "mixed" / "train")
    write(tmp_path / "mixed" / "test", tokenizer_hash="two")
    assert "train and test are of different tokenizers" in error(load, data_dir=str(tmp_path / "mixed"))
    shutil.copytree(stream.folder, tmp_path / "torn")
    (tmp_path / "torn" / "00000.ds").write_bytes(b"")
    assert str(tmp_path / "torn" / "00000.ds") in error(load, data_dir=str(tmp_path / "torn"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 0}, "length is 0; expected an integer in [2"),
        ({"num_shards": 0}, "num_shards is 0; expected an integer in [1"),
        ({"length": 10**9}, "length=1000000000, but "),
    ],
)
def test_settings_out_of_range_are_refused_by_name(load, settings, message):
    assert error(load, **settings).startswith(message)
