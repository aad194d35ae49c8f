"""Answers to held-out questions: how many are right before and after fine-tuning, and some examples in full."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hmm_datasets.evaluation.chat.answers import Question, is_right
from hmm_datasets.files import write_json, write_jsonl
from hmm_datasets.intervals import wilson
from hmm_datasets.report.tables import Table


def exact_match(questions: Sequence[Question], answers: Sequence[str]) -> dict[str, Any]:
    """How many answers are right, for each kind of question and for all.

    Args:
        questions (sequence of [`Question`]), answers (sequence of `str`): questions, and an answer to each.

    Returns:
        `dict`: for each kind, and under `all` for all questions: the number of `questions`, how many are `right`, the
        `accuracy` with its interval, `low` to `high` (Wilson's, 95%), `most_common` (the share of the most common
        right answer, which is the accuracy of always giving that answer) and, if the corpus gives it, `chance`.

    ```python
    >>> asked = [Question([], "Tom.", "who"), Question([], "Mia.", "who"), Question([], "two", "how many")]
    >>> found = exact_match(asked, ["Tom.", "Tom.", " two"])
    >>> found["who"]["accuracy"], found["all"]["right"], found["who"]["most_common"]
    (0.5, 2, 0.5)

    ```
    """
    pairs = list(zip(questions, answers, strict=True))
    figures = {}
    for kind in dict.fromkeys([*(question.kind for question in questions), "all"]):
        asked = [(question, reply) for question, reply in pairs if kind in (question.kind, "all")]
        if not asked:
            continue
        right = sum(is_right(question, reply) for question, reply in asked)
        accuracy = right / len(asked)
        low, high = wilson(right, len(asked)) or (0.0, 1.0)
        common = Counter(question.expected.strip() for question, _ in asked).most_common(1)[0][1]
        figures[kind] = {
            "questions": len(asked),
            "right": right,
            "accuracy": accuracy,
            "low": low,
            "high": high,
            "most_common": common / len(asked),
        }
        if all(question.chance is not None for question, _ in asked):
            figures[kind]["chance"] = sum(question.chance for question, _ in asked) / len(asked)
    return figures


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
