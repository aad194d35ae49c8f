"""A chat model of ten words, so small that a step of post-training takes a tenth of a second."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hmm_datasets.files import read_jsonl
from hmm_datasets.text.tokenizers.bpe import train_bpe

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def message(role: str, content: str) -> list[dict[str, str]]:
    return [{"role": role, "content": content}]


def save_tiny_chat(folder) -> PreTrainedTokenizerFast:
    """Save a model with random weights and its tokenizer; return the latter."""
    tokenizer = train_bpe([f"Say {' '.join(WORDS)}."] * 8, 290, show_progress=False)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def losses(folder) -> dict[int, float]:
    """The loss of every step, from the history of a run."""
    return {row["step"]: row["loss"] for row in read_jsonl(folder / "history.jsonl") if "loss" in row}
