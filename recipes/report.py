"""One report of an experiment: a table in the terminal, report.json, plots, and cards filled from its runs.

    python recipes/report.py --experiment outputs/demo

Reads what the other recipes wrote in the folders `hmm`, `pretrain_hmm`, `evaluate_hmm`, and, where there are any,
`tokens`, `pretrain_text`, `midtrain`, `sft`, `evaluate_text`. Writes `report.json` and `*.png` there, and a README.md
(the card) in `hmm/hmm`, `dataset`, `pretrain_hmm` and `sft`. Fails if the table is out of order.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hmm_datasets.errors import InputError
from hmm_datasets.recipe import run


@dataclass
class ReportSettings:
    """Which experiment."""

    experiment: str = field(metadata={"help": "Folder of the runs."})
    license: str = field(default="cdla-sharing-1.0", metadata={"help": "Licence of what was made from the corpus."})


def main(settings: ReportSettings) -> None:
    """Read the runs, draw, write cards and report, print the table."""
    from hmm_datasets.files import read_json, read_jsonl, write_json
    from hmm_datasets.report.plots import plot_divergence, plot_loss, plot_positions, plot_stages
    from hmm_datasets.report.tables import hmm_table, out_of_order

    root = Path(settings.experiment)
    measured = read_json(root / "evaluate_hmm" / "report.json")["law"]
    history = read_jsonl(root / "pretrain_hmm" / "history.jsonl")
    plot_loss(history, root / "loss.png", title="A small Llama on sequences of an HMM")
    plot_divergence(history, root / "divergence.png", title="How far the model is from each predictor")
    plot_positions(measured, root / "positions.png", title="Held-out cross-entropy along the sequence")

    stages = [name for name in ("pretrain_text", "midtrain", "sft") if (root / name / "summary.json").exists()]
    if stages:
        losses = {name: read_jsonl(root / name / "history.jsonl") for name in stages}
        plot_stages(losses, root / "text_loss.png", title="From text to chat")
    summaries = {name: read_json(root / name / "summary.json") for name in ("hmm", "pretrain_hmm", *stages)}
    report = {
        "law": measured,
        "runs": summaries,
        "versions": read_json(root / "hmm" / "run.json")["versions"],
    }
    lines = [hmm_table(measured), "", _stage_table(summaries)]
    if (root / "evaluate_text" / "report.json").exists():
        report["text"] = text = read_json(root / "evaluate_text" / "report.json")["text"]
        lines += ["", f"held-out text: {text['bits_per_byte']:.4f} +- {text['standard_error']:.4f} bits a byte"]
    if (root / "sft" / "answer.json").exists():
        report["answer"] = answer = read_json(root / "sft" / "answer.json")
        lines += ["", f"prompt: {answer['prompt']}", f"answer: {answer['answer']}"]
    if (root / "sft" / "answers.json").exists():
        report["answers"] = read_json(root / "sft" / "answers.json")
    _write_cards(root, settings.license, measured, summaries)
    write_json(root / "report.json", report)
    print("\n".join(lines))
    print(f"\n{root}/report.json, {', '.join(path.name for path in sorted(root.glob('*.png')))}")
    if out_of_order(measured):
        raise InputError(f"{root}: the table is out of order: {'; '.join(out_of_order(measured))}")


def _stage_table(summaries: dict[str, dict]) -> str:
    from hmm_datasets.report.tables import text_table

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
                f"{summary['evaluation']['loss']:.4f}",
            ]
        )
    return text_table(["run", "parameters", "steps", "tokens", "tokens/s", "held-out loss"], rows)


def _write_cards(root: Path, licence: str, measured: dict[str, Any], summaries: dict[str, dict]) -> None:
    from hmm_datasets import HMM
    from hmm_datasets.files import read_json
    from hmm_datasets.hmm.format import FORMAT_VERSION
    from hmm_datasets.hub.cards import write_card

    hmm = HMM.from_pretrained(root / "hmm" / "hmm")
    fit, fit_run = summaries["hmm"], read_json(root / "hmm" / "run.json")
    corpus = fit_run["settings"]["corpus"]
    rate = {"entropy_rate": fit["entropy_rate"], "entropy_rate_standard_error": fit["entropy_rate_error"]}
    write_card(
        "hmm",
        root / "hmm" / "hmm",
        {
            "name": f"An HMM of {corpus}",
            "num_states": hmm.num_states,
            "num_symbols": hmm.num_symbols,
            "corpus": corpus,
            "license": licence,
            "log_likelihood_train": fit["train_log_likelihood"],
            "log_likelihood_test": fit["test_log_likelihood"],
            "command": fit_run["command"],
            "versions": fit_run["versions"],
            **rate,
        },
    )
    pretrain_run = read_json(root / "pretrain_hmm" / "run.json")
    data = pretrain_run["data"]
    hmm.save_pretrained(root / "dataset")
    write_card(
        "dataset",
        root / "dataset",
        {
            "name": f"Sequences of an HMM of {corpus}",
            "hmm": f"an HMM of {hmm.num_states} states over the {hmm.num_symbols} commonest words of {corpus}",
            "seed": data["seed"],
            "num_sequences": None,
            "length": data["length"],
            "format": FORMAT_VERSION,
            "hash": hmm.fingerprint(),
            "license": licence,
            **rate,
        },
    )
    gap, entropy = measured["bayes_gap"], measured["cross_entropy"]

    def metric(name: str, value: float, error: float, unit: str = "nats/token") -> dict[str, Any]:
        return {"name": name, "value": value, "standard_error": error, "unit": unit}

    _write_model_card(
        root / "pretrain_hmm",
        name=f"Llama on an HMM of {corpus}",
        summary="A small Llama trained on sequences of a hidden Markov model, whose best possible loss is known.",
        licence=licence,
        data=f"Sequences of an HMM of {corpus}.\n\nThey have {data['length']} symbols and were drawn as they were "
        f"needed, by hmm-datasets from the HMM of fingerprint {hmm.fingerprint()}.",
        metrics=[
            metric(
                "Held-out cross-entropy",
                entropy["model"]["cross_entropy"],
                entropy["model"]["standard_error"],
            ),
            metric("Excess over the Bayes optimum", gap["bayes_gap"], gap["standard_error"]),
        ],
        floor=metric(
            "Bayes-optimal cross-entropy", entropy["bayes"]["cross_entropy"], entropy["bayes"]["standard_error"]
        ),
    )
    if "sft" in summaries:
        text = read_json(root / "evaluate_text" / "report.json")["text"]
        _write_model_card(
            root / "sft",
            name=f"A small chat model of {corpus}",
            summary="Pretrained on stories, midtrained on stories and conversations, fine-tuned on conversations.",
            licence=licence,
            data=f"{corpus}, then conversations ({read_json(root / 'sft' / 'run.json')['data']['conversations']}).",
            metrics=[
                metric(
                    "Held-out text after midtraining",
                    text["bits_per_byte"],
                    text["standard_error"],
                    "bits/byte",
                )
            ],
            floor=None,
        )


def _write_model_card(folder: Path, *, name, summary, licence, data, metrics, floor) -> None:
    from hmm_datasets.files import read_json
    from hmm_datasets.hub.cards import write_card

    totals, record = read_json(folder / "summary.json"), read_json(folder / "run.json")
    settings = record["settings"]
    write_card(
        "model",
        folder,
        {
            "name": name,
            "summary": summary,
            "license": licence,
            "data": data,
            "parameters": totals["parameters"]["total"],
            "tokens": totals["tokens"],
            "global_batch": totals["global_batch_size"],
            "length": settings.get("max_length") or record["data"]["length"],
            "learning_rate": totals["learning_rate"],
            "precision": "bf16" if settings.get("bf16") else "fp16" if settings.get("fp16") else "fp32",
            "command": record["command"],
            "versions": record["versions"],
            "metrics": metrics,
            "floor": floor,
        },
    )


if __name__ == "__main__":
    run(main, ReportSettings)
