"""The formats of conversations, preferences and texts that are recognized by the columns of a data set."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from .conversations import (
    Format,
    Kind,
    answered_format,
    column_format,
    read_messages,
    read_preference,
    read_prompt,
    read_texts_in_turn,
)

question_and_answer = answered_format("question and answer", "question", "answer")
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
    Format("ShareGPT or messages", "conversations", ("conversations",), partial(read_messages, "conversations")),
    column_format("conversation", "conversations"),
    answered_format("Alpaca", "instruction", "output"),
    answered_format("Dolly", "instruction", "response"),
    answered_format("prompt and completion", "prompt", "completion"),
    answered_format("prompt and response", "prompt", "response"),
    answered_format("query and response", "query", "response"),
    answered_format("question and response", "question", "response"),
    question_and_answer,
    answered_format("input and output", "input", "output"),
    answered_format("inputs and targets", "inputs", "targets"),
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
