"""Running the benchmark on a model: its scores as a table, a plot, `report.json` and `.eval_results/`.

`.eval_results/` is written into the model's folder, where the Hub looks for it once the folder is pushed.

The plot of a model's scores: its excess over the optimum on each process, beside that of simpler predictors.
"""

import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

from ...errors import InputError
from ...files import weights_sha256, write_digests, write_json, written_together
from ...hub.push import push_files
from ...hub.results import EVAL_RESULTS_NAME, write_eval_results
from ...report.plots import PAPER, STYLES, WIDTH, save_figure
from ...report.tables import Z_95, figure_text, text_table
from ...training.models import tokenizer_of
from ...training.record import command_line, git_commit, package_versions
from . import BenchmarkSettings
from .held_out import NUM_SEQUENCES, Benchmark, open_benchmark
from .processes import KINDS
from .scoring import BASELINES, load_models, score_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_MARKED = {
    "uniform": {"color": STYLES["uniform"]["color"], "label": "uniform", "marker": "x"},
    "bigram": {"color": STYLES["bigram"]["color"], "label": "bigram, in context", "marker": "|"},
    "mixture": {"color": STYLES["bayes"]["color"], "label": "knows the processes, not which", "marker": "d"},
}


def plot_benchmark(report: dict[str, Any], path: str | os.PathLike) -> None:
    """Plot the excess on each process and in the mean, with 95% intervals.

    Args:
        report (`dict`): result of [`~hmm_datasets.evaluation.benchmark.report.run_benchmark`].
        path (path): where the PNG goes; a PDF is written next to it.
    """
    rows = dict(report["processes"]) | ({"mean": report["mean"]} if len(report["processes"]) > 1 else {})
    heights = np.arange(len(rows), dtype=float)
    with rc_context(PAPER):
        figure = Figure(figsize=(WIDTH * 1.3, 1.0 + 0.2 * len(rows)), layout="constrained")
        axes = figure.subplots()
        axes.axvline(0, color="black", linewidth=0.8)
        for name, style in _MARKED.items():
            values = [row["baselines"][name] for row in rows.values()]
            axes.plot(values, heights, linestyle="", markersize=4, **style)
        axes.errorbar(
            [row["excess"] for row in rows.values()],
            heights,
            xerr=[Z_95 * (row["standard_error"] or 0) for row in rows.values()],
            fmt="o",
            color="#D55E00",
            capsize=2,
            label="model, 95% interval",
        )
        axes.set(yticks=heights, yticklabels=list(rows), ylim=(len(rows) - 0.4, -0.6))
        # Linear near 0, so that the optimum and scores below it by chance are on the axis.
        axes.set_xscale("symlog", linthresh=0.01)
        lowest = min(row["excess"] - Z_95 * (row["standard_error"] or 0) for row in rows.values())
        axes.set_xlim(left=1.1 * min(lowest, -0.002), right=1.3 * axes.get_xlim()[1])
        axes.set_xlabel("nats per symbol above the optimum")
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside upper center", ncols=2)
        save_figure(figure, path, vector=True)


REPORT_NAME, PLOT_NAME = "report.json", "benchmark.png"


def run_benchmark(settings: BenchmarkSettings) -> list[dict[str, Any]]:
    """Score models, write the results of each and print them.

    Returns:
        list of `dict`: the content of `report.json` of each model.

    Raises:
        `InputError`: a model cannot read the sequences, or a data set differs from the benchmark.
    """
    reports = [_score(name, settings) for name in settings.models]
    if len(reports) > 1:
        print(f"\n{models_text(reports)}")
    return reports


