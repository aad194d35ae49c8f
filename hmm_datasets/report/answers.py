"""Answers to held-out questions: how many were right before and after fine-tuning, and the first of them in full."""

from collections.abc import Mapping
from typing import Any

from .tables import Table


def answers_text(found: Mapping[str, Any]) -> str:
    """The table and transcripts of what [`~hmm_datasets.metrics.answers.compare_answers`] found.

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
    title = "Held-out questions, answered in exactly the right words"
    parts = [Table(title, header, rows).text(), "The first three, as they are:"]
    for row in found["transcripts"]:
        said = [f"{message['role']}: {message['content']}" for message in row["messages"]]
        verdict = "right" if row["after"].strip() == row["expected"].strip() else f"expected {row['expected']}"
        parts.append("\n".join([*said, f"assistant: {row['after']}    ({verdict})"]))
    return "\n\n".join(parts)
