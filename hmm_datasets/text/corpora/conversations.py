"""Formats of conversations and preferences: the columns of a data set, and the messages they are converted to.

| format | columns | content |
|---|---|---|
| messages | `messages` or `conversation`, optionally `tools` | `{role, content}`; or JSON of a list of these |
| ShareGPT | `conversations` | `{from, value}` (human, gpt, system, tool and others, see `ROLE_NAMES`); else as above |
| Alpaca | `instruction`, `output`, optionally `input` | the input follows the instruction after a blank line |
| Dolly | `instruction`, `response`, optionally `context` or `input` | as Alpaca |
| prompt and completion | `prompt` or `query`, `completion` or `response` | text, a message, or a list of messages |
| question and answer | `question`, `answer` or `response` | as prompt and completion |
| input and output | `input`, `output`; or `inputs`, `targets` | as prompt and completion |
| preferences | `chosen`, `rejected`, and a prompt | converted to TRL's conversational format |

A turn is an object with a role; or an object of two turns, with `human` (or `user`) and `assistant`, or with `input`
and `output`, and optionally `system`. A list of texts does not say who speaks and is refused; only a file that is
named as LIMA's (`lima:FILE`) has them by the user and the assistant in turn. Messages may stand in an object beside
their `tools`, or in JSON of all these. A text that begins with a line `Human:` (as in Anthropic's helpful-harmless
data) is cut into turns. An answer that is empty is none.

Preferences become `prompt`, `chosen` and `rejected`, each a list of messages, as TRL's DPOTrainer expects. Their
prompt is the first of the columns `PROMPTS` that a row has. If both answers are lists that begin with the same
messages, these are the prompt (an implicit prompt in TRL), and must agree with that of a column. What two texts have
in common is no prompt. The answers may be named `preferred_output` and `non_preferred_output` (OpenAI),
`chosen_response` and `rejected_response`, or `chosen_conversations` and `rejected_conversations`; a row without one is
left out.

Other columns and keys are obeyed, refused or counted as the module [`~hmm_datasets.text.corpora.keys`] lists them.
Names of roles may be in capitals. Text in parts (`[{"type": "text", "text": ...}]`, of type `input_text` or
`output_text` too) is joined. Tool calls (`tool_calls`) become text after the assistant's words: `<tool_call>`, a JSON
object with `name` and `arguments`, and `</tool_call>`, each on its own line, as Hermes and Qwen write them. So does a
turn of the role `function_call`, whose content is such an object.
Declarations of tools (a column `tools`: a list, or JSON) become text at the end of the system message, and reasoning
becomes text within `<think>` before the words, as Qwen writes them. A conversation with turns that have no loss has a
column `weights` beside its messages, with 0 or 1 for each.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from ...common_prefix import num_alike
from ...errors import InputError
from ...foreign.json import parse_json
from .keys import (
    ASSISTANTS,
    CALLERS,
    CONTEXT,
    DECLARATIONS,
    LABELS,
    REJECTED,
    SYSTEM,
    TEXT_PARTS,
    UNANSWERED,
    exchange_of,
    is_empty,
    is_rejected,
    reasoning_of,
    refuse_unreadable,
    single,
    unused_keys,
    weight_of,
)
from .local_files import check_text, shorten

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


PROMPTS = (
    *("prompt", "instruction", "question", "query", "problem", "messages", "conversations", "conversation"),
    *("input", "context"),
)
"""Columns with the prompt of a preference; the first of them that a row has is read."""

ABOUT = ("input", "context")
"""Columns with what an instruction is about."""

_JSON_OF_MESSAGES = re.compile(r"\s*\[?\s*\{\s*(['\"])(role|content|from|value|messages)\1\s*:")
_SPEAKER = re.compile(r"(?:\A|\n)\n(Human|Assistant):")


@dataclass(frozen=True)
class Format:
    """How the rows of a data set are read.

    Attributes:
        name (`str`): name of the format.
        kind (`str`): kind of the rows: `"text"`, `"conversations"` or `"preferences"`.
        columns (`tuple[str, ...]`): required columns.
        read (callable): takes a row and the opening words of an error; returns the converted row.
        kept (mapping of `str` to `str`): further columns that documents keep as they are, and their types in
            `datasets`.
    """

    name: str
    kind: Kind
    columns: tuple[str, ...]
    read: Callable[[Mapping[str, Any], str], dict[str, Any]]
    kept: Mapping[str, str] = field(default_factory=dict)

    @property
    def optional(self) -> tuple[str, ...]:
        """Columns that are read if they exist: prompts of preferences, and what an instruction is about."""
        if self.kind == "preferences":
            return PROMPTS
        return ABOUT if "instruction" in self.columns else ()

    @property
    def labels(self) -> tuple[str, ...]:
        """Columns that decide whether an answer is one to learn from; a prompt has none."""
        return LABELS if self.kind == "conversations" and self.name != "prompts" else ()

    def fits(self, row: Mapping[str, Any]) -> bool:
        """Whether a data set with this first row has this format."""
        return set(self.columns) <= set(row)

    def columns_of(self, row: Mapping[str, Any]) -> list[str]:
        """The columns that are read of a row."""
        ask = first_filled(row, PROMPTS) if self.kind == "preferences" else self.columns[0]
        about = [name for name in ABOUT if ask == "instruction" and name in row]
        return list(dict.fromkeys([*filter(None, [ask]), *about, *self.columns]))

    def describe(self, row: Mapping[str, Any]) -> str:
        """The name of the format and the columns it reads, for one line."""
        columns = self.columns_of(row)
        remark = ""
        if columns[0] == "instruction" and set(ABOUT) & set(columns):
            remark = ", the input after the instruction and a blank line"
        context = [name for name in CONTEXT if self.kind != "text" and not is_empty(row.get(name))]
        return f"{self.name} ({', '.join([*columns, *context])}){remark}"

    def unfolded(self, row: Mapping[str, Any], where: str) -> dict[str, Any]:
        """A row whose columns have messages in place of their JSON, or of an object with them and their tools.

        Other keys of such an object become columns, which are not read.
        """
        columns = self.columns_of(row)
        plain = {"instruction", *ABOUT} if columns[0] == "instruction" else set()
        row, tools = dict(row), {"tools": row.get("tools")}
        for name in [name for name in columns if name not in plain and self.kind != "text"]:
            value = row[name] = _or_messages(row.get(name), f"{where}: {name}")
            if isinstance(value, Mapping) and not isinstance(value.get("messages", ""), str):
                row |= {f"{name}.{key}": value[key] for key in value.keys() - {"messages", "tools"}}
                row[name], tools[f"{name}.tools"] = value["messages"], value.get("tools")
        merged = single(tools, tools, where)
        return row if merged is None else row | {"tools": merged}

    def document(self, row: Mapping[str, Any], where: str) -> dict[str, Any] | str:
        """A row as a document, with all that belongs to it; or why it is left out.

        Args:
            row (mapping): a row with the required columns.
            where (`str`): opening words of an error.
        """
        kept = {name: row.get(name) for name in self.kept}
        if self.kind == "text":
            return self.read(row, where) | kept
        refuse_unreadable(row, where)
        if self.labels and is_rejected(row, where):
            return REJECTED
        document = self.read(row, where)
        if self.kind == "preferences" and not all(map(_has_answer, (document["chosen"], document["rejected"]))):
            return UNANSWERED
        first = "messages" if self.kind == "conversations" else "prompt"
        turns = document[first] = _with_context(document[first], row, where)
        while self.kind == "conversations" and turns and turns[-1]["role"] == "assistant" and not _has_answer(turns):
            turns.pop()
        weights = {name: [turn.pop("weight", 1) for turn in turns] for name, turns in document.items()}
        if any(0 in values for values in weights.values()):
            if self.kind == "preferences":
                raise InputError(
                    f"{where}: a turn of preferences has weight 0, but both answers count; drop the weight or the row"
                )
            document["weights"] = weights[first]
        return document | kept

    def unused(self, row: Mapping[str, Any]) -> Iterator[str]:
        """What a row has beside what is read of it."""
        columns = self.columns_of(row)
        if self.kind == "text":
            return unused_keys(row, {*columns, *self.kept}, ())
        return unused_keys(row, {*columns, *self.kept, *CONTEXT, *self.labels}, columns)


def _turns(messages: Any, where: str) -> Turns:
    messages = _parsed(messages, where)
    if not isinstance(messages, list | tuple) or not messages:
        raise InputError(f"{where}: expected a list of messages, found {shorten(messages)}")
    if all(isinstance(message, str) for message in messages):
        raise InputError(
            f"{where}: expected messages with role and content, found a list of texts, which does not say who speaks "
            f"({shorten(messages)}); write a role to each, or one answer as text and two to compare as chosen and "
            "rejected; a column conversations by user and assistant in turn is read of lima:FILE"
        )
    turns = [turn for message in messages for turn in _exchange(message)]
    return [_message(message, f"{where}: message {number}") for number, message in enumerate(turns)]


def _exchange(message: Any) -> list[Any]:
    """The turns of an object with what the user and the assistant say, after a system message; others as they are."""
    pair = exchange_of(message) if isinstance(message, Mapping) else None
    if pair is None:
        return [message]
    system = [{"role": "system", "content": message["system"]}] if message.get("system") else []
    ask, answer = (
        {"role": role, "content": message[key]} for role, key in zip(("user", "assistant"), pair, strict=True)
    )
    return [*system, ask, {**message, **answer}]


def texts_in_turn(texts: Iterable[Any], where: str) -> Turns:
    """Messages by the user and the assistant in turn."""
    roles = ("user", "assistant")
    return [
        {"role": roles[number % 2], "content": check_text(text, f"{where}: message {number}")}
        for number, text in enumerate(texts)
    ]


def read_texts_in_turn(column: str, row: Mapping[str, Any], where: str) -> dict[str, Any]:
    texts = row[column]
    if isinstance(texts, list | tuple) and texts and all(isinstance(text, str) for text in texts):
        return {"messages": texts_in_turn(texts, where)}
    return read_messages(column, row, where)


def _parsed(value: Any, where: str) -> Any:
    """A value that must be a list or an object; one that is written as JSON is read."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        return parse_json(value, where)
    return value


