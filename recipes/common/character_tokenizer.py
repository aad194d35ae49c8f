"""Character tokenizers: one token per character that occurs in a text.

The vocabulary is 3 special tokens, the distinct characters of the texts in the order of their code points, and, if
some of them take several bytes in UTF-8, the bytes and beginnings that these are put together from. It is a
byte-level BPE tokenizer whose merges end at the character, so that text is decoded byte for byte and bits per byte
are defined. Building it reads the texts once and keeps the set of their characters.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hmm_datasets.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CHARACTER_SPECIAL_TOKENS = ("<|endoftext|>", "<|pad|>", "<|unknown|>")
"""Ids 0 to 2. `<|endoftext|>` ends a document; `<|unknown|>` stands for the bytes of characters that are not known."""


def character_tokenizer(texts: Iterable[str], *, model_max_length: int = 2048) -> "PreTrainedTokenizerFast":
    """A tokenizer with one token per character of the texts. It has no chat template.

    Args:
        texts (iterable of `str`): the texts, read once; give the held-out ones too, so that no character is unknown.
        model_max_length (`int`, *optional*, defaults to 2048): context length of the model.

    Returns:
        `transformers.PreTrainedTokenizerFast`.

    Raises:
        `InputError`: the texts have no characters.

    ```python
    >>> tokenizer = character_tokenizer(["low", "slow"])
    >>> tokenizer.encode("slow"), tokenizer.decode(tokenizer.encode("slow")), len(tokenizer)
    ([5, 3, 4, 6], 'slow', 7)

    ```
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = sorted(set().union(*texts))
    if not characters:
        raise InputError("the texts have no characters to make a tokenizer of")
    written = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # a byte as one printable character
    spelt = [written.pre_tokenize_str(character)[0][0] for character in characters]
    several = [word for word in spelt if len(word) > 1]
    parts = {word[:end] for word in several for end in range(1, len(word))} | set("".join(several))
    vocabulary = [*CHARACTER_SPECIAL_TOKENS, *spelt, *sorted(parts - set(spelt), key=lambda part: (len(part), part))]
    merges = dict.fromkeys((word[:end], word[end]) for word in several for end in range(1, len(word)))
    tokenizer = Tokenizer(
        models.BPE(
            {token: number for number, token in enumerate(vocabulary)},
            sorted(merges, key=lambda pair: len(pair[0])),
            unk_token=CHARACTER_SPECIAL_TOKENS[2],
        )
    )
    alone = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([alone, written])
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=CHARACTER_SPECIAL_TOKENS[0],
        eos_token=CHARACTER_SPECIAL_TOKENS[0],
        pad_token=CHARACTER_SPECIAL_TOKENS[1],
        unk_token=CHARACTER_SPECIAL_TOKENS[2],
        model_max_length=model_max_length,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )
