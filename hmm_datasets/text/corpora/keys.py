"""Columns of a row and keys of a message beside its text: those that are obeyed, refused, or counted as not used.

| key | meaning |
|---|---|
| `system`, `system_prompt`, `system_message` of a row | the system message of its conversation |
| `history` of a row | earlier turns, as pairs of what the user and the assistant said, or as messages |
| `tools`, `functions` of a row | declarations of tools |
| `label`, `kto_tag` of a row with an answer | false if it is one to avoid, as in TRL's KTO: the row is left out |
| `images`, `videos`, `audios` of a row or message | refused, since a model of text cannot read them |
| `chat_template_kwargs` of a row | refused, since templates are applied without arguments |
| `weight` (OpenAI), `train`, `training` (Axolotl), `loss` (ms-swift), `masked`, `mask` of a turn | no loss on it |
| `train_detail` of a turn (Axolotl) | refused, since the loss is on whole turns |
| `reasoning_content`, `reasoning`, `thinking` of the assistant | its reasoning, before its words |
| `tool_calls`, `function_call` of the assistant | calls of tools |

Labels and keys about the loss are truth values, see [`~hmm_datasets.truth_values.truth_value`]; other values of them
are refused. What is empty or null says nothing. Everything else that a row has and its format does not read is counted
by name.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...errors import InputError
from ...truth_values import truth_value
from .local_files import check_text, shorten

SYSTEM = ("system", "system_prompt", "system_message")
LABELS = ("label", "kto_tag")
DECLARATIONS = ("tools", "functions")
CONTEXT = (*SYSTEM, "history", *DECLARATIONS)
"""Columns of what precedes the answer, in every format of conversations and preferences."""

CALLERS = ("function_call", "tool_call")
"""Names of the role whose words are a call of a tool, as JSON."""

ASSISTANTS = ("assistant", "gpt", "model", "chatgpt", "chatbot", "ai", "agent", "admin", "operator", "bot", *CALLERS)
"""Names of the role whose words are trained on."""

_EXCHANGES = (("human", "assistant"), ("user", "assistant"), ("input", "output"))
"""Keys of an object that is two turns, of the user and the assistant."""

_MEDIA = ("image", "images", "video", "videos", "audio", "audios")
_REFUSED = ("chat_template_kwargs", "train_detail")

REJECTED = "their label is false: answers to avoid, not to learn from"
UNANSWERED = "an answer is empty"
"""Why rows are left out."""

OBEYED = {*CONTEXT, *LABELS, *_MEDIA, *_REFUSED}
"""Columns of a row that are obeyed or refused, whatever its format."""

_WEIGHTS = {"weight": True, "train": True, "training": True, "loss": True, "mask": False, "masked": False}
"""Keys of a turn that decide whether there is a loss on it, and whether they say so by 1 or by 0."""

_REASONING = ("reasoning_content", "reasoning", "thinking")
OF_TURNS = ("tool_calls", "function_call", *_WEIGHTS, *_REASONING)
"""Keys of a turn that are obeyed beside its role and text."""

_OF_CALLS = {"function", "name", "arguments", "parameters", "type"}
_OF_PARTS = {"type", "text"}
TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of the parts of a message that are text, in OpenAI's two interfaces."""


def is_empty(value: Any) -> bool:
    """Whether a value says nothing: null, an empty text, or a list or object of nothing but such values."""
    if isinstance(value, list | tuple | Mapping):
        return all(map(is_empty, value.values() if isinstance(value, Mapping) else value))
    return value is None or (isinstance(value, str) and not value)


def refuse_unreadable(row: Mapping[str, Any], where: str) -> None:
    """Raise [`InputError`] for a row or a message with a key whose meaning cannot be obeyed."""
    for name in _MEDIA:
        if not is_empty(row.get(name)):
            raise InputError(
                f"{where}: {name} is {shorten(row[name])}, but models of text cannot read it; drop the row"
            )
    for name in _REFUSED:
        if not is_empty(row.get(name)):
            what = "chat templates are applied without arguments"
            if name == "train_detail":
                what = "a turn is trained on as a whole or not at all"
            raise InputError(f"{where}: {name} is {shorten(row[name])}, but {what}; drop {name} or the row")


def single(row: Mapping[str, Any], names: Iterable[str], where: str) -> Any:
    """The value of those of several columns with one meaning that are not empty; None if all are.

    Raises:
        `InputError`: two of them have different values.
    """
    filled = [name for name in names if not is_empty(row.get(name))]
    for name in filled[1:]:
        if row[name] != row[filled[0]]:
            raise InputError(f"{where}: {filled[0]} and {name} have one meaning and differ; keep one of them")
    return row[filled[0]] if filled else None