def _or_messages(value: Any, where: str) -> Any:
    """Text, or the messages of which it is the JSON."""
    quote = _JSON_OF_MESSAGES.match(value) if isinstance(value, str) else None
    if quote is None:
        return value
    with contextlib.suppress(InputError):
        messages = parse_json(value, where)
        parts = messages if isinstance(messages, list) else [messages]
        if all(isinstance(part, Mapping) and part.keys() & {"content", "from", "messages"} for part in parts):
            return messages
    if quote[1] == "'":
        raise InputError(
            f"{where}: messages as Python prints them, not as JSON ({shorten(value)}); write the file with json.dumps "
            'or to_json, or what is meant as text as {"role": "assistant", "content": ...}'
        )
    return value


def _has_answer(turns: Turns) -> bool:
    """Whether the last turn has words."""
    return bool(turns) and bool(turns[-1]["content"].strip())


def first_filled(row: Mapping[str, Any], names: Iterable[str]) -> str | None:
    """The first of some columns that is not empty in a row."""
    return next((name for name in names if not is_empty(row.get(name))), None)


def column_format(column: str, kind: Kind) -> Format:
    """The format of a data set with its text, or its list of messages, in one column."""
    name, read = ("text", _read_text) if kind == "text" else ("messages", read_messages)
    return Format(name, kind, (column,), partial(read, column))


