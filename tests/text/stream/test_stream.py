"""The format of token streams, and reading them across shards."""

import hashlib
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmm_datasets.errors import InputError
from hmm_datasets.text.stream import INDEX_NAME, TokenStream, reader, write_tokens
from hmm_datasets.text.stream.verification import differing_files

EOS = 9
DOCUMENTS = [[1, 2, 3], [4, EOS], [6], [5]]
TOKENS = [1, 2, 3, EOS, 4, EOS, 6, EOS, 5, EOS]


def write(folder, documents=DOCUMENTS, **changes):
    settings = {"vocab_size": 10, "eos_id": EOS, "tokenizer_hash": "none", "corpus": "test"}
    return write_tokens(documents, folder, **settings | changes)


def message(function, *args, **settings) -> str:
    with pytest.raises(InputError) as caught:
        function(*args, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def all_tokens(stream: TokenStream) -> list[int]:
    return stream.read(0, stream.num_tokens).tolist()


@pytest.fixture
def folder(tmp_path):
    """Ten tokens, in shards of 6 and 4."""
    write(tmp_path / "a", shard_tokens=5)
    return tmp_path / "a"


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """2,000 documents of up to 30 tokens in 160 shards, and their tokens and bounds in memory."""
    random = np.random.default_rng(0)
    documents = [random.integers(0, 999, size=random.integers(1, 30)).tolist() for _ in range(2000)]
    folder = tmp_path_factory.mktemp("many") / "a"
    write(folder, documents, vocab_size=1000, eos_id=999, shard_tokens=200)
    stream = TokenStream(folder)
    tokens = np.concatenate([[*document, 999] for document in documents])
    stops = np.cumsum([len(document) + 1 for document in documents])
    assert len(stream.index.shards) > 128  # more than are mapped at once
    return stream, tokens, np.append(0, stops[:-1]), stops


# The files


def test_a_shard_ends_with_the_document_that_fills_it(folder):
    expected = {"00000.ds": TOKENS[:6], "00001.ds": TOKENS[6:]}
    for name, tokens in expected.items():
        assert (folder / name).read_bytes() == b"".join(bytes([token, 0]) for token in tokens)
    for name, ends in {"00000.ds.index": [4, 6], "00001.ds.index": [2, 4]}.items():
        assert (folder / name).read_bytes() == b"".join(bytes([end, *bytes(7)]) for end in ends)
    assert sorted(path.name for path in folder.iterdir()) == [
        *("00000.ds", "00000.ds.index", "00001.ds", "00001.ds.index", INDEX_NAME)
    ]


def test_the_index_says_what_the_files_hold(tmp_path):
    folder = tmp_path / "a"
    index = write(folder, [[], *DOCUMENTS, [EOS], []], shard_tokens=5, token_bytes=[2] * 9 + [0])

    def digest(name):
        return hashlib.sha256((folder / name).read_bytes()).hexdigest()

    names = ("00000.ds", "00001.ds")
    shards = [{"name": name, "sha256": digest(name), "ends_sha256": digest(name + ".index")} for name in names]
    shards[0] |= {"num_documents": 2, "num_tokens": 6, "num_bytes": 8, "num_empty": 1}
    shards[1] |= {"num_documents": 2, "num_tokens": 4, "num_bytes": 4, "num_empty": 0}
    values = {
        "corpus": "test",
        "tokenizer_hash": "none",
        "vocab_size": 10,
        "eos_id": EOS,
        "dtype": "uint16",
        "shard_tokens": 5,
        "num_documents": 4,
        "num_tokens": 10,
        "num_bytes": 12,
        "num_empty": 3,
        "shards": shards,
        "format_version": 2,
    }
    digest_of_all = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    assert json.loads((folder / INDEX_NAME).read_text()) == values | {"digest": digest_of_all}
    assert TokenStream(folder).index == index


def test_the_digest_of_a_stream_follows_tokens_and_bounds(tmp_path):
    digests = {write(tmp_path / str(n), documents).sha256 for n, documents in enumerate([DOCUMENTS, DOCUMENTS[:3]])}
    digests |= {write(tmp_path / "a").sha256, write(tmp_path / "b", tokenizer_hash="other").sha256}
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(1 << 16, "uint16"), ((1 << 16) + 1, "uint32"), (1 << 32, "uint32")]
)
def test_the_smallest_type_that_can_store_the_vocabulary_is_taken(tmp_path, vocab_size, dtype):
    write(tmp_path / "a", [[vocab_size - 1, 0]], vocab_size=vocab_size)
    stream = TokenStream(tmp_path / "a")
    assert stream.index.dtype == dtype == stream.read(0, 1).dtype.name
    assert all_tokens(stream) == [vocab_size - 1, 0, EOS]
    assert stream.gather([0], 3).tolist() == [[vocab_size - 1, 0, EOS]]


