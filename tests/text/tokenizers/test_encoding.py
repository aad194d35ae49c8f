import json
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken_files import converted, write_ranks
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from word_level import word_level_tokenizer

from hmm_datasets.errors import InputError
from hmm_datasets.text.corpora.loading import load_corpus
from hmm_datasets.text.tokenizers.bpe import SPECIAL_TOKENS, SPLIT_PATTERNS, byte_level_pieces, train_bpe
from hmm_datasets.text.tokenizers.encoding import Encoder

AWKWARD = [
    "",
    " ",
    "é́ 🙂 ☃ \x00 １２３４ \u00a0\u2003x\u200by ſ'ſ İ",
    "日本語のテキスト、한국어 и русский текст 👩‍👩‍👧 १२३४",
    "I'LL don't , 12345  \n\n\t def f(x):\r\n    return x  \n",
    "<|endoftext|> a<|end|><|user|>",
    "a" * 9999 + " " * 9999 + "\n" * 9999 + "=-" * 999,
]


def stories() -> list[str]:
    return [row["text"] for row in load_corpus("tinystories-sample", split="test")]


@pytest.fixture(scope="module", params=["gpt2", "gpt4", r"\s+|\S+"])
def tokenizer(request):
    return train_bpe([*stories(), *AWKWARD * 3], 1500, split_pattern=request.param, show_progress=False)


@pytest.fixture(scope="module")
def encoder(tokenizer):
    encoder = Encoder(tokenizer)
    encoder.encode_batch(["Once"])
    assert encoder.backend == "fastokens"
    return encoder


def one_by_one(tokenizer, texts) -> list[list[int]]:
    return [tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True) for text in texts]


def parts(encoder, texts) -> list[list[int]]:
    tokens, lengths = encoder.encode_batch(texts)
    assert (tokens.dtype, lengths.dtype, len(lengths)) == (np.uint32, np.int64, len(texts))
    return [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])] if len(lengths) else []


def message(function, *args) -> str:
    with pytest.raises(InputError) as caught:
        function(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.thorough
def test_the_ids_are_those_of_the_tokenizer(tokenizer, encoder):
    texts = [*stories(), *AWKWARD]
    assert parts(encoder, texts) == one_by_one(tokenizer, texts)


@pytest.mark.thorough
@settings(deadline=None, max_examples=200)
@given(texts=st.lists(st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from(" \n\t'sLl1aé"))), max_size=4))
def test_the_ids_are_those_of_the_tokenizer_whatever_the_text(tokenizer, encoder, texts):
    assert parts(encoder, texts) == one_by_one(tokenizer, texts)


def with_seams(folder):
    """A vocabulary in which every cut shows: the last byte of any character joins what may follow, the first what may
    stand before."""
    around = [b"x", b"1", b" ", b".", b"\n", b"'"]
    joined = [bytes([last]) + after for last in range(0xC0) for after in around]
    joined += [before + bytes([lead]) for lead in range(0xC2, 0xF5) for before in around]
    names = [*(bytes([byte]) for byte in range(256)), *joined]
    path = write_ranks(folder / "a.tiktoken", {name: rank for rank, name in enumerate(names)})
    return converted(path, SPLIT_PATTERNS["gpt2"])


@pytest.fixture(scope="module", params=["gpt2", "gpt4"])
def seams(request, tmp_path_factory):
    tokenizer = with_seams(tmp_path_factory.mktemp("seams"))
    tokenizer.backend_tokenizer.pre_tokenizer = byte_level_pieces(request.param)
    return tokenizer


