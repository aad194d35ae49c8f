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
    read_question,
    read_turns,
)

question_and_answer = Format("question and answer", "conversations", ("question", "answer"), read_question)


FORMATS = (
    *(
        Format("preferences", "preferences", (*ask, "chosen", "rejected"), partial(read_preference, *(ask or (None,))))
        for ask in (("prompt",), ("instruction",), ("question",), ())
    ),
    column_format("messages", "conversations"),
    Format(
        *("ShareGPT", "conversations", ("conversations",), partial(read_messages, "conversations")),
        holds=has_from_and_value,
    ),
    column_format("conversations", "conversations"),
    *(
        Format(name, "conversations", (ask, answer), partial(read_turns, ask, answer))
        for name, ask, answer in (
            ("Alpaca", "instruction", "output"),
            ("Dolly", "instruction", "response"),
            ("prompt and completion", "prompt", "completion"),
            ("prompt and response", "prompt", "response"),
            ("query and response", "query", "response"),
            ("question and response", "question", "response"),
        )
    ),
    question_and_answer,
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
