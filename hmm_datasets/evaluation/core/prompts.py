"""CORE's questions: read, checked, ordered, and written as prompts.

Rows of a file are JSON objects. `multiple_choice`: `query`, `choices`, `gold`, the index of the right one; `schema`:
`context_options`, `continuation`, `gold`; `language_modeling`: `context`, `continuation`. The rows are shuffled by
`random.Random(1337)`, then cut; solved examples of item `i` are drawn by `random.Random(1234 + i)` from the others.

A prompt is the solved examples, then the question, a blank line between. An example is query, delimiter, right choice;
right context, delimiter, continuation; context without white space around it, delimiter, continuation. A
multiple-choice question has a prompt for each choice, a schema one for each context. Language modeling has one prompt
without and one with the continuation.
"""

import hashlib
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...text.corpora.local_files import check_text, shorten
from .tasks import (
    LANGUAGE_MODELING,
    MULTIPLE_CHOICE,
    SCHEMA,
    CoreTask,
)

_ORDER_SEED, _EXAMPLES_SEED, _SWAP_SEED = 1337, 1234, 4321

_OPTIONS = {MULTIPLE_CHOICE: "choices", SCHEMA: "context_options"}
_TEXTS = {
    MULTIPLE_CHOICE: ("query",),
    SCHEMA: ("continuation",),
    LANGUAGE_MODELING: ("context", "continuation"),
}
_ASKED = {MULTIPLE_CHOICE: "query", SCHEMA: "continuation", LANGUAGE_MODELING: "context"}
"""The field that tells which answer is right: what a corrupted item takes from another."""


@dataclass(frozen=True)
class Questions:
    """The questions of a task.

    Attributes:
        task ([`CoreTask`]): whose they are.
        rows (`list` of `dict`): shuffled and cut.
        sha256 (`str`): of the whole file.
    """

    task: CoreTask
    rows: list[dict[str, Any]]
    sha256: str

    def examples(self, item: int) -> list[dict[str, Any]]:
        """The rows that are shown solved before an item."""
        generator = random.Random(_EXAMPLES_SEED + item)
        # As if drawn from the list of the others, which is not made: drawing looks at its length alone.
        drawn = generator.sample(range(len(self.rows) - 1), self.task.shots)
        return [self.rows[place + (place >= item)] for place in drawn]

    def corrupted(self) -> list[dict[str, Any]]:
        """The rows, each asked what another asks.

        A seeded cycle through all items (Sattolo's algorithm), so that none keeps its own, tells whose query
        (`multiple_choice`), continuation (`schema`) or context (`language_modeling`) an item gets; its choices,
        contexts or continuation, and which of them counts as right, stay. What is asked then tells nothing of what is
        right, and accuracy falls to what the answers give away by themselves: about chance.
        """
        order = list(range(len(self.rows)))
        generator = random.Random(_SWAP_SEED)
        for last in range(len(order) - 1, 0, -1):
            other = generator.randrange(last)
            order[last], order[other] = order[other], order[last]
        field = _ASKED[self.task.type]
        return [row | {field: self.rows[other][field]} for row, other in zip(self.rows, order, strict=True)]

    def prompts(self, row: dict[str, Any], item: int) -> list[str]:
        """The prompts of a row that stands in the place of an item."""
        task, gap = self.task, "\n\n"
        shown = "".join(solved(task, example) + gap for example in self.examples(item))
        if task.type == MULTIPLE_CHOICE:
            return [shown + row["query"] + task.delimiter + choice for choice in row["choices"]]
        if task.type == SCHEMA:
            return [shown + context + task.delimiter + row["continuation"] for context in row["context_options"]]
        asked = shown + row["context"].strip() + task.delimiter
        return [asked.rstrip(), asked + row["continuation"]]


def solved(task: CoreTask, row: dict[str, Any]) -> str:
    """A question with its answer."""
    if task.type == MULTIPLE_CHOICE:
        return row["query"] + task.delimiter + row["choices"][row["gold"]]
    if task.type == SCHEMA:
        return row["context_options"][row["gold"]] + task.delimiter + row["continuation"]
    return row["context"].strip() + task.delimiter + row["continuation"]


def find_questions(
    folder: str | Path, tasks: list[CoreTask], *, only_found: bool, max_per_task: int | None = None
) -> list[Questions]:
    """Read the files of tasks, wherever they are under a folder.

    Args:
        folder (`str` or `Path`): where to look for files by their names.
        tasks (`list` of [`CoreTask`]): whose.
        only_found (`bool`): leave out tasks that have no file; otherwise that is an error.
        max_per_task (`int`, *optional*): rows that are kept of each, after the shuffle.

    Returns:
        `list` of [`Questions`], in the order of the tasks.

    Raises:
        `InputError`: no folder, no file or two of them, a row that is not of its type, by file and line; fewer rows
        than the solved examples take.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; expected one with the .jsonl files of CORE's tasks")
    if max_per_task is not None and max_per_task < 1:
        raise InputError(f"max_per_task={max_per_task}: expected 1 or more")
    places: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*.jsonl")):
        places.setdefault(path.name, []).append(path)
    found = []
    for task in tasks:
        paths = places.get(task.file, [])
        if not paths and only_found:
            continue
        if len(paths) != 1:
            there = f"{paths[0]} and {paths[1]}; keep one" if paths else f"no {task.file} under {folder}"
            raise InputError(f"{task.label}: {there}")
        found.append(_read(task, paths[0], max_per_task))
    if not found:
        raise InputError(f"{folder}: none of CORE's files is there, such as {tasks[0].file}")
    return found


def _read(task: CoreTask, path: Path, max_per_task: int | None) -> Questions:
    content = path.read_bytes()
    rows = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            rows.append(_checked(task, line, f"{path}:{number}"))
    random.Random(_ORDER_SEED).shuffle(rows)
    rows = rows[:max_per_task]
    if len(rows) <= task.shots:
        cut = "" if max_per_task is None else f" after the cut to max_per_task={max_per_task}"
        raise InputError(
            f"{task.label}: {len(rows)} items{cut}, but each is asked behind {task.shots} others; it takes at least "
            f"{task.shots + 1}, or leave the task out"
        )
    return Questions(task, rows, hashlib.sha256(content).hexdigest())


def _checked(task: CoreTask, line: bytes, where: str) -> dict[str, Any]:
    """A row of its type, with the fields that count."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where}: not JSON ({error})") from None
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected an object, found a {type(row).__name__}")
    texts = _TEXTS[task.type]
    for name in texts:
        check_text(row.get(name), f"{where}: {name}")
        if name == "continuation" and not row[name].strip():
            raise InputError(f"{where}: {name} is empty; {task.label} needs some text there")
    if task.type == LANGUAGE_MODELING:
        return {name: row[name] for name in texts}
    name = _OPTIONS[task.type]
    options, gold = row.get(name), row.get("gold")
    if not isinstance(options, list) or len(options) < 2:
        raise InputError(f"{where}: {name} is {shorten(options)}; {task.label} needs a list of two texts or more")
    for option in options:
        check_text(option, f"{where}: {name}")
    if type(gold) is not int or not 0 <= gold < len(options):
        raise InputError(f"{where}: gold is {gold!r}; expected the index of one of {len(options)} {name}")
    return {name: row[name] for name in (*texts, name, "gold")}
