"""Answers to held-out questions: how many are right before and after fine-tuning, and some examples in full."""

from collections.abc import Mapping, Sequence
from typing import Any

from .tables import Table

FIGURES_NAME, ROWS_NAME = "answers.json", "answers.jsonl"
"""Files in the folder of a fine-tuned model: how many answers are right, and the answers themselves."""


def answers_table(found: Mapping[str, Any]) -> Table:
    """The result of [`~hmm_datasets.evaluation.answers.compare_answers`] as a table.

    The column `guessed` is the accuracy of a random guess if the corpus gives it, else that of always giving the most
    common answer.
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
    """Questions with the answer after fine-tuning, word for word, and whether it is right."""
    parts = []
    for row in rows:
        said = [f"{message['role']}: {message['content']}" for message in row["messages"]]
        verdict = "right" if row["after"].strip() == row["expected"].strip() else f"expected: {row['expected']}"
        parts.append("\n".join([*said, f"assistant: {row['after']}", f"({verdict})"]))
    return "\n\n".join(parts)
