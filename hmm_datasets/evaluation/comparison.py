"""Comparing several evaluations: the results of each, and its difference from the first one on the same items.

Two runs are paired, task by task, if both were measured on the same items: sequences with the same fingerprint,
stream, length and number; documents with the same bytes in the same order, read in the same windows; or questions from
the same files, as many of them cut. Their difference then has an interval from the differences of sequences,
documents, or questions ([`~hmm_datasets.intervals`]). This interval is much narrower than two separate ones suggest.
For runs that were measured on different items there is no difference; a line says what differs, and each result has
its own interval.

Sequences and documents are drawn as a whole, and weigh as they do in the mean. For a score over tasks the questions
are the sample, and the tasks are not.

Time is a pass over the items for each of 2,000 resamples; memory is one number per item.

The results of a sweep as a table by two of its settings.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..files import (
    read_jsonl,
    write_digests,
    write_json,
    written_together,
)
from ..intervals import half_width, mean_of_changes
from ..paired_differences import Difference, paired_difference
from ..report.evaluation_tables import read_report
from ..report.page import Section, embed, flattened, render_page
from ..report.tables import Table, figure_text, interval_text, predictor_titles

RESAMPLES, LEVEL = 2000, 0.95


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


_SAME = {
    "optimum": ("fingerprint", "seed", "first", "length", "num_sequences", "floor"),
    "text": ("unit", "num_documents", "bytes", "window", "stride"),
    "core": ("baselines", "max_per_task", "prompts_cut"),
}
_QUESTIONS = ("sha256", "shots", "items", "baseline")  # of a task of questions


def _pair_optimum(first: ReportFolder, other: ReportFolder, seed: int) -> Difference | str:
    rows = [run.items("optimum") for run in (first, other)]
    tokens, others = ([(item["sequence"], item["tokens"]) for item in found] for found in rows)
    if tokens != others:
        return "measured on other items: the sequences or their tokens differ"
    excess = [np.array([item["nats"] - item["floor_nats"] for item in found]) for found in rows]
    return _paired(*excess, np.array([count for _, count in tokens]), seed)


def _pair_text(first: ReportFolder, other: ReportFolder, seed: int) -> Difference | str:
    rows = [run.items("text") for run in (first, other)]
    sizes, others = ([item["bytes"] for item in found] for found in rows)
    if sizes != others:
        return "measured on other items: the documents have other bytes"
    bits = [np.array([item["nats"] for item in found]) / math.log(2) for found in rows]
    return _paired(*bits, np.array(sizes), seed)


def _paired(first: np.ndarray, other: np.ndarray, sizes: np.ndarray, seed: int) -> Difference | str:
    if (sizes > 0).sum() < 2:
        return "a single item has no interval"
    return paired_difference(first, other, sizes, resamples=RESAMPLES, level=LEVEL, seed=seed)


def _pair_questions(first: ReportFolder, other: ReportFolder, seed: int) -> Difference | str:
    """The difference of a mean over tasks of questions; its interval is a formula, and needs no seed."""
    tasks, others = first.report["core"]["tasks"], other.report["core"]["tasks"]
    if tasks.keys() != others.keys():
        return f"measured on other items: tasks {', '.join(others) or 'none'}, not {', '.join(tasks) or 'none'}"
    for label in tasks:
        if (reason := _changed(_QUESTIONS, tasks[label], others[label])) is not None:
            return f"measured on other items: {label}: {reason}"
    changes = _changes(first, other)
    weights = [1 / (1 - tasks[label]["baseline"]) / len(changes) for label in changes]
    counts = [[int((change == sign).sum()) for change in changes.values()] for sign in (1, -1)]
    sizes = [len(change) for change in changes.values()]
    value = float(np.mean([change.mean() / (1 - tasks[label]["baseline"]) for label, change in changes.items()]))
    return Difference(value, *mean_of_changes(*counts, sizes, weights, LEVEL))


_PAIRS = {
    "optimum": _pair_optimum,
    "text": _pair_text,
    "core": _pair_questions,
}


def pair(task: str, first: ReportFolder, other: ReportFolder, seed: int) -> Difference | str:
    """The difference of the other run from the first, or the reason why there is no paired interval.

    Args:
        task (`str`): one of the tasks that evaluations have.
        first, other ([`ReportFolder`]): runs that have this task.
        seed (`int`): seed of the bootstrap.
    """
    if task not in _PAIRS:
        return f"{task} has no items that can be resampled"
    change = _changed(_SAME[task], first.report[task], other.report[task])
    return _PAIRS[task](first, other, seed) if change is None else f"measured on other items: {change}"


def _changed(names: Sequence[str], first: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
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


def cells(reports: Mapping[str, Mapping[str, Any]], x: str, y: str, value: str) -> dict[str, Any]:
    """Arrange a number of every run in a table by two settings.

    Args:
        reports (`dict`): for each name of a run the content of its `report.json`.
        x, y (`str`): dotted paths to a number or a string in each report, such as `optimum.num_states`.
        value (`str`): dotted path to a number in each report.

    Returns:
        `dict`: `x`, `y`, `value`; `x_values` and `y_values`, the sorted values of each setting; `cells`, a row for
        each of `y_values`, with the mean over runs of the same settings, or `None` if there is no run; `runs`, the
        number of runs in each cell.

    Raises:
        `InputError`: a report does not have a path, or the path leads to a value of another type.

    ```python
    >>> reports = {"a": {"n": 1, "m": 1, "loss": 2.0}, "b": {"n": 2, "m": 1, "loss": 3.0}}
    >>> cells(reports, "n", "m", "loss")["cells"]
    [[2.0, 3.0]]

    ```
    """
    found: dict[tuple[Any, Any], list[float]] = {}
    for name, report in reports.items():
        cell = (look_up(report, x, name), look_up(report, y, name))
        number = look_up(report, value, name)
        if not isinstance(number, Real):
            raise InputError(f"{name}: {value} is {number!r}; expected a number")
        found.setdefault(cell, []).append(float(number))
    columns, rows = (
        sorted({cell[side] for cell in found}, key=lambda value: (isinstance(value, str), value)) for side in (0, 1)
    )
    lists = [[found.get((column, row), []) for column in columns] for row in rows]
    return {
        "x": x,
        "y": y,
        "value": value,
        "x_values": columns,
        "y_values": rows,
        "cells": [[sum(numbers) / len(numbers) if numbers else None for numbers in row] for row in lists],
        "runs": [[len(numbers) for numbers in row] for row in lists],
    }


def look_up(report: Mapping[str, Any], path: str, name: str) -> float | str:
    """The value at a dotted path in the report of a run."""
    value: Any = report
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            known = f"expected one of {', '.join(value)}" if isinstance(value, Mapping) else "nothing is below it"
            raise InputError(f"{name}: report.json has no {path}: {part!r} is missing; {known}")
        value = value[part]
    if not isinstance(value, Real | str):
        raise InputError(f"{name}: {path} leads to {type(value).__name__}; expected a number or a string")
    return value


TASKS = {
    "optimum": "excess over the floor, nats per token",
    "text": "bits per byte of held-out text",
    "core": "score of CORE or of a subset",
    "beliefs": "held-out R² of beliefs",
    "completions": "share of facts completed",
}
"""The measure that is compared for each task."""


def compare_reports(
    folders: Sequence[str | os.PathLike],
    *,
    seed: int = 0,
    heat_map: Sequence[str] | None = None,
    value: str = "optimum.bayes_gap.bayes_gap",
) -> dict[str, Any]:
    """Compare evaluations with the first one.

    Args:
        folders (sequence of paths): folders of two or more evaluations, each with a `report.json` and `items/`.
        seed (`int`, *optional*, defaults to 0): seed of the bootstrap.
        heat_map (two `str`, *optional*): dotted paths in the reports, such as `optimum.num_states` and
            `optimum.length`, whose values are the column and the row of a run in a heat map.
        value (`str`, *optional*, defaults to `"optimum.bayes_gap.bayes_gap"`): dotted path of the number in its cells.

    Returns:
        `dict`, ready for JSON: `runs`; `tasks`, for each task that all runs have its `measure` and `rows`, one per run
        with `value`, `low`, `high`, and either `difference` from the first run (`value`, `low`, `high`) or `unpaired`,
        the reason why there is none; `left_out`, a line for each task that only some runs have; `positions`,
        `training` and `questions`, the curves to draw; `heat_map`, if asked for; `seed`, `resamples`, `level`.

    Raises:
        `InputError`: fewer than two folders, the same folder twice, a folder without a report, or a path that a report
            does not have.
    """
    runs = _read(folders)
    kinds = [task for task in (*TASKS, "training") if any(task in run.report for run in runs)]
    lacking = {task: [run.name for run in runs if task not in run.report] for task in kinds}
    shared = [task for task in kinds if not lacking[task]]
    result = {
        "runs": [_provenance(run) for run in runs],
        "tasks": {task: _task(task, runs, seed) for task in TASKS if task in shared},
        "left_out": [f"{task}: not measured in {', '.join(names)}" for task, names in lacking.items() if names],
        "seed": seed,
        "resamples": RESAMPLES,
        "level": LEVEL,
    }
    if "optimum" in shared:
        keys = ("by_position", "by_position_error")
        result["positions"] = {
            run.name: {key: run.report["optimum"]["bayes_gap"][key] for key in keys}
            | {"num_sequences": run.report["optimum"]["num_sequences"]}
            for run in runs
        }
    if "training" in shared:
        result["training"] = {run.name: _training(run) for run in runs}
    if "core" in shared:
        result["questions"] = _questions(runs)
    if heat_map is not None:
        result["heat_map"] = cells({run.name: run.report for run in runs}, *heat_map, value)
    return result


def run_names(folders: Sequence[Path]) -> list[str]:
    """Names of runs: for each folder the shortest unique end of its path, after removing what all paths end in.

    ```python
    >>> run_names([Path("a/x/eval"), Path("b/x/eval"), Path("c/eval")])
    ['a/x', 'b/x', 'c']

    ```
    """
    all_parts = [folder.absolute().parts for folder in folders]
    shared, max_shared = 0, min(map(len, all_parts)) - 2  # at least the root and one name are kept
    while shared < max_shared and len({parts[-1 - shared] for parts in all_parts}) == 1:
        shared += 1
    all_parts = [parts[: len(parts) - shared] for parts in all_parts]
    names = []
    for parts in all_parts:
        size = 1
        while size < len(parts) and sum(other[-size:] == parts[-size:] for other in all_parts) > 1:
            size += 1
        names.append(str(Path(*parts[-size:])))
    return names


def _read(folders: Sequence[str | os.PathLike]) -> list[ReportFolder]:
    paths = [Path(folder) for folder in folders]
    if len(paths) < 2:
        raise InputError(f"{len(paths)} run to compare; expected the folders of two evaluations or more")
    resolved = {}
    for path in paths:
        if (earlier := resolved.setdefault(path.resolve(), path)) is not path:
            raise InputError(f"{path} is the same folder as {earlier}; give each run once")
    runs = []
    for name, path in zip(run_names(paths), paths, strict=True):
        runs.append(ReportFolder(name, path, read_report(path)))
    return runs


def _provenance(run: ReportFolder) -> dict[str, Any]:
    keys = ("model", "commit", "command", "time", "seeds")
    return {"name": run.name, "folder": str(run.folder)} | {key: run.report.get(key) for key in keys}


def _task(task: str, runs: Sequence[ReportFolder], seed: int) -> dict[str, Any]:
    rows = []
    for run in runs:
        row = {"run": run.name} | dict(zip(("value", "low", "high"), _figure(task, run.report[task]), strict=True))
        row |= {"difference": None, "unpaired": None}
        if run is not runs[0]:
            found = pair(task, runs[0], run, seed)
            row |= {"difference": asdict(found)} if isinstance(found, Difference) else {"unpaired": found}
        rows.append(row)
    measure = TASKS[task]
    if task == "core":
        measure = "; ".join(dict.fromkeys(run.report[task]["name"] for run in runs))
    return {"measure": measure, "rows": rows}


def _figure(task: str, found: Mapping[str, Any]) -> tuple[float | None, float | None, float | None]:
    """The result of a run, and the bounds of its own interval."""
    if task == "optimum":
        gap, error = found["bayes_gap"]["bayes_gap"], found["bayes_gap"]["standard_error"]
        half = half_width(error, found["num_sequences"]) if error is not None and math.isfinite(error) else None
        return (gap, None, None) if half is None else (gap, gap - half, gap + half)
    if task == "text":
        return found["bits_per_byte"], found["bits_per_byte_low"], found["bits_per_byte_high"]
    if task == "core":
        return found["score"], found["low"], found["high"]
    if task == "beliefs":
        return found["layers"]["all"]["r2"], None, None
    return (found["facts_correct"] / found["facts"] if found["facts"] else None), None, None


def _questions(runs: Sequence[ReportFolder]) -> dict[str, list[dict[str, Any]]]:
    """For each task on which all runs have the same questions, a row per run."""
    first, *others = (run.report["core"]["tasks"] for run in runs)
    found = {}
    for label, task in first.items():
        if all(label in tasks and _changed(_QUESTIONS, task, tasks[label]) is None for tasks in others):
            rows = zip(runs, (first, *others), strict=True)
            keys = {"value": "centered", "low": "low", "high": "high"}
            found[label] = [
                {"run": run.name} | {key: tasks[label][name] for key, name in keys.items()} for run, tasks in rows
            ]
    return found


def _training(run: ReportFolder) -> dict[str, Any]:
    training = run.report["training"]
    rows = [row for row in training["rows"] if "kl_bayes" in row]
    return {
        "predictors": training["predictors"],
        "tokens": [row["tokens"] for row in rows],
        "kl_bayes": [row["kl_bayes"] for row in rows],
    }


def comparison_tables(comparison: Mapping[str, Any]) -> list[Table]:
    """A table for each task, one of the learning phases, and one of the heat map."""
    first = comparison["runs"][0]["name"]
    header = ["run", "value", "95% interval", f"minus {first}", "95% interval"]
    tables = []
    for task, found in comparison["tasks"].items():
        rows, notes = [], []
        for row in found["rows"]:
            change = row["difference"] or {"value": None, "low": None, "high": None}
            rows.append(
                [
                    row["run"],
                    figure_text(row["value"]),
                    interval_text(row["low"], row["high"]),
                    figure_text(change["value"], "+.4f"),
                    interval_text(change["low"], change["high"], "+.4f"),
                ]
            )
            notes += [] if row["unpaired"] is None else [f"{row['run']}: no difference, {row['unpaired']}"]
        tables.append(Table(f"{task}: {found['measure']}", header, rows, "\n".join(notes)))
    if "training" in comparison:
        tables.append(_phases_table(comparison["training"]))
    if "heat_map" in comparison:
        tables.append(_sweep_table(comparison["heat_map"]))
    return tables


def _phases_table(training: Mapping[str, Any]) -> Table:
    names = predictor_titles(name for found in training.values() for name in found["predictors"])
    rows = []
    for run, found in training.items():
        steps = [found["predictors"].get(name, {}).get("passed_step") for name in reversed(names)]
        rows.append([run, *(figure_text(step, ",") for step in steps)])
    return Table("training: step at which each predictor is passed", ["run", *reversed(names.values())], rows)


def _sweep_table(sweep: Mapping[str, Any]) -> Table:
    rows = [
        [str(name), *(figure_text(cell) for cell in row)]
        for name, row in zip(sweep["y_values"], sweep["cells"], strict=True)
    ]
    return Table(sweep["value"], [f"{sweep['y']} \\ {sweep['x']}", *map(str, sweep["x_values"])], rows)


def comparison_text(comparison: Mapping[str, Any]) -> str:
    """[`compare_reports`]'s result as tables for the terminal."""
    parts = [table.text() for table in comparison_tables(comparison)]
    return "\n\n".join([*parts, *["\n".join(comparison["left_out"])] * bool(comparison["left_out"])])


