"""Bytes and characters that tokens stand for, by hand; and what tokenizers lose."""

import numpy as np
import pytest
from character_tokenizer import character_tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.text.tokenizers.text_sizes import (
    LostText,
    changing_normalizer,
    sized_texts,
    token_bytes,
    token_characters,
)


def with_bytes(*words: str, normalizer=None) -> PreTrainedTokenizerFast:
    """As SentencePiece has it: a space before the text, and unknown characters as tokens of a byte each."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *words]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence([normalizer, *steps] if normalizer else steps)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


@pytest.mark.parametrize(
    ("text", "sizes", "characters"),
    [
        ("ab", [0, 1, 1], [0, 1, 1]),
        ("a b", [0, 1, 1, 1], [0, 1, 1, 1]),
        (" a", [1, 0, 1], [1, 0, 1]),
        ("aéb", [0, 1, 1, 1, 1], [0, 1, 1, 0, 1]),
        ("€€", [0, 1, 1, 1, 1, 1, 1], [0, 1, 0, 0, 1, 0, 0]),
        ("é", [0, 1, 1], [0, 1, 0]),
        ("", [], []),
    ],
)
def test_the_bytes_of_tokens_are_those_of_the_text(text, sizes, characters):
    (sized,) = sized_texts(with_bytes("a", "b"), [text], lost := LostText())
    assert (sized.bytes.tolist(), sized.characters.tolist()) == (sizes, characters)
    assert sized.bytes.sum() == len(text.encode())
    assert lost.report() is None


def test_one_byte_twice_is_no_character_in_two_tokens():
    """Only tokens of a byte each, as many as their character has bytes, share it."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"é": 0, "<unk>": 1}, unk_token="<unk>")), unk_token="<unk>"
    )
    (sized,) = sized_texts(tokenizer, ["é"], LostText())
    assert (sized.bytes.tolist(), sized.characters.tolist()) == ([2], [1])


def test_what_is_left_at_the_end_belongs_to_the_last_token():
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<unk>": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    lost = LostText()
    first, second = sized_texts(fast, ["a  b \n", "a ü b"], lost)
    assert (first.bytes.tolist(), second.bytes.tolist()) == ([1, 5], [1, 3, 2])
    assert second.characters.tolist() == [1, 2, 2]
    # "a  b \n" is decoded as "a b", and "a ü b" as "a <unk> b".
    assert (lost.documents, lost.of_documents, lost.of_characters, lost.unknown) == (2, 2, 11, 1)
    assert lost.characters == 3 + 1
    assert lost.examples[0] == " "
    assert "4 of 11 characters, in 2 of 2 documents" in lost.describe()
    assert "1 tokens stand for something unknown" in lost.describe()


def test_bytes_of_a_stream_are_less_or_more_than_those_of_its_texts():
    assert LostText(changed_bytes=3).describe().count("tokens stand for 3 bytes less than the texts have") == 1
    assert LostText(changed_bytes=-3).describe().count("tokens stand for 3 bytes more than the texts have") == 1
    assert LostText(changed_bytes=-3).report()["changed_bytes"] == -3
    assert (LostText().describe(), LostText().report()) == ("", None)


def test_a_byte_level_vocabulary_has_the_bytes_of_its_tokens():
    texts = ["éé éé éé €"] * 9
    tokenizer = train_bpe(texts, 265, show_progress=False)
    tokenizer.add_tokens(["né"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|x|>"]})
    sizes, characters = token_bytes(tokenizer), token_characters(tokenizer)
    for name, size, count in (("né", 3, 2), ("<|x|>", 0, 0), ("Ã©", 2, 1), ("Ã", 1, 1), ("©", 1, 0)):
        number = tokenizer.convert_tokens_to_ids(name)
        assert (sizes[number], characters[number]) == (size, count), name
    (sized,) = sized_texts(tokenizer, ["éé né €"], LostText())
    np.testing.assert_array_equal(sized.bytes, sizes[sized.tokens])
    assert (sized.bytes.sum(), sized.characters.sum()) == (len("éé né €".encode()), len("éé né €"))
    tokenizer.add_tokens(["<|y|>"], special_tokens=True)  # special where it was added, though of no use
    number = tokenizer.convert_tokens_to_ids("<|y|>")
    assert number not in tokenizer.all_special_ids
    assert token_bytes(tokenizer)[number] == token_characters(tokenizer)[number] == 0
    tokenizer.pad_token = "né"  # special by its use, though not where it was added
    assert token_bytes(tokenizer)[tokenizer.pad_token_id] == token_characters(tokenizer)[tokenizer.pad_token_id] == 0


def test_an_unknown_byte_counts_as_one_byte_and_no_character():
    tokenizer = character_tokenizer(["ab"])
    unknown = tokenizer.unk_token_id
    assert (token_bytes(tokenizer)[unknown], token_characters(tokenizer)[unknown]) == (1, 0)


def test_only_what_changes_letters_is_a_changing_normalizer():
    assert changing_normalizer(with_bytes("a", normalizer=normalizers.Lowercase())) == "Sequence"
    plain = train_bpe(["low lower"] * 9, 264, show_progress=False)
    assert changing_normalizer(plain) is None
    plain.backend_tokenizer.normalizer = normalizers.Prepend(" ")
    assert changing_normalizer(plain) is None, "a space before the text"
    for normalizer, name in ((normalizers.Strip(), None), (normalizers.NFC(), "NFC"), (normalizers.NFKC(), "NFKC")):
        plain.backend_tokenizer.normalizer = normalizer
        assert changing_normalizer(plain) == name
