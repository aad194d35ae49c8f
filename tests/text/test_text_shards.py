import hashlib
import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmm_datasets.errors import InputError
from hmm_datasets.text.bpe import train_bpe
from hmm_datasets.text.corpora import load_corpus
from hmm_datasets.text.shards import (
    INDEX_NAME,
    OFFSETS_NAME,
    TOKENS_NAME,
    TokenStream,
    tokenize_corpus,
    tokenizer_hash,
    write_tokens,
)

EOS = 9
DOCUMENTS = [[1, 2, 3], [4, EOS], [], [5]]


def write(folder, documents=DOCUMENTS, **changes):
    settings = {"vocab_size": 10, "eos_id": EOS, "tokenizer_hash": "none", "corpus": "test"}
    return write_tokens(documents, folder, **settings | changes)


def message(function, *args, **settings) -> str:
    with pytest.raises(InputError) as caught:
        function(*args, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def stream(tmp_path) -> TokenStream:
    """1,003 tokens, each its own place modulo 1,000."""
    write(tmp_path / "numbers", [[number % 1000 for number in range(1002)]], vocab_size=2000, eos_id=1999)
    return TokenStream(tmp_path / "numbers")


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe(
        [row["text"] for row in load_corpus("tinystories-sample", split="test")], 700, show_progress=False
    )


# Writing and reading


def test_eos_ends_every_document_once(tmp_path):
    index = write(tmp_path / "a")
    stream = TokenStream(tmp_path / "a")
    assert stream.tokens.tolist() == [1, 2, 3, EOS, 4, EOS, EOS, 5, EOS]
    assert stream.offsets.tolist() == [0, 4, 6, 7, 9]
    assert [stream.document(number).tolist() for number in range(4)] == [[1, 2, 3, EOS], [4, EOS], [EOS], [5, EOS]]
    assert (index.num_documents, index.num_tokens) == (4, 9)


@settings(deadline=None)
@given(documents=st.lists(st.lists(st.integers(0, 8), max_size=9), min_size=1, max_size=9))
def test_documents_come_back_as_they_went_in(tmp_path_factory, documents):
    folder = tmp_path_factory.mktemp("tokens") / "a"
    write(folder, documents)
    stream = TokenStream(folder)
    assert [stream.document(number).tolist() for number in range(len(documents))] == [[*ids, EOS] for ids in documents]
    assert (stream.tokens == EOS).sum() == stream.index.num_documents == len(documents)
    stream.verify()


def test_the_files_are_little_endian_and_as_the_index_says(tmp_path):
    folder = tmp_path / "a"
    write(folder, num_bytes=77)
    tokens = (folder / TOKENS_NAME).read_bytes()
    assert tokens == b"".join(bytes([token, 0]) for token in [1, 2, 3, 9, 4, 9, 9, 5, 9])
    assert (folder / OFFSETS_NAME).read_bytes() == b"".join(bytes([offset, *bytes(7)]) for offset in [0, 4, 6, 7, 9])
    assert json.loads((folder / INDEX_NAME).read_text()) == {
        "num_documents": 4,
        "num_tokens": 9,
        "num_bytes": 77,
        "vocab_size": 10,
        "eos_id": EOS,
        "tokenizer_hash": "none",
        "corpus": "test",
        "dtype": "uint16",
        "sha256": hashlib.sha256(tokens).hexdigest(),
        "format_version": 1,
    }


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(1 << 16, "uint16"), ((1 << 16) + 1, "uint32"), (1 << 32, "uint32")]
)
def test_the_smallest_type_that_holds_the_vocabulary_is_taken(tmp_path, vocab_size, dtype):
    write(tmp_path / "a", [[vocab_size - 1, 0]], vocab_size=vocab_size)
    stream = TokenStream(tmp_path / "a")
    assert stream.index.dtype == dtype == stream.tokens.dtype.name
    assert stream.tokens.tolist() == [vocab_size - 1, 0, EOS]


def test_a_stream_survives_pickling_by_mapping_its_files_anew(stream):
    data = pickle.dumps(stream)
    assert len(data) < 500
    assert np.array_equal(pickle.loads(data).tokens, stream.tokens)


def test_a_document_that_is_not_there_is_an_index_error(stream):
    for number in (-1, 1):
        with pytest.raises(IndexError):
            stream.document(number)


# Errors of writing leave nothing behind


