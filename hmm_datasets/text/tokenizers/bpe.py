"""Byte-level BPE tokenizers, trained from any stream of texts, ready for chat.

Byte pair encoding (Sennrich, Haddow and Birch, ACL 2016) over bytes (Radford et al., GPT-2, 2019): text is cut by a
regular expression, and within a piece the commonest neighbours are merged until the vocabulary is full. All 256 bytes
are tokens, so any text is encoded and comes back byte for byte. Training is the `tokenizers` library's: one pass over
the texts, which it forgets; memory is that of the distinct pieces and the places of their pairs.
"""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from ... import launch_environment
from ...errors import InputError
from ..corpora.local_files import check_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer
    from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = ("<|endoftext|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|tool|>")
"""Ids 0 to 6. `<|endoftext|>` ends a document; `<|end|>` ends a message."""

SPLIT_PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "gpt4": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
}
"""How text is cut before merging: as GPT-2 does; as GPT-4 does (case-blind contractions, at most 3 digits a piece)."""

MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)

# Role tokens are written out, so that transformers' sanitize_control_tokens finds them. Between `generation` marks
# stands what the assistant has to produce, its calls of tools and its end included, or a model would never learn to
# stop. Calls are written as `conversations` writes them into the text.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% set content = (message['content'] or '') if message['tool_calls'] else message['content'] %}"
    "{% if content is not string %}"
    "{{ raise_exception('the content of the message of ' + message['role'] + ' is no text') }}{% endif %}"
    "{% if message['role'] == 'assistant' %}"
    "{{ '<|assistant|>' }}{% generation %}{{ content }}{% for call in message['tool_calls'] or [] %}"
    "{% set call = call['function'] or call %}{{ '\n' if content or not loop.first }}"
    "{{ '<tool_call>\n{\"name\": ' + call['name'] | tojson + ', \"arguments\": ' }}"
    "{{ call['arguments'] if call['arguments'] is string else (call['arguments'] or {}) | tojson }}"
    "{{ '}\n</tool_call>' }}{% endfor %}{{ '<|end|>' }}{% endgeneration %}"
    "{% elif message['role'] == 'user' %}{{ '<|user|>' + content + '<|end|>' }}"
    "{% elif message['role'] == 'system' %}{{ '<|system|>' + content + '<|end|>' }}"
    "{% elif message['role'] == 'tool' %}{{ '<|tool|>' + content + '<|end|>' }}"
    "{% else %}"
    "{{ raise_exception('expected the roles system, user, assistant, tool, found ' + message['role']) }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    *,
    split_pattern: str = "gpt2",
    min_frequency: int = 2,
    model_max_length: int = 2048,
    show_progress: bool = True,
) -> "PreTrainedTokenizerFast":
    """Train a byte-level BPE tokenizer with a chat template.

    Encoding adds no special token. BOS and EOS are both `<|endoftext|>`, as in GPT-2: in a token stream it stands
    before each document but the first and after each. The template marks the assistant's words and their `<|end|>`, so
    that TRL's `assistant_only_loss=True` trains on these alone; a chat model should stop at `<|end|>` too
    (`generation_config.eos_token_id`). Special tokens named in a message are read as such, unless
    `apply_chat_template(..., sanitize_control_tokens=True)`.

    Args:
        texts (iterable of `str`):
            What to count, such as `load_corpus(...)["text"]`; read once.
        vocab_size (`int`):
            Tokens in all: 7 special ones, 256 bytes, and merges.
        split_pattern (`str`, *optional*, defaults to `"gpt2"`):
            `"gpt2"`, `"gpt4"`, or a regular expression whose matches are the pieces (Oniguruma syntax).
        min_frequency (`int`, *optional*, defaults to 2):
            Pairs seen less often are not merged.
        model_max_length (`int`, *optional*, defaults to 2048):
            Tokens the model takes; transformers warns above it.
        show_progress (`bool`, *optional*, defaults to `True`):
            Show the rate of reading, then the library's bars of counting and merging; on rank 0.

    Returns:
        `transformers.PreTrainedTokenizerFast` with exactly `vocab_size` tokens.

    Raises:
        `InputError`: for a vocabulary below 263 or larger than the texts yield, no texts, an unknown pattern.

    ```python
    >>> tokenizer = train_bpe(["low lower lowest"] * 9, 268, show_progress=False)
    >>> tokenizer.decode(tokenizer.encode("slow ☃")), len(tokenizer)
    ('slow ☃', 268)

    ```
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab_size < MIN_VOCAB_SIZE:
        raise InputError(
            f"vocab_size={vocab_size}: expected at least {MIN_VOCAB_SIZE}, "
            f"the 256 bytes and {len(SPECIAL_TOKENS)} special tokens"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level_pieces(split_pattern)
    tokenizer.decoder = decoders.ByteLevel()
    show_progress = show_progress and launch_environment.rank() == 0
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=show_progress,
    )
    tokenizer.train_from_iterator(_checked(texts, show_progress), trainer=trainer)
    found = tokenizer.get_vocab_size()
    if found < vocab_size:
        raise InputError(
            f"vocab_size={vocab_size}, but the texts yield only {found} tokens; "
            f"pass more text, min_frequency=1 or vocab_size={found}"
        )
    return chat_tokenizer(tokenizer, model_max_length)


def chat_tokenizer(tokenizer: "Tokenizer", model_max_length: int = 2048) -> "PreTrainedTokenizerFast":
    """Give a `tokenizers` tokenizer that holds `SPECIAL_TOKENS` its roles and the chat template: see [`train_bpe`]."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        pad_token="<|pad|>",
        extra_special_tokens=list(SPECIAL_TOKENS[2:]),
        chat_template=CHAT_TEMPLATE,
        model_max_length=model_max_length,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def byte_level_pieces(split_pattern: str) -> "PreTokenizer":
    """The pre-tokenizer of a split pattern, by its name or in full.

    It cuts by the pattern, then writes bytes as characters, so that the merges never see less than a byte.
    """
    from tokenizers import Regex, pre_tokenizers

    if split_pattern == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)  # has this pattern built in, and is faster
    pattern = SPLIT_PATTERNS.get(split_pattern, split_pattern)
    if re.fullmatch(r"[\w-]*", pattern):
        raise InputError(f"split_pattern={pattern!r}: expected {', '.join(SPLIT_PATTERNS)} or a regular expression")
    try:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
    except Exception as error:  # the library has no class of its own for it
        raise InputError(f"split_pattern={pattern!r}: {error}") from None
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _checked(texts: Iterable[str], show_progress: bool) -> Iterator[str]:
    """Count the bytes read on a progress bar; those of counting and merging are the library's."""
    from tqdm.auto import tqdm

    number, settings = -1, {"unit": "B", "unit_scale": True, "disable": not show_progress}
    with tqdm(desc="reading text", position=1, **settings) as progress:  # below the library's bar
        for number, text in enumerate(texts):
            yield check_text(text, f"text {number}")
            progress.update(len(text.encode()))
    if number < 0:
        raise InputError("no texts to train a tokenizer on")


def is_byte_level(tokenizer: "PreTrainedTokenizerFast") -> bool:
    """Whether every token but the special ones stands for bytes of text."""
    return "ByteLevel" in tokenizer.backend_tokenizer.to_str()


def token_bytes(tokenizer: "PreTrainedTokenizerFast") -> Int[np.ndarray, "V"]:
    """How many bytes of text each token of a byte-level tokenizer stands for; special tokens stand for none.

    Args:
        tokenizer (`transformers.PreTrainedTokenizerFast`):
            A byte-level BPE tokenizer, of [`train_bpe`] or of GPT-2's kind.

    Returns:
        `np.ndarray` of shape `(V,)`, int64.

    Raises:
        `InputError`: for a tokenizer that is not byte-level.
    """
    if not is_byte_level(tokenizer):
        raise InputError("the tokenizer is not byte-level; bits per byte need one whose tokens are bytes")
    sizes = np.zeros(len(tokenizer), dtype=np.int64)
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    for token, number in tokenizer.get_vocab().items():
        # A byte-level vocabulary writes every byte as one character.
        sizes[number] = 0 if number in special else len(token)
    return sizes