@pytest.mark.thorough
@settings(deadline=None, max_examples=60)
@given(
    documents=st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=9), min_size=1, max_size=9),
    shard_tokens=st.integers(1, 30),
)
def test_documents_come_back_as_they_went_in(tmp_path_factory, documents, shard_tokens):
    folder = tmp_path_factory.mktemp("tokens") / "a"
    write(folder, documents, shard_tokens=shard_tokens)
    stream = TokenStream(folder)
    assert [stream.document(number).tolist() for number in range(len(documents))] == [[*ids, EOS] for ids in documents]
    assert all_tokens(stream) == [token for ids in documents for token in [*ids, EOS]]
    assert all(shard.num_tokens >= shard_tokens for shard in stream.index.shards[:-1])
    stream.verify()


# Reading


def test_any_cut_of_a_stream_is_that_of_its_documents_end_to_end(many):
    stream, tokens, *_ = many
    random = np.random.default_rng(1)
    for start, stop in np.sort(random.integers(0, len(tokens) + 1, size=(200, 2)), axis=1).tolist():
        assert np.array_equal(stream.read(start, stop), tokens[start:stop])
    assert np.array_equal(stream.read(0, stream.num_tokens), tokens)


def test_a_cut_within_a_shard_shares_its_memory_and_cannot_be_written(folder):
    stream = TokenStream(folder)
    one, other = stream.read(0, 6), stream.read(2, 5)
    assert np.shares_memory(one, other)
    assert stream.read(5, 7).tolist() == [EOS, 6]
    with pytest.raises(ValueError, match="read-only"):
        other[0] = 1
    assert [stream.read(position, position).size for position in (0, 6, 10)] == [0, 0, 0]


@pytest.mark.parametrize("length", [1, 7, 64, 500])
def test_windows_are_gathered_in_any_order_across_shards(many, length):
    stream, tokens, *_ = many
    starts = np.random.default_rng(length).integers(0, len(tokens) - length + 1, size=300)
    starts[:2] = 0, len(tokens) - length
    expected = tokens[starts[:, None] + np.arange(length)]
    windows = stream.gather(starts, length)
    assert windows.dtype == np.int64
    assert np.array_equal(windows, expected)
    out = np.zeros((300, length), dtype=np.int64)
    assert stream.gather(starts, length, out=out) is out
    assert np.array_equal(out, expected)


def test_bounds_of_documents_are_those_of_their_lengths(many):
    stream, _, starts, stops = many
    documents = np.random.default_rng(2).permutation(2000)
    found = stream.bounds(documents)
    assert np.array_equal(found[0], starts[documents])
    assert np.array_equal(found[1], stops[documents])
    assert [part.dtype for part in found] == [np.int64, np.int64]


def test_positions_outside_a_stream_raise_an_index_error(folder):
    stream = TokenStream(folder)
    for number in (-1, 4):
        for call in (stream.document, lambda n: stream.bounds([n])):
            with pytest.raises(IndexError):
                call(number)
    for start, stop in ((-1, 3), (3, 2), (0, 11)):
        with pytest.raises(IndexError):
            stream.read(start, stop)
    for start in (-1, 8):
        with pytest.raises(IndexError):
            stream.gather([0, start], 3)
    with pytest.raises(TypeError, match="expected integers"):
        stream.gather([0.5], 3)
    with pytest.raises(ValueError, match="out has the shape"):
        stream.gather([0], 3, out=np.zeros((2, 3), dtype=np.int64))


def test_no_indices_give_no_rows(folder):
    stream = TokenStream(folder)
    assert stream.gather([], 3).shape == (0, 3)
    assert stream.bounds([])[0].shape == (0,)


def test_a_pickled_stream_maps_its_files_again(many):
    stream, tokens, *_ = many
    data = pickle.dumps(stream)
    assert len(data) < 500
    assert np.array_equal(pickle.loads(data).read(0, len(tokens)), tokens)


def test_a_stream_of_many_shards_leaves_descriptors_for_others(many):
    stream, tokens, *_ = many
    stream = TokenStream(stream.folder)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        assert np.array_equal(stream.gather(np.arange(len(tokens) - 9), 10)[:, 0], tokens[:-9])
    assert len(os.listdir("/proc/self/fd")) - before == 128 < len(stream.index.shards)


# Errors of reading


