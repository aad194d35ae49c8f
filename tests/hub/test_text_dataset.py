"""Token streams as Parquet: one document per row, in files of bounded size."""

import numpy as np
from datasets import Features, List, Value, load_dataset

from hmm_datasets.data.builders import token_shards
from hmm_datasets.hub.kinds.text import write_token_dataset
from hmm_datasets.text.stream import TokenStream, write_tokens

EOS = 999


def write(folder, sizes, seed=0):
    random = np.random.default_rng(seed)
    documents = [random.integers(0, EOS, size) for size in sizes]
    write_tokens(
        *(documents, folder), vocab_size=1000, eos_id=EOS, tokenizer_hash="one", corpus="test", shard_tokens=500
    )
    return TokenStream(folder)


def documents(stream):
    return [stream.document(number).tolist() for number in range(stream.num_documents)]


def rows(folder, cache, **settings):
    return load_dataset(str(folder), cache_dir=str(cache), **settings)


def test_files_of_bounded_size_read_back_equal(tmp_path, monkeypatch):
    monkeypatch.setattr(token_shards, "_TABLE_TOKENS", 300)
    sizes = np.random.default_rng(1).integers(1, 40, 120)
    train, test = write(tmp_path / "train", sizes), write(tmp_path / "test", sizes[:9], seed=1)
    (tmp_path / "out").mkdir()
    write_token_dataset(
        {"": {"train": train, "test": test}}, tmp_path / "out", name="x", max_shard_bytes=1000, show_progress=False
    )
    files = sorted((tmp_path / "out" / "data").glob("train-*"))
    assert len(files) >= train.num_tokens * 2 / 1000
    for file in files:
        alone = load_dataset("parquet", data_files=str(file), split="train", streaming=True)
        assert sum(len(row["input_ids"]) for row in alone) * 2 <= 1000
    found = rows(tmp_path / "out", tmp_path / "cache")
    assert found["train"].features == Features({"input_ids": List(Value("uint16"))})
    assert found["train"]["input_ids"][:] == documents(train)
    assert found["test"]["input_ids"][:] == documents(test)


def test_a_table_is_not_cut_and_no_row_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(token_shards, "_TABLE_TOKENS", 8)
    stream = write(tmp_path / "tokens", [3, 500, 3, 3])
    (tmp_path / "out").mkdir()
    write_token_dataset({"": {"train": stream}}, tmp_path / "out", name="x", max_shard_bytes=20, show_progress=False)
    files = sorted((tmp_path / "out" / "data").glob("train-*"))
    found = [load_dataset("parquet", data_files=str(file), split="train", streaming=True) for file in files]
    assert [[len(row["input_ids"]) - 1 for row in split] for split in found] == [[3], [500], [3, 3]]
