"""Tokenizers and chat templates of others that would take for ever, fill memory, or end the process."""

import json
import random

import pytest
from tokenizers import Regex, pre_tokenizers
from transformers import AutoTokenizer

from hmm_datasets.errors import InputError
from hmm_datasets.text.tokenizers.bpe import SPLIT_PATTERNS, train_bpe
from hmm_datasets.text.tokenizers.chat_encoding import encode_conversation
from hmm_datasets.text.tokenizers.encoding import Encoder, encode_texts
from hmm_datasets.training.pretrained import load_pretrained

CHAT = [{"role": "user", "content": "low"}, {"role": "assistant", "content": "lower"}]


@pytest.fixture
def tokenizer():
    return train_bpe(["low lower lowest"] * 9, 266, show_progress=False)


@pytest.mark.thorough
@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(x*)*y|(a+)+b"])
def test_a_pattern_that_takes_exponential_time_is_refused_in_one_line(pattern, tokenizer, capfd):
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    for use in (
        lambda: encode_texts(tokenizer, ["low"]),
        lambda: Encoder(tokenizer),
        lambda: encode_conversation(tokenizer, CHAT),
        lambda: train_bpe(["low"] * 9, 266, split_pattern=pattern, show_progress=False),
    ):
        with pytest.raises(InputError, match="the pattern that cuts text takes exponential time on some of it"):
            use()
    assert "panicked" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("tokenizer.json", lambda state: state["model"]["vocab"].update(a=2**31), "a token has the id 2147483648"),
        (
            "tokenizer.json",
            lambda state: state["added_tokens"][0].update(id=2**40),
            "a token has the id 1099511627776",
        ),
        ("tokenizer_config.json", lambda state: state.update(model_max_length="x"), "model_max_length is 'x'"),
        ("tokenizer_config.json", lambda state: state.update(extra_special_tokens=7), "AutoTokenizer cannot be made"),
    ],
)
def test_a_damaged_tokenizer_folder_is_refused_in_one_line(file, change, message, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    state = json.loads((tmp_path / file).read_text())
    change(state)
    (tmp_path / file).write_text(json.dumps(state))
    with pytest.raises(InputError, match=message):
        encode_texts(load_pretrained(AutoTokenizer, str(tmp_path)), ["low"])


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/tokenizers/issues/1313",
    "train BPE on DNA, whose lines are one word, in less than hours",
    "runs of more than 1,000 characters are cut for training: a million letters take seconds",
)
@pytest.mark.outside(
    "https://github.com/huggingface/tokenizers/issues/497",
    "train BPE on text without spaces, such as JSON on one line, in practicable time",
    "time grows with the length of the text, not with its square",
)
@pytest.mark.parametrize("pattern", ["gpt2", "gpt4", r"\p{L}+|[^\p{L}]+"])
def test_letters_without_spaces_are_trained_on_in_pieces(pattern):
    draw = random.Random(0)
    genome = "".join(draw.choices("ACGT", k=60_000))
    tokenizer = train_bpe([genome], 400, split_pattern=pattern, show_progress=False)
    assert tokenizer.decode(tokenizer.encode(genome)) == genome
    assert len(tokenizer.encode(genome)) < 20_000
    pieces = train_bpe([genome[n : n + 1_000] for n in range(0, 60_000, 1_000)], 400, split_pattern=pattern,
                       show_progress=False)  # fmt: skip
    assert pieces.get_vocab() == tokenizer.get_vocab()
    if pattern in SPLIT_PATTERNS:  # shorter runs are not cut
        words = [" ".join(genome[n : n + 600] for n in range(0, 6_000, 600))]
        whole = train_bpe([*words[0].replace(" ", "\n ").split("\n")], 300, split_pattern=pattern, show_progress=False)
        assert train_bpe(words, 300, split_pattern=pattern, show_progress=False).get_vocab() == whole.get_vocab()


def test_a_control_token_that_is_part_of_a_key_of_messages_changes_nothing(tokenizer):
    expected = encode_conversation(tokenizer, CHAT)
    tokenizer.add_special_tokens({"extra_special_tokens": [*tokenizer.extra_special_tokens, "tent"]})
    assert encode_conversation(tokenizer, CHAT) == expected
