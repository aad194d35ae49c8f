import csv
import gzip
import json
import pickle
import subprocess
import sys

import datasets
import pyarrow as pa
import pytest
from datasets.distributed import split_dataset_by_node
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from torch.utils.data import DataLoader

from hmm_datasets.errors import InputError
from hmm_datasets.foreign import sizes as foreign_sizes
from hmm_datasets.text.corpora.conversations import read_messages
from hmm_datasets.text.corpora.loading import load_corpus, load_prompts, read_splits
from hmm_datasets.text.corpora.local_files import check_text
from hmm_datasets.text.corpora.presets import CORPORA, SAMPLES, corpus_rows
from hmm_datasets.text.corpora.splits import held_out

STORIES = [f"Story {number} is about a cat." for number in range(200)]
CHAT = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]


def texts(name_or_path, **settings) -> list[str]:
    return [row["text"] for row in load_corpus(name_or_path, **settings)]


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def message(function, *args, **settings) -> str:
    with pytest.raises(InputError) as caught:
        function(*args, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Bundled samples


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["tinystories-sample", "instructions-sample"])
def test_a_sample_splits_into_train_and_test_and_loses_nothing(name):
    parts = [list(load_corpus(name, split=split)) for split in ("train", "test")]
    assert sum(map(len, parts)) == CORPORA[name].documents
    assert 0.07 < len(parts[1]) / CORPORA[name].documents < 0.13
    assert list(load_corpus(name, split="test", streaming=False)) == parts[1]


def test_samples_are_small_and_reproducible_gzip():
    for file in SAMPLES.glob("*.gz"):
        data = file.read_bytes()
        assert len(data) < 1_400_000
        assert data[4:8] == bytes(4), "a time stamp would change the file at every build"


def test_the_stories_sample_holds_whole_stories_of_the_right_form():
    stories = texts("tinystories-sample", test_fraction=0.0)
    assert stories[0].startswith("One day, a little girl named Lily found a needle")
    assert all(story and story == story.strip() and "<|endoftext|>" not in story for story in stories)


def test_the_instructions_sample_puts_the_input_after_a_blank_line():
    chats = [row["messages"] for row in load_corpus("instructions-sample", test_fraction=0.0)]
    assert chats[1] == [
        {"role": "user", "content": "Edit the following sentence for grammar.\n\nHe go to the park every day."},
        {"role": "assistant", "content": "He goes to the park every day."},
    ]
    assert chats[2][0]["content"] == "Convert 45 kilometers to meters."


def test_the_readme_names_every_sample():
    readme = (SAMPLES / "README.md").read_text()
    assert all(file.name in readme for file in SAMPLES.rglob("*.gz"))
    assert "CDLA-Sharing-1.0" in readme
    assert "Apache-2.0" in readme


def test_the_table_of_corpora_says_where_each_comes_from_and_how_large_it_is():
    rows = {row["name"]: row for row in corpus_rows()}
    assert set(rows) == set(CORPORA)
    assert all(row["licence"] and row["documents"] for row in rows.values())
    assert rows["fineweb-edu"]["source"] == "HuggingFaceFW/fineweb-edu"
    assert rows["lima"]["tokens"] is None


# Held-out documents


