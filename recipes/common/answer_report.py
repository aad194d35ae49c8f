"""Answers to held-out questions: how many are right before and after fine-tuning, and some examples in full."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hmm_datasets.evaluation.chat.answers import Question, exact_match
from hmm_datasets.files import write_json, write_jsonl
from hmm_datasets.report.tables import Table


def answers_table(figures: Mapping[str, Any]) -> Table:
    """The result of [`compare_answers`] as a table.

    The column `guessed` is the accuracy of a random guess if the corpus gives it, else that of always giving the most
    common answer.
    """
    rows = []
    for kind, after in figures["after"].items():
        guessed = after.get("chance", after["most_common"])
        before = figures["before"][kind]["accuracy"]
        accuracy = f"{after['accuracy']:.1%} ({after['low']:.1%} .. {after['high']:.1%})"
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


def compare_answers(
    folder: str | Path, questions: Sequence[Question], before: Sequence[str], after: Sequence[str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Count the right answers of two models to the same questions, and write them into a folder.

    It writes `answers.jsonl`, with a row per question (`kind`, `messages`, `expected`, and the answers `before` and
    `after`), and `answers.json`, with [`exact_match`] of both models under `before` and `after`. It returns the
    content of the second and the rows of the first.
    """
    rows = [
        {
            "kind": question.kind,
            "messages": question.messages,
            "expected": question.expected,
            "before": old,
            "after": new,
        }
        for question, old, new in zip(questions, before, after, strict=True)
    ]
    figures = {"before": exact_match(questions, before), "after": exact_match(questions, after)}
    write_jsonl(Path(folder) / "answers.jsonl", rows)
    write_json(Path(folder) / "answers.json", figures)
    return figures, rows
