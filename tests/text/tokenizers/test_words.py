import json
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmm_datasets.errors import InputError
from hmm_datasets.text.corpora.loading import load_corpus
from hmm_datasets.text.tokenizers.sentences import split_sentences
from hmm_datasets.text.tokenizers.words import (
    ARRAYS_NAME,
    INDEX_NAME,
    Sentences,
    WordCorpus,
    build_word_corpus,
)


@pytest.fixture(scope="module")
def stories() -> list[str]:
    return [row["text"] for row in load_corpus("tinystories-sample", test_fraction=0.0)]


@pytest.fixture(scope="module")
def corpus(stories) -> WordCorpus:
    return build_word_corpus(stories, k=100)


def spoken(corpus: WordCorpus, sentences) -> list[str]:
    return [" ".join(corpus.vocabulary[symbol] for symbol in sentence) for sentence in sentences]


def message(function, *args, **settings) -> str:
    with pytest.raises(InputError) as caught:
        function(*args, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Sentences and words


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("The cat sat. It ran.", ["the cat sat .", "it ran ."]),
        ("It's Lily’s  cat.\nIt\nran.", ["it's lily's cat .", "it ran ."]),
        ("She ran! Did he? He did.", ["he did ."]),
        ('"I am here." He ran. "Go," he said. "I go. You go. We go."', ["he ran .", "you go ."]),
        ("It is 3.5 m. He ran.", ["he ran ."]),
        ("He ran... He sat. . It went", ["he sat ."]),
        ("The end\n\nThe cat sat.", ["the cat sat ."]),
        ("Room 12 was red; it was big. It was.", ["it was ."]),
        ("", []),
    ],
)
def test_only_plain_sentences_with_one_full_stop_are_complete(text, kept):
    assert [" ".join(words) for words, lack in split_sentences(text) if lack is None] == kept


@given(st.text("ab.!?'’\" \n,1"))
def test_cutting_into_sentences_loses_no_word_and_no_mark(text):
    together = "".join("".join(words) for words, _ in split_sentences(text))
    assert together == re.sub(r"\s", "", text).replace("’", "'")


# The corpus, against a brute-force reading of its definition


@pytest.mark.thorough
def test_the_corpus_is_what_its_definition_says(stories):
    k = 60
    sentences = [words for story in stories for words, _ in split_sentences(story)]
    counts = Counter(word for words in sentences for word in words if word[0].isalnum())
    counts["."] = sum(words[-1] == "." for words in sentences)
    vocabulary = [word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))][:k]
    kept = [
        " ".join(words)
        for words in sentences
        if len(words) > 1 and words[-1] == "." and words.count(".") == 1 and all(word in vocabulary for word in words)
    ]
    corpus = build_word_corpus(stories, k=k, test_fraction=0.2)
    assert corpus.vocabulary == tuple(vocabulary)
    assert corpus.word_counts == tuple(counts[word] for word in vocabulary)
    assert Counter(spoken(corpus, corpus.train) + spoken(corpus, corpus.test)) == Counter(kept)
    in_train = set(spoken(corpus, corpus.train))
    assert spoken(corpus, corpus.train) == [sentence for sentence in kept if sentence in in_train]
    assert (corpus.num_documents, corpus.num_sentences) == (len(stories), len(sentences))
    assert corpus.num_words == counts.total()


@pytest.mark.thorough
def test_every_symbol_is_a_word_and_every_sentence_ends_in_the_full_stop(corpus):
    stop = corpus.vocabulary.index(".")
    for sentences in (corpus.train, corpus.test, corpus.unique):
        assert len(sentences)
        assert sentences.tokens.dtype == np.uint16
        assert sentences.tokens.max() < len(corpus.vocabulary)
        assert all(sentence[-1] == stop and (sentence[:-1] != stop).all() for sentence in sentences)


@pytest.mark.thorough
def test_no_sentence_is_in_train_and_test(corpus):
    assert set(spoken(corpus, corpus.train)).isdisjoint(spoken(corpus, corpus.test))


@pytest.mark.thorough
def test_about_the_asked_share_of_distinct_sentences_is_held_out(stories):
    corpus = build_word_corpus(stories, k=500, test_fraction=0.1)
    held_out = len(set(spoken(corpus, corpus.test)))
    assert 0.08 < held_out / (held_out + len(corpus.unique)) < 0.12


def test_unique_holds_each_sentence_of_train_once_in_order(corpus):
    assert spoken(corpus, corpus.unique) == list(dict.fromkeys(spoken(corpus, corpus.train)))


def test_unique_test_holds_each_sentence_of_test_once_in_order(corpus):
    assert spoken(corpus, corpus.unique_test) == list(dict.fromkeys(spoken(corpus, corpus.test)))
    assert 0 < len(corpus.unique_test) <= len(corpus.test)


def test_ties_are_broken_by_the_alphabet():
    corpus = build_word_corpus(["b a c. b a c. d."], k=4, test_fraction=0.0)
    assert corpus.vocabulary == (".", "a", "b", "c")


def test_the_full_stop_is_in_the_vocabulary_however_rare():
    corpus = build_word_corpus(["a a b b c c", "a b."], k=3, test_fraction=0.0)
    assert corpus.vocabulary == ("a", "b", ".")
    assert spoken(corpus, corpus.train) == ["a b ."]


def test_documents_may_be_a_stream_read_once():
    corpus = build_word_corpus((text for text in ["A b. A b.", "B a."]), k=3, test_fraction=0.0)
    assert spoken(corpus, corpus.train) == ["a b .", "a b .", "b a ."]


