"""Rewards that can be computed from a completion: for GRPO, in the form that TRL calls them.

A reward is named by a word, with an argument after a colon:

| name | the reward of a completion |
|---|---|
| `gsm8k` | 1 if its final number is that of the answer, else 0 (see [`final_number`]) |
| `exact` | 1 if it is the answer, apart from white space around both, else 0 |
| `format:REGEX` | 1 if the whole of it matches the regular expression, else 0 |
| `length:N` | 1 up to `N` characters, then falling linearly to 0 at `2 N` |
| `MODULE:FUNCTION` | what the function returns |

A function takes `prompts`, `completions` and `completion_ids` by keyword, and every other column of the rows, such as
`answer`; it returns one number for each completion, or None for one that it does not judge. A run ends if all rewards
of all completions are None or NaN. Completions are lists of
messages. Its name is that of its columns in the history.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...runtime.user_functions import imported_function

if TYPE_CHECKING:
    from datasets import Dataset

Reward = Callable[..., list[float | None]]
_GIVEN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments")
"""What TRL gives to every reward, beside the columns of the rows."""

_MARKED = re.compile(r"####\s*(-?[$€£]?\s?-?[0-9.,]+)")
_NUMBER = re.compile(r"-?[$€£]?\s?-?[0-9][0-9.,]*|-?[$€£]?\.[0-9]+")


def final_number(text: str) -> Decimal | None:
    """The final number of an answer: after the last `####`, or without such a mark the last number in it.

    Currency signs, separators of thousands and a full stop after the number are left out, as in GSM8K (Cobbe et al.,
    "Training verifiers to solve math word problems", 2021), whose answers end in `#### NUMBER`.

    Args:
        text (`str`): an answer.

    Returns:
        `Decimal`, *optional*: the number; None if there is none.

    ```python
    >>> final_number("He pays 3 * 400 = 1,200 dollars. #### 1,200"), final_number("It is $7.50.")
    (Decimal('1200'), Decimal('7.50'))

    ```
    """
    _, marked, after = text.rpartition("####")
    numbers = _MARKED.findall(marked + after) if marked else _NUMBER.findall(text)
    if not numbers:
        return None
    digits = re.sub(r"[$€£\s,]", "", numbers[-1]).rstrip(".")
    try:
        return Decimal(digits)
    except InvalidOperation:
        return None


def gsm8k(completions: Sequence, answer: Sequence[str], **_: Any) -> list[float]:
    """1 for each completion whose final number is that of the answer, else 0; both are compared as numbers."""
    numbers = [final_number(text_of(completion)) for completion in completions]
    return [
        float(number is not None and number == final_number(str(right)))
        for number, right in zip(numbers, answer, strict=True)
    ]


def exact(completions: Sequence, answer: Sequence[str], **_: Any) -> list[float]:
    """1 for each completion that is the answer, else 0; white space around both is left out."""
    return [
        float(text_of(completion).strip() == str(right).strip())
        for completion, right in zip(completions, answer, strict=True)
    ]


def text_of(completion: Any) -> str:
    """The text of a completion, which is a string or a list of messages.

    The turns of the assistant are joined by line breaks; what tools returned is left out.
    """
    if isinstance(completion, str):
        return completion
    return "\n".join(message.get("content") or "" for message in completion if message.get("role") != "tool")


def reward(name: str) -> Reward:
    """The reward that a name stands for.

    Args:
        name (`str`): see the table above.

    Raises:
        `InputError`: the name is unknown, its argument is wrong, or the function cannot be imported.

    ```python
    >>> reward("length:4")(completions=["abcd", "abcdef", "abcdefgh"])
    [1.0, 0.5, 0.0]

    ```
    """
    word, colon, argument = name.partition(":")
    if name in ("gsm8k", "exact"):
        return {"gsm8k": gsm8k, "exact": exact}[name]
    if word == "format" and colon:
        try:
            pattern = re.compile(argument, re.DOTALL)
        except re.error as error:
            raise InputError(f"rewards: {name}: not a regular expression ({error})") from None
        return _format(pattern)
    if word == "length" and colon:
        if not argument.isdecimal() or int(argument) == 0:
            raise InputError(f"rewards: {name}: expected a number of characters, as in length:400")
        return _length(int(argument))
    if not colon:
        raise InputError(f"rewards: {name}: expected gsm8k, exact, format:REGEX, length:N or MODULE:FUNCTION")
    return imported_function("rewards", name)


def check_columns(rewards: Mapping[str, Reward], rows: "Dataset", name: str) -> None:
    """Refuse rewards that take a column which the rows do not have, or have only in part.

    Args:
        rewards (mapping): the functions by the names of the settings.
        rows (`datasets.Dataset`): the prompts.
        name (`str`): what they are, for the error.

    Raises:
        `InputError`: a column is missing, or, for `gsm8k` and `exact`, an answer; or one has the name of an argument
            that TRL gives itself.
    """
    hidden = [column for column in rows.column_names if column in _GIVEN]
    if hidden:
        raise InputError(
            f"{name} has the column {hidden[0]!r}, which TRL gives to rewards itself; rename it in the rows"
        )
    for setting, function in rewards.items():
        for parameter in inspect.signature(function).parameters.values():
            taken = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            if not taken or parameter.default is not parameter.empty or parameter.name in _GIVEN:
                continue
            if parameter.name not in rows.column_names:
                raise InputError(
                    f"rewards: {setting} takes the column {parameter.name!r}, but {name} has only "
                    f"{', '.join(rows.column_names)}; add it to the rows, or choose another reward"
                )
            values = rows[parameter.name] if function in (gsm8k, exact) else ()
            missing = next((number for number, value in enumerate(values) if value is None), None)
            if missing is not None:
                raise InputError(
                    f"rewards: {setting} compares with the column {parameter.name!r}, which row {missing} of {name} "
                    "lacks; drop such rows, or choose another reward"
                )


def _format(pattern: re.Pattern) -> Reward:
    def format(completions: Sequence, **_: Any) -> list[float]:
        return [float(pattern.fullmatch(text_of(completion).strip()) is not None) for completion in completions]

    return format


def _length(limit: int) -> Reward:
    def length(completions: Sequence, **_: Any) -> list[float]:
        return [min(1.0, max(0.0, 2 - len(text_of(completion)) / limit)) for completion in completions]

    return length
