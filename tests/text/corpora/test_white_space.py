"""White space and digests of many texts at once."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmm_datasets.text.corpora.filters import document_digest, document_digests, with_digests
from hmm_datasets.text.corpora.splits import divided, held_out
from hmm_datasets.text.corpora.white_space import single_spaced

SPACES = "".join(filter(str.isspace, map(chr, range(sys.maxunicode + 1))))
ALPHABET = st.one_of(
    st.sampled_from(SPACES + "aé€☃😀\x00\x1b\x7f\u200b\u2060\u180e\ufeff"), st.characters(exclude_categories=["Cs"])
)
TEXTS = st.lists(st.text(ALPHABET))


def parts(texts) -> list[bytes]:
    data, stops = single_spaced(texts)
    assert len(data) == (stops[-1] if texts else 0)
    return [data[first:stop].tobytes() for first, stop in zip([0, *stops], stops, strict=False)]


def test_every_character_is_white_space_or_part_of_a_word_as_python_has_it():
    characters = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    text = "".join(f"a{character}b{character}" for character in characters)
    assert parts([text]) == [" ".join(text.split()).encode()]


@given(TEXTS)
def test_words_of_many_texts_are_those_that_python_finds_in_each(texts):
    assert parts(texts) == [" ".join(text.split()).encode() for text in texts]


@given(TEXTS)
def test_digests_of_many_texts_are_those_of_each(texts):
    assert document_digests(texts) == [document_digest(text) for text in texts]


@given(TEXTS, st.floats(0, 1, exclude_max=True))
def test_documents_are_held_out_together_as_they_are_one_by_one(texts, fraction):
    texts = [*texts, *texts, *(f" {text}\n" for text in texts)]
    found = list(divided(({"text": text} for text in texts), fraction, by_position=False))
    assert [document["text"] for _, document in found] == texts
    assert [split for split, _ in found] == ["test" if held_out(text, fraction) else "train" for text in texts]


@pytest.mark.parametrize("digest", [document_digest, lambda text: document_digests(["A cat.", text])])
def test_half_a_surrogate_pair_has_no_digest(digest):
    with pytest.raises(UnicodeEncodeError, match="in position 2: surrogates not allowed"):
        digest("A \ud83d")


def test_a_document_is_not_held_back_until_many_have_been_read():
    read = []
    documents = with_digests((read.append(n) or str(n) for n in range(100_000)), str)
    assert next(documents) == ("0", document_digest("0"))
    assert len(read) == 1
    before_last = [len(read) for _ in range(2000) if next(documents)][-1]
    assert before_last <= 2001 + 1024, "read ahead by as many documents as are hashed together"


def test_long_documents_are_hashed_in_small_numbers():
    read = []
    documents = with_digests((read.append(n) or "word " * 50_000 for n in range(50)), str)
    ahead = [len(read) - number for number, _ in enumerate(documents, start=1)]
    assert len(ahead) == 50
    assert max(ahead) <= 4


def test_documents_before_an_error_are_passed_on_before_it_is_raised():
    def documents():
        yield from map(str, range(10))
        raise OSError("connection reset")

    found = with_digests(documents(), str)
    assert [next(found) for _ in range(10)] == [(str(n), document_digest(str(n))) for n in range(10)]
    with pytest.raises(OSError, match="connection reset"):
        next(found)
