import hashlib
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmm_datasets.errors import InputError
from hmm_datasets.text.corpora.filters import DocumentFilter, FirstSeen, document_digest
from hmm_datasets.text.corpora.splits import divided, held_out
from hmm_datasets.text.tokenizers.sentences import split_sentences

SPACES = "".join(filter(str.isspace, map(chr, range(sys.maxunicode + 1))))
ALPHABET = st.one_of(
    st.sampled_from(SPACES + "aé€☃😀\x00\x1b\x7f\u200b\u2060\u180e\ufeff"), st.characters(exclude_categories=["Cs"])
)


def message(function, *args, **settings) -> str:
    with pytest.raises(InputError) as caught:
        function(*args, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@given(st.lists(st.text("ab \n", max_size=4)))
def test_each_text_is_let_through_once_whatever_its_white_space(texts):
    first = {}
    for text in texts:
        first.setdefault(" ".join(text.split()), text)
    assert list(filter(FirstSeen(), texts)) == list(first.values())


def test_sentences_are_made_unique_like_documents():
    sentences = (" ".join(words) for words, _ in split_sentences("The cat sat. It ran. The cat sat."))
    assert list(filter(FirstSeen(), sentences)) == ["the cat sat .", "it ran ."]


def test_the_digest_is_the_same_on_every_machine():
    # From: printf "A cat sat." | b2sum -l 64
    assert document_digest(" A cat\n sat.") == 0xE583209D24E38B80


def digest_of_words(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(" ".join(text.split()).encode(), digest_size=8).digest(), "big")


@pytest.mark.thorough
def test_every_character_is_white_space_or_part_of_a_word_as_python_has_it():
    for code in [code for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]:
        text = f"a{chr(code)}b{chr(code)}"
        if chr(code).isspace() or code < 0x3100 or code % 101 == 0:
            assert document_digest(text) == digest_of_words(text), hex(code)


@given(st.text(ALPHABET))
def test_the_digest_of_a_text_is_that_of_the_words_that_python_finds(text):
    assert document_digest(text) == digest_of_words(text)


@given(st.lists(st.text(ALPHABET)), st.floats(0, 1, exclude_max=True))
def test_documents_of_the_same_words_are_held_out_together(texts, fraction):
    texts = [*texts, *texts, *(f" {text}\n" for text in texts)]
    found = list(divided(({"text": text} for text in texts), fraction, by_position=False))
    assert [document["text"] for _, document in found] == texts
    assert [split for split, _ in found] == ["test" if held_out(text, fraction) else "train" for text in texts]


def test_half_a_surrogate_pair_has_no_digest():
    with pytest.raises(UnicodeEncodeError, match="in position 2: surrogates not allowed"):
        document_digest("A \ud83d")


def test_the_bounds_of_the_length_are_both_included():
    kept = DocumentFilter(min_characters=2, max_characters=4)
    assert [kept.keeps_length(length) for length in range(6)] == [False, False, True, True, True, False]
    assert DocumentFilter().keeps_length(0)
    assert DocumentFilter().keeps_length(10**9)


@pytest.mark.parametrize(
    ("row", "kept"),
    [
        ({"language": "en", "score": 3}, True),
        ({"language": "en", "score": 3.5, "more": None}, True),
        ({"language": "de", "score": 4}, False),
        ({"language": "en", "score": 2.9}, False),
        ({"language": "en", "score": None}, False),
        ({"language": None, "score": 4}, False),
    ],
)
def test_a_row_is_kept_if_all_columns_are_as_asked(row, kept):
    assert DocumentFilter(equal={"language": "en"}, at_least={"score": 3}).keeps_row(row, "row 0") is kept


def test_missing_columns_and_columns_without_a_number_are_reported():
    asked = DocumentFilter(equal={"language": "en"}, at_least={"score": 3})
    assert (
        message(asked.keeps_row, {"text": "a", "score": 3}, "a.jsonl:7")
        == "a.jsonl:7: no column 'language' to filter by, found text, score"
    )
    told = message(asked.keeps_row, {"language": "en", "score": "high"}, "a.jsonl:7")
    assert told == "a.jsonl:7: score: expected a number to filter by, found 'high'"


def test_impossible_filters_are_refused():
    assert "min_characters=-1" in message(DocumentFilter, min_characters=-1)
    assert "min_characters=5, max_characters=4" in message(DocumentFilter, min_characters=5, max_characters=4)
    assert "equal='language'" in message(DocumentFilter, equal="language")