def test_equal_documents_are_never_in_both_splits(tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", [{"text": text + end} for text in STORIES for end in ("", " ", "\n\n")])
    train, test = (set(texts(file, split=split, test_fraction=0.3)) for split in ("train", "test"))
    assert train.isdisjoint(test)
    assert train | test == set(STORIES)


def test_white_space_does_not_move_a_document(tmp_path):
    spaced = [text.replace(" ", "\n ") for text in STORIES]
    assert [held_out(text, 0.5) for text in STORIES] == [held_out(text, 0.5) for text in spaced]


def test_the_split_is_the_same_on_every_machine():
    # From: printf "document 11" | b2sum -l 64; held out if the first byte is below 64.
    assert [number for number in range(40) if held_out(f"document {number}", 0.25)] == [11, 15, 26, 27, 28, 36, 37]


@pytest.mark.thorough
@given(st.text(), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_test_fraction_only_adds_to_the_test_split(text, one, other):
    small, large = sorted([one, other])
    assert held_out(text, large) or not held_out(text, small)


def test_conversations_are_split_by_their_words(tmp_path):
    rows = [{"messages": [{"role": "user", "content": text}]} for text in STORIES * 2]
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    train, test = (
        {row["messages"][0]["content"] for row in load_corpus(file, split=split)} for split in ("train", "test")
    )
    assert train.isdisjoint(test)
    assert train | test == set(STORIES)


# Files


def test_a_txt_file_is_parted_at_the_separator(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("One\ntwo.\n<|endoftext|>\n\n<|endoftext|>Three.<|endoftext|> Four\n")
    assert texts(file, test_fraction=0.0) == ["One\ntwo.", "Three.", "Four"]


def test_a_txt_file_without_separator_is_one_document(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("One.\r\n\r\nTwo.\n")
    assert texts(file, test_fraction=0.0) == ["One.\n\nTwo."]


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/datasets/issues/8241",
    "JSON Lines that begin with a byte order mark give the rows that they give without it",
    "they do, as do text, CSV and compressed files",
)
@pytest.mark.outside(
    "https://github.com/huggingface/datasets/issues/2572",
    "read `.jsonl.zst` files, as the Pile has them, without a package to install",
    "all kinds of files are read as `.zst` too",
)
def test_every_format_gives_the_same_rows(tmp_path):
    rows = [{"id": number, "text": text} for number, text in enumerate(STORIES)]
    jsonl = write_jsonl(tmp_path / "a.jsonl", rows)
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "a.txt").write_text("<|endoftext|>\n".join(STORIES))
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.ndjson").write_bytes((tmp_path / "a.jsonl").read_bytes())
    (tmp_path / "lines.json").write_bytes((tmp_path / "a.jsonl").read_bytes())
    for name, delimiter in (("a.csv", ","), ("a.tsv", "\t"), ("excel.csv", ";")):
        with open(tmp_path / name, "w", newline="") as file:
            writer = csv.DictWriter(file, ["id", "text"], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
    for path in [path for path in tmp_path.iterdir() if path.suffix != ".parquet"]:
        content = path.read_bytes()
        (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(content))
        with pa.output_stream(str(tmp_path / f"{path.name}.zst"), compression="zstd") as file:
            file.write(content)
        (tmp_path / f"marked-{path.name}").write_bytes(b"\xef\xbb\xbf" + content)
        (tmp_path / f"utf16-{path.name}").write_text(content.decode().replace("\r\n", "\n"), "utf-16")
    files = sorted(tmp_path.iterdir())
    assert len(files) == 1 + 8 * 5
    assert all(texts(file) == texts(jsonl) for file in files)


def test_text_in_a_folder_is_the_corpus_that_its_file_is(tmp_path):
    for name, content in (
        ("one", "First act.\nIt rains.\n\nSecond act.\n\nThird act.\n"),
        ("two", "A.\n<|endoftext|>B.\nC." + "".join(f"<|endoftext|>{story}" for story in STORIES)),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "a.txt").write_text(content)
        (folder / "README.md").write_text("# About")
        (folder / ".DS_Store").write_bytes(b"\x00")
        for split in ("train", "test"):
            settings = {"split": split, "test_fraction": 0.4}
            assert texts(folder, **settings) == texts(folder / "a.txt", **settings)
    assert texts(tmp_path / "two", test_fraction=0.0) == ["A.", "B.\nC.", *STORIES]
    (tmp_path / "two" / "sub").mkdir()
    (tmp_path / "two" / "sub" / "b.txt").write_text("D.\nE.")
    assert texts(tmp_path / "two", test_fraction=0.0) == ["A.", "B.\nC.", *STORIES, "D.\nE."]


def test_a_folder_of_text_whose_names_are_splits_has_these(tmp_path):
    (tmp_path / "train.txt").write_text("A.\nB.<|endoftext|>C.")
    (tmp_path / "test.txt").write_text("D.\nE.")
    assert texts(tmp_path) == ["A.\nB.", "C."]
    assert texts(tmp_path, split="test") == ["D.\nE."]
    assert "its files have the splits train, test" in message(texts, tmp_path, split="other")
    assert texts(tmp_path, test_fraction=0.0) == ["A.\nB.", "C."]


def test_a_pattern_means_its_files_in_the_order_of_their_names(tmp_path):
    for number in (2, 1):
        write_jsonl(tmp_path / f"part-{number}.jsonl", [{"text": f"{number} {letter}"} for letter in "ab"])
    (tmp_path / "part-3.txt").write_text("3")
    assert texts(tmp_path / "part-*.jsonl", test_fraction=0.0) == ["1 a", "1 b", "2 a", "2 b"]
    assert texts(f"{tmp_path}/**/part-[13]*", test_fraction=0.0) == ["1 a", "1 b", "3"]
    assert "part-9*.jsonl: no such file" in message(texts, tmp_path / "part-9*.jsonl")
    assert texts(f"tinystories:{tmp_path}/part-[12].jsonl", test_fraction=0.0) == ["1 a", "1 b", "2 a", "2 b"]


@pytest.mark.outside(
    "https://github.com/aws/aws-sdk-pandas/issues/296",
    "read a Parquet file in which one date, mistyped, is out of range",
    "columns that are not wanted are not read, and counted as not used",
)
def test_columns_of_parquet_that_nobody_wants_are_not_read(tmp_path, capsys):
    rows = pa.table(
        {
            "text": STORIES[:9],
            "when": pa.array([2**53] * 9, pa.timestamp("ms")),  # later than the last year of Python
            "null": pa.nulls(9),
            "empty": pa.array([None] * 9, pa.list_(pa.int8())),
            "place": pa.array([{"x": 1}] * 8 + [None]),
            "zone": pa.array([0] * 9, pa.timestamp("us", tz="Mars/Olympus")),
        }
    )
    parquet.write_table(rows, tmp_path / "odd.parquet")
    assert texts(tmp_path / "odd.parquet", test_fraction=0.0) == STORIES[:9]
    assert "not used, of 9 rows: empty (9), place (9), when (9), zone (9)" in capsys.readouterr().err
    assert "row 0: not Parquet that can be read" in message(load_prompts, tmp_path / "odd.parquet")
    parquet.write_table(rows.select(["when"]), tmp_path / "none.parquet")
    assert "no column 'text' or 'messages', found when" in message(texts, tmp_path / "none.parquet")


@pytest.mark.parametrize("name", ["a.parquet", "one.parquet", "a.jsonl.zst", "a.jsonl.gz"])
def test_a_small_file_that_stands_for_a_thousand_times_as_much_is_refused(tmp_path, name, monkeypatch):
    monkeypatch.setattr(foreign_sizes, "HARMLESS_BYTES", 1 << 22)  # not to need 256 MiB
    file = tmp_path / name
    if name.endswith(".parquet"):
        values = ["x" * 100_000] * 200 if name == "a.parquet" else ["x" * 8_000_000]
        encoded = pa.DictionaryArray.from_arrays(pa.array([0] * len(values), pa.int32()), pa.array(values[:1]))
        parquet.write_table(pa.table({"text": encoded}), file, compression="zstd", store_schema=False)
    else:
        with pa.output_stream(str(file), compression="zstd" if name.endswith("zst") else "gzip") as output:
            output.write(b" " * 10_000_000)
    assert file.stat().st_size < 11_000
    assert "over 300 times as many; expected data that are not made to fill memory" in message(texts, file)


def test_a_line_of_json_may_have_white_space_around_it_and_any_end(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"text": "A"}\r\n  {"text": "B"}  \n\n \t\n{"text": "C"}\t\n{"text": "D"}\r{"text": "E"}')
    assert texts(file, test_fraction=0.0) == ["A", "B", "C", "D", "E"]
    file.write_text('{"text": "A"}\n{"text": "B"} {"text": "C"}\n')
    assert "a.jsonl:2: not JSON (Extra data" in message(texts, file, test_fraction=0.0)
    file.write_text('{"text": "A"}\n\ufeff{"text": "B"}\n')  # two files behind one another
    assert texts(file, test_fraction=0.0) == ["A", "B"]


def test_a_stream_survives_pickling(tmp_path):
    stream = load_corpus(write_jsonl(tmp_path / "a.jsonl", [{"text": text} for text in STORIES]))
    assert list(pickle.loads(pickle.dumps(stream))) == list(stream)


def test_a_changed_file_is_read_again(tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", [{"text": "old"}])
    assert texts(file, test_fraction=0.0, streaming=False) == ["old"]
    write_jsonl(file, [{"text": "new"}])
    assert texts(file, test_fraction=0.0, streaming=False) == ["new"]


def test_columns_are_found_or_named(tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", [{"text": "T", "body": "B", "messages": CHAT, "turns": CHAT[:1]}])
    assert list(load_corpus(file, test_fraction=0.0)) == [{"messages": CHAT}]
    assert list(load_corpus(file, test_fraction=0.0, text_column="body")) == [{"text": "B"}]
    assert list(load_corpus(file, test_fraction=0.0, messages_column="turns")) == [{"messages": CHAT[:1]}]


# Hub data sets: a folder of the same name and layout takes the same way through datasets.load_dataset


def hub_repository(folder, column, config, splits):
    folder.mkdir(parents=True)
    listed = []
    for split, rows in splits.items():
        parquet.write_table(
            pa.Table.from_pylist([{column: row, "extra": 1} for row in rows]), folder / f"{split}.parquet"
        )
        listed.append(f"  - split: {split}\n    path: {split}.parquet\n")
    (folder / "README.md").write_text(
        f"---\nconfigs:\n- config_name: {config}\n  data_files:\n{''.join(listed)}"
        "- config_name: other\n  data_files: nothing.parquet\n---\n"
    )


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path


@pytest.mark.thorough
@pytest.mark.parametrize("streaming", [True, False])
def test_presets_ask_for_their_configuration_split_and_column(hub, streaming):
    other = [{"role": "user", "content": "Who?"}]
    hub_repository(hub / "HuggingFaceTB/smoltalk", "messages", "all", {"train": [CHAT], "test": [other]})
    hub_repository(
        hub / "HuggingFaceH4/ultrachat_200k", "messages", "default", {"train_sft": [CHAT], "test_sft": [other]}
    )
    hub_repository(hub / "roneneldan/TinyStories", "text", "default", {"train": [" A. "], "validation": ["B."]})
    hub_repository(hub / "HuggingFaceFW/fineweb-edu", "text", "sample-10BT", {"train": ["C.", "  "]})
    assert not held_out("C.", CORPORA["fineweb-edu"].test_fraction)
    for name in ("smoltalk", "ultrachat"):
        assert list(load_corpus(name, streaming=streaming)) == [{"messages": CHAT}]
        assert list(load_corpus(name, streaming=streaming, split="test")) == [{"messages": other}]
    assert texts("tinystories", streaming=streaming) == ["A."]
    assert texts("tinystories", streaming=streaming, split="test") == ["B."]
    assert texts("fineweb-edu", streaming=streaming) == ["C."]


def test_a_hub_corpus_without_a_test_split_is_held_out_by_hash_when_asked(hub):
    hub_repository(hub / "someone/stories", "text", "default", {"train": STORIES})
    assert message(load_corpus, "someone/stories", split="test").endswith(
        "pass test_fraction= for both train and test to split by hash"
    )
    train, test = (texts("someone/stories", split=split, test_fraction=0.2) for split in ("train", "test"))
    assert sorted(train + test) == sorted(STORIES)
    assert test == [text for text in STORIES if held_out(text, 0.2)]


@pytest.mark.thorough
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("source", ["file", "hub"])
def test_no_more_than_the_first_rows_are_read_and_both_ways_of_reading_agree(hub, source, streaming):
    path = write_jsonl(hub / "a.jsonl", [{"text": text} for text in ["", *STORIES]])
    if source == "hub":
        path = "someone/stories"
        hub_repository(hub / path, "text", "default", {"train": ["", *STORIES]})
    settings = {"test_fraction": 0.2, "max_documents": 51}
    parts = {split: texts(path, split=split, streaming=streaming, **settings) for split in ("train", "test")}
    assert sorted(parts["train"] + parts["test"]) == sorted(STORIES[:50]), "an empty row is read, and left out"
    for split, document in read_splits(path, kind="text", **settings):
        assert document["text"] == parts[split].pop(0)
    assert parts == {"train": [], "test": []}
    assert len(texts(path, streaming=streaming, test_fraction=0.0, max_documents=9999)) == len(STORIES)
    assert "max_documents=0: expected at least 1" in message(load_corpus, path, max_documents=0)


def test_a_preset_without_a_test_split_holds_one_out_by_itself(hub):
    rows = [f"Page {number}." for number in range(5000)]
    hub_repository(hub / "HuggingFaceFW/fineweb-edu", "text", "sample-10BT", {"train": rows})
    train, test = (texts("fineweb-edu", split=split) for split in ("train", "test"))
    assert sorted(train + test) == sorted(rows)
    assert test == [text for text in rows if held_out(text, 0.001)]
    assert test


# Skipping


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("settings", "shards"),
    [
        ({}, 4),
        ({"test_fraction": 0.2}, 4),
        ({"max_documents": 120}, 1),
    ],
    ids=["as it is", "split by hash", "first rows"],
)
def test_workers_and_ranks_divide_a_stream_of_the_hub_and_lose_or_repeat_nothing(hub, settings, shards):
    (hub / "someone/stories").mkdir(parents=True)
    for number in range(4):
        write_jsonl(
            hub / f"someone/stories/train-{number}.jsonl", [{"text": text} for text in STORIES[number * 50 :][:50]]
        )
    names = "---\nconfigs:\n- config_name: default\n  data_files: train-*.jsonl\n---\n"
    (hub / "someone/stories/README.md").write_text(names)
    stream = load_corpus("someone/stories", **settings)
    whole = list(stream["text"])
    assert stream.num_shards == shards
    assert whole == [text for text in STORIES if text in whole], "in the order of the files"
    read = [row["text"] for row in DataLoader(stream, batch_size=None, num_workers=2)]
    assert sorted(read) == sorted(whole)
    ranks = [list(split_dataset_by_node(stream, rank, 2)["text"]) for rank in range(2)]
    assert all(ranks)
    assert sorted(ranks[0] + ranks[1]) == sorted(whole)
    begun = iter(stream)
    for _ in range(77):
        next(begun)
    resumed = load_corpus("someone/stories", **settings)
    resumed.load_state_dict(stream.state_dict())
    assert list(resumed["text"]) == whole[77:]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.txt", "a.parquet"])
def test_skipping_gives_the_rest(tmp_path, name):
    rows = [{"text": text} for text in STORIES + STORIES[:50]]
    file = tmp_path / name
    if name == "a.txt":
        file.write_text("<|endoftext|>\n".join(row["text"] for row in rows))
    elif name == "a.parquet":
        parquet.write_table(pa.Table.from_pylist(rows), file)
    else:
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        file.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    stream = load_corpus(file, test_fraction=0.2)
    whole = [row["text"] for row in stream]
    for number in (0, 1, 57, len(whole) - 1, len(whole)):
        assert list(stream.skip(number)["text"]) == whole[number:]


def test_any_hub_id_and_split_can_be_read(hub):
    hub_repository(hub / "someone/chats", "conversations", "default", {"train": [CHAT], "extra": [CHAT[:1]]})
    assert list(load_corpus("someone/chats")) == [{"messages": CHAT}]
    assert list(load_corpus("someone/chats", split="extra")) == [{"messages": CHAT[:1]}]
    assert "split 'test' of someone/chats cannot be loaded" in message(load_corpus, "someone/chats", split="test")
    assert "no column 'body', found conversations, extra" in message(load_corpus, "someone/chats", text_column="body")


@pytest.mark.thorough
def test_an_unreachable_hub_is_reported_in_one_line():
    for name in ("lima", "nobody/nothing"):
        program = f"""
from hmm_datasets.runtime.one_line_errors import one_line_errors
from hmm_datasets.text.corpora.loading import load_corpus, load_prompts, read_splits
with one_line_errors():
    load_corpus({name!r})
"""
        environment = {"HF_HUB_OFFLINE": "1", "PATH": "", "PYTHONPATH": ":".join(sys.path)}
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
        assert result.returncode == 2
        assert result.stderr.count("\n") == 1
        assert result.stderr.startswith(f"error: {name}: split 'train' of ")


# Normalization


def test_texts_in_turn_are_a_conversation_only_where_the_corpus_is_named_as_lima(tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", [{"conversations": ["A", "B", "C"]}])
    assert "expected messages with role and content, found a list of texts" in message(load_corpus, file)
    (row,) = load_corpus(f"lima:{file}", test_fraction=0.0)
    assert [(turn["role"], turn["content"]) for turn in row["messages"]] == [
        ("user", "A"),
        ("assistant", "B"),
        ("user", "C"),
    ]


def test_other_keys_of_a_message_are_left_out():
    row = {"messages": [{"role": "user", "content": "A", "name": "x", "tools": None}]}
    assert read_messages("messages", row, "row 0") == {"messages": [{"role": "user", "content": "A"}]}


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([], "expected a list of messages, found []"),
        ("Hello", "expected a list of messages, found 'Hello'"),
        ([{"role": "user"}], "message 0 needs role and content"),
        ([*CHAT, "Hello"], "message 2 needs role and content"),
        (
            [{"role": "narrator", "content": "A"}],
            "message 0 has role 'narrator', expected one of system, user, assistant, tool",
        ),
        ([{"role": "user", "content": None}], "message 0: expected text, found None"),
    ],
)
def test_a_malformed_conversation_is_refused(messages, told):
    assert message(read_messages, "messages", {"messages": messages}, "a.jsonl:7").startswith(f"a.jsonl:7: {told}")


def test_text_that_is_missing_or_not_unicode_is_refused():
    assert (
        message(check_text, None, "row 3") == "row 3: expected text, found None; drop the row or name another column"
    )
    assert "half a surrogate pair at character 2" in message(check_text, "ab\ud83d", "text")


# Errors


def test_a_file_can_be_read_as_a_named_corpus(tmp_path):
    row = {"question": "Half of 48?", "answer": "48/2=<<48/2=24>>24.\n#### 24"}
    file = write_jsonl(tmp_path / "gsm8k.jsonl", [row])
    plain = list(load_corpus(f"gsm8k:{file}", kind="conversations", test_fraction=0.0))
    assert plain == list(load_corpus(file, kind="conversations", test_fraction=0.0))
    assert message(load_corpus, "gsm8k:none.jsonl") == (
        "gsm8k:none.jsonl: 'none.jsonl' is no file; expected gsm8k:FILE, a file of the form of gsm8k"
    )


def test_an_unknown_name_lists_the_presets():
    told = message(load_corpus, "tinystoriez")
    assert all(name in told for name in CORPORA)


def test_a_missing_file_is_not_looked_for_on_the_hub():
    for name in ("data/none.txt", "./none", "/none/none.jsonl.gz"):
        assert message(load_corpus, name).startswith(f"{name}: no such file; known corpora: tinystories,")


def test_a_missing_column_names_those_found(tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", [{"body": "B", "id": 1}])
    assert "no column 'text' or 'messages', found body, id" in message(load_corpus, file)
    assert "no column 'title', found body, id" in message(load_corpus, file, text_column="title")


def test_a_column_missing_in_a_later_row_names_the_line(tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", [{"text": "A"}, {"body": "B"}])
    assert message(texts, file, test_fraction=0.0).startswith(f"{file}:2: no column 'text'")


def test_an_empty_corpus_is_refused(tmp_path):
    for name, content in [("a.txt", " \n"), ("a.jsonl", ""), ("a.json", "[]"), ("b.jsonl", '{"text": " "}\n')]:
        (tmp_path / name).write_text(content)
        assert "no documents" in message(load_corpus, tmp_path / name)


def test_a_split_left_empty_is_refused(tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", [{"text": "A"}])
    assert "no documents in split 'test' with test_fraction=0.0" in message(
        load_corpus, file, split="test", test_fraction=0.0
    )


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.jsonl", b'{"text": "A"}\n{"text"\n', "a.jsonl:2: not JSON"),
        ("a.jsonl", b"3\n", "a.jsonl:1: expected an object with named columns, or a list of turns, found 3"),
        ("a.json", b'{"text": "A"}', "a.json: expected a list of rows"),
        ("a.json", b'{"text": "A"\n{"text": "B"}\n', "name a file with one row per line .jsonl"),
        ("a.json", b'{"text": "A"}\n{"text": \n', "a.json:2: not JSON"),
        ("a.txt", b"caf\xe9", "a.txt:1: cannot be read as UTF-8 text (0xe9, unexpected end of data)"),
        ("a.txt", b"tea\n" * 9999 + b"caf\xe9\n" + b"tea\n" * 9999, "a.txt:10000: cannot be read as UTF-8 text (0xe9"),
        ("a.jsonl", b'{"text": "A"}\n{"text": "\xff"}\n', "a.jsonl:2: cannot be read as UTF-8 text (0xff"),
        ("a.txt.gz", gzip.compress(b"tea\ncaf\xe9 \n", mtime=0), "a.txt.gz:2: cannot be read as UTF-8 text (0xe9"),
        ("a.txt.gz", b"not gzip", "a.txt.gz:1: cannot be read as gzip"),
        ("a.txt.gz", gzip.compress(b"A" * 999, mtime=0)[:-9], "a.txt.gz:1: cannot be read as gzip (Compressed file"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "A"}\n' * 7, mtime=0)[:-4], "a.jsonl.gz:8: cannot be read as gzip"),
        ("a.parquet", b"not parquet", "a.parquet: row 0: not Parquet"),
        ("a.docx", b"text\nA\n", "a.docx: expected a file name that ends in .txt"),
        ("a.csv", b"id,text\n1,A\n2,B, and C\n", "a.csv:3: 3 fields, but the first line names 2 columns"),
        ("a.csv", b'id,text\n1,"A\nB\n', "a.csv:2: cannot be read as CSV (unexpected end of data)"),
        ("a.csv", b"text,text\n1,A\n", "a.csv:1: expected names of columns, each once"),
        ("a.tsv", b"text\nA\tB\n", "a.tsv:2: 2 fields, but the first line names 1 columns"),
        ("a.txt.zst", b"not zstd", "a.txt.zst: cannot be read as zst"),
        ("a.parquet.gz", b"", "a.parquet.gz: expected a file name that ends in .txt"),
    ],
)
def test_a_damaged_file_is_reported_by_name(tmp_path, name, content, told):
    (tmp_path / name).write_bytes(content)
    assert told in message(texts, tmp_path / name, test_fraction=0.0)


def test_impossible_settings_are_refused(tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", [{"text": "A"}])
    assert "split='validation'" in message(load_corpus, file, split="validation")
    assert "test_fraction=1" in message(load_corpus, file, test_fraction=1)
    assert "found both" in message(load_corpus, file, text_column="text", messages_column="messages")