def answered_format(name: str, ask: str, answer: str) -> Format:
    """The format of a data set with a column for what the user says and another for what the assistant says."""
    return Format(name, "conversations", (ask, answer), partial(read_turns, ask, answer))


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
    keys = message if isinstance(message, Mapping) else {}
    calls = _parsed(keys.get("tool_calls"), f"{where}: tool_calls")
    if not is_empty(keys.get("function_call")):  # OpenAI's first form of a call
        if calls:
            raise InputError(f"{where} has tool_calls and function_call; keep one of them")
        calls = [_parsed(keys["function_call"], f"{where}: function_call")]
    first, second = ("role", "content") if "role" in keys else ("from", "value")
    # A null in Parquet is a key that is not there.
    is_silent = {*keys} == {first} and str(keys[first]).strip().lower() in ASSISTANTS
    if first not in keys or (second not in keys and not calls and not is_silent):
        raise InputError(
            f"{where} needs role and content, or from and value, found {shorten(message)}; write these, or what is "
            "meant as text as the content of a message"
        )
    name, content = keys[first], keys.get(second)
    spelt = name.strip().lower() if isinstance(name, str) else ""
    role = ROLE_NAMES.get(spelt)
    if role is None:
        raise InputError(f"{where} has role {shorten(name)}, expected one of {', '.join(ROLES)}")
    refuse_unreadable(message, where)
    if spelt in CALLERS and not calls:
        calls, content = _parsed(content, f"{where} of {spelt}"), None
        calls = calls if isinstance(calls, list | tuple) else [calls]
    if calls and (role != "assistant" or not isinstance(calls, list | tuple)):
        raise InputError(f"{where} of {role} has tool_calls {shorten(calls)}, expected a list, and role assistant")
    says_nothing = is_empty(content) and role == "assistant"
    words = [] if says_nothing else [check_text(_joined_parts(content, where), where)]
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
        if part.get("type", "text" if "text" in part else None) not in TEXT_PARTS:
            raise InputError(f"{where}: a part of type {shorten(part.get('type'))}, expected only text; drop the row")
    return "".join(check_text(part.get("text"), where) for part in content)


