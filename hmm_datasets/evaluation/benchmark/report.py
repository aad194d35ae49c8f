"""Running the benchmark on a model: its scores as a table, `report.json` and `.eval_results/`.

`.eval_results/` is written into the model's folder, where the Hub looks for it once the folder is pushed.
"""

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from ...errors import InputError
from ...files import write_json, written_with_digests
from ...hub.results import EVAL_RESULTS_NAME, write_eval_results
from ...report.tables import figure_text, text_table
from ...training.pretrained import tokenizer_of
from ..provenance import provenance
from . import SCORED, BenchmarkSettings, Track
from .held_out import open_benchmark
from .models import load_models
from .scoring import score_model

REPORT_NAME = "report.json"
_OVER_SYMBOLS = ("excess", "standard_error", "share")  # of the distribution over the symbols, where it is known


def run_benchmark(settings: BenchmarkSettings) -> dict[str, Any]:
    """Score a model, write the results and print them.

    Returns:
        `dict`: the content of `report.json`.

    Raises:
        `InputError`: the model cannot read the sequences, or a data set differs from the benchmark.
    """
    name = settings.model
    tokenizer = None if settings.track == "ids" else tokenizer_of(name)
    if settings.track == "text" and tokenizer is None:
        raise InputError(f"{name}: has no tokenizer to read text with; choose --track ids")
    track: Track = "ids" if tokenizer is None else "text"
    benchmark = open_benchmark(
        settings.data, processes=settings.process or None, num_sequences=settings.num_sequences or SCORED[track]
    )
    is_standard = settings.is_standard(track)
    accelerator = Accelerator(cpu=not torch.accelerator.is_available())
    models = load_models(name, [process.name for process in benchmark.processes], accelerator)
    report = provenance(name, list({id(model): model for model in models.values()}.values()))
    report |= {} if tokenizer is None else {"symbols": "letters", "separator": " "}
    report |= score_model(models, tokenizer, benchmark.processes, accelerator, batch_size=settings.batch_size)
    report["data"] = {
        "dataset_id": benchmark.dataset_id,
        "revision": benchmark.revision,
        "fingerprints": {process.name: process.hmm.fingerprint() for process in benchmark.processes},
    }
    report["num_sequences"] = benchmark.processes[0].num_sequences
    _write(report, settings.folder, is_standard)
    print(benchmark_text(report))
    print(f"\n{settings.folder}/: {', '.join(sorted(path.name for path in settings.folder.iterdir()))}")
    if benchmark.dataset_id is None and is_standard:
        print(f"No {EVAL_RESULTS_NAME}/, which names the benchmark's repository: give --data USER/NAME")
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
        [name, *map(figure_text, (*(row["over_symbols"][key] for key in _OVER_SYMBOLS), *row["accuracy"].values()))]
        for name, row in named.items()
    ]
    header = ["over the symbols", "excess", "+-", "share", "accuracy", "Bayes-optimal"]
    notes = (
        "The model's distribution, normalized over the symbols of the process: its divergence from the exact one, and "
        "how\noften its most probable symbol comes next, beside that of the Bayes-optimal predictor."
    )
    return f"{text}\n\n{text_table(header, rows)}\n{notes}"


def _cells(name: str, row: dict[str, Any]) -> list[str]:
    baselines = [row["baselines"][baseline] for baseline in ("uniform", "bigram", "mixture")]
    numbers = (row["optimum"], row["model"], row["excess"], row["standard_error"], row["share"], *baselines)
    return [name, *map(figure_text, numbers)]


def _write(report: dict[str, Any], folder: Path, is_standard: bool) -> None:
    with written_with_digests(folder) as temporary:
        write_json(temporary / REPORT_NAME, report)
    if is_standard and report["data"]["dataset_id"] is not None:
        model = Path(report["model"]["name"])
        # The Hub reads them at the root of the model's repository.
        print(_write_eval_results(report, model if (model / "config.json").is_file() else folder))


def _write_eval_results(report: dict[str, Any], folder: Path) -> Path:
    """Write the result as the Hub shows it: the excess in nats per symbol."""
    from huggingface_hub import EvalResultEntry

    mean, dataset_id = report["mean"], report["data"]["dataset_id"]
    share = 100 * mean["share_of_mean"]
    error = "" if mean["standard_error"] is None else f"standard error {mean['standard_error']:.6f}; "
    over = f"; {mean['over_symbols']['excess']:.6f} if normalized over the symbols" if "over_symbols" in mean else ""
    entry = EvalResultEntry(
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
    return write_eval_results(folder, dataset_id.rpartition("/")[2], [entry])
