import base64
import json

import numpy as np
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken_ext.openai_public import r50k_pat_str
from tiktoken_files import write_ranks

from hmm_datasets.errors import InputError
from hmm_datasets.text.corpora.loading import load_corpus
from hmm_datasets.text.tokenizers.bpe import SPECIAL_TOKENS, train_bpe
from hmm_datasets.text.tokenizers.imports import byte_characters, import_gpt2, import_tiktoken

# That of cl100k_base, as tiktoken writes it: fewer steps back, the same pieces as SPLIT_PATTERNS["gpt4"].
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
TIKTOKEN_PATTERNS = {"gpt2": r50k_pat_str, "gpt4": CL100K}
AWKWARD = [
    "日本語のテキスト、한국어 и русский текст, ελληνικά, عربى १२३४",
    "🙂👩‍👩‍👧 e\u0301 n\u0303 \u00a0\u2003x\u200by ſ'ſ İ",
    "I'LL don't 12345  \n\n\t def f(x):\r\n    return x  \n",
    "a" * 999 + " " * 99 + "\n" * 99 + "<|endoftext|> <|user|>",
]


def stories() -> list[str]:
    return [row["text"] for row in load_corpus("tinystories-sample", split="test")]


def message(function, *args, **settings) -> str:
    with pytest.raises(InputError) as caught:
        function(*args, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def trained(split_pattern: str, vocab_size: int = 2000):
    return train_bpe([*stories(), *AWKWARD * 3], vocab_size, split_pattern=split_pattern, show_progress=False)


def ranks_of(tokenizer) -> dict[bytes, int]:
    byte_of = {character: byte for byte, character in enumerate(byte_characters())}
    vocabulary = {token: number for token, number in tokenizer.get_vocab().items() if token not in SPECIAL_TOKENS}
    return {bytes(byte_of[c] for c in token): number - len(SPECIAL_TOKENS) for token, number in vocabulary.items()}


def encode(tokenizer, text) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)


# tiktoken


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["gpt2", "gpt4"])
def test_ranks_give_tiktokens_own_ids_on_text_of_many_languages(tmp_path, name):
    ranks = ranks_of(trained(name))
    imported = import_tiktoken(write_ranks(tmp_path / "a.tiktoken", ranks), name)
    reference = tiktoken.Encoding("a", pat_str=TIKTOKEN_PATTERNS[name], mergeable_ranks=ranks, special_tokens={})
    for text in [*stories(), *AWKWARD]:
        assert encode(imported, text) == reference.encode_ordinary(text)


@pytest.mark.thorough
@settings(deadline=None, max_examples=60)
@given(
    tokens=st.lists(st.text("ab", min_size=2, max_size=6), unique=True, max_size=25),
    seed=st.integers(0, 2**32 - 1),
    texts=st.lists(st.text("ab", max_size=30), min_size=1, max_size=20),
)
def test_any_ranks_whatever_give_tiktokens_own_ids(tmp_path_factory, tokens, seed, texts):
    """Also those that no training yields: tokens out of reach, ranks against the order of merging."""
    names = [bytes([byte]) for byte in range(256)] + [token.encode() for token in tokens]
    order = np.random.default_rng(seed).permutation(len(names)).tolist()
    ranks = dict(zip(names, order, strict=True))
    path = write_ranks(tmp_path_factory.mktemp("ranks") / "a.tiktoken", ranks)
    imported = import_tiktoken(path, r"\S+|\s+")
    reference = tiktoken.Encoding("a", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={})
    for text in texts:
        assert encode(imported, text) == reference.encode_ordinary(text)


def test_a_token_out_of_reach_is_only_ever_a_whole_piece(tmp_path):
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"abcd": 256}
    imported = import_tiktoken(write_ranks(tmp_path / "a.tiktoken", ranks), "gpt2")
    reference = tiktoken.Encoding("a", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={})
    assert encode(imported, "abcd") == reference.encode_ordinary("abcd") == [256]
    assert encode(imported, "abcde") == reference.encode_ordinary("abcde") == list(b"abcde")


def test_special_tokens_keep_their_ids_and_those_missing_come_after(tmp_path):
    ranks = ranks_of(trained("gpt4", 600))
    top = len(ranks)
    path = write_ranks(tmp_path / "a.tiktoken", ranks)
    special = {"<|endoftext|>": top + 1, "<|endofprompt|>": top + 4}
    imported = import_tiktoken(path, "gpt4", special_tokens=special)
    assert imported.convert_tokens_to_ids(list(special)) == list(special.values())
    assert imported.convert_tokens_to_ids(list(SPECIAL_TOKENS[1:])) == list(range(top + 5, top + 11))
    assert imported.eos_token_id == top + 1
    assert sorted(imported.get_vocab().values()) == list(range(len(imported))) == list(range(top + 11))
    assert imported.convert_ids_to_tokens([top, top + 2]) == [f"<|unused_{top}|>", f"<|unused_{top + 2}|>"]
    assert imported.encode("a<|endoftext|>b").count(top + 1) == 1
    assert imported.decode(imported.encode("A cat 🙂 sat.")) == "A cat 🙂 sat."


