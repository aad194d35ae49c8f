"""Answers to held-out questions: how many were right before and after fine-tuning, and some of them in full."""

from collections.abc import Mapping, Sequence
from typing import Any

from .tables import Table

FIGURES_NAME, ROWS_NAME = "answers.json", "answers.jsonl"
"""Beside a fine-tuned model: how many answers are right, and the answers."""


def answers_table(found: Mapping[str, Any]) -> Table:
    """The figures of [`~hmm_datasets.evaluation.answers.compare_answers`].

    `guessed` is what a guess among the things that could be meant gets right, where the corpus says so, else what the
    most common answer gets right.
    """
    rows = []
    for kind, after in found["after"].items():
        guessed = after.get("chance", after["most_common"])
        before = found["before"][kind]["accuracy"]
        accuracy = f"{after['accuracy']:.1%} +- {after['standard_error']:.1%}"
        rows.append([kind, f"{after['questions']:,}", f"{before:.1%}", accuracy, f"{guessed:.1%}"])
    header = ("kind of question", "questions", "before fine-tuning", "after", "guessed")
    return Table("Held-out questions, answered in exactly the right words", header, rows)


def transcripts(rows: Sequence[Mapping[str, Any]]) -> str:
    """Questions with the answer after fine-tuning, as they are, and whether it is right."""
    parts = []
    for row in rows:
        said = [f"{message['role']}: {message['content']}" for message in row["messages"]]
        verdict = "right" if row["after"].strip() == row["expected"].strip() else f"expected: {row['expected']}"
        parts.append("\n".join([*said, f"assistant: {row['after']}", f"({verdict})"]))
    return "\n\n".join(parts)
