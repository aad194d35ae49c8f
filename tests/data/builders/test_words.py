"""`load_dataset("words", ...)`: the sentences or windows of a word corpus, prepared and streamed."""

from itertools import islice

import pytest
from datasets import Features, List, Value, load_dataset

import hmm_datasets  # noqa: F401 (makes "words" known)
from hmm_datasets.errors import InputError
from hmm_datasets.text.tokenizers.words import WordCorpus, build_word_corpus

TEXT = [f"The {a} saw a {b}. A {b} ran to the {a}." for a in ("cat", "dog", "fox") for b in ("cat", "dog", "fox")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words") / "corpus"
    build_word_corpus(TEXT, k=9, test_fraction=0.3).save(folder)
    return folder


def load(folder, tmp_path, **settings):
    return load_dataset("words", data_dir=str(folder), cache_dir=str(tmp_path / "cache"), **settings)


def test_every_split_has_the_sentences_of_the_corpus_prepared_and_streamed(folder, tmp_path):
    corpus = WordCorpus.load(folder)
    prepared = load(folder, tmp_path, columns=["input_ids", "text"])
    streamed = load(folder, tmp_path, columns=["input_ids", "text"], streaming=True)
    assert set(prepared) == {"train", "test", "unique"}
    assert prepared["train"].features == Features({"input_ids": List(Value("uint8")), "text": Value("string")})
    for name, split in prepared.items():
        expected = [sentence.tolist() for sentence in getattr(corpus, name)]
        assert split["input_ids"][:] == expected
        assert split["text"][:] == [" ".join(corpus.vocabulary[symbol] for symbol in row) for row in expected]
        assert list(streamed[name]) == list(split)


def test_windows_are_those_of_the_corpus_and_a_stream_resumes(folder, tmp_path):
    corpus = WordCorpus.load(folder)
    settings = {"length": 7, "seed": 3, "columns": ["input_ids", "labels"], "split": "train"}
    expected = corpus.as_windows("train", 7, seed=3).tolist()
    assert load(folder, tmp_path, **settings)["input_ids"][:] == expected
    stream = load(folder, tmp_path, streaming=True, **settings)
    first = [row["labels"] for row in islice(stream, 2)]
    state = stream.state_dict()
    stream.load_state_dict(state)
    found = first + [row["labels"] for row in stream][-len(expected) + 2 :]
    assert found == [[-100, *row[1:]] for row in expected]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"columns": ["tokens"]}, "columns are tokens; expected some of input_ids"),
        ({"length": 10_000, "split": "train"}, "length=10000, but train has only"),
        ({"length": 0}, r"length is 0; expected an integer in \[1"),
    ],
)
def test_settings_that_cannot_be_are_named(folder, tmp_path, settings, complaint):
    with pytest.raises(InputError, match=complaint):
        load(folder, tmp_path, **settings)
