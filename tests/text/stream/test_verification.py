"""Any changed byte of a token stream is noticed."""

import json
import pickle
import re
import shutil
from collections import Counter

import numpy as np
import pytest
from datasets import load_dataset

import hmm_datasets  # noqa: F401 (makes "token_shards" known)
from hmm_datasets.errors import InputError
from hmm_datasets.text.stream import INDEX_NAME, TokenStream, verification, write_tokens

EOS = 0
KINDS = ("byte of tokens", "byte of ends", "byte of index", "number in index", "cut", "swapped", "token in range")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    generator = np.random.default_rng(0)
    documents = [generator.integers(1, 300, size) for size in generator.integers(3, 22, 90)]
    folder = tmp_path_factory.mktemp("whole") / "tokens"
    write_tokens(documents, folder, vocab_size=300, eos_id=EOS, tokenizer_hash="t", corpus="c", shard_tokens=390)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "tokens")


def message(function, *arguments) -> str:
    with pytest.raises(InputError) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def flip(path, generator, size=None) -> None:
    data = bytearray(path.read_bytes())
    data[generator.integers(len(data))] ^= 1 << generator.integers(8)
    path.write_bytes(data)


def mutate(folder, kind, generator) -> None:
    """Change a stream in one way."""
    shards, ends = sorted(folder.glob("*.ds")), sorted(folder.glob("*.ds.index"))
    index = folder / INDEX_NAME
    chosen = int(generator.integers(len(shards)))
    if kind == "byte of tokens":
        flip(shards[chosen], generator)
    elif kind == "byte of ends":
        flip(ends[chosen], generator)
    elif kind == "byte of index":
        flip(index, generator)
    elif kind == "number in index":
        numbers = list(re.finditer(r"\d+", index.read_text()))
        number = numbers[generator.integers(len(numbers))]
        text = index.read_text()
        index.write_text(text[: number.start()] + str(int(generator.integers(1, 400))) + text[number.end() :])
    elif kind == "cut":
        path = (*shards, *ends, index)[generator.integers(2 * len(shards) + 1)]
        path.write_bytes(path.read_bytes()[: -int(generator.integers(1, 20))])
    elif kind == "swapped":
        files = shards if generator.integers(2) else ends
        first, second = generator.choice(len(files), 2, replace=False)
        content = files[first].read_bytes()
        files[first].write_bytes(files[second].read_bytes())
        files[second].write_bytes(content)
    else:
        tokens = np.fromfile(shards[chosen], "<u2")
        positions = np.flatnonzero(tokens != EOS)
        tokens[positions[generator.integers(len(positions))]] = generator.integers(1, 300)
        tokens.tofile(shards[chosen])


def content(folder) -> tuple:
    """All that a reader gets of a stream."""
    stream = TokenStream(folder)
    bounds = stream.bounds(np.arange(stream.num_documents))
    return stream.read(0, stream.num_tokens).tolist(), *(part.tolist() for part in bounds), stream.index


@pytest.mark.thorough
def test_of_150_changed_streams_each_is_refused_in_one_line_or_reads_the_same(whole, tmp_path):
    generator, expected, table = np.random.default_rng(6), content(whole), Counter()
    for number in range(150):
        folder = shutil.copytree(whole, tmp_path / str(number))
        kind = KINDS[number % len(KINDS)]
        mutate(folder, kind, generator)
        try:
            outcome = "same tokens" if content(folder) == expected else "silent"
        except InputError as error:
            outcome = "refused" if str(folder) in str(error) and "\n" not in str(error) else "refused badly"
        table[kind, outcome] += 1
        shutil.rmtree(folder)
    outcomes = ("refused", "same tokens", "silent")
    print(f"\n{'changed':16} {' '.join(f'{outcome:>12}' for outcome in outcomes)}")
    for kind in KINDS:
        print(f"{kind:16} {' '.join(f'{table[kind, outcome]:12}' for outcome in outcomes)}")
    assert sum(table[kind, outcome] for kind in KINDS for outcome in outcomes[:2]) == 150
    assert sum(table[kind, "refused"] for kind in KINDS) > 100


@pytest.mark.parametrize(
    "name", ["../00000.ds", "/tmp/00000.ds", "", ".", "a/00000.ds", "a\\00000.ds", "00001.ds", "x"]
)
def test_names_in_an_index_are_plain_names_of_files(folder, name):
    values = json.loads((folder / INDEX_NAME).read_text())
    values["shards"][0]["name"] = name
    (folder / INDEX_NAME).write_text(json.dumps(values))
    assert f"shard {values['shards'][min(1, name == '00001.ds')]['name']!r} is not the plain name" in message(
        TokenStream, folder
    )


def test_an_index_without_a_digest_is_read_as_before_and_checked_for_sense(folder, whole):
    values = json.loads((folder / INDEX_NAME).read_text())
    del values["digest"]
    (folder / INDEX_NAME).write_text(json.dumps(values))
    assert content(folder) == content(whole)
    for changes, told in (
        ({"eos_id": 300}, "eos_id is 300 and vocab_size 300"),
        ({"eos_id": True}, "eos_id: expected int, found bool"),
        ({"vocab_size": 65_537}, "dtype is 'uint16', expected uint32 for 65537 tokens"),
    ):
        (folder / INDEX_NAME).write_text(json.dumps(values | changes))
        assert told in message(TokenStream, folder)
    (folder / INDEX_NAME).write_text(json.dumps(values | {"vocab_size": 290}))
    assert "is outside the vocabulary of 290" in message(TokenStream(folder).verify)


def test_every_reader_refuses_a_changed_shard(folder):
    flip(folder / "00001.ds", np.random.default_rng(0))
    told = f"{folder / '00001.ds'}: SHA-256 is"
    assert told in message(TokenStream, folder)
    assert told in message(lambda: load_dataset("token_shards", data_dir=str(folder), streaming=True))


def test_the_files_of_a_large_stream_are_compared_on_request(folder, monkeypatch):
    monkeypatch.setattr(verification, "AT_ONCE", 100)
    flip(folder / "00001.ds", np.random.default_rng(0))
    assert f"{folder / '00001.ds'}: SHA-256 is" in message(TokenStream(folder).verify)


def test_workers_and_further_ranks_of_a_machine_do_not_compare_again(folder, monkeypatch):
    stream = TokenStream(folder)
    flip(folder / "00001.ds", np.random.default_rng(0))
    assert pickle.loads(pickle.dumps(stream)).num_tokens == stream.num_tokens
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert TokenStream(folder).num_tokens == stream.num_tokens
