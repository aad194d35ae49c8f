"""The formats of conversations, preferences and texts that are recognized by the columns of a data set."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from .conversations import (
    Format,
    Kind,
    column_format,
    has_from_and_value,
    read_messages,
    read_preference,
    read_prompt,
    read_texts_in_turn,
    read_turns,
)


def _asked_and_answered(name: str, ask: str, answer: str) -> Format:
    return Format(name, "conversations", (ask, answer), partial(read_turns, ask, answer))


question_and_answer = _asked_and_answered("question and answer", "question", "answer")
texts_in_turn = Format(
    *("texts by user and assistant in turn", "conversations", ("conversations",)),
    partial(read_texts_in_turn, "conversations"),
)
"""The format of LIMA, which is read only where it is named."""


FORMATS = (
    *(
        Format("preferences", "preferences", answers, partial(read_preference, *answers))
        for answers in (
            ("chosen", "rejected"),
            ("preferred_output", "non_preferred_output"),
            ("chosen_response", "rejected_response"),
            ("chosen_conversations", "rejected_conversations"),
        )
    ),
    column_format("messages", "conversations"),
    Format(
        *("ShareGPT", "conversations", ("conversations",), partial(read_messages, "conversations")),
        holds=has_from_and_value,
    ),
    column_format("conversations", "conversations"),
    column_format("conversation", "conversations"),
    _asked_and_answered("Alpaca", "instruction", "output"),
    _asked_and_answered("Dolly", "instruction", "response"),
    _asked_and_answered("prompt and completion", "prompt", "completion"),
    _asked_and_answered("prompt and response", "prompt", "response"),
    _asked_and_answered("query and response", "query", "response"),
    _asked_and_answered("question and response", "question", "response"),
    question_and_answer,
    _asked_and_answered("input and output", "input", "output"),
    _asked_and_answered("inputs and targets", "inputs", "targets"),
    column_format("text", "text"),
)
"""All formats, in the order in which they are tried."""

PROMPT_FORMATS = (
    *FORMATS,
    *(
        Format("prompts", "conversations", (name,), partial(read_prompt, name))
        for name in ("prompt", "question", "query", "problem", "instruction")
    ),
)
"""All formats, and those of prompts without answers, which are conversations of what the user says."""


def format_of_row(
    row: Mapping[str, Any], kind: Kind | None = None, formats: Sequence[Format] | None = None
) -> Format | None:
    """The first of `formats`, by default `FORMATS`, that fits the first row of a data set and has this kind."""
    return next(
        (candidate for candidate in formats or FORMATS if kind in (None, candidate.kind) and candidate.fits(row)), None
    )