def expect_truth(value: Any, where: str, remedy: str) -> bool:
    """A truth value; raises [`InputError`], with `where` and a remedy, if it is none."""
    answer = truth_value(value)
    if answer is None:
        raise InputError(f"{where} is {shorten(value)}, expected true or false; {remedy}")
    return answer


def is_rejected(row: Mapping[str, Any], where: str) -> bool:
    """Whether the label of a row says that its answer is one to avoid.

    Raises:
        `InputError`: the label is no truth value, or two labels differ.
    """
    labels = {}
    for name in LABELS:
        if not is_empty(row.get(name)):
            remedy = f"write these (false: an answer to avoid), or rename the column {name} if it has another meaning"
            labels[name] = expect_truth(row[name], f"{where}: {name}", remedy)
    return single(labels, labels, where) is False


def weight_of(message: Mapping[str, Any], role: str, where: str) -> int:
    """1 if there is a loss on a turn, 0 if its keys say that there is none.

    Raises:
        `InputError`: a key is no truth value, or two contradict one another.
    """
    if role != "assistant":
        return 1
    chosen = {
        name: expect_truth(message[name], f"{where}: {name}", "write these, or 1 or 0; or drop the turn") is by_one
        for name, by_one in _WEIGHTS.items()
        if not is_empty(message.get(name))
    }
    if len(set(chosen.values())) > 1:
        names = " and ".join(f"{name} {message[name]!r}" for name in chosen)
        raise InputError(f"{where} has {names}, which contradict one another; keep one of them")
    return int(all(chosen.values()))


def reasoning_of(message: Mapping[str, Any], where: str) -> str:
    """What the assistant says to itself before it answers; empty if that is not given."""
    return check_text(single(message, _REASONING, where) or "", where)


def unused_keys(row: Mapping[str, Any], used: Iterable[str], columns: Iterable[str]) -> Iterator[str]:
    """The names of what a row has beside what its format reads: of its columns, and of the keys of its messages.

    Args:
        row (mapping): the row.
        used (iterable of `str`): columns that are read.
        columns (iterable of `str`): those of them that may be lists of messages.
    """
    for name in row.keys() - set(used):
        if not is_empty(row[name]):
            yield name
    for column in columns:
        messages = row.get(column)
        for message in messages if isinstance(messages, list | tuple) else (messages,):
            if isinstance(message, Mapping):
                yield from _unused_of_message(message, column)


def _unused_of_message(message: Mapping[str, Any], column: str) -> Iterator[str]:
    exchange = exchange_of(message)
    names = (*exchange, "system") if exchange else ("role", "content") if "role" in message else ("from", "value")
    role = "assistant" if exchange else str(message.get(names[0])).strip().lower()
    is_answer = role in ASSISTANTS
    for key in message.keys() - {*names}:
        if not (key in OF_TURNS and is_answer) and not is_empty(message[key]):
            yield f"{column}.{key}" if is_answer or key not in OF_TURNS else f"{column}.{key} of {role}"
    yield from _unused_of_each(message.get(names[1]), _OF_PARTS, f"{column}.{names[1]}")
    calls = message.get("tool_calls") or ()
    yield from _unused_of_each(calls, _OF_CALLS, f"{column}.tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, Mapping)]
    yield from _unused_of_each(functions, _OF_CALLS, f"{column}.tool_calls.function")


def exchange_of(message: Mapping[str, Any]) -> tuple[str, str] | None:
    """The keys of what the user and the assistant say in an object that is two turns."""
    return next((keys for keys in _EXCHANGES if "role" not in message and message.keys() >= {*keys}), None)


def _unused_of_each(items: Any, used: set[str], name: str) -> Iterator[str]:
    for item in items if isinstance(items, list | tuple) else ():
        if isinstance(item, Mapping):
            yield from (f"{name}.{key}" for key in item.keys() - used if not is_empty(item[key]))


class UnusedKeys(Counter[str]):
    """Counts of what was not used of the rows of a corpus, and of rows that were left out.

    Attributes:
        rows (`int`): rows read.
        left_out (`Counter`): rows left out, by the reason.
    """

    def __init__(self, *counts: Any):
        super().__init__(*counts)
        self.rows, self.left_out = 0, Counter[str]()

    def lines(self, name: str) -> list[str]:
        """What to print about a corpus of this name, a line for each.

        Raises:
            `InputError`: all rows were left out.
        """
        lines = []
        if self:
            counts = ", ".join(f"{key} ({count:,})" for key, count in sorted(self.items()))
            lines.append(f"{name}: not used, of {self.rows:,} rows: {counts}")
        for reason, count in self.left_out.items():
            lines.append(f"{name}: {count:,} of {self.rows:,} rows are left out, since {reason}")
        if 0 < self.rows == self.left_out.total():
            reasons = " or ".join(self.left_out)
            raise InputError(f"{name}: all {self.rows:,} rows are left out, since {reasons}; add rows to learn from")
        return lines