@pytest.mark.parametrize(
    ("documents", "told"),
    [
        ([[1], [2, 10, 3]], "document 1: token 10 at position 1 is outside the vocabulary of 10"),
        ([[1], [2], [-1]], "document 2: token -1 at position 0 is outside the vocabulary of 10"),
        ([[1, EOS, 2]], "document 0: EOS (9) at position 1, not the end"),
        ([[1, EOS, EOS]], "document 0: EOS (9) at position 1, not the end"),
        ([[1.5]], "document 0: expected a list of token ids, found float64"),
        ([[[1]]], "document 0: expected a list of token ids, found int64 (1, 1)"),
        ([], "test: no documents to write"),
    ],
)
def test_documents_that_cannot_be_are_refused_and_nothing_is_left(tmp_path, documents, told):
    assert told in message(write, tmp_path / "a", documents)
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_middle_leaves_nothing(tmp_path):
    def documents():
        yield [1, 2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "a", documents())
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_middle_leaves_the_old_stream_whole(tmp_path):
    write(tmp_path / "a")
    before = {file.name: file.read_bytes() for file in (tmp_path / "a").iterdir()}
    message(write, tmp_path / "a", [[1], [77]], overwrite=True)
    assert {file.name: file.read_bytes() for file in (tmp_path / "a").iterdir()} == before
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_a_folder_is_replaced_only_if_it_is_a_token_stream_and_only_when_told(tmp_path):
    write(tmp_path / "a")
    assert "overwrite=True" in message(write, tmp_path / "a")
    write(tmp_path / "a", [[1]], overwrite=True)
    assert TokenStream(tmp_path / "a").tokens.tolist() == [1, EOS]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint").write_text("weeks of work")
    assert "holds something else" in message(write, tmp_path / "run", overwrite=True)
    assert (tmp_path / "run" / "checkpoint").exists()


def test_an_eos_outside_the_vocabulary_is_refused(tmp_path):
    assert "eos_id=10 and vocab_size=10" in message(write, tmp_path / "a", eos_id=10)
    assert "eos_id=-1" in message(write, tmp_path / "a", eos_id=-1)


# Errors of reading


