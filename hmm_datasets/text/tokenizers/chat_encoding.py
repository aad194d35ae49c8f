"""Tokens of conversations, in which nothing that a person wrote becomes a control token.

Where a message spells a control token (see `encoding`), it is encoded as the characters it consists of. So only the
chat template makes control tokens.

Of what an assistant says, the tags around a call of a tool and around its reasoning are the template's, as is the
declaration of tools at the end of a system message: this package writes them into the text of messages (see
`corpora.conversations`), and the templates of Hermes and Qwen write them so themselves. What is within them is text.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from ...errors import InputError
from ..corpora.conversations import TOOLS_BEGIN, TOOLS_END, Messages
from .chat_templates import quoting_the_template
from .encoding import control_tokens, plain_tokenizer
from .unwritten_turns import count_unwritten

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ANSWERED = [{"role": "user", "content": "Question"}, {"role": "assistant", "content": "Answer"}]
_TAGS = {
    "assistant": re.compile(r"(<tool_call>)\s*\{.*?\}\s*(</tool_call>)|\A(<think>).*?(</think>)", re.DOTALL),
    "system": re.compile(f"({re.escape(TOOLS_BEGIN)}).*({re.escape(TOOLS_END)})\\Z", re.DOTALL),
}
"""What finds the tags that a template would write, its groups, by role."""
_PRIVATE = range(0xF0000, 0xFFFFE)  # private use
_PATTERNS: "WeakKeyDictionary[PreTrainedTokenizerBase, tuple[tuple[int, str], re.Pattern]]" = WeakKeyDictionary()


class EncodedConversation(NamedTuple):
    """The tokens of a conversation.

    Attributes:
        tokens (`list` of `int`): the tokens.
        said (`list` of `int`): 1 for each token that the assistant has to produce, else 0; all 1 if the template was
            not asked for it.
        unwritten (`Counter[str]`): how many turns of each kind the template left out, see
            [`~hmm_datasets.text.tokenizers.unwritten_turns.count_unwritten`].
    """

    tokens: list[int]
    said: list[int]
    unwritten: Counter[str]


def encode_conversation(
    tokenizer: "PreTrainedTokenizerBase",
    messages: Messages,
    *,
    add_generation_prompt: bool = False,
    tools: Sequence[Any] | None = None,
    template: str | None = None,
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """The tokens of a conversation by the chat template; what spells a control token in a message is encoded as text.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): a tokenizer with a chat template.
        messages (list of `dict`): the conversation.
        add_generation_prompt (`bool`, *optional*, defaults to `False`): add what begins a turn of the assistant.
        tools (sequence, *optional*): declarations of tools, or functions, which the template writes.
        template (`str`, *optional*): a chat template in place of the tokenizer's.
        variables (mapping, *optional*): what else the template is given by name.

    Raises:
        `InputError`: the template refuses the messages, which the error quotes, or leaves out all turns of a kind.
    """
    return _encoded(tokenizer, messages, template, tools, add_generation_prompt, None, variables).tokens


def encode_marked(
    tokenizer: "PreTrainedTokenizerBase",
    messages: Messages,
    template: str | None,
    *,
    weights: Sequence[int] | None = None,
    tools: Sequence[Any] | None = None,
) -> EncodedConversation:
    """The tokens of a conversation, and which of them the assistant has to produce; see [`encode_conversation`].

    Args:
        template (`str`, *optional*): a template that marks what the assistant says; None to count every token as said.
        weights (sequence of `int`, *optional*): 0 for each message that is not to be learnt, else 1.

    Raises:
        `InputError`: the template refuses the messages, leaves out all turns of a kind, or has fewer marks than turns
            of the assistant, so that weights cannot be obeyed.
    """
    if template is not None:
        weights = [1] * len(messages) if weights is None else weights
        turns = [weight for message, weight in zip(messages, weights, strict=True) if message["role"] == "assistant"]
        return _encoded(tokenizer, messages, template, tools, False, turns)
    if weights is not None and 0 in weights:
        raise InputError("a turn has weight 0, so no loss, but all words are trained on; set assistant_only_loss")
    return _encoded(tokenizer, messages, None, tools, False, None)


def _encoded(
    tokenizer: "PreTrainedTokenizerBase",
    messages: Messages,
    template: str | None,
    tools: Sequence[Any] | None,
    add_generation_prompt: bool,
    turns: list[int] | None,
    variables: Mapping[str, Any] | None = None,
) -> EncodedConversation:
    """Tokens, and marks for turns of the assistant with these weights; without weights no marks are read."""
    from transformers.utils import get_json_schema
    from transformers.utils.chat_template_utils import render_jinja_template

    if not messages:
        raise InputError("a conversation without messages")
    schemas = [tool if isinstance(tool, Mapping) else get_json_schema(tool) for tool in tools or ()] or None
    with quoting_the_template():
        template = tokenizer.get_chat_template(template, schemas)
    spelt = _control_pattern(tokenizer, template)
    special: dict[str, Any] = tokenizer.special_tokens_map
    begin, end = _markers([*messages, *(schemas or ()), variables])
    filled = [_filled(message) for message in messages]
    marked = [_marked(message, spelt, begin, end) for message in filled]
    with quoting_the_template():
        written, spans = render_jinja_template(
            conversations=[marked],
            tools=None if schemas is None else _wrapped(schemas, spelt, begin, end),
            chat_template=template,
            return_assistant_tokens_mask=turns is not None,
            add_generation_prompt=add_generation_prompt,
            **special | _wrapped(dict(variables or {}), spelt, begin, end),
        )
    text = written[0].replace(begin, "").replace(end, "")
    unwritten = count_unwritten(text, filled, schemas or (), before_answer=add_generation_prompt)
    tokens, places = [], []
    # A template may cut a content between the markers of a token, so each may be alone.
    pattern = re.compile(f"{begin}({spelt.pattern}){end}|[{begin}{end}]")
    for piece, first, is_text in _pieces(pattern, written[0]):
        ids, offsets = _encode_piece(tokenizer, piece, is_text, is_first=not first)
        tokens += ids
        places += [(first + start, first + stop) for start, stop in offsets]
    if turns is None:
        return EncodedConversation(tokens, [1] * len(tokens), unwritten)
    if len(spans[0]) != len(turns):
        if 0 in turns:
            raise InputError(
                f"the chat template marks {len(spans[0])} of {len(turns)} turns of the assistant, so weights of turns "
                "cannot be obeyed; drop the turns, or choose another template"
            )
        turns = [1] * len(spans[0])
    said = [0] * len(tokens)
    learnt = [span for span, weight in zip(spans[0], turns, strict=True) if weight]
    number = 0
    for first, stop in learnt:
        while number < len(places) and places[number][1] <= first:
            number += 1
        while number < len(places) and places[number][0] < stop:
            said[number] = 1
            number += 1
    return EncodedConversation(tokens, said, unwritten)


def _control_pattern(tokenizer: "PreTrainedTokenizerBase", template: str) -> re.Pattern:
    """What finds the control tokens in a text, longer ones first; made anew for another template or more tokens."""
    state = (len(tokenizer), template)
    known = _PATTERNS.get(tokenizer)
    if known is None or known[0] != state:
        control = sorted(control_tokens(tokenizer, template), key=len, reverse=True)
        _PATTERNS[tokenizer] = known = (state, re.compile("|".join(map(re.escape, control)) or "(?!)"))
    return known[1]


def _filled(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without the keys that are null, which many templates would write as a word."""
    return {name: value for name, value in message.items() if value is not None}


