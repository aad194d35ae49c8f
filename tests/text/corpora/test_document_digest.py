import hashlib
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmm_datasets.text.corpora.document_digest import document_digest
from hmm_datasets.text.corpora.splits import divided, held_out

SPACES = "".join(filter(str.isspace, map(chr, range(sys.maxunicode + 1))))
ALPHABET = st.one_of(
    st.sampled_from(SPACES + "aé€☃😀\x00\x1b\x7f\u200b\u2060\u180e\ufeff"), st.characters(exclude_categories=["Cs"])
)


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