def test_a_folder_that_is_no_token_stream_is_told(tmp_path):
    assert message(TokenStream, tmp_path / "none") == f"{tmp_path / 'none' / INDEX_NAME}: no such file"
    (tmp_path / INDEX_NAME).write_text("{")
    assert f"{tmp_path / INDEX_NAME}:1: not JSON" in message(TokenStream, tmp_path)
    (tmp_path / INDEX_NAME).write_text("[]")
    assert "format_version is None, expected 1" in message(TokenStream, tmp_path)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"format_version": 2}, "format_version is 2, expected 1; write the tokens again"),
        ({"colour": "red"}, "missing or unknown fields: colour"),
        ({"dtype": "int8"}, "dtype is 'int8', expected uint16 or uint32"),
        ({"num_tokens": "many"}, "num_tokens is 'many', expected a positive integer"),
        ({"num_tokens": 8}, f"{TOKENS_NAME}: 18 bytes, but {INDEX_NAME} says 16 bytes"),
        ({"dtype": "uint32"}, f"{TOKENS_NAME}: 18 bytes, but {INDEX_NAME} says 36 bytes"),
        ({"num_documents": 3}, f"{OFFSETS_NAME}: 40 bytes, but {INDEX_NAME} says 32 bytes"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(tmp_path, changes, told):
    write(tmp_path / "a")
    index = tmp_path / "a" / INDEX_NAME
    index.write_text(json.dumps(json.loads(index.read_text()) | changes))
    assert told in message(TokenStream, tmp_path / "a")


def test_a_missing_field_is_named(tmp_path):
    write(tmp_path / "a")
    index = tmp_path / "a" / INDEX_NAME
    values = json.loads(index.read_text())
    del values["corpus"]
    index.write_text(json.dumps(values))
    assert "missing or unknown fields: corpus" in message(TokenStream, tmp_path / "a")


def test_cut_or_missing_files_are_told_by_name(tmp_path):
    for name, size in ((TOKENS_NAME, 18), (OFFSETS_NAME, 40)):
        write(tmp_path / name)
        file = tmp_path / name / name
        file.write_bytes(file.read_bytes()[:-1])
        assert f"{file}: {size - 1} bytes, but {INDEX_NAME} says {size} bytes" in message(TokenStream, tmp_path / name)
        file.unlink()
        assert f"{file}: no such file" in message(TokenStream, tmp_path / name)


def test_verify_finds_one_changed_token(tmp_path):
    write(tmp_path / "a")
    TokenStream(tmp_path / "a").verify()
    file = tmp_path / "a" / TOKENS_NAME
    file.write_bytes(b"\2" + file.read_bytes()[1:])
    assert "SHA-256 is" in message(TokenStream(tmp_path / "a").verify)


def test_verify_finds_one_changed_offset(tmp_path):
    write(tmp_path / "a")
    file = tmp_path / "a" / OFFSETS_NAME
    file.write_bytes(np.array([0, 4, 5, 7, 9], dtype="<u8").tobytes())
    assert "documents do not end where EOS stands" in message(TokenStream(tmp_path / "a").verify)


# Tokenizing


def test_a_tokenized_corpus_holds_every_document_and_counts_its_bytes(tmp_path, tokenizer):
    texts = [row["text"] for row in load_corpus("tinystories-sample", split="test")]
    index = tokenize_corpus(iter(texts), tokenizer, tmp_path / "a", "stories", batch_size=50, show_progress=False)
    stream = TokenStream(tmp_path / "a")
    stream.verify()
    assert [tokenizer.decode(stream.document(number)[:-1].tolist()) for number in range(len(texts))] == texts
    assert index.num_bytes == sum(len(text.encode()) for text in texts)
    assert (index.num_documents, index.corpus, index.vocab_size) == (len(texts), "stories", 700)
    assert (index.eos_id, index.tokenizer_hash) == (tokenizer.eos_token_id, tokenizer_hash(tokenizer))
    assert (stream.tokens == index.eos_id).sum() == len(texts)


def test_the_batch_size_changes_nothing(tmp_path, tokenizer):
    texts = [f"Cat {number}." for number in range(20)]
    one, other = (
        tokenize_corpus(texts, tokenizer, tmp_path / str(size), "cats", batch_size=size, show_progress=False)
        for size in (1, 7)
    )
    assert one == other


def test_a_special_token_named_in_a_text_ends_no_document(tmp_path, tokenizer):
    text = "A <|endoftext|> B <|user|>"
    tokenize_corpus([text], tokenizer, tmp_path / "a", "forged", show_progress=False)
    document = TokenStream(tmp_path / "a").document(0)
    assert not set(document[:-1].tolist()) & set(tokenizer.all_special_ids)
    assert tokenizer.decode(document[:-1].tolist()) == text


def test_the_callers_tokenizer_is_left_as_it_was_and_its_truncation_not_used(tmp_path, tokenizer):
    long = "cat " * 3000
    tokenizer("a cat", truncation=True, max_length=2, padding="max_length")
    before = tokenizer.backend_tokenizer.to_str()
    tokenize_corpus([long], tokenizer, tmp_path / "a", "long", show_progress=False)
    assert tokenizer.backend_tokenizer.to_str() == before
    assert tokenizer.decode(TokenStream(tmp_path / "a").document(0)[:-1].tolist()) == long
    assert tokenizer.encode("<|end|>") == [tokenizer.convert_tokens_to_ids("<|end|>")]


def test_the_hash_is_of_what_makes_tokens_and_of_nothing_else(tokenizer):
    before = tokenizer_hash(tokenizer)
    tokenizer("a cat", truncation=True, max_length=3, padding="max_length")
    tokenizer.chat_template, template = "other", tokenizer.chat_template
    assert tokenizer_hash(tokenizer) == before
    tokenizer.chat_template = template
    other = train_bpe(["a cat sat on a mat"] * 9, 265, show_progress=False)
    hashes = {before, tokenizer_hash(other)}
    other.add_tokens(["cat"])
    assert len(hashes | {tokenizer_hash(other)}) == 3


def test_texts_that_cannot_be_tokenized_leave_nothing(tmp_path, tokenizer):
    def told(texts, **settings):
        settings = {"show_progress": False} | settings
        return message(tokenize_corpus, texts, tokenizer, tmp_path / "a", "bad", **settings)

    assert "bad: no documents" in told([])
    assert "document 1: expected text, found {'text': 'A'}" in told(["A", {"text": "A"}])
    assert "document 2: half a surrogate pair" in told(["A", "B", "\ud83d"])
    assert "batch_size=0" in told(["A"], batch_size=0)
    tokenizer.eos_token, eos = None, tokenizer.eos_token
    try:
        assert "the tokenizer has no EOS token" in told(["A"])
    finally:
        tokenizer.eos_token = eos
    assert list(tmp_path.iterdir()) == []