def _markers(values: Sequence[Any]) -> tuple[str, str]:
    """Two characters that occur nowhere in some values."""
    text = str(values)
    free = (chr(code) for code in _PRIVATE if chr(code) not in text and repr(chr(code))[1:-1] not in text)
    return next(free), next(free)


def _marked(message: dict[str, Any], spelt: re.Pattern, begin: str, end: str) -> dict[str, Any]:
    """A message with markers around what spells a control token, but for tags that a template would write there."""
    content = message.get("content")
    wrapped = {name: _wrapped(value, spelt, begin, end) for name, value in message.items()}
    if not isinstance(content, str) or message["role"] not in _TAGS or wrapped["content"] == content:
        return wrapped
    free = [span for tags in _TAGS[message["role"]].finditer(content) for span in tags.regs[1:]]

    def mark(match: re.Match) -> str:
        is_free = any(first <= match.start() and match.end() <= stop for first, stop in free)
        return match[0] if is_free else f"{begin}{match[0]}{end}"

    return wrapped | {"content": spelt.sub(mark, content)}


def _wrapped(value: Any, spelt: re.Pattern, begin: str, end: str) -> Any:
    """A value with markers around each control token in its texts, keys too."""
    if isinstance(value, str):
        return spelt.sub(f"{begin}\\g<0>{end}", value)
    if isinstance(value, Mapping):
        return {_wrapped(key, spelt, begin, end): _wrapped(inner, spelt, begin, end) for key, inner in value.items()}
    return [_wrapped(inner, spelt, begin, end) for inner in value] if isinstance(value, list | tuple) else value