def write_comparison(comparison: Mapping[str, Any], folder: str | os.PathLike) -> None:
    """Write `comparison.json`, `comparison.html` and `plots/` (PNG and PDF).

    Args:
        comparison (`dict`): the result of [`compare_reports`].
        folder (path): folder to write, created if needed.
    """
    from ..report.comparison_plots import FIGURES, draw_comparison

    made_of = {run["name"]: run for run in comparison["runs"]}
    made_of |= {key: comparison[key] for key in ("seed", "resamples", "level")}
    with written_together(folder) as temporary:
        (temporary / "plots").mkdir()
        figures = [embed(plot, FIGURES[plot.stem]) for plot in draw_comparison(comparison, temporary / "plots")]
        render_page(
            temporary / "comparison.html",
            title=f"{len(comparison['runs'])} evaluations",
            subtitle=f"each compared with {comparison['runs'][0]['name']}",
            summary=_sentences(comparison) + comparison["left_out"],
            sections=[Section("Results of each run", comparison_tables(comparison)), Section("Figures", (), figures)],
            provenance=list(flattened(made_of)),
        )
        write_json(temporary / "comparison.json", comparison)
        write_digests(temporary, into=folder)


def _sentences(comparison: Mapping[str, Any]) -> list[str]:
    """A sentence for each difference, which says whether chance may explain it."""
    first, found = comparison["runs"][0]["name"], []
    for task, results in comparison["tasks"].items():
        for row in results["rows"]:
            change = row["difference"]
            if change is None:
                continue
            is_significant = change["low"] is not None and (change["low"] > 0 or change["high"] < 0)
            found.append(
                f"{task}, {results['measure']}: {row['run']} has {abs(change['value']):.4f} "
                f"{'more' if change['value'] > 0 else 'less'} than {first} on the same items (95% interval "
                f"{interval_text(change['low'], change['high'], '+.4f')})"
                f"{'.' if is_significant else ', which chance may explain.'}"
            )
    return found
