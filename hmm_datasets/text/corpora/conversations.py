"""Formats of conversations and preferences: the columns of a data set, and the messages they are converted to.

| format | columns | content |
|---|---|---|
| messages | `messages`, optionally `tools` | `{role, content}`, or strings by user and assistant in turn; or JSON |
| ShareGPT | `conversations` | `{from, value}` (human, gpt, system, tool and others, see `ROLE_NAMES`); else as above |
| Alpaca | `instruction`, `output`, optionally `input` | the input follows the instruction after a blank line |
| Dolly | `instruction`, `response`, optionally `context` or `input` | as Alpaca |
| prompt and completion | `prompt` or `query`, `completion` or `response` | strings of both, or lists of messages |
| question and answer | `question`, `answer` or `response` | strings by user and assistant |
| preferences | `chosen`, `rejected`, optionally one of the prompts above | converted to TRL's conversational format |

Preferences become `prompt`, `chosen` and `rejected`, each a list of messages, as TRL's DPOTrainer expects. If both
answers are lists that begin with the same messages, these messages are the prompt (an implicit prompt in TRL). If both
are strings and there is no prompt, their common beginning is the prompt; strings that begin with a line `Human:` (as
in Anthropic's helpful-harmless data) are cut into turns first.

Other columns and keys are obeyed, refused or counted as the module [`~hmm_datasets.text.corpora.keys`] lists them.
Names of roles may be in capitals. Text in parts (`[{"type": "text", "text": ...}]`, of type `input_text` or
`output_text` too) is joined. Tool calls (`tool_calls`) become text after the assistant's words: `<tool_call>`, a JSON
object with `name` and `arguments`, and `</tool_call>`, each on its own line, as Hermes and Qwen write them.
Declarations of tools (a column `tools`: a list, or JSON) become text at the end of the system message, and reasoning
becomes text within `<think>` before the words, as Qwen writes them. A conversation with turns that have no loss has a
column `weights` beside its messages, with 0 or 1 for each.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from ...errors import InputError
from ...foreign.json import parse_json
from .keys import (
    ASSISTANTS,
    CONTEXT,
    DECLARATIONS,
    LABELS,
    SYSTEM,
    TEXT_PARTS,
    is_empty,
    is_rejected,
    reasoning_of,
    refuse_unreadable,
    single,
    unused_keys,
    weight_of,
)
from .local_files import check_text, normalize_text, shorten

Kind = Literal["text", "conversations", "preferences"]
Messages = list[dict[str, str]]
Turns = list[dict[str, Any]]
"""Messages, of which those without a loss have the weight 0."""

ROLES = ("system", "user", "assistant", "tool")
"""Names of the roles of messages in this package and its chat template."""

ROLE_NAMES = {role: role for role in ROLES} | {
    **dict.fromkeys(("human", "customer", "client", "visitor", "contact", "lead", "requester", "end-user"), "user"),
    **dict.fromkeys(ASSISTANTS, "assistant"),
    **dict.fromkeys(("function", "observation", "function_response", "tool_response", "ipython"), "tool"),
    "developer": "system",
}
"""Names of roles in data sets, and the role that each stands for."""


TOOLS_BEGIN = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function "
    "signatures within <tools></tools> XML tags:\n<tools>"
)
TOOLS_END = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
"""What Qwen's chat template writes around the declarations of tools, each of which is on a line of its own."""


_JSON_OF_MESSAGES = re.compile(r"\s*\[\s*\{\s*\"(role|content|from|value)\"\s*:")
_SPEAKER = re.compile(r"(?:\A|\n)\n(Human|Assistant):")


