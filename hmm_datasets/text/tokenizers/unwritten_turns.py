"""What a chat template does not write of a conversation.

A template may leave out what it does not know: system turns, results or calls of tools, reasoning. After it has
written a conversation, the words of every turn are looked for in the text, each at a place of its own. Words are runs
of letters, digits and underscores, so white space and the escapes of JSON make no difference. A turn whose words do
not stand there one after the other is counted, and the conversation is refused if that is so of all turns of a kind.
Reasoning before the last question, which many templates leave out, is only counted. So is what an assistant said
before an answer that is to be generated: it may have generated that itself.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...errors import InputError
from ...runtime import environment
from ..corpora.local_files import shorten

EARLIER_REASONING = "reasoning of earlier turns"
_SAID = ("assistant turns", "reasoning", "tool calls")

_Turn = tuple[str, *tuple[int, ...]]
"""The kind of a turn, and which it is."""

_BETWEEN_WORDS = re.compile(r"(?:\\+[bfnrt]?|\W)+")
_REASONING = re.compile(r"\A(?:\s*<think>)?(.*?)</think>", re.DOTALL)
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


def count_unwritten(
    written: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    before_answer: bool = False,
) -> Counter[str]:
    """How much of a conversation is not in what a template wrote for it.

    Args:
        written (`str`): what the template wrote.
        messages (sequence of `dict`): the conversation.
        tools (sequence of `dict`, *optional*): declarations of tools.
        before_answer (`bool`, *optional*, defaults to `False`): whether an answer is to be generated.

    Returns:
        `Counter[str]`: how many turns of each kind are missing, such as `{"system turns": 1}`.

    Raises:
        `InputError`: all of a kind are missing.

    ```python
    >>> question, answer = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "It is 4."}
    >>> count_unwritten("Q: 2+2?\\nA: It is 4.", [question, answer])
    Counter()

    ```
    """
    texts = list(_texts(messages, tools))
    if _stand_in_order(written, [text for _, text in texts]):
        return Counter()
    rest = _words(written)
    missing: dict[_Turn, str] = {}
    for turn, text in sorted(texts, key=lambda entry: -len(entry[1])):
        words = _words(text)
        if words in rest:
            rest = rest.replace(words, " \n ", 1)  # another turn of the same words has to stand elsewhere
        elif words.strip():
            missing[turn] = text
    counts = Counter(kind for kind, *_ in missing)
    there = Counter(kind for kind, *_ in {turn for turn, text in texts if _words(text).strip()})
    counted = (EARLIER_REASONING, *(_SAID if before_answer else ()))
    for turn, text in missing.items():
        if counts[turn[0]] == there[turn[0]] and turn[0] not in counted:
            raise InputError(
                f"the chat template leaves out all {turn[0]} of a conversation, or changes their words "
                f"({shorten(text)}); take them out of the data, or give the tokenizer a chat template that writes them"
            )
    return counts


def print_unwritten(name: str, counts: Mapping[str, int]) -> None:
    """Print on rank 0 in one line how much of a corpus its template left out, if it did."""
    if counts and environment.rank() == 0:
        what = ", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.items()))
        print(f"{name}: the chat template leaves out or changes the words of: {what}", file=sys.stderr)


def _stand_in_order(written: str, texts: Iterable[str]) -> bool:
    """Whether the texts stand in what was written, whole and in their order; a fast answer for most conversations."""
    written, place = f" {' '.join(written.split())} ", 0
    for text in texts:
        text = " ".join(text.split())
        place = written.find(text, place)
        end = place + len(text)
        if place < 0 or (text and any(written[edge - 1 : edge + 1].isalnum() for edge in (place, end))):
            return False
        place = end
    return True


def _words(text: str) -> str:
    return f" {_BETWEEN_WORDS.sub(' ', text).strip()} "


def _texts(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Iterator[tuple[_Turn, str]]:
    """What a template has to write: each text with its turn."""
    last_question = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=-1)
    for index, message in enumerate(messages):
        thoughts = EARLIER_REASONING if index < last_question else "reasoning", index
        yield thoughts, next((message[key] for key in _REASONING_KEYS if isinstance(message.get(key), str)), "")
        for text in _leaves(message.get("content")):
            tagged = _REASONING.match(text) if message["role"] == "assistant" else None
            if tagged:
                yield thoughts, tagged[1]
            yield (f"{message['role']} turns", index), text[tagged.end() :] if tagged else text
        for number, call in enumerate(message.get("tool_calls") or ()):
            for text in _leaves(call.get("function", call)):
                yield ("tool calls", index, number), text
    for number, tool in enumerate(tools):
        yield ("declarations of tools", number), str(tool.get("function", tool).get("name", ""))


def _leaves(value: Any) -> Iterable[str]:
    """The texts in a value, but for the types and addresses of parts such as images."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        value = [value.get("text")] if "type" in value else list(value.values())
    return [text for inner in value for text in _leaves(inner)] if isinstance(value, list | tuple) else []
