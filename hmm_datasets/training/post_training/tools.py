"""Tools that a model may call while it answers: for GRPO, in the form that TRL takes them.

What a tool returns becomes a turn of its own, which the model reads and on which there is no loss.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...runtime.user_functions import imported_function
from ...text.corpora.calculator import calculator
from ...text.tokenizers.chat_templates import end_of_turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Tool = Callable[..., Any]
_ASKED = {"role": "user", "content": "Question"}


def tool(name: str) -> Tool:
    """The tool that a name stands for: `calculator`, or a function as `MODULE:FUNCTION`.

    A function has type hints and a docstring that describes each argument, from which its declaration is made, see
    [`~transformers.utils.get_json_schema`].

    Raises:
        `InputError`: the name is unknown, or the function cannot be imported or declared.

    ```python
    >>> tool("calculator")("(48 + 24) / 2")
    '36'

    ```
    """
    from transformers.utils import get_json_schema

    if name == "calculator":
        return calculator
    if ":" not in name:
        raise InputError(f"tools: {name}: expected calculator or MODULE:FUNCTION")
    function = imported_function("tools", name)
    try:
        get_json_schema(function)
    except Exception as error:  # several types, among them those of its docstring parser
        raise InputError(f"tools: {name}: no declaration can be made of it ({error})") from None
    return function


def prepare_for_tools(tokenizer: "PreTrainedTokenizerBase", tools: Sequence[Tool]) -> None:
    """Tell a tokenizer how to find calls in what a model says, unless it knows already.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): a tokenizer with a chat template; its
            `response_template` is set.
        tools (sequence of callables): the tools to declare.

    Raises:
        `InputError`: the chat template does not write declarations, calls or results of tools, or transformers is too
            old.
    """
    from trl.chat_template_utils import add_response_schema, supports_tool_calling

    if "prefix" not in inspect.signature(tokenizer.parse_response).parameters:
        raise InputError("tools: calls are found by transformers 5.13 or newer; install it, or leave them out")
    name = tokenizer.name_or_path or "the tokenizer"
    remedy = "fine-tune with another one (hmm-datasets sft --chat_template default)"
    declared = tokenizer.apply_chat_template([_ASKED], tools=list(tools), tokenize=False)
    if declared == tokenizer.apply_chat_template([_ASKED], tokenize=False) or not supports_tool_calling(tokenizer):
        raise InputError(f"tools: the chat template of {name} does not write calls of tools; {remedy}")
    if getattr(tokenizer, "response_template", None) is not None:
        return
    try:
        add_response_schema(tokenizer)
    except ValueError:  # not one of the templates that TRL knows
        tokenizer.response_template = _response_template(tokenizer)
    if tokenizer.response_template is None:
        raise InputError(f"tools: the chat template of {name} writes calls in a form that is not known; {remedy}")


def _response_template(tokenizer: "PreTrainedTokenizerBase") -> dict[str, Any] | None:
    """How calls are found, for a template that writes them as Hermes and Qwen do: JSON within `<tool_call>`."""
    call = {"type": "function", "function": {"name": "name", "arguments": {}}}
    called = [_ASKED, {"role": "assistant", "content": "", "tool_calls": [call]}]
    written = tokenizer.apply_chat_template(called, tokenize=False)
    end = end_of_turn(tokenizer)
    if end is None or not re.search(r'<tool_call>\s*\{"name": "name", "arguments": \{\}\}\s*</tool_call>', written):
        return None
    asked = tokenizer.apply_chat_template([_ASKED], tokenize=False)
    begun = tokenizer.apply_chat_template([_ASKED], tokenize=False, add_generation_prompt=True)
    thinking = {"reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*", "content": "text"}}
    return {
        "defaults": {"role": "assistant"},
        "start_anchor": begun.removeprefix(asked),
        "fields": {
            **(thinking if "<think>" in tokenizer.chat_template else {}),
            "tool_calls": {
                "open": "<tool_call>",
                "close_pattern": r"</tool_call>\s*",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {
                "close_pattern": rf"{re.escape(tokenizer.convert_ids_to_tokens(end))}\s*",
                "content": "text",
            },
        },
    }