@dataclass(frozen=True)
class Format:
    """How the rows of a data set are read.

    Attributes:
        name (`str`): name of the format.
        kind (`str`): kind of the rows: `"text"`, `"conversations"` or `"preferences"`.
        columns (`tuple[str, ...]`): required columns.
        read (callable): takes a row and the opening words of an error; returns the converted row.
        holds (callable): whether the first row has this format, for formats with the same columns.
    """

    name: str
    kind: Kind
    columns: tuple[str, ...]
    read: Callable[[Mapping[str, Any], str], dict[str, Any]]
    holds: Callable[[Mapping[str, Any]], bool] = bool

    @property
    def optional(self) -> tuple[str, ...]:
        """Columns that are read if they exist: what an instruction is about."""
        return ("input", "context") if "instruction" in self.columns else ()

    def fits(self, row: Mapping[str, Any]) -> bool:
        """Whether a data set with this first row has this format."""
        return set(self.columns) <= set(row) and self.holds(row)

    def describe(self, row: Mapping[str, Any]) -> str:
        """The name of the format and the columns it reads, for one line."""
        columns = [name for name in (*self.columns[:1], *self.optional, *self.columns[1:]) if name in row]
        remark = ", the input after the instruction and a blank line" if set(self.optional) & set(columns) else ""
        context = [name for name in CONTEXT if self.kind != "text" and not is_empty(row.get(name))]
        return f"{self.name} ({', '.join([*columns, *context])}){remark}"

    def document(self, row: Mapping[str, Any], where: str) -> dict[str, Any] | None:
        """A row as a document, with all that belongs to it; None if its label says that its answer is to be avoided.

        Args:
            row (mapping): a row with the required columns.
            where (`str`): opening words of an error.
        """
        if self.kind == "text":
            return self.read(row, where)
        refuse_unreadable(row, where)
        if self.kind == "conversations" and is_rejected(row, where):
            return None
        document = self.read(row, where)
        first = "messages" if self.kind == "conversations" else "prompt"
        document[first] = _with_context(document[first], row, where)
        weights = {name: [turn.pop("weight", 1) for turn in turns] for name, turns in document.items()}
        if any(0 in values for values in weights.values()):
            if self.kind == "preferences":
                raise InputError(
                    f"{where}: a turn of preferences has weight 0, but both answers count; drop the weight or the row"
                )
            document["weights"] = weights[first]
        return document

    def unused(self, row: Mapping[str, Any], filtered: Iterable[str] = ()) -> Iterator[str]:
        """What a row has beside what is read of it; `filtered` are the columns that it was selected by."""
        used = {*self.columns, *self.optional, *filtered}
        if self.kind == "text":
            return unused_keys(row, used, ())
        labels = [name for name in LABELS if self.kind == "conversations" and isinstance(row.get(name), bool)]
        return unused_keys(row, {*used, *CONTEXT, *labels}, self.columns)


def normalize_messages(messages: Any, where: str = "messages") -> Messages:
    """Return a conversation as a list of `{role, content}`, other keys left out.

    Args:
        messages (list):
            Dictionaries with `role` and `content`, or with `from` and `value`; or strings by user and assistant in
            turn.
        where (`str`, *optional*):
            Opening words of an error.

    Raises:
        `InputError`: the list is empty, a role is unknown, or a content is not text.

    ```python
    >>> normalize_messages(["Hello", "Hi"])
    [{'role': 'user', 'content': 'Hello'}, {'role': 'assistant', 'content': 'Hi'}]

    ```
    """
    return [{name: turn[name] for name in ("role", "content")} for turn in _turns(messages, where)]


def _turns(messages: Any, where: str) -> Turns:
    messages = _parsed(messages, where)
    if not isinstance(messages, list | tuple) or not messages:
        raise InputError(f"{where}: expected a list of messages, found {shorten(messages)}")
    if all(isinstance(message, str) for message in messages):
        roles = ("user", "assistant")
        messages = [{"role": roles[turn % 2], "content": content} for turn, content in enumerate(messages)]
    return [_message(message, f"{where}: message {number}") for number, message in enumerate(messages)]


