"""Files of tiktoken, for tests that read them. tiktoken's own function that writes them needs another package."""

import base64
from collections.abc import Mapping
from pathlib import Path

from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter


def write_ranks(path: Path, ranks: Mapping[bytes, int]) -> Path:
    """Write the tokens, in base64, and their ranks; returns the path."""
    path.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()))
    return path


def converted(path: Path, split_pattern: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a file of ranks, as transformers makes it."""
    end = "<|endoftext|>"
    tokenizer = TikTokenConverter(str(path), pattern=split_pattern, extra_special_tokens=[end]).converted()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end)