def _score(name: str, settings: BenchmarkSettings) -> dict[str, Any]:
    from accelerate import Accelerator

    benchmark = open_benchmark(settings.data, processes=settings.process or None, num_sequences=settings.num_sequences)
    results_name = settings.dataset_id or benchmark.dataset_id
    if settings.push and not _whole(benchmark):
        raise InputError("--push: leave out --process and --num_sequences, since results are those of the whole")
    if settings.push and results_name is None:
        raise InputError("--push: name the benchmark's repository with --data USER/NAME or --dataset_id USER/NAME")
    accelerator = Accelerator(cpu=not torch.accelerator.is_available())
    tokenizer = None if settings.track == "ids" else tokenizer_of(name)
    if settings.track == "text" and tokenizer is None:
        raise InputError(f"{name}: has no tokenizer to read text with; choose --track ids")
    models = load_models(name, [one.name for one in benchmark.processes], accelerator)
    found = score_model(models, tokenizer, benchmark.processes, accelerator, batch_size=settings.batch_size)
    report = _described(name, benchmark, models) | found
    folder = settings.folder_of(name)
    _write(report, folder, results_name if _whole(benchmark) else None)
    print(benchmark_text(report))
    print(f"\n{folder}/: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    if results_name is None and _whole(benchmark):
        print(
            f"No {EVAL_RESULTS_NAME}/, which names the benchmark's repository: give --data or --dataset_id USER/NAME"
        )
    if settings.push:
        _push(report, name, results_name)
    return report


def benchmark_text(report: dict[str, Any]) -> str:
    """The scores as a table for the terminal."""
    header = ["process", "optimum", "model", "excess", "+-", "share", "uniform", "bigram", "one of 12"]
    rows = [_cells(name, row) for name, row in report["processes"].items()]
    if len(rows) > 1:
        rows.append(_cells("mean", report["mean"]))
    notes = (
        f"track {report['track']}, {report['num_sequences']:,} sequences of each process; nats per symbol, excess is "
        "over the optimum\n"
        "share: of the way from the uniform distribution (0) to the optimum (1)\n"
        "uniform, bigram (in context), one of 12 (knows the processes but not which): their excess"
    )
    return f"{text_table(header, rows)}\n{notes}"


def models_text(reports: Sequence[dict[str, Any]]) -> str:
    """A table of the means of several models and of the baselines."""
    rows = []
    for report in reports:
        mean = report["mean"]
        numbers = (mean["excess"], mean["standard_error"], mean["share"])
        rows.append([report["model"]["name"], f"{report['model']['parameters']:,}", report["track"], *_fixed(numbers)])
    for track in sorted({report["track"] for report in reports}):
        above = next(report for report in reports if report["track"] == track)["mean"]["baselines"]
        for name, title in BASELINES.items():
            excess, share = _fixed((above[name], 1 - above[name] / above["uniform"]))
            rows.append([title, "", track, excess, "", share])
    return text_table(["mean of processes", "parameters", "track", "excess", "+-", "share"], rows)


def _fixed(numbers: Iterable[float | None]) -> list[str]:
    # Never -0.0000.
    return [figure_text(number if number is None or abs(number) >= 5e-5 else 0.0) for number in numbers]


def _cells(name: str, row: dict[str, Any]) -> list[str]:
    baselines = [row["baselines"][baseline] for baseline in ("uniform", "bigram", "mixture")]
    numbers = (row["optimum"], row["model"], row["excess"], row["standard_error"], row["share"], *baselines)
    return [name, *_fixed(numbers)]


def _whole(benchmark: Benchmark) -> bool:
    return len(benchmark.processes) == len(KINDS) and benchmark.processes[0].num_sequences == NUM_SEQUENCES


def _described(name: str, benchmark: Benchmark, models: "dict[str, PreTrainedModel]") -> dict[str, Any]:
    distinct = list({id(model): model for model in models.values()}.values())
    return {
        "model": {
            "name": name,
            "type": distinct[0].config.model_type,
            "parameters": sum(parameter.numel() for model in distinct for parameter in model.parameters()),
            "sha256": [weights_sha256(model) for model in distinct],
        },
        "data": {
            "dataset_id": benchmark.dataset_id,
            "revision": benchmark.revision,
            "fingerprints": {one.name: one.hmm.fingerprint() for one in benchmark.processes},
        },
        "num_sequences": benchmark.processes[0].num_sequences,
        "versions": package_versions(),
        "commit": git_commit(),
        "command": command_line(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _write(report: dict[str, Any], folder: Path, dataset_id: str | None) -> None:
    with written_together(folder) as temporary:
        plot_benchmark(report, temporary / PLOT_NAME)
        write_json(temporary / REPORT_NAME, report)
        write_digests(temporary, into=folder)
    if dataset_id is not None:
        model = Path(report["model"]["name"])
        # The Hub reads them at the root of the model's repository.
        root = model if (model / "config.json").is_file() else folder
        path = write_eval_results(root, _file_name(dataset_id), [_entry(report, dataset_id)])
        print(path)


def _entry(report: dict[str, Any], dataset_id: str) -> Any:
    """The result as the Hub shows it: the excess in nats per symbol."""
    from huggingface_hub import EvalResultEntry

    mean = report["mean"]
    error = "" if mean["standard_error"] is None else f"standard error {mean['standard_error']:.6f}; "
    return EvalResultEntry(
        dataset_id=dataset_id,
        task_id=report["track"],
        value=round(mean["excess"], 6) + 0.0,  # never -0.0
        dataset_revision=report["data"]["revision"],
        date=report["time"],
        notes=(
            f"nats per symbol above the optimum, lower is better; {error}"
            f"{100 * mean['share']:.2f}% of the way from the uniform distribution to the optimum"
        ),
    )


def _file_name(dataset_id: str) -> str:
    return dataset_id.rpartition("/")[2]


def _push(report: dict[str, Any], repo_id: str, dataset_id: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_eval_results(folder, _file_name(dataset_id), [_entry(report, dataset_id)])
        files = {path.relative_to(folder).as_posix(): path}
        pushed = push_files(files, repo_id, folder=folder, message=f"Results on {dataset_id}")
    print(f"{pushed.url} at {pushed.commit}: {next(iter(files))}")
