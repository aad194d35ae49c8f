"""A calculator as a tool of chat models, and the calculations in the answers of GSM8K as calls of it.

The answers of GSM8K (Cobbe et al., "Training verifiers to solve math word problems", 2021) annotate each calculation
where its result follows: `48/2 = <<48/2=24>>24 clips`. A conversation with calls has the calculation instead, as a
call of the tool, and its result as the tool's turn; the assistant continues with what follows the annotation.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from ...errors import InputError
from .conversations import Messages, declare_tools, normalize_messages, read_turns

_ANNOTATION = re.compile(r"<<([^<>=]*)=[^<>]*>>")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")
_LEADING_ZEROS = re.compile(r"(?<![\d.])0+(?=\d)")
_MAX_LENGTH, _MAX_EXPONENT, _MAX_BITS = 200, 64, 4096
_DIGITS = 6  # after the point

_OPERATIONS: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda left, right: Fraction(left // right),
    ast.Mod: operator.mod,
}


# The docstring is for models too: the declaration of the tool is made from it.
def calculator(expression: str) -> str:
    """Calculates an arithmetic expression exactly.

    Args:
        expression: Numbers, + - * / // % ** and parentheses, for example "(48 + 24) / 2".

    Returns:
        The result: a whole number, or a decimal one rounded to six places.
    """
    if not isinstance(expression, str) or len(expression) > _MAX_LENGTH:
        raise ValueError(f"expected an arithmetic expression of at most {_MAX_LENGTH} characters")
    plain = _LEADING_ZEROS.sub("", _THOUSANDS.sub("", expression.replace("$", "")).strip())
    try:
        result = _value(ast.parse(plain, mode="eval").body)
    except SyntaxError:
        raise ValueError(f"not an arithmetic expression: {expression}") from None
    except ZeroDivisionError:
        raise ValueError(f"division by zero: {expression}") from None
    return _written(result)


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return _value(node.operand) * (-1 if isinstance(node.op, ast.USub) else 1)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) in _OPERATIONS:
            return _small(_OPERATIONS[type(node.op)](left, right))
    raise ValueError(f"not arithmetic: {ast.unparse(node)}")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > _MAX_EXPONENT:
        raise ValueError(f"expected a whole exponent of at most {_MAX_EXPONENT}")
    return _small(base ** int(exponent))


def _small(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise ValueError("the numbers are too large")
    return value


def _written(value: Fraction) -> str:
    parts = round(abs(value) * 10**_DIGITS)
    whole, rest = divmod(parts, 10**_DIGITS)
    sign = "-" if value < 0 < parts else ""
    return f"{sign}{whole}.{rest:0{_DIGITS}d}".rstrip("0").rstrip(".")


def with_calls(messages: Messages) -> Messages:
    """A conversation in which calculations of the assistant are calls of the calculator.

    The calculator is declared in the system message. What it returns is the tool's turn, on which there is no loss.

    Args:
        messages (list of `dict`): a conversation, see [`~hmm_datasets.text.corpora.conversations.normalize_messages`].

    Raises:
        `ValueError`: an annotated calculation is none.

    ```python
    >>> asked = {"role": "user", "content": "Half of 48?"}
    >>> found = with_calls([asked, {"role": "assistant", "content": "48/2=<<48/2=24>>24. #### 24"}])
    >>> [message["role"] for message in found]
    ['system', 'user', 'assistant', 'tool', 'assistant']
    >>> found[2]["content"]
    '48/2=\\n<tool_call>\\n{"name": "calculator", "arguments": {"expression": "48/2"}}\\n</tool_call>'
    >>> found[3]["content"], found[4]["content"]
    ('24', '24. #### 24')

    ```
    """
    from transformers.utils import get_json_schema

    turns = []
    for message in messages:
        if message["role"] != "assistant":
            turns.append(message)
            continue
        *parts, last = _ANNOTATION.split(message["content"])
        for words, expression in zip(parts[::2], parts[1::2], strict=True):
            call = {"name": calculator.__name__, "arguments": {"expression": expression}}
            turns.append({"role": "assistant", "content": words, "tool_calls": [call]})
            turns.append({"role": "tool", "content": calculator(expression)})
        turns.append({"role": "assistant", "content": last})
    return declare_tools(normalize_messages(turns), [get_json_schema(calculator)])


def read_with_calls(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A row with a question and an annotated answer as a conversation with calls of the calculator."""
    messages = read_turns("question", "answer", row, where)["messages"]
    try:
        return {"messages": with_calls(messages)}
    except ValueError as error:
        raise InputError(f"{where}: answer: {error}; drop the row") from None
