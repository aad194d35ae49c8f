"""Report of the demo: a table in the terminal, `report.json`, plots, and model cards.

    python recipes/demo/report.py --experiment outputs/demo

It reads what the other recipes wrote into the folders `hmm`, `pretrain_hmm`, `evaluate_hmm`, `tokens`,
`pretrain_text`, `midtrain`, `sft` and `evaluate_text`, as far as they exist. It writes `report.json` and `*.png`, adds
the results of the evaluations to the card of each model, and creates the folder `dataset` with the sequences of the
HMM as a data set. It fails if the losses are not in the order optimum <= model <= unigram <= uniform.
"""

import itertools
import math
import shutil
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

MODELS = ("pretrain_hmm", "pretrain_text", "midtrain", "sft")


@dataclass
class ReportSettings:
    """The experiment to report on."""

    experiment: str = setting(MISSING, "Folder of the runs.")
    license: str | None = setting(None, "Licence that the cards state, such as cc0-1.0; none if left out.")


def main(settings: ReportSettings) -> None:
    """Read the runs, write cards and report, draw, print the table."""
    from history_plots import plot_divergence, plot_loss, plot_stages

    from hmm_datasets.files import read_json, read_log, write_json
    from hmm_datasets.report.plots import plot_positions
    from hmm_datasets.report.tables import error_text

    root = Path(settings.experiment)
    names = [name for name in ("hmm", *MODELS) if (root / name / "summary.json").exists()]
    if not names:
        raise InputError(f"{root}: has no finished run; expected folders such as {', '.join(MODELS)}")
    summaries = {name: read_json(root / name / "summary.json") for name in names}
    report: dict[str, Any] = {"runs": summaries, "versions": read_json(root / names[0] / "run.json")["versions"]}
    lines = [_stage_table(summaries)]
    faults, pictures = [], []
    if "pretrain_hmm" in names:
        history = read_log(root / "pretrain_hmm" / "history.jsonl")
        title = "How far the model is from each predictor"
        pictures += [partial(plot_loss, history, root / "loss.png", title="Loss on sequences of an HMM")]
        pictures += [partial(plot_divergence, history, root / "divergence.png", title=title)]
    if (root / "evaluate_hmm" / "report.json").exists():
        report["optimum"] = measured = read_json(root / "evaluate_hmm" / "report.json")["optimum"]
        title = "Held-out cross-entropy along the sequence"
        pictures.append(partial(plot_positions, measured, root / "positions.png", title=title))
        lines = [hmm_table(measured), "", *lines]
        faults = out_of_order(measured)
    stages = {name: read_log(root / name / "history.jsonl") for name in names if name in MODELS[1:]}
    if stages:
        pictures.append(partial(plot_stages, stages, root / "text_loss.png", title="From text to chat"))
    if (root / "evaluate_text" / "report.json").exists():
        report["text"] = text = read_json(root / "evaluate_text" / "report.json")["text"]
        error = error_text(text["standard_error"])
        lines += ["", f"held-out text: {text['bits_per_byte']:.4f}{error} bits per byte"]
    if (root / "sft" / "answer.json").exists():
        report["answer"] = answer = read_json(root / "sft" / "answer.json")
        lines += ["", f"prompt: {answer['prompt']}", f"answer: {answer['answer']}"]
    if (root / "sft" / "answers.json").exists():
        report["answers"] = read_json(root / "sft" / "answers.json")
    _write_cards(root, settings.license, summaries)
    write_json(root / "report.json", report)
    print("\n".join(lines), flush=True)
    for draw in pictures:
        draw()
    print(f"\n{root}/report.json, {', '.join(path.name for path in sorted(root.glob('*.png')))}")
    if faults:
        raise InputError(f"{root}: the losses are not in the expected order: {'; '.join(faults)}")


def hmm_table(measured: Mapping[str, Any]) -> str:
    """The result of `measure_optimum` as a table, with a check of its order."""
    from hmm_datasets.report.tables import OPTIMAL_LOSSES, optimum_table

    best, faults = OPTIMAL_LOSSES[measured["floor"]], out_of_order(measured)
    order = f"NOT in order: {'; '.join(faults)}" if faults else "in order"
    return f"{optimum_table(measured).text()}\n{best} <= model <= unigram <= uniform: {order}"


def out_of_order(measured: Mapping[str, Any]) -> list[str]:
    """Pairs for which `optimal loss <= model <= unigram <= uniform` fails by more than three standard errors."""
    from hmm_datasets.report.tables import ROUNDING, finite_error

    faults = []
    chain = (measured["floor"], "model", "unigram", "uniform")
    for better, worse in itertools.pairwise(chain):
        low, high = (measured["cross_entropy"][name] for name in (better, worse))
        error = math.hypot(finite_error(low["standard_error"]), finite_error(high["standard_error"]))
        if low["cross_entropy"] > high["cross_entropy"] + 3 * error + ROUNDING:
            faults.append(f"{better} {low['cross_entropy']:.4f} > {worse} {high['cross_entropy']:.4f}")
    return faults


def _stage_table(summaries: dict[str, dict]) -> str:
    from hmm_datasets.report.tables import figure_text, text_table

    rows = []
    for name, summary in summaries.items():
        if name == "hmm":
            continue
        rows.append(
            [
                name,
                f"{summary['parameters']['total']:,}",
                f"{summary['steps']:,}",
                f"{summary['tokens']:,}",
                f"{summary['tokens_per_second']:,}",
                figure_text(summary["evaluation"].get("loss")),
            ]
        )
    return text_table(["run", "parameters", "steps", "tokens", "tokens/s", "held-out loss"], rows)


def _write_cards(root: Path, licence: str | None, summaries: dict[str, dict]) -> None:
    from hmm_datasets.hub.kinds.process import write_hmm_card
    from hmm_datasets.training.run_card import write_run_card

    reports = sorted([*root.glob("*/report.json"), *root.glob("*/evaluation/report.json")])
    evaluations = [path.parent for path in reports]
    if "hmm" in summaries:
        write_hmm_card(root / "hmm", licence=licence)
    for name in summaries.keys() - {"hmm"}:
        write_run_card(root / name, licence=licence, evaluations=evaluations)
    if {"hmm", "pretrain_hmm"} <= summaries.keys():
        _write_dataset(root, licence)


def _write_dataset(root: Path, licence: str | None) -> None:
    """Write the sequences that the model was trained on as a data set, unless it is there already."""
    from hmm_datasets import HMM
    from hmm_datasets.files import read_json
    from hmm_datasets.hub.kinds.process import SETTINGS_NAME, write_hmm_dataset
    from hmm_datasets.hub.redaction import Redaction

    hmm = HMM.from_pretrained(root / "hmm" / "hmm")
    corpus = Redaction(root / "hmm").without_paths(read_json(root / "hmm" / "run.json")["settings"]["corpus"])
    data = read_json(root / "pretrain_hmm" / "run.json")["data"]
    written = root / "dataset" / SETTINGS_NAME
    if written.exists():
        expected = {"fingerprint": hmm.fingerprint(), "length": data["length"], "seed": data["seed"]}
        if expected.items() <= read_json(written).items():
            return
        shutil.rmtree(root / "dataset")
    write_hmm_dataset(
        hmm,
        root / "dataset",
        length=data["length"],
        seed=data["seed"],
        name=f"Sequences of an HMM of {corpus}",
        description=f"an HMM of {hmm.num_states} states and {hmm.num_symbols} symbols, fitted to {corpus}",
        licence=licence,
    )


if __name__ == "__main__":
    run(main)