def _parsed(value: Any, where: str) -> Any:
    """A value that must be a list or an object; one that is written as JSON is read."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        return parse_json(value, where)
    return value


def _or_messages(value: Any, where: str) -> Any:
    """Text, or the messages of which it is the JSON."""
    if isinstance(value, str) and _JSON_OF_MESSAGES.match(value):
        with contextlib.suppress(InputError):
            messages = parse_json(value, where)
            if all(isinstance(message, Mapping) for message in messages):
                return messages
    return value


def column_format(column: str, kind: Kind) -> Format:
    """The format of a data set with its text, or its list of messages, in one column."""
    name, read = ("text", _read_text) if kind == "text" else ("messages", read_messages)
    return Format(name, kind, (column,), partial(read, column))


def conversation_text(document: Mapping[str, Any]) -> str:
    """The whole text of a row as one string. Two rows are the same document if these strings have the same words."""
    if "text" in document:
        return document["text"]
    return "\n".join(f"{message['role']}: {message['content']}" for message in _all_messages(document))


def as_prompt(document: Mapping[str, Any]) -> str:
    """The text that decides the split of a row: its whole text, or for a preference the prompt alone.

    So no prompt of preferences occurs in both splits.
    """
    return conversation_text({"messages": document["prompt"]} if "prompt" in document else document)


def learnt_turns(row: Mapping[str, Any]) -> list[int]:
    """The indices of the assistant's messages in a conversation that have a loss.

    ```python
    >>> said = {"role": "assistant", "content": "Hi"}
    >>> learnt_turns({"messages": [said, said]}), learnt_turns({"messages": [said, said], "weights": [0, 1]})
    ([0, 1], [1])

    ```
    """
    weights = row.get("weights") or [1] * len(row["messages"])
    pairs = zip(row["messages"], weights, strict=True)
    return [number for number, (message, weight) in enumerate(pairs) if weight and message["role"] == "assistant"]


def num_characters(document: Mapping[str, Any]) -> int:
    """The length of a row's text, or of all its messages together."""
    if "text" in document:
        return len(document["text"])
    return sum(len(message["content"]) for message in _all_messages(document))


def _all_messages(document: Mapping[str, Any]) -> Messages:
    # A computed corpus has other columns too.
    columns = (document.get(name) or () for name in ("messages", "prompt", "chosen", "rejected"))
    return [message for messages in columns for message in messages]


def _message(message: Any, where: str) -> dict[str, Any]:
    calls = _parsed(message.get("tool_calls"), f"{where}: tool_calls") if isinstance(message, Mapping) else None
    if isinstance(message, Mapping) and not is_empty(message.get("function_call")):  # OpenAI's first form of a call
        if calls:
            raise InputError(f"{where} has tool_calls and function_call; keep one of them")
        calls = [_parsed(message["function_call"], f"{where}: function_call")]
    if isinstance(message, Mapping) and ({"role", "content"} <= set(message) or (calls and "role" in message)):
        name, content = message["role"], message.get("content")
    elif isinstance(message, Mapping) and {"from", "value"} <= set(message):
        name, content = message["from"], message["value"]
    else:
        raise InputError(f"{where} needs role and content, or from and value, found {shorten(message)}")
    role = ROLE_NAMES.get(name.strip().lower()) if isinstance(name, str) else None
    if role is None:
        raise InputError(f"{where} has role {shorten(name)}, expected one of {', '.join(ROLES)}")
    refuse_unreadable(message, where)
    if calls and (role != "assistant" or not isinstance(calls, list | tuple)):
        raise InputError(f"{where} of {role} has tool_calls {shorten(calls)}, expected a list, and role assistant")
    words = [] if calls and is_empty(content) else [check_text(_joined_parts(content, where), where)]
    text = "\n".join(words + [check_text(_call(call, where), where) for call in calls or ()])
    reasoning = reasoning_of(message, where) if role == "assistant" else ""
    if reasoning:
        text = f"<think>\n{reasoning}\n</think>\n\n{text}"
    turn = {"role": role, "content": text}
    return turn if weight_of(message, role, where) else turn | {"weight": 0}


