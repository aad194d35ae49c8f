"""Comparing several evaluations: the results of each, and its difference from the first one on the same items.

For runs that were measured on different items there is no difference; a line gives what differs, and each result has
its own interval ([`~hmm_datasets.evaluation.paired_runs`]).
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..hub.weights import refuse_stopped
from ..intervals import half_width
from ..paired_differences import Difference
from ..report.evaluation_tables import read_report
from .paired_runs import LEVEL, RESAMPLES, ReportFolder, pair

TASKS = {
    "optimum": "excess over the optimal loss, nats per token",
    "text": "bits per byte of held-out text",
    "chat": "loss of the assistant's words, nats per token",
    "core": "score of CORE or of a subset",
    "beliefs": "held-out R² of beliefs",
    "completions": "share of facts completed",
    "benchmark": "mean excess over the optimal loss, nats per symbol",
}
"""The measure that is compared for each task."""


def compare_reports(folders: Sequence[str | os.PathLike]) -> dict[str, Any]:
    """Compare evaluations with the first one.

    Args:
        folders (sequence of paths): folders of two or more evaluations, each with a `report.json` and `items/`, or of
            runs with an evaluation in them.

    Returns:
        `dict`, ready for JSON: `runs`; `tasks`, for each task that all runs have its `measure` and `rows`, one per run
        with `value`, `low`, `high`, and either `difference` from the first run (`value`, `low`, `high`) or `unpaired`,
        the reason why there is none; `left_out`, a line for each task that only some runs have; `positions` and
        `training`, the figures to draw; `resamples`, `level`.

    Raises:
        `InputError`: fewer than two folders, the same folder twice, a folder without a report, or no task that is
            compared.
    """
    runs = _read(folders)
    kinds = [task for task in (*TASKS, "training") if any(task in run.report for run in runs)]
    if not kinds:
        raise InputError(
            f"{' and '.join(run.name for run in runs)}: nothing to compare; expected evaluations with one of the "
            f"tasks {', '.join((*TASKS, 'training'))}"
        )
    lacking = {task: [run.name for run in runs if task not in run.report] for task in kinds}
    shared = [task for task in kinds if not lacking[task]]
    result = {
        "runs": [_provenance(run) for run in runs],
        "tasks": {task: _task(task, runs) for task in TASKS if task in shared},
        "left_out": [f"{task}: not measured in {', '.join(names)}" for task, names in lacking.items() if names],
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
    return result


def run_names(folders: Sequence[Path]) -> list[str]:
    """Names of runs: their paths in the folder that has all of them.

    Raises:
        `InputError`: the same run twice.

    ```python
    >>> run_names([Path("out/a/seed-1"), Path("out/b/seed-1/evaluation")])
    ['a/seed-1', 'b/seed-1']

    ```
    """
    runs: dict[Path, Path] = {}
    for folder in folders:
        run = folder.resolve()
        run = run.parent if run.name == "evaluation" else run
        if (earlier := runs.setdefault(run, folder)) is not folder:
            raise InputError(f"{folder} is the same run as {earlier}; give each run once")
    common = os.path.commonpath([run.parent for run in runs])
    return [str(run.relative_to(common)) for run in runs]


def _read(folders: Sequence[str | os.PathLike]) -> list[ReportFolder]:
    paths = [Path(folder) for folder in folders]
    if len(paths) < 2:
        raise InputError(f"{len(paths)} run to compare; expected the folders of two evaluations or more")
    runs = []
    for name, path in zip(run_names(paths), paths, strict=True):
        folder = _evaluation_in(path)
        report = read_report(folder)
        # The report of `hmm-datasets benchmark` is that of one task.
        runs.append(ReportFolder(name, folder, report | {"benchmark": report} if "processes" in report else report))
    return runs


def _evaluation_in(folder: Path) -> Path:
    """The folder of an evaluation: this one, or that in the folder of a run."""
    inner = folder / "evaluation"
    if not (folder / "report.json").exists() and not (inner / "report.json").exists():
        refuse_stopped(folder)
    return inner if not (folder / "report.json").exists() and (inner / "report.json").exists() else folder


def _provenance(run: ReportFolder) -> dict[str, Any]:
    keys = ("model", "commit", "command", "time", "seeds")
    return {"name": run.name, "folder": str(run.folder)} | {key: run.report.get(key) for key in keys}


def _task(task: str, runs: Sequence[ReportFolder]) -> dict[str, Any]:
    rows = []
    for run in runs:
        row = {"run": run.name} | dict(zip(("value", "low", "high"), _figure(task, run.report[task]), strict=True))
        row |= {"difference": None, "unpaired": None}
        if run is not runs[0]:
            difference = pair(task, runs[0], run)
            row |= (
                {"difference": asdict(difference)} if isinstance(difference, Difference) else {"unpaired": difference}
            )
        rows.append(row)
    measure = TASKS[task]
    if task == "core":
        measure = "; ".join(dict.fromkeys(run.report[task]["name"] for run in runs))
    return {"measure": measure, "rows": rows}


def _figure(task: str, measured: Mapping[str, Any]) -> tuple[float | None, float | None, float | None]:
    """The result of a run, and the bounds of its own interval."""
    if task in ("optimum", "benchmark"):
        scores, name = (measured["mean"], "excess") if task == "benchmark" else (measured["bayes_gap"], "bayes_gap")
        gap, error = scores[name], scores["standard_error"]
        half = half_width(error, measured["num_sequences"]) if error is not None and math.isfinite(error) else None
        return (gap, None, None) if half is None else (gap, gap - half, gap + half)
    if task == "text":
        return measured["bits_per_byte"], measured["bits_per_byte_low"], measured["bits_per_byte_high"]
    if task == "chat":
        return measured["loss"], measured["loss_low"], measured["loss_high"]
    if task == "core":
        return measured["score"], measured["low"], measured["high"]
    if task == "beliefs":
        return measured["layers"]["all"]["r2"], None, None
    return (measured["facts_correct"] / measured["facts"] if measured["facts"] else None), None, None


def _training(run: ReportFolder) -> dict[str, Any]:
    training = run.report["training"]
    rows = [row for row in training["rows"] if "kl_bayes" in row]
    return {
        "predictors": training["predictors"],
        "tokens": [row["tokens"] for row in rows],
        "kl_bayes": [row["kl_bayes"] for row in rows],
    }
