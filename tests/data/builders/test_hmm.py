import pickle
import re
import subprocess
import sys
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest
from datasets import Features, List, Value, load_dataset
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader

import hmm_datasets  # noqa: F401 (makes "hmm" known)
from hmm_datasets.data.builders.hmm import HMMExamples
from hmm_datasets.data.sequences import TEST_FIRST, HMMSequences
from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families import PermutedSymbols
from hmm_datasets.hmm.model import HMM

MESS3 = processes.mess3(0.15, 0.6)


@pytest.fixture
def folder(tmp_path) -> Path:
    MESS3.save_pretrained(tmp_path / "hmm")
    return tmp_path / "hmm"


@pytest.fixture
def load(folder, tmp_path):
    def load(**settings):
        settings = {"data_dir": str(folder), "length": 8, "split": "train", "streaming": True, **settings}
        return load_dataset("hmm", cache_dir=str(tmp_path / "cache"), **{"bos": False} | settings)

    return load


@pytest.fixture
def drawn(monkeypatch) -> list[int]:
    """Rows asked of `HMM.sample`, a number a call."""
    calls = []
    sample = HMM.sample

    def counting(self, num_sequences, *arguments, **settings):
        calls.append(num_sequences)
        return sample(self, num_sequences, *arguments, **settings)

    monkeypatch.setattr(HMM, "sample", counting)
    return calls


def rows(dataset, count=None) -> list[list[int]]:
    return [row["input_ids"] for row in islice(dataset, count)]


def sequences(count, length=8, **settings) -> list[list[int]]:
    return MESS3.sample(count, length, **settings).tolist()