def test_sentences_are_a_sequence():
    sentences = Sentences.from_list([np.array([1, 2]), np.array([3])])
    assert [sentence.tolist() for sentence in sentences] == [[1, 2], [3]]
    assert sentences[-1].tolist() == [3]
    with pytest.raises(IndexError):
        sentences[2]


# Windows


def test_windows_hold_the_sentences_in_a_shuffled_order_less_the_remainder(corpus):
    windows = corpus.as_windows("train", 7)
    assert windows.shape == (len(corpus.train.tokens) // 7, 7)
    assert windows.dtype == np.uint16
    stop = corpus.vocabulary.index(".")
    flat = windows.ravel()
    read = np.split(flat, np.flatnonzero(flat == stop) + 1)
    *whole, _cut = [tuple(sentence) for sentence in read]
    missing = Counter(tuple(sentence) for sentence in corpus.train) - Counter(whole)
    assert missing.total() == len(corpus.train) - len(whole) <= 7
    assert whole != [tuple(sentence) for sentence in corpus.train][: len(whole)]


def test_the_order_of_windows_depends_on_the_seed_alone(corpus):
    assert np.array_equal(corpus.as_windows("train", 8, seed=1), corpus.as_windows("train", 8, seed=1))
    assert not np.array_equal(corpus.as_windows("train", 8, seed=1), corpus.as_windows("train", 8, seed=2))


def test_impossible_windows_are_refused(corpus):
    assert "expected one of train, test, unique, unique_test" in message(corpus.as_windows, "all", 8)
    too_long = message(corpus.as_windows, "test", 10**9)
    assert f"the sentences of test have {len(corpus.test.tokens)} symbols, not enough for a window" in too_long
    assert message(corpus.as_windows, "test", 0).startswith("length is 0")


# Files


def test_a_saved_corpus_comes_back_the_same(corpus, tmp_path):
    corpus.save(tmp_path / "words")
    loaded = WordCorpus.load(tmp_path / "words")
    for name in (
        "vocabulary",
        "word_counts",
        "num_documents",
        "num_sentences",
        "num_words",
        "test_fraction",
        "dropped",
    ):
        assert getattr(loaded, name) == getattr(corpus, name)
    for name in ("train", "test", "unique"):
        for array in ("tokens", "offsets"):
            one, other = getattr(getattr(loaded, name), array), getattr(getattr(corpus, name), array)
            assert one.dtype == other.dtype
            assert np.array_equal(one, other)


def test_saving_replaces_only_a_word_corpus_and_only_with_overwrite(corpus, tmp_path):
    corpus.save(tmp_path / "words")
    assert "overwrite=True" in message(corpus.save, tmp_path / "words")
    corpus.save(tmp_path / "words", overwrite=True)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("...")
    assert "contains something else" in message(corpus.save, tmp_path / "thesis", overwrite=True)
    assert (tmp_path / "thesis" / "chapter.tex").exists()


def test_a_damaged_folder_is_refused(corpus, tmp_path):
    assert "no such file" in message(WordCorpus.load, tmp_path)
    corpus.save(tmp_path / "words")
    (tmp_path / "words" / "digests.json").unlink()
    index, arrays = tmp_path / "words" / INDEX_NAME, tmp_path / "words" / ARRAYS_NAME
    values = json.loads(index.read_text())
    index.write_text(json.dumps(values | {"format_version": 99}))
    assert "format_version is 99, expected 2" in message(WordCorpus.load, tmp_path / "words")
    index.write_text(json.dumps(values | {"vocabulary": [1]}))
    assert "vocabulary" in message(WordCorpus.load, tmp_path / "words")
    index.write_text(json.dumps(values | {"sizes": values["sizes"] | {"train.tokens": 3}}))
    assert "sizes are not those" in message(WordCorpus.load, tmp_path / "words")
    index.write_text(json.dumps(values))
    arrays.write_bytes(arrays.read_bytes()[:-10])
    assert "cannot be read" in message(WordCorpus.load, tmp_path / "words")
    arrays.unlink()
    assert "cannot be read" in message(WordCorpus.load, tmp_path / "words")


# Errors


def test_impossible_corpora_are_refused():
    assert "no sentence in 0 documents" in message(build_word_corpus, [])
    assert "no sentence in 2 documents" in message(build_word_corpus, ["", " \n"])
    assert "k=1: expected 2 to 65536" in message(build_word_corpus, ["A."], k=1)
    assert "only 3 distinct words; pass k=3" in message(build_word_corpus, ["A b."], k=4)
    assert "test_fraction=1" in message(build_word_corpus, ["A."], k=2, test_fraction=1)
    told = message(build_word_corpus, ["A b c. A, b. A!"], k=2)
    assert "of 3, 0 are held out and the others dropped: 1 with a rarer word, 1 with no full stop at the end" in told
    assert "',' is no mark" not in told
    assert "'a' is no mark inside sentences" in message(build_word_corpus, ["A b."], k=2, marks=",a")
    assert "'।' is no mark inside sentences" in message(build_word_corpus, ["A b."], k=2, marks="।")


def test_words_in_a_folder_of_which_two_are_equal_are_refused(tmp_path):
    corpus = build_word_corpus(["The cat sat. The dog sat."] * 30, k=4)
    replace(corpus, vocabulary=(*corpus.vocabulary[:-1], corpus.vocabulary[0])).save(tmp_path / "words")
    assert "words.json: vocabulary[0] and " in message(WordCorpus.load, tmp_path / "words")