def _pieces(pattern: re.Pattern, written: str) -> Iterator[tuple[str, int, bool]]:
    """What a template wrote in pieces: each with where it begins, and whether it is a control token of a text."""
    place = 0
    for match in pattern.finditer(written):
        if match.start() > place:
            yield written[place : match.start()], place, False
        if match[1] is not None:
            yield match[1], match.start(1), True
        place = match.end()
    if place < len(written):
        yield written[place:], place, False


def _encode_piece(
    tokenizer: "PreTrainedTokenizerBase", piece: str, is_text: bool, is_first: bool
) -> tuple[list[int], list[tuple[int, int]]]:
    """The tokens of a piece of a conversation, and where each begins and ends in it.

    A piece that is not the first is encoded after a line break, which is left out again: tokenizers of SentencePiece
    put a space before the beginning of a text.
    """

    def encode(text: str) -> tuple[list[int], list[tuple[int, int]]]:
        if is_text:
            encoding = plain_tokenizer(tokenizer).encode(text, add_special_tokens=False)
            return encoding.ids, encoding.offsets
        encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=tokenizer.is_fast, verbose=False)
        return encoding["input_ids"], encoding.get("offset_mapping") or [(0, len(text))] * len(encoding["input_ids"])

    if tokenizer.is_fast:
        plain_tokenizer(tokenizer)  # refuses one whose pattern takes exponential time
    if is_first:
        return encode(piece)
    line_break, _ = encode("\n")
    ids, offsets = encode(f"\n{piece}")
    count = len(line_break)
    if ids[:count] == line_break and all(start >= 1 for start, stop in offsets[count:] if stop > start):
        return ids[count:], [(max(start - 1, 0), max(stop - 1, 0)) for start, stop in offsets[count:]]
    return encode(piece)


def check_chat_template(tokenizer: "PreTrainedTokenizerBase", name: str) -> None:
    """Raise [`InputError`] unless conversations can be documents of a token stream, which have EOS at the end only."""
    if tokenizer.chat_template is None:
        raise InputError(
            f"{name}: has no chat template, which conversations need; set tokenizer.chat_template and save it, or "
            "leave conversations out"
        )
    if tokenizer.eos_token_id in encode_conversation(tokenizer, _ANSWERED * 2)[:-1]:
        raise InputError(
            f"{name}: its chat template writes EOS ({tokenizer.eos_token}) inside a conversation, but EOS ends a "
            "document of a token stream; fine-tune on these conversations with recipes/sft.py, or give the tokenizer "
            "another eos_token"
        )