def error(function, *arguments, **settings) -> str:
    with pytest.raises(InputError) as caught:
        function(*arguments, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What it reads


def test_a_stream_is_the_sequences_of_the_hmm_without_end(load):
    assert rows(load(seed=5), 600) == sequences(600, seed=5)


@pytest.mark.outside(
    "https://github.com/huggingface/datasets/issues/7693",
    "`load_dataset` of data that are computed, now that scripts are refused",
    '`load_dataset("hmm", "mess3", length=64)` is a builder of the package, streaming or prepared',
)
def test_a_prepared_data_set_has_the_rows_of_the_stream(load):
    settings = {"seed": 5, "num_sequences": 700, "num_test_sequences": 20, "split": None}
    stream, table = load(**settings), load(streaming=False, **settings)
    assert sorted(stream) == sorted(table) == ["test", "train"]
    for split in stream:
        assert rows(stream[split]) == rows(table[split])
        expected = Features({"input_ids": List(Value("uint8")), "labels": List(Value("int16"))})
        assert stream[split].features == table[split].features == expected
    assert rows(table["train"]) == sequences(700, seed=5)
    assert rows(table["test"]) == sequences(20, seed=5, first=TEST_FIRST)


@pytest.mark.thorough
def test_long_sequences_are_prepared_in_several_tables():
    examples = HMMExamples(MESS3, 2**20, 1, 7, 9, 1, False, 48)
    tables = list(examples.tables())
    assert [table.num_rows for table in tables] == [4, 4, 1]
    found = np.concatenate([column.flatten().to_numpy() for t in tables for column in t["input_ids"].chunks])
    np.testing.assert_array_equal(found.reshape(9, -1), MESS3.sample(9, 2**20, seed=1, first=7))


@pytest.mark.thorough
@pytest.mark.parametrize(("symbols", "plain", "with_bos"), [(3, "uint8", "uint8"), (256, "uint8", "uint16")])
def test_a_beginning_token_widens_the_type_where_it_must(load, folder, symbols, plain, with_bos):
    processes.random(2, symbols, seed=1).save_pretrained(folder)
    hmm = HMM.from_pretrained(folder)
    assert load(num_sequences=3).features["input_ids"].feature.dtype == plain
    for streaming in (True, False):
        found = load(num_sequences=3, bos=True, streaming=streaming)
        assert found.features["input_ids"].feature.dtype == with_bos
        assert rows(found) == [[symbols, *row] for row in hmm.sample(3, 8).tolist()]


@pytest.mark.thorough
def test_a_family_is_streamed_and_prepared_as_an_hmm_is(load, tmp_path):
    family = PermutedSymbols(MESS3, group=2)
    family.save_pretrained(tmp_path / "family")
    expected = family.sample(60, 8, seed=4).tolist()
    settings = {"data_dir": str(tmp_path / "family"), "seed": 4}
    assert rows(load(**settings), 60) == expected
    assert rows(load(streaming=False, num_sequences=60, **settings)) == expected


def test_other_files_in_the_folder_do_not_hide_the_model(load, folder):
    for name in ("train.log", "test/data.json", "checkpoints/step-9/hmm/model.safetensors"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("something else")
    assert rows(load(), 5) == sequences(5)
    assert rows(load(streaming=False, num_sequences=5)) == sequences(5)


def test_tables_that_are_not_those_of_the_settings_are_refused(load, folder, tmp_path):
    processes.mess3(0.3, 0.9).save_pretrained(tmp_path / "other")
    (folder / "model.safetensors").write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    for streaming in (True, False):
        message = error(load, streaming=streaming, num_sequences=5)
        assert message.startswith(f"{folder / 'model.safetensors'}: tables have fingerprint")


# Resuming


def resumed(load, state, **settings):
    stream = load(**settings)
    stream.load_state_dict(state)
    return stream


@pytest.mark.thorough
@pytest.mark.parametrize("read", [0, 1, 255, 256, 300])
def test_a_resumed_stream_continues_at_the_next_row(load, read):
    stream = load()
    assert rows(stream, read) == sequences(read)
    assert rows(resumed(load, stream.state_dict()), 5) == sequences(5, first=read)


@pytest.mark.outside(
    "https://github.com/huggingface/datasets/issues/8308",
    "resume a stream twice without starting over",
    "each resume continues at the next sequence",
)
def test_resuming_twice_repeats_no_sequence(load):
    stream, seen = load(num_sequences=1000), []
    for count in (10, 300, 7):
        seen += rows(stream, count)
        stream = resumed(load, pickle.loads(pickle.dumps(stream.state_dict())), num_sequences=1000)
    seen += rows(stream)
    assert seen == sequences(1000)


def test_a_second_epoch_starts_over(load):
    stream = load(num_sequences=4)
    assert rows(stream) == rows(stream) == sequences(4)
    again = resumed(load, stream.state_dict(), num_sequences=4)
    assert rows(again) == []
    again.set_epoch(1)
    assert rows(again) == sequences(4)


@pytest.mark.outside(
    "https://github.com/huggingface/datasets/issues/5454",
    "resume without iterating over all past data, as `skip` does",
    "the position is a number: nothing before it is computed",
)
def test_resuming_draws_none_of_the_rows_before(load, drawn):
    stream = load()
    rows(stream, 3)
    state = stream.state_dict()
    position = state
    while "next" not in position:  # datasets 5 has one more layer than 4.7
        position = position["examples_iterable"]
    position["next"] = 10**12 - 1
    drawn.clear()
    assert rows(resumed(load, state), 1) == MESS3.sample(1, 8, first=10**12 - 1).tolist()
    assert sum(drawn) <= 256 + 1


def test_opening_a_stream_draws_nothing(load, drawn):
    load()
    assert drawn == []


# Ranks and workers


@pytest.mark.thorough
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("count", [100, 101])
def test_ranks_share_out_the_stream_in_its_order(load, world_size, count):
    shares = [rows(split_dataset_by_node(load(num_sequences=count), rank, world_size)) for rank in range(world_size)]
    whole = sequences(count)
    assert shares == [whole[rank::world_size] for rank in range(world_size)]


def test_a_rank_draws_its_share_alone(load, drawn):
    list(split_dataset_by_node(load(num_sequences=3000), 1, 3))
    assert sum(drawn) == 1000


def test_a_number_of_ranks_that_does_not_divide_the_shards_still_partitions_the_stream(load):
    # `datasets` then draws every row on every rank; slower, but no row is lost.
    shares = [rows(split_dataset_by_node(load(num_sequences=70), rank, 5)) for rank in range(5)]
    assert sorted(chain(*shares)) == sorted(sequences(70))


@pytest.mark.thorough
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_rank_resumes_in_its_own_share(load, world_size):
    for rank in range(world_size):
        stream = split_dataset_by_node(load(), rank, world_size)
        first = rows(stream, 30)
        again = split_dataset_by_node(load(), rank, world_size)
        again.load_state_dict(stream.state_dict())
        expected = MESS3.sample(40, 8, first=rank, step=world_size).tolist()
        assert first + rows(again, 10) == expected


@pytest.mark.thorough
@pytest.mark.parametrize(("world_size", "workers"), [(1, 2), (2, 2)])
def test_loader_workers_read_every_row_once(load, world_size, workers):
    seen = []
    for rank in range(world_size):
        stream = split_dataset_by_node(load(num_sequences=50).with_format("torch"), rank, world_size)
        loader = DataLoader(stream, batch_size=3, num_workers=workers)
        seen += [row for batch in loader for row in batch["input_ids"].tolist()]
    assert sorted(seen) == sorted(sequences(50))


def test_more_ranks_and_workers_than_rows_lose_none(load):
    shares = [rows(split_dataset_by_node(load(num_sequences=2), rank, 3)) for rank in range(3)]
    assert sorted(chain(*shares)) == sorted(sequences(2))


def test_shuffling_keeps_the_order_since_draws_are_independent(load):
    stream = load().shuffle(seed=3, buffer_size=1)
    assert rows(stream, 20) == sequences(20)


# The cache


def test_a_changed_model_file_gives_new_data_not_the_stale_cache(load, folder, drawn):
    settings = {"streaming": False, "num_sequences": 30}
    first = rows(load(**settings))
    drawn.clear()
    assert rows(load(**settings)) == first
    assert drawn == [], "the same model file: prepared once"
    other = processes.mess3(0.3, 0.9)
    other.save_pretrained(folder)
    assert rows(load(**settings)) == other.sample(30, 8).tolist() != first


def test_other_settings_give_other_data(load):
    settings = {"streaming": False, "num_sequences": 10}
    first = rows(load(**settings))
    assert rows(load(**settings, seed=1)) == sequences(10, seed=1) != first
    assert rows(load(**{**settings, "num_sequences": 11})) == sequences(11)


def test_rows_are_those_of_the_map_style_data_set_by_default(folder):
    stream = load_dataset("hmm", data_dir=str(folder), length=8, split="train", streaming=True)
    sequences = HMMSequences(MESS3, 8)
    assert rows(stream, 50) == [sequences[index]["input_ids"].tolist() for index in range(50)]


# Registration

CHILD = """
import sys
{imports}
rows = load_dataset("hmm", data_dir=sys.argv[1], length=8, bos=False, streaming=True, split="train")
print(next(iter(rows))["input_ids"])
from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES as table
assert "json" in table and table["hmm"][0] == "hmm_datasets.data.builders.hmm"
assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("hmm_datasets")]
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "imports",
    [
        "import hmm_datasets\nassert 'datasets' not in sys.modules\nfrom datasets import load_dataset",
        "from datasets import load_dataset\nimport hmm_datasets\nhmm_datasets._register()",
    ],
    ids=["this package first", "datasets first"],
)
def test_the_name_is_known_whichever_package_is_imported_first(imports, folder, child_environment, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(imports=imports), folder],
        env={**child_environment, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(sequences(1)[0])


# Errors


def test_an_endless_data_set_is_not_written_to_disk(load, tmp_path):
    message = error(load, streaming=False)
    assert message == "an endless data set cannot be stored; pass num_sequences=, or streaming=True"
    assert not list((tmp_path / "cache").rglob("*.arrow"))


def test_a_folder_without_a_model_is_named(load, folder, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("no model here")
    message = error(load, data_dir=str(tmp_path / "empty"))
    assert message.startswith(f"{tmp_path / 'empty' / 'config.json'}: ")
    message = error(load, data_files=str(tmp_path / "empty" / "notes.txt"))
    assert message.startswith(f"data_files is given beside {folder}; pass a folder written by save_pretrained")


def test_a_torn_model_file_is_named(load, folder):
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-9])
    assert f"{folder / 'model.safetensors'}: not a complete safetensors file" in error(load)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 0}, "length is 0; expected an integer in [1, 2**32)"),
        ({"num_sequences": 0}, "num_sequences is 0; expected an integer in [1, 2**63)"),
        ({"num_test_sequences": -1}, "num_test_sequences is -1; expected an integer in [0, 2**63)"),
        ({"seed": -1}, "seed is -1; expected an integer in [0, 2**64)"),
        ({"seed": 2**64}, f"seed is {2**64}; expected an integer in [0, 2**64)"),
        ({"num_shards": 0}, "num_shards is 0; expected an integer in [1, 2**31)"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(load, settings, message):
    assert error(load, **settings) == message


@pytest.mark.parametrize("name", ["mess3(0.15, 0.6)", "process:mess3(x=0.15, a=0.6)"])
def test_a_name_stands_in_place_of_a_folder(load, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where files of other names are not looked at
    rows = list(load().take(3))
    assert list(load(data_dir=name).take(3)) == rows
    settings = {"length": 8, "bos": False, "cache_dir": str(tmp_path / "cache")}
    assert list(load_dataset("hmm", name, split="train", streaming=True, **settings).take(3)) == rows
    assert list(load_dataset("hmm", name, split="train", num_sequences=3, **settings)) == rows


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            None,
            "no process is named; pass a folder written by save_pretrained, USER/NAME on the Hub or a name such as",
        ),
        ("mes3", "did you mean mess3?"),
    ],
)
def test_without_a_process_the_error_says_what_to_name(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=re.escape(message)):
        load_dataset("hmm", name, split="train", streaming=True)
