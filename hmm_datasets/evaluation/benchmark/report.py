"""Running the benchmark on a model: its scores as a table, a plot, `report.json` and `.eval_results/`.

`.eval_results/` is written into the model's folder, where the Hub looks for it once the folder is pushed.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from ...compat.torch_xla import use_all_chips
from ...errors import InputError
from ...files import write_digests, write_json, written_together
from ...hub.push import push_files
from ...hub.results import EVAL_RESULTS_NAME, write_eval_results
from ...report.tables import figure_text, text_table
from ...training.pretrained import tokenizer_of
from ..provenance import provenance
from . import NAMES, SCORED, BenchmarkSettings, Track
from .held_out import open_benchmark
from .models import load_models
from .plot import OVER_SYMBOLS, plot_benchmark
from .scoring import BASELINES, score_model

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
        path = Path(settings.output_dir or "outputs/benchmark") / PLOT_NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        plot_benchmark(reports, path)
        print(f"\n{models_text(reports)}\n\n{path}")
    return reports


def _score(name: str, settings: BenchmarkSettings) -> dict[str, Any]:
    tokenizer = None if settings.track == "ids" else tokenizer_of(name)
    if settings.track == "text" and tokenizer is None:
        raise InputError(f"{name}: has no tokenizer to read text with; choose --track ids")
    track: Track = "ids" if tokenizer is None else "text"
    settings = replace(settings, track=track)  # refuses what this track does not have
    count = settings.num_sequences or SCORED[track]
    benchmark = open_benchmark(settings.data, processes=settings.process or None, num_sequences=count)
    is_standard, results_name = settings.is_standard(track), settings.dataset_id or benchmark.dataset_id
    if settings.push and not is_standard:
        raise InputError(
            "--push: leave out --process, --num_sequences, --symbols and --separator, since results are those of the "
            "whole"
        )
    if settings.push and results_name is None:
        raise InputError("--push: name the benchmark's repository with --data USER/NAME or --dataset_id USER/NAME")
    use_all_chips()
    accelerator = Accelerator(cpu=not torch.accelerator.is_available())
    models = load_models(name, [process.name for process in benchmark.processes], accelerator)
    scores = score_model(
        models, tokenizer, benchmark.processes, accelerator,
        names=NAMES[settings.symbols], separator=settings.separator, batch_size=settings.batch_size,
    )  # fmt: skip
    written = {} if tokenizer is None else {"symbols": settings.symbols, "separator": settings.separator}
    report = provenance(name, list({id(model): model for model in models.values()}.values())) | written | scores
    report["data"] = {
        "dataset_id": benchmark.dataset_id,
        "revision": benchmark.revision,
        "fingerprints": {process.name: process.hmm.fingerprint() for process in benchmark.processes},
    }
    report["num_sequences"] = benchmark.processes[0].num_sequences
    folder = settings.folder_of(name)
    _write(report, folder, results_name if is_standard else None)
    print(benchmark_text(report))
    print(f"\n{folder}/: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    if results_name is None and is_standard:
        print(
            f"No {EVAL_RESULTS_NAME}/, which names the benchmark's repository: give --data or --dataset_id USER/NAME"
        )
    if settings.push:
        _push(report, name, results_name)
    return report


def benchmark_text(report: dict[str, Any]) -> str:
    """The scores as tables for the terminal."""
    named = dict(report["processes"])
    if len(named) > 1:
        named["mean"] = report["mean"]
    header = ["process", "optimal loss", "model", "excess", "+-", "share", "uniform", "bigram", "one of 12"]
    notes = (
        f"track {report['track']}, {report['num_sequences']:,} sequences of each process; nats per symbol, excess is "
        "over the optimal loss\n"
        "share: of the way from the uniform distribution (0) to the optimal loss (1)\n"
        "uniform, bigram (in context), one of 12 (knows the processes but not which): their excess"
    )
    text = f"{text_table(header, [_cells(name, row) for name, row in named.items()])}\n{notes}"
    if any("over_symbols" not in row for row in named.values()):
        return (
            f"{text}\nNo figures over the symbols: the tokenizer does not write each symbol as one token of its own."
        )
    rows = [
        [name, *map(figure_text, (*(row["over_symbols"][key] for key in OVER_SYMBOLS), *row["accuracy"].values()))]
        for name, row in named.items()
    ]
    header = ["over the symbols", "excess", "+-", "share", "accuracy", "Viterbi", "Bayes-optimal"]
    notes = (
        "The model's distribution, normalized over the symbols of the process: its divergence from the exact one, and "
        "how\noften its most probable symbol comes next, beside the last state of the Viterbi path and the "
        "Bayes-optimal predictor."
    )
    return f"{text}\n\n{text_table(header, rows)}\n{notes}"


def models_text(reports: Sequence[dict[str, Any]]) -> str:
    """A table of the means of several models and of the baselines."""
    rows = []
    for report in reports:
        mean = report["mean"]
        cells = [report["model"]["name"], f"{report['model']['parameters']:,}", report["track"]]
        over = (
            map(figure_text, (*_of_mean(mean["over_symbols"]), mean["accuracy"]["model"]))
            if ("over_symbols" in mean)
            else [""] * 4
        )
        rows.append([*cells, *map(figure_text, _of_mean(mean)), *over])
    for track in sorted({report["track"] for report in reports}):
        means = next(report for report in reports if report["track"] == track)["mean"]
        above = means["baselines"]
        for name, title in BASELINES.items():
            excess, share = map(figure_text, (above[name], 1 - above[name] / above["uniform"]))
            rows.append([title, "", track, excess, "", share, "", "", "", ""])
        if "accuracy" in means:
            for who, title in (("viterbi", "Viterbi, knows the process"), ("optimum", "Bayes-optimal")):
                rows.append([title, "", track, *[""] * 6, figure_text(means["accuracy"][who])])
    header = ["mean of processes", "parameters", "track", "excess", "+-", "share of mean"]
    return text_table([*header, "over symbols", "+-", "share of mean", "accuracy"], rows)


def _of_mean(mean: dict[str, Any]) -> list[float | None]:
    return [mean["excess"], mean["standard_error"], mean["share_of_mean"]]


def _cells(name: str, row: dict[str, Any]) -> list[str]:
    baselines = [row["baselines"][baseline] for baseline in ("uniform", "bigram", "mixture")]
    numbers = (row["optimum"], row["model"], row["excess"], row["standard_error"], row["share"], *baselines)
    return [name, *map(figure_text, numbers)]


def _write(report: dict[str, Any], folder: Path, dataset_id: str | None) -> None:
    with written_together(folder) as temporary:
        plot_benchmark([report], temporary / PLOT_NAME)
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
    share = 100 * mean["share_of_mean"]
    error = "" if mean["standard_error"] is None else f"standard error {mean['standard_error']:.6f}; "
    over = f"; {mean['over_symbols']['excess']:.6f} if normalized over the symbols" if "over_symbols" in mean else ""
    return EvalResultEntry(
        dataset_id=dataset_id,
        task_id=report["track"],
        value=round(mean["excess"], 6) + 0.0,  # never -0.0
        dataset_revision=report["data"]["revision"],
        date=report["time"],
        notes=(
            f"nats per symbol above the optimal loss, lower is better; {error}"
            f"{share:.2f}% of the way of the mean from the uniform distribution to the optimal loss{over}; "
            f"{report['num_sequences']} sequences of each process"
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
