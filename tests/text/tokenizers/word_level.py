"""A tokenizer that is not byte-level, for tests of what takes any."""

from collections.abc import Sequence

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}


def word_level_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Lower-cased words and marks with the ids 0, 1, ..., and four special tokens after them."""
    ids = {word: number for number, word in enumerate([*words, *SPECIAL.values()])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=SPECIAL["unk_token"]))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)