def test_ranks_may_leave_room_for_special_tokens_among_them(tmp_path):
    ranks = {token: rank + 10 for token, rank in ranks_of(trained("gpt4", 600)).items()}
    special = {"<|endoftext|>": 3, "<|other|>": 5}
    imported = import_tiktoken(write_ranks(tmp_path / "a", ranks), "gpt4", special_tokens=special)
    assert imported.convert_tokens_to_ids("<|endoftext|>") == imported.eos_token_id == 3
    assert imported.encode("<|endoftext|>a<|other|>")[::2] == [3, 5]
    assert not {3, 5} & set(encode(imported, "<|endoftext|><|other|>"))
    assert len(imported) == max(imported.get_vocab().values()) + 1


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (lambda lines: [*lines, "YQ= 999"], ":257: expected a token in base64 and its rank"),
        (lambda lines: [*lines, "YWE= x"], ":257: expected a token in base64 and its rank"),
        (lambda lines: [*lines, lines[0]], ":257: expected a token in base64 and its rank, each token once"),
        (lambda lines: lines[1:], "no rank for the bytes [0]"),
        (lambda lines: [*lines, "YWE= 7"], "two tokens have the same rank"),
        (lambda lines: [*lines, "YWE= 99999"], "ids reach 99"),
    ],
)
def test_a_file_that_is_not_a_rank_file_is_reported(tmp_path, changed, told):
    lines = [f"{base64.b64encode(bytes([byte])).decode()} {byte}" for byte in range(256)]
    (tmp_path / "a.tiktoken").write_text("\n".join(changed(lines)))
    assert told in message(import_tiktoken, tmp_path / "a.tiktoken", "gpt4")


def test_other_things_an_import_cannot_do_are_reported(tmp_path):
    path = write_ranks(tmp_path / "a.tiktoken", {bytes([byte]): byte for byte in range(256)})
    assert "is possessive in tiktoken, but a repetition here" in message(import_tiktoken, path, CL100K)
    assert "found [7]" in message(import_tiktoken, path, "gpt4", special_tokens={"<|endoftext|>": 7})
    assert "none.tiktoken: no such file" in message(import_tiktoken, tmp_path / "none.tiktoken", "gpt4")


# GPT-2


@pytest.fixture
def gpt2_files(tmp_path):
    """A tokenizer of GPT-2's layout: bytes, merges, then `<|endoftext|>`."""
    tokenizer = trained("gpt2", 800)
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    first = len(SPECIAL_TOKENS)
    vocabulary = {token: number - first for token, number in state["model"]["vocab"].items() if number >= first}
    vocabulary["<|endoftext|>"] = len(vocabulary)
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    merges = [" ".join(pair) for pair in state["model"]["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    return tmp_path / "vocab.json", tmp_path / "merges.txt"


@pytest.mark.thorough
def test_gpt2s_files_give_the_ids_that_transformers_gives(gpt2_files):
    from transformers import GPT2Tokenizer

    imported = import_gpt2(*gpt2_files)
    reference = GPT2Tokenizer(*map(str, gpt2_files))
    for text in [*stories()[:50], *AWKWARD[:3]]:
        assert encode(imported, text) == reference.encode(text)
    size = len(json.loads(gpt2_files[0].read_text()))
    assert imported.eos_token_id == size - 1
    assert imported.convert_tokens_to_ids(list(SPECIAL_TOKENS[1:])) == list(range(size, size + 6))


def test_an_imported_tokenizer_comes_back_from_disk_and_takes_conversations(gpt2_files, tmp_path):
    from transformers import AutoTokenizer

    imported = import_gpt2(*gpt2_files)
    imported.save_pretrained(tmp_path / "saved")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert loaded.get_vocab() == imported.get_vocab()
    chat = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": " A cat."}]
    output = loaded.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
    learned = [i for i, mask in zip(output["input_ids"], output["assistant_masks"], strict=True) if mask]
    assert loaded.decode(learned) == " A cat.<|end|>"
    assert loaded.decode(output["input_ids"]) == "<|user|>Who?<|end|><|assistant|> A cat.<|end|>"


def test_files_that_do_not_match_are_reported(gpt2_files, tmp_path):
    vocab, merges = gpt2_files
    lines = merges.read_text().split("\n")
    merges.write_text("\n".join([*lines[:3], "zz qq", *lines[3:]]))
    assert f"{merges}:4: expected two tokens of {vocab}" in message(import_gpt2, vocab, merges)
    vocab.write_text('{"a": 1, "b": 1}')
    assert "each id once" in message(import_gpt2, vocab, merges)
    assert "no such file" in message(import_gpt2, tmp_path / "none.json", merges)
