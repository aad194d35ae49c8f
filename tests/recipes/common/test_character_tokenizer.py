"""Character tokenizers: one token per character, decoded byte for byte, with bits per byte."""

import pytest
from character_tokenizer import CHARACTER_SPECIAL_TOKENS, character_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from hmm_datasets.errors import InputError
from hmm_datasets.text.tokenizers.encoding import Encoder
from hmm_datasets.text.tokenizers.text_sizes import token_bytes


@pytest.mark.thorough
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60))
def test_every_character_is_a_token_and_is_decoded_byte_for_byte(text):
    tokenizer = character_tokenizer([text])
    ids = Encoder(tokenizer).encode_batch([text])[0].tolist()
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert token_bytes(tokenizer)[ids].sum() == len(text.encode())


def test_the_vocabulary_of_ascii_is_its_characters_and_three_special_tokens(tmp_path):
    tokenizer = character_tokenizer(["hello", "world\n"])
    assert len(tokenizer) == len(set("helloworld\n")) + len(CHARACTER_SPECIAL_TOKENS)
    assert tokenizer.encode("!")[0] == tokenizer.unk_token_id
    tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).encode("hold") == tokenizer.encode("hold")


def test_texts_without_characters_are_refused():
    with pytest.raises(InputError, match="no characters"):
        character_tokenizer([""])
