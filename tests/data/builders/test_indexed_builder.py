"""Streams in every format give the same rows, have a state exact to the row, and draw no row in vain."""

import pickle
from itertools import chain, islice

import numpy as np
import pytest
import torch
from datasets import concatenate_datasets, interleave_datasets, load_dataset_builder
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader

import hmm_datasets  # noqa: F401 (makes "hmm" and "token_shards" known)
from hmm_datasets.data.builders import indexed_builder as examples
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families import PermutedSymbols
from hmm_datasets.hmm.model import HMM
from hmm_datasets.text.stream import write_tokens

MESS3 = processes.mess3(0.15, 0.6)
FORMATS = [None, "torch", "numpy", "arrow"]
SOURCES = ["hmm", "family", "windows", "documents"]
COUNT, LENGTH = 2600, 8  # two Arrow tables and a part of a third


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    MESS3.save_pretrained(folder / "hmm")
    PermutedSymbols(MESS3, group=2).save_pretrained(folder / "family")
    generator = np.random.default_rng(0)
    documents = [generator.integers(1, 300, 2 * LENGTH - 1) for _ in range(COUNT // 2)]
    write_tokens(
        documents, folder / "tokens", vocab_size=300, eos_id=0, tokenizer_hash="", corpus="t", shard_tokens=9000
    )
    return folder


@pytest.fixture(scope="module")
def load(folders):
    builders = {}

    def load(source="hmm", **settings):
        key = (source, *settings.items())
        if key not in builders:
            builders[key] = builder(source, settings)
        return builders[key].as_streaming_dataset(split="train")

    def builder(source, settings):
        if source in ("hmm", "family"):
            settings = {"length": LENGTH, "num_sequences": COUNT} | settings
            return load_dataset_builder("hmm", data_dir=str(folders / source), **settings)
        length = LENGTH if source == "windows" else None
        return load_dataset_builder("token_shards", data_dir=str(folders / "tokens"), length=length, **settings)

    return load


def rows(stream, count=None, column="input_ids") -> list[list[int]]:
    """Rows of a stream, batches one by one, in whatever format."""
    found = []
    for item in islice(stream, count):
        values = item[column]
        if hasattr(values, "to_pylist"):
            values = values.to_pylist()
            values = values[0] if isinstance(values[0][0], list) else values
        else:
            values = values if isinstance(values, list) else values.tolist()
        found += values if isinstance(values[0], list) else [values]
    return found


def resumed(stream, state):
    stream.load_state_dict(pickle.loads(pickle.dumps(state)))
    return stream


def batched(stream, format, batch_size=256):
    return stream.with_format(format).batch(batch_size)


# What a format gives


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/datasets/pull/7787",
    "tensors of the torch format without needless copies",
    "`datasets` makes tensors of streams here too; its formatters are no longer replaced",
)
@pytest.mark.parametrize("source", SOURCES)
def test_every_format_gives_the_same_rows_one_by_one_and_in_batches(load, source):
    expected = rows(load(source))
    assert len(expected) == (COUNT // 2 if source == "documents" else COUNT)
    for format in FORMATS[1:]:
        assert rows(load(source).with_format(format)) == expected
        assert rows(batched(load(source), format)) == expected
        assert rows(load(source).with_format(format).iter(100)) == expected


@pytest.mark.thorough
@pytest.mark.parametrize("source", SOURCES[:3])
def test_tensors_are_what_models_take(load, source):
    row, batch = next(iter(load(source).with_format("torch"))), next(iter(batched(load(source), "torch")))
    assert list(row) == list(batch) == ["input_ids", "labels"]
    assert {column.dtype for column in (*row.values(), *batch.values())} == {torch.int64}
    length = LENGTH + (source in ("hmm", "family"))  # a beginning token
    assert (row["labels"].shape, batch["labels"].shape) == ((length,), (256, length))
    batch["input_ids"][:] = 0
    assert batch["labels"].any(), "columns share no memory"


def test_documents_have_no_labels_but_where_asked(load):
    assert load("documents").column_names == ["input_ids"]
    assert load("documents", labels=True).column_names == ["input_ids", "labels"]
    assert load("hmm", columns=("input_ids",)).column_names == ["input_ids"]


@pytest.mark.thorough
@pytest.mark.parametrize("source", SOURCES[:3])
def test_rows_and_tables_have_labels_equal_to_the_tokens_but_for_the_first(load, source):
    for stream in (load(source), load(source).with_format("torch"), load(source).with_format("arrow").batch(50)):
        assert rows(stream, 700, "labels") == [[-100, *row[1:]] for row in rows(stream, 700)]


# State


@pytest.mark.thorough
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("format", FORMATS)
def test_a_formatted_stream_resumes_exactly_where_it_stopped(load, source, format):
    expected = rows(load(source))
    for read in (0, 257, 1024, len(expected)):
        stream = load(source).with_format(format)
        assert rows(stream, read) == expected[:read]
        assert rows(resumed(load(source).with_format(format), stream.state_dict()), 40) == expected[read : read + 40]


@pytest.mark.thorough
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("format", FORMATS)
def test_a_stream_in_batches_continues_at_the_next_batch(load, source, format):
    expected, batch_size = rows(load(source)), 300
    for read in (1, 4):
        stream = batched(load(source), format, batch_size)
        seen = rows(stream, read)
        assert seen == expected[: read * batch_size]
        assert seen + rows(resumed(batched(load(source), format, batch_size), stream.state_dict())) == expected


def test_batches_as_large_as_a_part_of_a_table_are_resumed_at_every_one_of_them(load):
    expected = rows(load())
    for read in range(10):
        stream = batched(load(), "torch")
        seen = rows(stream, read)
        assert seen + rows(resumed(batched(load(), "torch"), stream.state_dict())) == expected


@pytest.mark.thorough
def test_resuming_again_and_again_in_the_middle_of_tables_repeats_and_loses_no_row(load):
    expected, seen = rows(load()), []
    stream = load().with_format("torch")
    for count in (10, 300, 1024, 7, 1, 900):
        seen += rows(stream, count)
        stream = resumed(load().with_format("torch"), stream.state_dict())
    assert seen + rows(stream) == expected
    seen, stream = [], batched(load(), "torch", 100)
    for count in (1, 3, 7, 2):
        seen += rows(stream, count)
        stream = resumed(batched(load(), "torch", 100), stream.state_dict())
    assert seen + rows(stream) == expected


@pytest.mark.thorough
@pytest.mark.parametrize("world_size", [2, 5])
@pytest.mark.parametrize("in_batches", [False, True])
def test_ranks_resume_in_their_own_share_of_a_formatted_stream(load, world_size, in_batches):
    def share(rank):
        stream = split_dataset_by_node(load(), rank, world_size).with_format("torch")
        return stream.batch(64) if in_batches else stream

    expected, shares = rows(load()), []
    for rank in range(world_size):
        stream = share(rank)
        seen = rows(stream, 3)
        shares.append(seen + rows(resumed(share(rank), stream.state_dict())))
    assert sorted(chain(*shares)) == sorted(expected)
    if world_size == 2 and not in_batches:
        assert shares == [expected[rank::2] for rank in range(2)]


def test_resuming_far_into_a_formatted_stream_draws_one_table(load, monkeypatch):
    drawn, sample = [], HMM.sample
    monkeypatch.setattr(
        HMM, "sample", lambda self, count, *a, **k: drawn.append(count) or sample(self, count, *a, **k)
    )
    number = 10**12 - 1
    for prepare in (lambda s: s.with_format("torch"), lambda s: batched(s, "torch", 5)):
        stream = prepare(load(num_sequences=None))
        rows(stream, 3)
        state = pickle.loads(pickle.dumps(stream.state_dict()), encoding="utf-8")
        found = _places(state)
        assert found, "the state has the number of the next row"
        for part in found:
            part["next"] = number
        drawn.clear()
        assert rows(resumed(prepare(load(num_sequences=None)), state), 1)
        assert sum(drawn) <= 2 * examples._STREAMED_TABLE


def _places(state) -> list[dict]:
    """The parts of a state that say at which row an HMM's stream is."""
    if not isinstance(state, dict):
        return []
    inner = [part for value in state.values() for part in _places(value)]
    return inner + ([state] if "next" in state else [])


# What is built on a stream


@pytest.mark.thorough
@pytest.mark.parametrize("format", FORMATS)
def test_parts_of_a_stream_are_its_rows(load, format):
    expected = rows(load())
    stream = load().with_format(format)
    assert rows(stream.skip(1030).take(500)) == expected[1030:1530]
    assert rows(stream.take(300).batch(256)) == expected[:300]
    assert rows(stream.shard(4, 1)) == expected[1::4]
    assert rows(stream.take(300).repeat(2)) == expected[:300] * 2
    assert sorted(rows(stream.shuffle(seed=1, buffer_size=500))) == sorted(expected)
    assert rows(stream.select_columns("labels"), 5, "labels") == [[-100, *row[1:]] for row in expected[:5]]


@pytest.mark.thorough
def test_streams_are_mapped_filtered_mixed_and_joined(load):
    expected = rows(load())
    stream = load().with_format("torch")
    assert rows(stream.map(lambda row: {"input_ids": row["input_ids"] + 1}), 5) == np.add(expected[:5], 1).tolist()
    assert rows(load().map(lambda row: {"input_ids": row["input_ids"][1:]}), 5) == [row[1:] for row in expected[:5]]
    assert rows(stream.filter(lambda row: row["input_ids"][0] == 0)) == [row for row in expected if row[0] == 0]
    assert rows(concatenate_datasets([stream.take(3), stream.take(2)])) == expected[:3] + expected[:2]
    assert rows(interleave_datasets([stream, stream.skip(7)]), 4) == [
        expected[0],
        expected[7],
        expected[1],
        expected[8],
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("in_batches", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_give_every_row_once(load, in_batches, workers):
    stream = load(num_sequences=700).with_format("torch")
    if in_batches:
        loader = DataLoader(stream.batch(100), batch_size=None, num_workers=workers)
    else:
        loader = DataLoader(stream, batch_size=100, num_workers=workers)
    seen = [row for batch in loader for row in batch["input_ids"].tolist()]
    assert sorted(seen) == sorted(rows(load(num_sequences=700)))
    assert workers or seen == rows(load(num_sequences=700))


# Speed
