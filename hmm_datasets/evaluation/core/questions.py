"""The questions of CORE: reading, checking and ordering them, and writing them as prompts.

Rows of a file are JSON objects. Those of `multiple_choice` have `query`, `choices` and `gold`, the index of the right
choice; those of `schema` have `context_options`, `continuation` and `gold`; those of `language_modeling` have
`context` and `continuation`. The rows are shuffled by `random.Random(1337)`, then cut. The solved examples of item `i`
are drawn from the other items by `random.Random(1234 + i)`.

A prompt is the solved examples followed by the question, separated by blank lines. A solved example consists of:

- `multiple_choice`: query, delimiter, right choice;
- `schema`: right context, delimiter, continuation;
- `language_modeling`: context stripped of white space, delimiter, continuation.

A multiple-choice question has a prompt for each choice, and a schema question has one for each context. A question of
language modeling has one prompt without and one with the continuation.
"""

import hashlib
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...foreign.json import parse_json
from ...runtime import environment
from ...text.corpora.keys import UnusedKeys, unused_keys
from ...text.corpora.local_files import check_text, shorten
from .task import LANGUAGE_MODELING, MULTIPLE_CHOICE, SCHEMA, CoreTask

_ORDER_SEED, _EXAMPLES_SEED = 1337, 1234
_OPTIONS = {MULTIPLE_CHOICE: "choices", SCHEMA: "context_options"}
_TEXTS = {
    MULTIPLE_CHOICE: ("query",),
    SCHEMA: ("continuation",),
    LANGUAGE_MODELING: ("context", "continuation"),
}


@dataclass(frozen=True)
class Questions:
    """The questions of a task.

    Attributes:
        task ([`CoreTask`]): the task.
        rows (`list` of `dict`): the questions, shuffled and cut.
        sha256 (`str`): hash of the whole file.
    """

    task: CoreTask
    rows: list[dict[str, Any]]
    sha256: str

    def examples(self, item: int) -> list[dict[str, Any]]:
        """The rows that precede an item as solved examples."""
        generator = random.Random(_EXAMPLES_SEED + item)
        # Drawn as from a list of the other rows; that list is not needed, since drawing depends only on its length.
        drawn = generator.sample(range(len(self.rows) - 1), self.task.shots)
        return [self.rows[index + (index >= item)] for index in drawn]

    def prompts(self, item: int) -> list[str]:
        """The prompts of an item."""
        task, row, gap = self.task, self.rows[item], "\n\n"
        shown = "".join(_answered(task, example)[example.get("gold", 0)] + gap for example in self.examples(item))
        prompts = [shown + text for text in _answered(task, row)]
        if task.type == LANGUAGE_MODELING:
            return [(shown + row["context"].strip() + task.delimiter).rstrip(), *prompts]
        return prompts


def _answered(task: CoreTask, row: dict[str, Any]) -> list[str]:
    """A question with each of its options."""
    if task.type == MULTIPLE_CHOICE:
        return [row["query"] + task.delimiter + choice for choice in row["choices"]]
    if task.type == SCHEMA:
        return [context + task.delimiter + row["continuation"] for context in row["context_options"]]
    return [row["context"].strip() + task.delimiter + row["continuation"]]


def find_questions(
    folder: str | Path, tasks: list[CoreTask], *, only_found: bool, max_per_task: int | None = None
) -> list[Questions]:
    """Read the question files of tasks, wherever they are under a folder.

    Args:
        folder (`str` or `Path`): folder to search for files by their names.
        tasks (`list` of [`CoreTask`]): the tasks.
        only_found (`bool`): leave out tasks that have no file; otherwise a missing file is an error.
        max_per_task (`int`, *optional*): maximum number of rows per task, after the shuffle.

    Returns:
        `list` of [`Questions`], in the order of the tasks.

    Raises:
        `InputError`: no folder; no file for a task, or two; a row without the fields of its type, given by file and
            line; or fewer rows than the solved examples need.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; expected one with the .jsonl files of CORE's tasks")
    if max_per_task is not None and max_per_task < 1:
        raise InputError(f"max_per_task={max_per_task}: expected 1 or more")
    paths_by_name: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*.jsonl")):
        paths_by_name.setdefault(path.name, []).append(path)
    questions = []
    for task in tasks:
        paths = paths_by_name.get(task.file, [])
        if not paths and only_found:
            continue
        if len(paths) != 1:
            problem = f"{paths[0]} and {paths[1]}; keep one" if paths else f"no {task.file} under {folder}"
            raise InputError(f"{task.label}: {problem}")
        questions.append(_read(task, paths[0], max_per_task))
    if not questions:
        raise InputError(f"{folder}: has none of CORE's files, such as {tasks[0].file}")
    return questions


def _read(task: CoreTask, path: Path, max_per_task: int | None) -> Questions:
    content = path.read_bytes()
    rows, unused = [], UnusedKeys()
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            row = _checked(task, line, f"{path}:{number}")
            used = (*_TEXTS[task.type], *({_OPTIONS[task.type], "gold"} if task.type in _OPTIONS else ()))
            rows.append({name: row[name] for name in used})
            unused.rows += 1
            unused.update(unused_keys(row, used, ()))
    if environment.rank() == 0:
        print("".join(f"{line}\n" for line in unused.lines(str(path))), end="", file=sys.stderr, flush=True)
    random.Random(_ORDER_SEED).shuffle(rows)
    rows = rows[:max_per_task]
    if len(rows) <= task.shots:
        cut = "" if max_per_task is None else f" after the cut to max_per_task={max_per_task}"
        raise InputError(
            f"{task.label}: {len(rows)} items{cut}, but {task.shots} others precede each as solved examples; expected "
            f"at least {task.shots + 1}, or leave the task out"
        )
    return Questions(task, rows, hashlib.sha256(content).hexdigest())


def _checked(task: CoreTask, line: bytes, where: str) -> dict[str, Any]:
    """Parse a line, and check the fields that its task type needs."""
    row = parse_json(line, where)
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected an object, found a {type(row).__name__}")
    texts = _TEXTS[task.type]
    for name in texts:
        check_text(row.get(name), f"{where}: {name}")
        if name == "continuation" and not row[name].strip():
            raise InputError(f"{where}: {name} is empty; {task.label} needs some text there")
    if task.type == LANGUAGE_MODELING:
        return row
    name = _OPTIONS[task.type]
    options, gold = row.get(name), row.get("gold")
    if not isinstance(options, list) or len(options) < 2:
        raise InputError(f"{where}: {name} is {shorten(options)}; {task.label} needs a list of two texts or more")
    for option in options:
        check_text(option, f"{where}: {name}")
    if type(gold) is not int or not 0 <= gold < len(options):
        raise InputError(f"{where}: gold is {gold!r}; expected the index of one of {len(options)} {name}")
    return row