@pytest.mark.thorough
def test_every_character_is_cut_from_its_neighbours_in_the_same_way(seams):
    """Each library has tables of its own of what is a letter, a digit, white space."""
    codes = [*range(0x3400), *range(0x3400, 0xD800, 31), *range(0xE000, 0x10000), *range(0x10000, 0x110000, 97)]
    texts = ["x{0}x1{0}1 {0} .{0}.\n{0}\n'{0}'{0}{0}s".format(chr(code)) for code in codes]
    encoder = Encoder(seams)
    ids = [encoding.ids for encoding in seams.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    assert parts(encoder, texts) == ids
    assert encoder.backend == "fastokens"
    assert len({len(row) for row in ids}) > 3


@pytest.mark.thorough
def test_white_space_of_one_of_the_libraries_alone_is_noticed_before_any_text(tmp_path):
    """The Mongolian vowel separator, U+180E, under GPT-2's pattern in full, as transformers converts tiktoken's."""
    encoder, texts = Encoder(tokenizer := with_seams(tmp_path)), ["x\u180ex 1\u180e1 \u180e\n\u180e"]
    assert encoder.backend == "tokenizers"
    assert parts(encoder, texts) == one_by_one(tokenizer, texts)


@pytest.mark.thorough
def test_special_tokens_in_a_text_are_read_as_text(tokenizer, encoder):
    text = "".join(SPECIAL_TOKENS)
    tokens, _ = encoder.encode_batch([text])
    assert tokens.min() >= len(SPECIAL_TOKENS)
    assert tokenizer.decode(tokens) == text


@pytest.mark.thorough
def test_the_tokenizer_given_stays_as_it_is(tokenizer):
    tokenizer.backend_tokenizer.enable_truncation(3)
    try:
        tokens, _ = Encoder(tokenizer).encode_batch(["Once upon a time there was a cat."])
        assert len(tokens) > 3
        assert len(tokenizer.backend_tokenizer.encode("Once upon a time there was a cat.").ids) == 3
    finally:
        tokenizer.backend_tokenizer.no_truncation()
    assert tokenizer.encode("<|end|>") == [SPECIAL_TOKENS.index("<|end|>")]


@pytest.mark.thorough
def test_how_texts_are_put_in_batches_changes_nothing(encoder):
    texts = stories()[:60]
    whole = parts(encoder, texts)
    assert [ids for first in range(0, 60, 7) for ids in parts(encoder, texts[first : first + 7])] == whole
    assert parts(encoder, []) == []
    assert encoder.encode_batch([])[0].shape == (0,)


@pytest.mark.thorough
def test_one_long_document_is_encoded_as_it_is_whole(tokenizer, encoder):
    text = "\n".join([*stories(), *AWKWARD]) * 4
    assert len(text) > 800_000
    assert parts(encoder, [text, "Once"]) == one_by_one(tokenizer, [text, "Once"])


def test_a_tokenizer_that_fastokens_does_not_take_is_done_by_tokenizers(caplog):
    tokenizer = word_level_tokenizer([".", "a", "cat"])
    encoder = Encoder(tokenizer)
    assert encoder.backend == "tokenizers"
    assert len(caplog.records) == 1
    assert parts(encoder, ["A cat.", "", "a"]) == [[1, 2, 0], [], [1]]


# {1,3}+ is possessive to one library, and to the other any number of pieces of one to three.


def test_a_pattern_that_the_libraries_read_differently_is_done_by_tokenizers(caplog):
    tokenizer = train_bpe(["12345678 " * 99], 266, split_pattern=r"\p{N}{1,3}+|[^\p{N}]+", show_progress=False)
    encoder = Encoder(tokenizer)
    assert encoder.backend == "tokenizers"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert parts(encoder, ["1234567"]) == one_by_one(tokenizer, ["1234567"])


def test_a_difference_on_a_runs_own_text_is_noticed(caplog):
    tokenizer = train_bpe(["жшжшжшжш " * 99], 267, split_pattern=r"[жш]{1,3}+|[^жш]+", show_progress=False)
    encoder = Encoder(tokenizer)
    assert encoder.backend == "fastokens"
    texts = ["Once", "жшжшжшжш"]
    assert parts(encoder, texts) == one_by_one(tokenizer, texts)
    assert encoder.backend == "tokenizers"
    assert "differ on a sample of the texts" in caplog.text


def test_what_is_not_text_is_reported_by_its_number(encoder):
    assert message(encoder.encode_batch, ["a", None]).startswith("text 1: expected text, found None")
    assert "text 2: half a surrogate pair at character 1" in message(encoder.encode_batch, ["a", "b", "c\ud83d"])
    assert message(Encoder(word_level_tokenizer(["."])).encode_batch, ["a", 3]).startswith(
        "text 1: expected text, found 3"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("unknown", [None, "<|endoftext|>"])
def test_a_byte_without_a_token_is_left_out_as_by_the_tokenizer(tokenizer, unknown):
    """SmolLM2's vocabulary lacks 21 of the 256 bytes, of which some are control characters."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = state["model"]["vocab"]
    names = [name for name in vocabulary if not {"Ą", "ø"} & set(name)]  # bytes 0x04 and 0xF8
    state["model"]["vocab"] = {name: number for number, name in enumerate(names)}
    state["model"]["merges"] = [pair for pair in state["model"]["merges"] if "".join(pair) in state["model"]["vocab"]]
    state["model"]["unk_token"] = unknown if unknown in state["model"]["vocab"] else None
    state["added_tokens"] = [one | {"id": names.index(one["content"])} for one in state["added_tokens"]]
    lacking = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state)))
    encoder, texts = Encoder(lacking), ["Once", "a\x04b", *stories()[:20]]
    assert parts(encoder, texts) == one_by_one(lacking, texts)
    assert parts(encoder, stories()[:20]) == one_by_one(lacking, stories()[:20])
    assert encoder.backend == "fastokens"