def _joined_parts(content: Any, where: str) -> Any:
    """Content in parts as one string; other content is returned unchanged."""
    if not isinstance(content, list | tuple) or not all(isinstance(part, Mapping) for part in content):
        return content
    for part in content:
        if part.get("type") not in TEXT_PARTS:
            raise InputError(f"{where}: a part of type {shorten(part.get('type'))}, expected only text; drop the row")
    return "".join(check_text(part.get("text"), where) for part in content)


def _call(call: Any, where: str) -> str:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InputError(f"{where}: a tool call needs a name and arguments, found {shorten(call)}")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = parse_json(arguments, f"{where}: arguments of {shorten(function['name'])}")
    written = json.dumps(
        {"name": function["name"], "arguments": {} if arguments is None else arguments}, ensure_ascii=False
    )
    return f"<tool_call>\n{written}\n</tool_call>"


def _read_text(column: str, row: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {"text": normalize_text(row[column], where)}


def read_messages(column: str, row: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {"messages": _turns(row[column], where)}


def _with_context(turns: Turns, row: Mapping[str, Any], where: str) -> Turns:
    """Turns after what other columns of the row put before them: system message, earlier turns, declared tools."""
    history = row.get("history")
    if not is_empty(history):
        first = 1 if turns[0]["role"] == "system" else 0
        turns = [*turns[:first], *_earlier(history, f"{where}: history"), *turns[first:]]
    system = single(row, SYSTEM, where)
    if system is not None:
        text = check_text(system, f"{where}: {next(name for name in SYSTEM if not is_empty(row.get(name)))}")
        if turns[0]["role"] != "system":
            turns = [{"role": "system", "content": text}, *turns]
        elif turns[0]["content"] != text:
            raise InputError(
                f"{where}: the row has the system message {shorten(text)} and begins with another, "
                f"{shorten(turns[0]['content'])}; keep one of them"
            )
    functions = row.get("functions")
    if isinstance(functions, list | tuple):
        functions = [{"type": "function", "function": function} for function in functions]
    tools = single({"tools": row.get("tools"), "functions": functions}, DECLARATIONS, where)
    return declare_tools(turns, tools, f"{where}: tools")


def _earlier(history: Any, where: str) -> Turns:
    """Earlier turns: messages, or pairs of what the user and the assistant said."""
    if not isinstance(history, list | tuple):
        raise InputError(f"{where}: expected a list of pairs or of messages, found {shorten(history)}")
    if all(isinstance(turn, Mapping) for turn in history):
        return _turns(history, where)
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in history):
        raise InputError(f"{where}: expected pairs of what user and assistant said, found {shorten(history)}")
    return _turns([text for pair in history for text in pair], where)


def declare_tools(messages: Turns, tools: Any, where: str = "tools") -> Turns:
    """A conversation with the declarations of its tools in the system message, as Qwen writes them.

    Args:
        messages (list of `dict`): the conversation.
        tools (list of `dict`, or `str`): declarations, as JSON schemas of functions; or JSON of such a list.
        where (`str`): opening words of an error.
    """
    if isinstance(tools, str):
        tools = parse_json(tools, where) if tools.strip() else None
    if not tools:
        return messages
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, Mapping) for tool in tools):
        raise InputError(f"{where}: expected a list of declarations, found {shorten(tools)}")
    lines = "".join(f"\n{json.dumps(tool, ensure_ascii=False)}" for tool in tools)
    text = f"{TOOLS_BEGIN}{lines}{TOOLS_END}"
    if messages[0]["role"] == "system":
        return [{"role": "system", "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def read_turns(ask: str, answer: str, row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Read a conversation from a column with the question and a column with the answer."""
    return {"messages": [*_asked(ask, row, where), *_side(row[answer], "assistant", f"{where}: {answer}")]}


def read_prompt(column: str, row: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {"messages": _asked(column, row, where)}


def read_question(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    turns = (("user", "question"), ("assistant", "answer"))
    return {"messages": [{"role": role, "content": check_text(row[n], f"{where}: {n}")} for role, n in turns]}


def _asked(column: str, row: Mapping[str, Any], where: str) -> Turns:
    """The messages before an answer."""
    if column == "instruction":
        texts = [check_text(row[column], f"{where}: {column}")]
        context = single(row, ("input", "context"), where)
        if context is not None:
            texts.append(check_text(context, f"{where}: {'input' if row.get('input') == context else 'context'}"))
        return [{"role": "user", "content": "\n\n".join(text for text in texts if text.strip())}]
    return _side(row[column], "user", f"{where}: {column}")


def _side(value: Any, role: str, where: str) -> Turns:
    """A string becomes a message of `role`; a list of messages, or JSON of one, is only normalized."""
    value = _or_messages(value, where)
    if isinstance(value, str):
        return [{"role": role, "content": check_text(value, where)}]
    if not isinstance(value, list | tuple) or not value:
        raise InputError(f"{where}: expected text or a list of messages, found {shorten(value)}")
    return _turns(value, where)


def read_preference(ask: str | None, row: Mapping[str, Any], where: str) -> dict[str, Any]:
    row = {**row, **{name: _or_messages(row[name], f"{where}: {name}") for name in ("chosen", "rejected")}}
    answers = [row["chosen"], row["rejected"]]
    if ask is None and all(isinstance(answer, str) and _SPEAKER.match(answer) for answer in answers):
        row = {"chosen": _transcript(answers[0], where), "rejected": _transcript(answers[1], where)}
    elif ask is None and all(isinstance(answer, str) for answer in answers):
        return _implicit(*answers, where)
    chosen, rejected = (_side(row[name], "assistant", f"{where}: {name}") for name in ("chosen", "rejected"))
    prompt = [] if ask is None else _asked(ask, row, where)
    if ask is not None and chosen[: len(prompt)] == rejected[: len(prompt)] == prompt:
        prompt = []  # the answers repeat it
    if not prompt or (isinstance(row[ask], str) and not isinstance(row["chosen"], str)):
        # The last message of either side is its answer, even if both are equal.
        shared = _num_alike(chosen[:-1], rejected[:-1])
        prompt = chosen[:shared] or prompt
        chosen, rejected = chosen[shared:], rejected[shared:]
    if not prompt:
        raise InputError(f"{where}: no prompt, and chosen and rejected do not begin with the same messages")
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def _transcript(text: str, where: str) -> Turns:
    """The turns of a conversation in one text, as Anthropic's helpful-harmless data write it."""
    _, *parts = _SPEAKER.split(check_text(text, where))
    return [
        {"role": "user" if speaker == "Human" else "assistant", "content": words.strip()}
        for speaker, words in zip(parts[::2], parts[1::2], strict=True)
    ]


def _implicit(chosen: str, rejected: str, where: str) -> dict[str, Any]:
    """A preference from two strings: their common beginning is the prompt.

    A space before the first difference belongs to the answers, as in TRL.
    """
    prompt = chosen[: _num_alike(check_text(chosen, where), check_text(rejected, where))].removesuffix(" ")
    if not prompt.strip() or chosen == rejected:
        raise InputError(f"{where}: no prompt, and chosen and rejected do not have a common beginning and then differ")
    sides = {"prompt": ("user", prompt), "chosen": ("assistant", chosen), "rejected": ("assistant", rejected)}
    return {
        name: [{"role": role, "content": text if name == "prompt" else text[len(prompt) :]}]
        for name, (role, text) in sides.items()
    }


def _num_alike(first: Sequence, other: Sequence) -> int:
    """The length of the common beginning of two sequences."""
    pairs = enumerate(zip(first, other, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(first), len(other)))


def has_from_and_value(row: Mapping[str, Any]) -> bool:
    messages = row["conversations"]
    first = messages[0] if isinstance(messages, list | tuple) and messages else None
    return isinstance(first, Mapping) and "from" in first
