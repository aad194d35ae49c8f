"""Files of tiktoken and GPT-2, which transformers converts to a folder that this package loads."""

import json

import pytest
import tiktoken
from tiktoken_files import converted, write_ranks

from hmm_datasets.text.corpora.loading import load_corpus
from hmm_datasets.text.tokenizers.bpe import SPECIAL_TOKENS, SPLIT_PATTERNS, train_bpe
from hmm_datasets.text.tokenizers.chat_templates import load_tokenizer
from hmm_datasets.text.tokenizers.encoding import Encoder
from hmm_datasets.text.tokenizers.named_templates import set_chat_template
from hmm_datasets.text.tokenizers.text_sizes import byte_characters, token_bytes

TEXTS = [
    "日本語のテキスト、한국어 и русский текст, ελληνικά, عربى १२३४",
    "I'LL don't 12345  \n\n\t def f(x):\r\n    return x  \n",
    "🙂👩\u200d👩\u200d👧 e\u0301 n\u0303 \u00a0\u2003x\u200by \u017f's\u017f \u0130",
    "a" * 999 + " " * 99 + "\n" * 99,
]


def stories():
    return [row["text"] for row in load_corpus("tinystories-sample", split="test")]


def trained(name):
    """A tokenizer with a vocabulary of bytes, and its vocabulary and merges without special tokens."""
    tokenizer = train_bpe([*stories(), *TEXTS * 3], 2000, split_pattern=name, show_progress=False)
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    first = len(SPECIAL_TOKENS)
    vocabulary = {token: number - first for token, number in model["vocab"].items() if number >= first}
    return vocabulary, [" ".join(pair) for pair in model["merges"]]


def ranks_of(vocabulary):
    byte_of = {character: byte for byte, character in enumerate(byte_characters())}
    return {bytes(byte_of[letter] for letter in token): number for token, number in vocabulary.items()}


def check_ids(tokenizer, ranks, name):
    reference = tiktoken.Encoding("a", pat_str=SPLIT_PATTERNS[name], mergeable_ranks=ranks, special_tokens={})
    texts = [*stories(), *TEXTS]
    tokens, lengths = Encoder(tokenizer).encode_batch(texts)
    assert lengths.tolist() == [len(row) for row in reference.encode_ordinary_batch(texts)]
    assert tokens.tolist() == [number for row in reference.encode_ordinary_batch(texts) for number in row]
    assert token_bytes(tokenizer)[tokens].sum() == sum(len(text.encode()) for text in texts)


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/openai/tiktoken/issues/60",
    "ranks of tiktoken in the tokenizers library, of which a conversion did not merge runs of spaces",
    "the ids of transformers' TikTokenConverter are tiktoken's, of runs of spaces and line breaks too",
)
@pytest.mark.outside(
    "https://github.com/huggingface/transformers/pull/34319",
    "a conversion of tiktoken that has the merges alone, without the pattern, the bytes and the special tokens",
    "converted(), which has them, and not tokenizer()",
)
@pytest.mark.parametrize("name", ["gpt2", "gpt4"])
def test_a_file_of_tiktoken_converted_by_transformers_gives_tiktokens_own_ids(tmp_path, name):
    ranks = ranks_of(trained(name)[0])
    converted(write_ranks(tmp_path / "a.tiktoken", ranks), SPLIT_PATTERNS[name]).save_pretrained(tmp_path / "a")
    check_ids(load_tokenizer(tmp_path / "a"), ranks, name)


@pytest.mark.thorough
def test_gpt2s_files_saved_by_transformers_keep_their_ids_and_take_conversations(tmp_path):
    from transformers import GPT2Tokenizer

    vocabulary, merges = trained("gpt2")
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary | {"<|endoftext|>": len(vocabulary)}))
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    files = [str(tmp_path / name) for name in ("vocab.json", "merges.txt")]
    GPT2Tokenizer(*files).save_pretrained(tmp_path / "a")
    tokenizer = load_tokenizer(tmp_path / "a")
    check_ids(tokenizer, ranks_of(vocabulary), "gpt2")
    set_chat_template(tokenizer, "default")
    chat = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": " A cat."}]
    output = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
    learnt = [i for i, mask in zip(output["input_ids"], output["assistant_masks"], strict=True) if mask]
    assert tokenizer.decode(learnt) == " A cat.<|end|>"