def test_a_folder_that_is_not_a_token_stream_is_reported(tmp_path):
    assert f"{tmp_path / 'none' / INDEX_NAME}: no such file; expected" in message(TokenStream, tmp_path / "none")
    (tmp_path / "00000_tinystories.ds").touch()
    assert "write their index with adopt_datatrove" in message(TokenStream, tmp_path)
    (tmp_path / INDEX_NAME).write_text("{")
    assert f"{tmp_path / INDEX_NAME}:1: not JSON" in message(TokenStream, tmp_path)
    (tmp_path / INDEX_NAME).write_text("[]")
    assert "expected object, found array; write the tokens again" in message(TokenStream, tmp_path)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"format_version": 1}, "format_version is 1, expected 2; write the tokens with"),
        ({"colour": "red"}, "the file has changed since it was written"),
        ({"dtype": "int8"}, "dtype is 'int8', expected uint16 for"),
        ({"num_tokens": "many"}, "num_tokens: expected int, found str; write the tokens again"),
        ({"num_tokens": -8}, "num_tokens: expected int >= 0; write the tokens again"),
        ({"vocab_size": 1e3}, "vocab_size: expected int, found float; write the tokens again"),
        ({"num_tokens": 8}, "num_tokens is 8, but 10 over the shards"),
        ({"num_documents": 3}, "num_documents is 3, but 4 over the shards"),
        ({"dtype": "uint32"}, "dtype is 'uint32', expected uint16 for"),
        ({"shards": []}, "but 0 over the shards"),
        ({"shards": [{}]}, "shards[0]: object missing required field name"),
        ({"shards": [7]}, "shards[0]: expected object, found int"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(folder, changes, told):
    index = folder / INDEX_NAME
    index.write_text(json.dumps(json.loads(index.read_text()) | changes))
    text = message(TokenStream, folder)
    assert told in text
    assert text.endswith("again")


def test_a_missing_field_is_named(folder):
    index = folder / INDEX_NAME
    values = json.loads(index.read_text())
    del values["corpus"]
    index.write_text(json.dumps(values))
    assert "object missing required field corpus; write the tokens again" in message(TokenStream, folder)


@pytest.mark.parametrize(("name", "size"), [("00001.ds", 8), ("00001.ds.index", 16)])
def test_truncated_or_missing_files_are_reported_by_name(folder, name, size):
    file = folder / name
    file.write_bytes(file.read_bytes()[:-1])
    assert f"{file}: {size - 1} bytes, but {INDEX_NAME} says {size} bytes; copy" in message(TokenStream, folder)
    file.unlink()
    assert f"{file}: no such file, but" in message(TokenStream, folder)


@pytest.mark.parametrize("name", ["00001.ds", "00001.ds.index"])
def test_verify_finds_one_changed_byte(folder, name):
    TokenStream(folder).verify()
    data = bytearray((folder / name).read_bytes())
    data[1] ^= 1
    (folder / name).write_bytes(data)
    assert f"{folder / name}: SHA-256 is" in message(TokenStream(folder, verify=False).verify)
    assert f"{folder / name}: SHA-256 is" in message(TokenStream, folder)


@pytest.mark.parametrize(
    ("tokens", "ends", "told"),
    [
        ([6, EOS, 5, EOS], [3, 4], "document 0 should end at token 3, found the next EOS before token 2"),
        ([6, EOS, 5, EOS], [2, 3], "document 1 should end at token 3, found the next EOS before token 4"),
        ([6, EOS, EOS, EOS], [2, 4], "document 1 should end at token 4, found the next EOS before token 3"),
        ([EOS, EOS, 6, EOS], [1, 2], "document 2 should not exist, found the next EOS before token 4"),
        ([6, EOS, 5, 5], [2, 4], "document 1 should end at token 4, found no further EOS"),
    ],
)
def test_verify_finds_ends_that_differ_from_the_positions_of_eos(folder, tokens, ends, told):
    names = {"sha256": "00001.ds", "ends_sha256": "00001.ds.index"}
    np.array(tokens, dtype="<u2").tofile(folder / names["sha256"])
    np.array(ends, dtype="<u8").tofile(folder / names["ends_sha256"])
    values = json.loads((folder / INDEX_NAME).read_text())
    for field, name in names.items():
        values["shards"][1][field] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    del values["digest"]
    (folder / INDEX_NAME).write_text(json.dumps(values))
    assert told in message(TokenStream(folder).verify)


def test_a_shard_of_the_hub_is_compared_once_however_often_it_is_mapped(tmp_path, monkeypatch):
    write(tmp_path / "s", DOCUMENTS * 3, shard_tokens=5)
    compared = []

    def differing(folder, digests):
        compared.extend(digests)
        return differing_files(folder, digests)

    monkeypatch.setattr(reader, "is_address", lambda folder: True)
    monkeypatch.setattr(reader, "remote_stream", Path)
    monkeypatch.setattr(reader, "download_file", lambda path: path)
    monkeypatch.setattr(reader, "differing_files", differing)
    monkeypatch.setattr(reader, "_MAX_MAPPED", 1)
    stream = TokenStream(tmp_path / "s")
    for _ in range(3):
        stream.read(0, stream.num_tokens)
    assert sorted(compared) == sorted(shard.name for shard in stream.index.shards)
    assert len(compared) > 1
