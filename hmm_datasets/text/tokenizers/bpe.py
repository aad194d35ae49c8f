"""Byte-level BPE tokenizers with a chat template, trained from any stream of texts.

The algorithm is byte pair encoding (Sennrich, Haddow and Birch, ACL 2016) over bytes (Radford et al., GPT-2, 2019).
Text is cut into pieces by a regular expression, and the most frequent pair of neighbours within pieces is merged until
the vocabulary is full. All 256 bytes are tokens, so any text can be encoded and is decoded byte for byte. Training by
the `tokenizers` library reads the texts once and does not keep them. Memory is for the distinct pieces and the
positions of their pairs.
"""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ...compat.rust import panics_as_errors, silent_panics
from ...errors import InputError
from ...runtime import environment
from ...runtime.progress import progress_bar
from ..corpora.conversations import TOOLS_BEGIN, TOOLS_END
from ..corpora.local_files import check_text, shorten

if TYPE_CHECKING:
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
"""How text is cut before merging: as in GPT-2, or as in GPT-4 (case-insensitive contractions, at most 3 digits per
piece)."""

_LONGEST_PIECE = 1_000
_LONG_RUN = re.compile(rf"\S{{{_LONGEST_PIECE},}}|\s{{{_LONGEST_PIECE},}}")

MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)

DECLARATIONS = (
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + '\n\n' }}{% endif %}"
    f"{{{{ {TOOLS_BEGIN!r} }}}}{{% for tool in tools %}}{{{{ '\n' + tool | tojson }}}}{{% endfor %}}"
    f"{{{{ {TOOLS_END!r} }}}}"
)
"""Part of chat templates: the system message with the declarations of tools, as `corpora.conversations` writes it."""

# Role tokens are written out, so that what spells them in a message can be recognized. The `generation` marks enclose
# what the assistant has to produce. This includes tool calls and the end of the turn, or a model would not learn to
# stop. Tool calls are written as in `corpora.conversations`.
CHAT_TEMPLATE = (
    "{% if tools %}{{ '<|system|>' }}" + DECLARATIONS + "{{ '<|end|>' }}{% endif %}"
    "{% for message in messages %}"
    "{% set content = (message['content'] or '') if message['tool_calls'] else message['content'] %}"
    "{% if content is not string %}"
    "{{ raise_exception('the content of the message of ' + message['role'] + ' is not text') }}{% endif %}"
    "{% if message['role'] == 'assistant' %}"
    "{{ '<|assistant|>' }}{% generation %}{{ content }}{% for call in message['tool_calls'] or [] %}"
    "{% set call = call['function'] or call %}{{ '\n' if content or not loop.first }}"
    "{{ '<tool_call>\n{\"name\": ' + call['name'] | tojson + ', \"arguments\": ' }}"
    "{{ call['arguments'] if call['arguments'] is string else (call['arguments'] or {}) | tojson }}"
    "{{ '}\n</tool_call>' }}{% endfor %}{{ '<|end|>' }}{% endgeneration %}"
    "{% elif message['role'] == 'user' %}{{ '<|user|>' + content + '<|end|>' }}"
    "{% elif message['role'] == 'system' %}"
    "{% if not (tools and loop.first) %}{{ '<|system|>' + content + '<|end|>' }}{% endif %}"
    "{% elif message['role'] == 'tool' %}{{ '<|tool|>' + content + '<|end|>' }}"
    "{% else %}"
    "{{ raise_exception('expected the roles system, user, assistant, tool, found ' + message['role']) }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


_REPEATED = [one * 64 + other for one in ("a", "1", " ", "!", "ab", "a ", "\n", "一") for other in ("", "!", "a", "1")]
EXPONENTIAL = "the pattern that cuts text takes exponential time on some of it"
REPLACE_PATTERN = "replace it, for example (a+)+ by a+"


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

    Encoding adds no special token. BOS and EOS are both `<|endoftext|>`, as in GPT-2, so that in a token stream it
    stands after each document and thus before the next. The template marks the assistant's words and their `<|end|>`,
    so that TRL's `assistant_only_loss=True` trains on these alone. A chat model should also stop at `<|end|>`
    (`generation_config.eos_token_id`). In `apply_chat_template` the name of a special token in a message becomes that
    token; [`~hmm_datasets.text.tokenizers.chat_encoding.encode_conversation`] encodes it as text.

    Args:
        texts (iterable of `str`):
            The texts to train on, for example `load_corpus(...)["text"]`; read once.
        vocab_size (`int`):
            Total number of tokens: 7 special ones, 256 bytes, and merges.
        split_pattern (`str`, *optional*, defaults to `"gpt2"`):
            `"gpt2"`, `"gpt4"`, or a regular expression whose matches are the pieces (Oniguruma syntax).
        min_frequency (`int`, *optional*, defaults to 2):
            Minimum number of occurrences of a pair that is merged.
        model_max_length (`int`, *optional*, defaults to 2048):
            Context length of the model; transformers warns above it.
        show_progress (`bool`, *optional*, defaults to `True`):
            On rank 0, show the rate of reading and then the library's progress bars of counting and merging.

    Returns:
        `transformers.PreTrainedTokenizerFast` with exactly `vocab_size` tokens.

    Raises:
        `InputError`: `vocab_size` is below 263 or more than the texts yield, there are no texts, or the pattern is
            unknown.

    ```python
    >>> tokenizer = train_bpe(["low lower lowest"] * 9, 268, show_progress=False)
    >>> tokenizer.decode(tokenizer.encode("slow ☃")), len(tokenizer)
    ('slow ☃', 268)

    ```
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if vocab_size < MIN_VOCAB_SIZE:
        raise InputError(
            f"vocab_size={vocab_size}: expected at least {MIN_VOCAB_SIZE}, "
            f"the 256 bytes and {len(SPECIAL_TOKENS)} special tokens"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level_pieces(split_pattern)
    tokenizer.decoder = decoders.ByteLevel()
    show_progress = show_progress and environment.rank() == 0
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=show_progress,
    )
    with panics_as_errors(f"split_pattern={shorten(split_pattern)}: {EXPONENTIAL}", REPLACE_PATTERN):
        tokenizer.train_from_iterator(_cut(_checked(texts, show_progress), split_pattern), trainer=trainer)
    size = tokenizer.get_vocab_size()
    if size < vocab_size:
        raise InputError(
            f"vocab_size={vocab_size}, but the texts yield only {size} tokens; "
            f"pass more text, min_frequency=1 or vocab_size={size}"
        )
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
    """The pre-tokenizer of a split pattern, given by its name or in full.

    It cuts text by the pattern, then writes each byte as one character, so that merges work on bytes.
    """
    from tokenizers import Regex, pre_tokenizers

    if split_pattern == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)  # this pattern is built in, and faster
    pattern = SPLIT_PATTERNS.get(split_pattern, split_pattern)
    if re.fullmatch(r"[\w-]*", pattern):
        raise InputError(f"split_pattern={pattern!r}: expected {', '.join(SPLIT_PATTERNS)} or a regular expression")
    try:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
    except Exception as error:  # the library raises a plain Exception
        raise InputError(f"split_pattern={shorten(pattern)}: {error}") from None
    check_pieces(split, f"split_pattern={shorten(pattern)}")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def check_pieces(pre_tokenizer: "PreTokenizer", name: str) -> None:
    """Refuse a pre-tokenizer whose regular expression takes exponential time on repeated characters.

    Raises:
        `InputError`: it does.
    """
    with silent_panics(), panics_as_errors(f"{name}: {EXPONENTIAL}", REPLACE_PATTERN):
        for text in _REPEATED:
            pre_tokenizer.pre_tokenize_str(text)


