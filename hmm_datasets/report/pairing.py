"""Differences between two evaluations on the same items, with intervals from the paired bootstrap.

Sequences and documents are resampled as a whole ([`~hmm_datasets.statistics.paired_difference`]). For a score over
tasks the questions are resampled within each task, since the tasks are not a random sample.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..digests import DIGESTS_NAME, check_digests
from ..errors import InputError
from ..files import read_json, read_jsonl, restored
from ..statistics import (
    Difference,
    interval,
    paired_difference,
    resampled_sums,
)

RESAMPLES, LEVEL = 2000, 0.95


@dataclass(frozen=True)
class Run:
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


def read_report(folder: str | os.PathLike) -> dict[str, Any]:
    """The `report.json` of an evaluation, which with its items is as it was written.

    Raises:
        `InputError`: there is no such report, or a file has changed since.
    """
    folder = restored(folder)
    report = read_json(folder / "report.json")
    check_digests(folder, f"evaluate again, or delete {folder / DIGESTS_NAME} to read the evaluation as it is")
    if not isinstance(report, dict) or not isinstance(report.get("model"), dict):
        raise InputError(f"{folder / 'report.json'}: not the report of an evaluation, which has a field `model`")
    return report


_SAME = {
    "optimum": ("fingerprint", "seed", "first", "length", "num_sequences", "floor"),
    "text": ("unit", "num_documents", "bytes"),
    "core": ("baselines", "max_per_task"),
    "chat_core": ("max_per_task",),
}


def _other_items(task: str, first: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The setting that shows that two runs were measured on different items, or None."""
    for key in _SAME[task]:
        if first[key] != other[key]:
            return f"measured on other items: {key} is {other[key]}, not {first[key]}"
    return None


def _pair_optimum(first: Run, other: Run, seed: int) -> Difference | str:
    rows = [run.items("optimum") for run in (first, other)]
    tokens, others = ([(item["sequence"], item["tokens"]) for item in found] for found in rows)
    if tokens != others:
        return "measured on other items: the sequences or their tokens differ"
    excess = [np.array([item["nats"] - item["floor_nats"] for item in found]) for found in rows]
    return _paired(*excess, np.array([count for _, count in tokens]), seed)


def _pair_text(first: Run, other: Run, seed: int) -> Difference | str:
    rows = [run.items("text") for run in (first, other)]
    sizes, others = ([item["bytes"] for item in found] for found in rows)
    if sizes != others:
        return "measured on other items: the documents have other bytes"
    bits = [np.array([item["nats"] for item in found]) / math.log(2) for found in rows]
    return _paired(*bits, np.array(sizes), seed)


def _paired(first: np.ndarray, other: np.ndarray, sizes: np.ndarray, seed: int) -> Difference | str:
    if len(sizes) < 2:
        return "a single item has no interval"
    return paired_difference(first, other, sizes, resamples=RESAMPLES, level=LEVEL, seed=seed)


def _pair_questions(score: str, first: Run, other: Run, seed: int) -> Difference | str:
    """The difference of a mean over tasks of questions; items are resampled within each task."""
    tasks, others = first.report[score]["tasks"], other.report[score]["tasks"]
    if tasks.keys() != others.keys():
        return f"measured on other items: tasks {', '.join(others)}, not {', '.join(tasks)}"
    for label in tasks:
        if (reason := other_questions(tasks[label], others[label])) is not None:
            return f"measured on other items: {label}: {reason}"
    changes = _changes(score, first, other)
    means = [
        (resampled_sums(change[:, None], RESAMPLES, seed + number)[:, 0] / len(change))
        / (1 - tasks[label]["baseline"])
        for number, (label, change) in enumerate(changes.items())
    ]
    value = np.mean([change.mean() / (1 - tasks[label]["baseline"]) for label, change in changes.items()])
    return Difference(float(value), *interval(np.mean(means, axis=0), LEVEL))


_PAIRS = {
    "optimum": _pair_optimum,
    "text": _pair_text,
    "core": partial(_pair_questions, "core"),
    "chat_core": partial(_pair_questions, "chat_core"),
}


def pair(task: str, first: Run, other: Run, seed: int) -> Difference | str:
    """The difference of the other run from the first, or the reason why there is no paired interval.

    Args:
        task (`str`): `optimum`, `text`, `core` or `chat_core`.
        first, other ([`Run`]): runs that have this task.
        seed (`int`): seed of the bootstrap.
    """
    reason = _other_items(task, first.report[task], other.report[task])
    return _PAIRS[task](first, other, seed) if reason is None else reason


def can_pair(task: str) -> bool:
    """Whether the items of a task can be resampled."""
    return task in _PAIRS


def other_questions(first: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """How the questions of a task differ between two runs, or None if they do not."""
    for key in ("sha256", "shots", "items", "baseline"):
        if first[key] != other[key]:
            return f"{key} is {other[key]}, not {first[key]}"
    return None


def _changes(score: str, first: Run, other: Run) -> dict[str, np.ndarray]:
    """For each task and item: 1 if only the other run is right, -1 if only the first is, else 0."""
    right = [
        {(item["task"], item["item"]): int(item["correct"]) for item in run.items(score)} for run in (first, other)
    ]
    if right[0].keys() != right[1].keys():
        raise InputError(
            f"{other.folder / 'items' / f'{score}.jsonl'}: its items are not those of report.json; evaluate again"
        )
    labels = first.report[score]["tasks"]
    return {
        label: np.array([right[1][key] - right[0][key] for key in right[0] if key[0] == label], float)
        for label in labels
    }
