"""Columns of a row and keys of a message beside its text: those that are obeyed, refused, or counted as not used.

| key | meaning |
|---|---|
| `system`, `system_prompt`, `system_message` of a row | the system message of its conversation |
| `history` of a row | earlier turns, as pairs of what the user and the assistant said, or as messages |
| `tools`, `functions` of a row | declarations of tools |
| `label`, `kto_tag` of a row | false for an answer to avoid, as in TRL's unpaired preferences: the row is left out |
| `images`, `videos`, `audios` of a row or message | refused, since a model of text cannot read them |
| `chat_template_kwargs` of a row | refused, since templates are applied without arguments |
| `weight` (OpenAI), `train`, `training` (Axolotl), `loss` (ms-swift), `masked`, `mask` of a turn | no loss on it |
| `train_detail` of a turn (Axolotl) | refused, since the loss is on whole turns |
| `reasoning_content`, `reasoning`, `thinking` of the assistant | its reasoning, before its words |
| `tool_calls`, `function_call` of the assistant | calls of tools |

What is empty or null says nothing. Everything else that a row has and its format does not read is counted by name.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...errors import InputError
from .local_files import check_text, shorten

SYSTEM = ("system", "system_prompt", "system_message")
LABELS = ("label", "kto_tag")
DECLARATIONS = ("tools", "functions")
CONTEXT = (*SYSTEM, "history", *DECLARATIONS)
"""Columns of what precedes the answer, in every format of conversations and preferences."""

ASSISTANTS = ("assistant", "gpt", "model", "chatgpt", "function_call", "agent", "admin", "operator", "bot")
"""Names of the role whose words are trained on."""

_MEDIA = ("image", "images", "video", "videos", "audio", "audios")
_REFUSED = ("chat_template_kwargs", "train_detail")

OBEYED = {*CONTEXT, *LABELS, *_MEDIA, *_REFUSED}
"""Columns of a row that are obeyed or refused, whatever its format."""

_WEIGHTS = {"weight": True, "train": True, "training": True, "loss": True, "mask": False, "masked": False}
"""Keys of a turn that decide whether there is a loss on it, and whether they say so by 1 or by 0."""

_REASONING = ("reasoning_content", "reasoning", "thinking")
OF_TURNS = ("tool_calls", "function_call", *_WEIGHTS, *_REASONING)
"""Keys of a turn that are obeyed beside its role and text."""

_OF_CALLS = {"function", "name", "arguments", "type"}
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


def is_rejected(row: Mapping[str, Any], where: str) -> bool:
    """Whether the label of a row says that its answer is one to avoid.

    Raises:
        `InputError`: beside a completion the label is a number, which may be a truth value or a class.
    """
    label = single(row, [name for name in LABELS if isinstance(row.get(name), bool)], where)
    if label is None and "completion" in row and row.get("label") in (0, 1):
        raise InputError(
            f"{where}: label is {row['label']}, expected true or false; write these, or rename the column"
        )
    return label is False


def weight_of(message: Mapping[str, Any], role: str, where: str) -> int:
    """1 if there is a loss on a turn, 0 if its keys say that there is none.

    Raises:
        `InputError`: a weight is neither 0 nor 1, or two keys contradict one another.
    """
    if role != "assistant":
        return 1
    weight = message.get("weight")
    if weight is not None and weight not in (0, 1):
        raise InputError(f"{where} has weight {weight!r}, expected 0 (no loss on it) or 1; round it, or drop the turn")
    chosen = {name: bool(message[name]) is by_one for name, by_one in _obeyed(message)}
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
        for message in messages if isinstance(messages, list | tuple) else ():
            if isinstance(message, Mapping):
                yield from _unused_of_message(message, column)


def _unused_of_message(message: Mapping[str, Any], column: str) -> Iterator[str]:
    names = ("role", "content") if "role" in message else ("from", "value")
    role = str(message.get(names[0])).strip().lower()
    is_answer = role in ASSISTANTS
    obeyed = {name for name, _ in _obeyed(message)}
    for key in message.keys() - {*names}:
        is_read = key in obeyed if key in _WEIGHTS else key in OF_TURNS
        if not (is_read and is_answer) and not is_empty(message[key]):
            yield f"{column}.{key}" if is_answer or key not in OF_TURNS else f"{column}.{key} of {role}"
    yield from _unused_of_each(message.get(names[1]), _OF_PARTS, f"{column}.{names[1]}")
    calls = message.get("tool_calls") or ()
    yield from _unused_of_each(calls, _OF_CALLS, f"{column}.tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, Mapping)]
    yield from _unused_of_each(functions, _OF_CALLS, f"{column}.tool_calls.function")


def _unused_of_each(items: Any, used: set[str], name: str) -> Iterator[str]:
    for item in items if isinstance(items, list | tuple) else ():
        if isinstance(item, Mapping):
            yield from (f"{name}.{key}" for key in item.keys() - used if not is_empty(item[key]))


def _obeyed(message: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """The keys of a turn that decide about its loss by a truth value."""
    return [(name, by_one) for name, by_one in _WEIGHTS.items() if name in message and message[name] in (0, 1)]


class UnusedKeys(Counter[str]):
    """Counts of what was not used of the rows of a corpus, and of rows that were left out.

    Attributes:
        rows (`int`): rows read.
        rejected (`int`): rows left out because their label is false.
    """

    def __init__(self, *counts: Any):
        super().__init__(*counts)
        self.rows = self.rejected = 0

    def lines(self, name: str) -> list[str]:
        """What to print about a corpus of this name, a line for each."""
        lines = []
        if self:
            counts = ", ".join(f"{key} ({count:,})" for key, count in sorted(self.items()))
            lines.append(f"{name}: not used, of {self.rows:,} rows: {counts}")
        if self.rejected:
            lines.append(
                f"{name}: {self.rejected:,} of {self.rows:,} rows are left out, since their label is false: answers "
                "to avoid, not to learn from"
            )
        return lines