def _checked(texts: Iterable[str], show_progress: bool) -> Iterator[str]:
    """Check the texts and show the bytes read on a progress bar; the library shows counting and merging."""
    number = -1
    # Below the library's bar.
    with progress_bar(None, "B", shown=show_progress, desc="reading text", position=1) as progress:
        for number, text in enumerate(texts):
            yield check_text(text, f"text {number}")
            progress.update(len(text.encode()))
    if number < 0:
        raise InputError("no texts to train a tokenizer on")


def _cut(texts: Iterable[str], split_pattern: str) -> Iterator[str]:
    """Texts in which no piece is longer than a number of characters, so that training takes linear time.

    The library merges within a whole piece at each step, and a piece is as long as a text without spaces, such as a
    genome. Named patterns cut at white space, so that only runs of other characters, or of white space, are long.
    """
    cutter = byte_level_pieces(split_pattern)  # not that of the tokenizer, which is locked while it trains
    for text in texts:
        if len(text) <= _LONGEST_PIECE:
            yield text
        elif split_pattern in SPLIT_PATTERNS:
            yield from _without_long(text, [match.span() for match in _LONG_RUN.finditer(text)])
        else:
            pieces = cutter.pre_tokenize_str(text)
            spans = [span for _, span in pieces if span[1] - span[0] > _LONGEST_PIECE]
            yield from _without_long(text, spans)


def _without_long(text: str, spans: list[tuple[int, int]]) -> Iterator[str]:
    """A text in parts, cut within these spans of its characters."""
    begin = 0
    for first, stop in spans:
        for place in range(first + _LONGEST_PIECE, stop, _LONGEST_PIECE):
            yield text[begin:place]
            begin = place
    yield text[begin:]


def is_byte_level(tokenizer: "PreTrainedTokenizerFast") -> bool:
    """Whether every token except the special ones stands for bytes of text."""
    return "ByteLevel" in tokenizer.backend_tokenizer.to_str()
