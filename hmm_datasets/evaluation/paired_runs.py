"""The difference of two evaluations on the same items, with a paired interval.

Two runs are paired, task by task, if both were measured on the same items: sequences with the same fingerprint,
stream, length and number; documents with the same bytes in the same order, read in the same windows; conversations of
the same words, with as many tokens of the assistant; or questions from the same files, as many of them cut. Their
difference then has an interval from the differences of sequences, documents, conversations or questions
([`~hmm_datasets.intervals`]). This interval is much narrower than two separate ones suggest.

Sequences and documents are drawn as a whole, and weigh as they do in the mean. For a score over tasks the questions
are the sample, and the tasks are not. Time is a pass over the items for each of 2,000 resamples; memory is one number
per item.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..files import (
    read_jsonl,
)
from ..intervals import mean_of_changes
from ..paired_differences import Difference, paired_difference

RESAMPLES, LEVEL = 2000, 0.95
_SAME = {
    "optimum": ("fingerprint", "seed", "first", "length", "num_sequences", "floor"),
    "text": ("unit", "num_documents", "bytes", "window", "stride"),
    "core": ("max_per_task", "prompts_cut"),
    "chat": ("conversations", "tokens"),
}
_KEYS = {"optimum": ("sequence", "tokens"), "text": ("bytes", "bytes"), "chat": ("conversation", "tokens")}
"""By what the items of a task are recognized, and what they weigh."""

_QUESTION_FIELDS = ("sha256", "shots", "items", "baseline")  # of a task of questions


@dataclass(frozen=True)
class ReportFolder:
    """An evaluation on disk.

    Args:
        name (`str`): a short, unique name.
        folder (`Path`): the folder of the evaluation.
        report (`dict`): its `report.json`.
    """

    name: str
    folder: Path
    report: Mapping[str, Any]

    def items(self, task: str) -> list[dict[str, Any]]:
        """The results of the items of a task."""
        return read_jsonl(self.folder / "items" / f"{task}.jsonl")


def _pair_items(task: str, first: ReportFolder, other: ReportFolder) -> Difference | str:
    """The difference of a mean over sequences or conversations, or of bits per byte over documents."""
    key, size = _KEYS[task]
    rows = [[item for item in run.items(task) if "nats" in item] for run in (first, other)]
    if not all(rows):
        return "without the loss of each item, as an earlier version wrote it; evaluate again"
    before, after = ([(item[key], item[size]) for item in items] for items in rows)
    if before != after:
        return f"measured on other items: their {size} differ{_of_streams(task, first, other)}"
    sizes = np.array([count for _, count in before])
    if (sizes > 0).sum() < 2:
        return "a single item has no interval"
    scale = 1 / math.log(2) if task == "text" else 1
    losses = [np.array([scale * (item["nats"] - item.get("floor_nats", 0)) for item in items]) for items in rows]
    return paired_difference(*losses, sizes, resamples=RESAMPLES, level=LEVEL)


def _pair_questions(first: ReportFolder, other: ReportFolder) -> Difference | str:
    """The difference of a mean over tasks of questions; its interval is a formula."""
    tasks, others = first.report["core"]["tasks"], other.report["core"]["tasks"]
    if tasks.keys() != others.keys():
        return f"measured on other items: tasks {', '.join(others) or 'none'}, not {', '.join(tasks) or 'none'}"
    for label in tasks:
        if (reason := _first_change(_QUESTION_FIELDS, tasks[label], others[label])) is not None:
            return f"measured on other items: {label}: {reason}"
    changes = _changes(first, other)
    weights = [1 / (1 - tasks[label]["baseline"]) / len(changes) for label in changes]
    counts = [[int((change == sign).sum()) for change in changes.values()] for sign in (1, -1)]
    sizes = [len(change) for change in changes.values()]
    value = float(np.mean([change.mean() / (1 - tasks[label]["baseline"]) for label, change in changes.items()]))
    return Difference(value, *mean_of_changes(*counts, sizes, weights, LEVEL))


def pair(task: str, first: ReportFolder, other: ReportFolder) -> Difference | str:
    """The difference of the other run from the first, or the reason why there is no paired interval.

    Args:
        task (`str`): one of the tasks that evaluations have.
        first, other ([`ReportFolder`]): runs that have this task.
    """
    if task not in _SAME:
        return f"{task} has no items that can be resampled"
    if (change := _first_change(_SAME[task], first.report[task], other.report[task])) is not None:
        return f"measured on other items: {change}{_of_streams(task, first, other)}"
    return _pair_questions(first, other) if task == "core" else _pair_items(task, first, other)


def _of_streams(task: str, first: ReportFolder, other: ReportFolder) -> str:
    """What to do if one of the runs was measured on windows of a token stream, whose text depends on its tokenizer."""
    if task != "text" or "window" not in (first.report[task].get("unit"), other.report[task].get("unit")):
        return ""
    return (
        "; the windows of a token stream depend on its tokenizer: evaluate both with the text itself as --targets (a "
        "file, a folder of files or a corpus), whose documents are the same for both"
    )


def _first_change(names: Sequence[str], first: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The first of these settings that differs between two runs, or None."""
    pairs = ((name, first.get(name), other.get(name)) for name in names)  # absent in reports of earlier versions
    return next((f"{name} is {after}, not {before}" for name, before, after in pairs if before != after), None)


def _changes(first: ReportFolder, other: ReportFolder) -> dict[str, np.ndarray]:
    """For each task and item: 1 if only the other run is right, -1 if only the first is, else 0."""
    right = [
        {(item["task"], item["item"]): int(item["correct"]) for item in run.items("core")} for run in (first, other)
    ]
    if right[0].keys() != right[1].keys():
        raise InputError(
            f"{other.folder / 'items' / 'core.jsonl'}: its items are not those of report.json; evaluate again"
        )
    labels = first.report["core"]["tasks"]
    return {
        label: np.array([right[1][key] - right[0][key] for key in right[0] if key[0] == label], float)
        for label in labels
    }
