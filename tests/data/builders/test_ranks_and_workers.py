"""Every row of a stream is read once, whatever the numbers of ranks, loader workers and shards."""

import contextlib
import json
from collections import Counter
from itertools import chain, islice, product

import numpy as np
import pytest
from datasets import concatenate_datasets, interleave_datasets, load_dataset_builder
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader, _utils, get_worker_info

import hmm_datasets  # noqa: F401 (makes "hmm" and "token_shards" known)
from hmm_datasets.hmm import processes
from hmm_datasets.text.corpora.loading import load_corpus
from hmm_datasets.text.stream import write_tokens

RANKS, WORKERS, SHARDS = (1, 2, 3, 8), (0, 1, 3, 5), (1, 4, 7, 48)
KINDS = ("hmm", "windows", "documents", "text")
OPERATIONS = {
    "shuffled": lambda stream: stream.shuffle(seed=3, buffer_size=5),
    "mapped": lambda stream: stream.map(lambda row: {"input_ids": row["input_ids"][::-1]}),
    "filtered": lambda stream: stream.filter(lambda row: sum(row["input_ids"]) % 2 == 0),
    "batched": lambda stream: stream.map(lambda rows: rows, batched=True, batch_size=4),
    "first": lambda stream: stream.take(17),
    "without the first": lambda stream: stream.skip(5),
    "repeated": lambda stream: stream.repeat(2),
    "concatenated": lambda stream: concatenate_datasets([stream, stream]),
    "interleaved": lambda stream: interleave_datasets([stream, stream], stopping_strategy="all_exhausted"),
    "as arrays": lambda stream: stream.with_format("numpy"),
}
COUNT, LENGTH = 53, 4


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams")
    processes.mess3().save_pretrained(folder / "hmm")
    generator = np.random.default_rng(0)
    documents = [generator.integers(1, 300, size) for size in generator.integers(1, 9, COUNT)]
    write_tokens(
        documents, folder / "tokens", vocab_size=300, eos_id=0, tokenizer_hash="", corpus="t", shard_tokens=99
    )
    lines = (json.dumps({"text": f"document {number}"}) + "\n" for number in range(COUNT))
    (folder / "text.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def load(folders):
    builders = {}

    def load(kind, shards):
        if kind == "text":
            return load_corpus(str(folders / "text.jsonl"), test_fraction=0)
        if (kind, shards) not in builders:
            length = None if kind == "documents" else LENGTH
            name, folder, more = {
                "hmm": ("hmm", "hmm", {"num_sequences": COUNT}),
            }.get(kind, ("token_shards", "tokens", {}))
            builders[kind, shards] = load_dataset_builder(
                name, data_dir=str(folders / folder), length=length, num_shards=shards, **more
            )
        return builders[kind, shards].as_streaming_dataset(split="train")

    return load


@contextlib.contextmanager
def in_worker(number: int, count: int, stream):
    """What a process of a DataLoader has set, as `get_worker_info` returns it; without workers nothing."""
    if count:
        _utils.worker._worker_info = _utils.worker.WorkerInfo(id=number, num_workers=count, seed=0, dataset=stream)
    try:
        yield
    finally:
        _utils.worker._worker_info = None


def row_of(row) -> tuple | str:
    return row["text"] if "text" in row else tuple(map(int, row["input_ids"]))


def shares(make, ranks: int, workers: int) -> list[list]:
    """The rows that each worker of each rank reads."""
    read = []
    for rank, worker in product(range(ranks), range(max(1, workers))):
        stream = split_dataset_by_node(make(), rank, ranks)
        with in_worker(worker, workers, stream):
            read.append([row_of(row) for row in stream])
    return read


@pytest.mark.thorough
def test_the_workers_of_this_file_are_those_of_a_loader(load):
    stream = load("hmm", 4)
    with in_worker(3, 5, stream):
        assert (get_worker_info().id, get_worker_info().num_workers) == (3, 5)
    assert get_worker_info() is None
    loader = DataLoader(stream, batch_size=None, num_workers=2)
    assert sorted(map(row_of, loader)) == sorted(chain(*shares(lambda: load("hmm", 4), 1, 2)))


@pytest.mark.outside(
    "https://github.com/huggingface/datasets/issues/7999",
    "more loader workers than shards without losing rows",
    "each row comes once for any number of ranks, workers and shards; workers above the number of shards read nothing",
)
@pytest.mark.parametrize("kind", KINDS)
def test_every_row_comes_once_for_any_numbers_of_ranks_workers_and_shards(load, kind):
    for shards in SHARDS:
        expected = Counter(map(row_of, load(kind, shards)))
        for ranks, workers in product(RANKS, WORKERS):
            read = Counter(chain(*shares(lambda: load(kind, shards), ranks, workers)))  # noqa: B023
            assert read == expected, (ranks, workers, shards)


@pytest.mark.thorough
@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_on_a_stream_lose_no_row_either(load, operation):
    apply = OPERATIONS[operation]
    for shards in SHARDS:
        expected = Counter(map(row_of, apply(load("windows", shards))))
        for ranks, workers in product((1, 3), WORKERS):
            read = Counter(chain(*shares(lambda: apply(load("windows", shards)), ranks, workers)))  # noqa: B023
            assert read == expected, (ranks, workers, shards)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS[:-1])
def test_ranks_that_read_in_step_see_the_order_of_the_stream(load, kind):
    for shards, ranks in product(SHARDS, RANKS):
        expected = list(map(row_of, load(kind, shards)))
        assert shares(lambda: load(kind, shards), ranks, 0) == [expected[rank::ranks] for rank in range(ranks)]  # noqa: B023


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS[:-1])
def test_each_worker_resumes_at_its_next_row(load, kind):
    for shards, ranks, workers in product(SHARDS, (1, 3), (0, 3, 5)):
        for rank, worker in product(range(ranks), range(max(1, workers))):
            stream, again = (split_dataset_by_node(load(kind, shards), rank, ranks) for _ in range(2))
            with in_worker(worker, workers, stream):
                expected = list(map(row_of, stream))
                for count in {0, len(expected) // 2, len(expected)}:
                    first = [row_of(row) for row in islice(stream, count)]
                    if count:
                        again.load_state_dict(stream.state_dict())
                        first += map(row_of, again)
                        assert first == expected, (rank, ranks, worker, workers, shards, count)


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/datasets/pull/6582",
    "split a stream over ranks, and each rank over more loader workers than it has shards left",
    "each row comes once; real loaders, 4 shards on 2 ranks of 3 workers",
)
@pytest.mark.parametrize(("ranks", "workers", "shards"), [(1, 5, 4), (1, 8, 4), (2, 3, 4), (2, 5, 7)])
def test_real_loaders_read_every_row_once(load, ranks, workers, shards):
    streams = [split_dataset_by_node(load("hmm", shards), rank, ranks) for rank in range(ranks)]
    read = [row_of(row) for stream in streams for row in DataLoader(stream, batch_size=None, num_workers=workers)]
    assert Counter(read) == Counter(map(row_of, load("hmm", shards)))


@pytest.mark.thorough
def test_many_ranks_with_fewer_shards_left_than_workers_lose_no_row_of_theirs(load):
    read = shares(lambda: load("hmm", 48), 16, 4)
    whole = [row_of(row) for row in load("hmm", 48)]
    for rank in range(16):
        assert sorted(chain(*read[4 * rank : 4 * rank + 4])) == sorted(whole[rank::16])