def _call(call: Any, where: str) -> str:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InputError(f"{where}: a tool call needs a name and arguments, found {shorten(call)}")
    written = [function[name] for name in ("arguments", "parameters") if function.get(name) not in (None, "")]
    arguments = written[0] if written else {}
    name = shorten(function["name"])
    if isinstance(arguments, str):
        arguments = parse_json(arguments, f"{where}: arguments of {name}")
    if not isinstance(arguments, Mapping) or len(written) > 1:
        raise InputError(f"{where}: expected one object of arguments of {name}, found {shorten(written)}")
    call = json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def _read_text(column: str, row: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {"text": check_text(row[column], where).strip()}


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
        text = check_text(_joined_parts(system, where), f"{where}: {first_filled(row, SYSTEM)}")
        if not turns or turns[0]["role"] != "system":
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
    return texts_in_turn([text for pair in history for text in pair], where)


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


def _asked(column: str, row: Mapping[str, Any], where: str) -> Turns:
    """The messages before an answer."""
    if column == "instruction":
        texts = [check_text(row[column], f"{where}: {column}")]
        context = single(row, ABOUT, where)
        if context is not None:
            texts.append(check_text(context, f"{where}: {first_filled(row, ABOUT)}"))
        return [{"role": "user", "content": "\n\n".join(text for text in texts if text.strip())}]
    return _side(row[column], "user", f"{where}: {column}")


def _side(value: Any, role: str, where: str) -> Turns:
    """A string becomes a message of `role`, or the turns of a transcript; messages are only normalized.

    An empty answer is no message.
    """
    if role == "assistant" and (is_empty(value) or (isinstance(value, str) and not value.strip())):
        return []
    if isinstance(value, str):
        text = check_text(value, where)
        return _transcript(text) if _SPEAKER.match(text) else [{"role": role, "content": text}]
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, list | tuple) or not value:
        raise InputError(f"{where}: expected text or a list of messages, found {shorten(value)}")
    return _turns(value, where)


def _transcript(text: str) -> Turns:
    """The turns of a conversation in one text, as Anthropic's helpful-harmless data write it.

    A last turn of the assistant without words asks for an answer.
    """
    _, *parts = _SPEAKER.split(text)
    turns = [
        {"role": "user" if speaker == "Human" else "assistant", "content": words.strip()}
        for speaker, words in zip(parts[::2], parts[1::2], strict=True)
    ]
    return turns[:-1] if len(turns) > 1 and turns[-1] == {"role": "assistant", "content": ""} else turns


def read_preference(chosen: str, rejected: str, row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Read a preference from the columns of both answers, and from the first column of `PROMPTS` that the row has.

    A common beginning of both answers is the prompt only if it ends at a turn, so that two texts have none. If the
    row has a prompt too, they must agree.
    """
    ask = first_filled(row, PROMPTS)
    prompt = [] if ask is None else _asked(ask, row, where)
    sides = [_side(row[name], "assistant", f"{where}: {name}") for name in (chosen, rejected)]
    if not all(map(_has_answer, sides)):
        return {"prompt": prompt, "chosen": [], "rejected": []}
    # The last message of either side is its answer, even if both are equal.
    shared = num_alike(sides[0][:-1], sides[1][:-1])
    common = sides[0][:shared]
    if common and (not prompt or common[0]["role"] != "assistant"):
        if _repeats(prompt, common, sides):
            prompt = common
        elif prompt[-1]["role"] in ("system", "assistant"):
            prompt = [*prompt, *common]
        else:
            raise InputError(
                f"{where}: {ask} is {shorten(row[ask])}, but {chosen} and {rejected} begin with other messages, "
                f"{shorten(common)}; keep one of them"
            )
        sides = [side[shared:] for side in sides]
    if not prompt:
        raise InputError(
            f"{where}: {chosen} and {rejected} have no prompt: expected one in a column ({', '.join(PROMPTS)}), "
            f"or messages with which both begin, found {', '.join(row)}; rename the column with the prompt"
        )
    if ask and prompt[-1]["role"] == "assistant" and prompt[-1] in (side[0] for side in sides):
        prompt = prompt[:-1]  # a conversation with its answer
    if ask and any(side[0]["role"] == "user" or prompt[-1]["role"] == "assistant" for side in sides):
        raise InputError(
            f"{where}: {ask} ends with {shorten(prompt[-1])}, and {chosen} and {rejected} begin with "
            f"{shorten(sides[0][0])} and {shorten(sides[1][0])}; expected answers of the assistant to the end of {ask}"
        )
    return {"prompt": prompt, "chosen": sides[0], "rejected": sides[1]}


def _repeats(prompt: Turns, common: Turns, sides: Sequence[Turns]) -> bool:
    """Whether a prompt is what both answers begin with: in part, together with one of them, or as text.

    The text of several turns has what the user says in all of them.
    """
    if len(prompt) == 1 and prompt[0]["role"] == "user":
        text, turns = prompt[0]["content"].strip(), [(turn["role"], turn["content"].strip()) for turn in common]
        return ("user", text) in turns or all(words in text for role, words in turns if role == "user")
    return prompt == common[: len(prompt)] or prompt in sides
