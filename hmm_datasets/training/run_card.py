"""Cards of runs: the facts of a card are read from the folder of a run.

A card states only what was measured on that model: the held-out metrics of the run itself, and those of evaluations
whose report names a model with the same weights. Tokens are summed over all stages of training, from `lineage` in
`run.json`. Paths of this machine are made relative.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..compat.deepspeed import without_zero3_init
from ..display import describe_weights, format_duration
from ..files import read_json
from ..hub.cards import is_own_card, write_card
from ..hub.download import ModelName
from ..hub.kinds.evaluation import metric, metrics_of
from ..hub.redaction import Redaction
from ..hub.weights import base_of_adapter
from ..hub.weights_digest import weights_sha256
from ..records import read_record
from ..report.evaluation_tables import read_report
from ..runtime.run_records import BaseModel, Lineage, RunRecord, RunSummary, Stage, read_run_record
from .pretrained import load_pretrained


def write_run_card(
    folder: str | os.PathLike,
    *,
    name: str | None = None,
    licence: str | None = None,
    evaluations: Iterable[str | os.PathLike] = (),
) -> bool:
    """Write the card of a model into the folder of its finished run, unless somebody wrote one by hand.

    Args:
        folder (path): folder with `run.json`, `summary.json` and the model.
        name (`str`, *optional*): title of the card; by default the name of the folder.
        licence (`str`, *optional*): licence of the model, an identifier of the Hub; by default that of the model it
            was trained from, if that model states one.
        evaluations (iterable of paths): folders with a `report.json`; reports on other models are left out.

    Returns:
        `bool`: whether the card was written.
    """
    folder = Path(folder)
    if not is_own_card(folder):
        return False
    record, summary = read_run_record(folder / "run.json"), read_record(folder / "summary.json", RunSummary)
    plan = read_json(folder / "plan.json") if (folder / "plan.json").exists() else {}
    settings, data, redaction = record.settings, record.data, Redaction(folder)
    lineage = record.lineage or Lineage("training")
    stages = [*lineage.before, Stage(lineage.stage, lineage.data, summary.tokens)]
    metrics, optimal_loss = _held_out(summary.evaluation)
    for measured, of_optimal_loss in _evaluated(folder, evaluations):
        named = {metric["name"] for metric in measured}
        metrics = [metric for metric in metrics if metric["name"] not in named] + measured
        optimal_loss = of_optimal_loss or optimal_loss
    base = ModelName.parse(settings["model"]).place if lineage.before and settings.get("model") else None
    write_card(
        "model",
        folder,
        {
            "name": name or folder.resolve().name,
            "summary": _summary(folder, summary, stages),
            **_licence(licence, lineage.base),
            "data": redaction.without_paths(_data(lineage.data, data)),
            "parameters": _total(summary),
            "tokens": sum(stage.tokens or 0 for stage in stages),
            "stages": [
                asdict(stage) | {"data": stage.data and redaction.without_paths(stage.data)} for stage in stages
            ],
            "global_batch": summary.global_batch_size,
            "length": settings.get("max_length") or plan.get("row_length") or data.get("length"),
            "learning_rate": summary.learning_rate,
            "precision": _precision(record),
            "command": redaction.without_paths(record.command),
            "versions": record.versions,
            "metrics": metrics,
            "optimal_loss": optimal_loss,
            "has_tokenizer": (folder / "tokenizer_config.json").exists(),
            "details": _details(record, summary, lineage.base, redaction),
            "library": _library(folder),
            "base_model": base if base and base.count("/") == 1 and not Path(base).exists() else None,
        },
    )
    return True


def _licence(licence: str | None, base: BaseModel | None) -> dict[str, str | None]:
    """The facts about the licence of a card: the one that is asked for, or that of the parent if it is one word."""
    stated = {} if licence or base is None else base.licence
    if len(stated.get("license", "").split()) != 1:
        return {"license": licence}
    return stated


def _library(folder: Path) -> str:
    """What loads a model: peft an adapter, or this package if the base of the adapter is a GGUF file."""
    adapter = folder / "adapter_config.json"
    if not adapter.exists():
        return "transformers"
    is_of_gguf = ModelName.parse(base_of_adapter(adapter) or "").gguf_file is not None
    return "hmm-datasets" if is_of_gguf else "peft"


def _total(summary: RunSummary) -> int:
    """The number of parameters."""
    return summary.parameters.get("total", 0)


def _precision(record: RunRecord) -> str:
    """What was computed in, and what the weights were kept in; records of earlier versions do not have the latter."""
    settings = record.settings
    computed = "bf16" if settings.get("bf16") else "fp16" if settings.get("fp16") else "fp32"
    return f"{computed}; {describe_weights(record.types)}" if "weights" in (record.types or {}) else computed


def _details(
    record: RunRecord,
    summary: RunSummary,
    base: BaseModel | None,
    redaction: Redaction,
) -> list[dict[str, str]]:
    """Where the weights come from, and what training took."""
    details = []
    if base is not None:
        commit = f" at commit `{base.commit}`" if base.commit else ""
        details.append(("Parent", f"{redaction.without_paths(base.model)}{commit}"))
        details += [(f"SHA-256 of its {name}", f"`{digest}`") for name, digest in sorted(base.weights.items())]
        details.append(("Licence of the parent", ", ".join(base.licence.values()) or "not stated in its files"))
        if base.quantization is not None:
            details.append(("Quantization of the parent", f"{base.quantization}, read into float32"))
    if record.device:
        count = record.world_size
        details.append(("Hardware", record.device if count == 1 else f"{count} processes on {record.device}"))
    if summary.flops:
        details.append(("Compute", f"{summary.flops:.3g} FLOPs in this stage"))
    if summary.seconds is not None:
        details.append(("Time of this stage", format_duration(summary.seconds)))
    if record.commit:
        details.append(("Commit of the code", f"`{record.commit}`"))
    return [{"name": name, "value": value} for name, value in details]


def _held_out(evaluation: Mapping[str, float]) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """The held-out metrics at the end of the run, without standard errors, and the best possible value if known."""
    if "cross_entropy" in evaluation:
        metrics = [metric("Held-out cross-entropy", evaluation["cross_entropy"])]
        if "bayes_gap" not in evaluation:
            return metrics, None
        metrics.append(metric("Excess over the optimal loss", evaluation["bayes_gap"]))
        return metrics, metric("Optimal predictor on the same sequences", evaluation["cross_entropy_bayes"])
    if "reward" in evaluation:  # the loss is then near zero, whatever the rewards are
        metrics = [metric("Held-out reward", evaluation["reward"], unit="reward")]
        rewards = sorted(key for key in evaluation if key.startswith("rewards/") and key.endswith("/mean"))
        for key in rewards if len(rewards) > 1 else ():
            metrics.append(metric(f"Held-out reward, {key.split('/')[1]}", evaluation[key], unit="reward"))
        return metrics, None
    if "rewards/accuracies" in evaluation:
        ranked = metric("Held-out pairs ranked as labelled", evaluation["rewards/accuracies"], unit="share")
        return [metric("Held-out loss", evaluation["loss"], unit="nats/pair"), ranked], None
    metrics = []
    for key, value in evaluation.items():
        if key == "loss" or key.startswith("loss_") or key.endswith("_loss"):
            part = key.removeprefix("loss").removesuffix("loss").strip("_")
            metrics.append(metric("Held-out loss" + (f", {part}" if part else ""), value))
        elif "accuracy" in key:
            metrics.append(metric(f"Held-out {key.replace('_', ' ')}", value, unit="share"))
    return metrics, None


def _evaluated(
    folder: Path, evaluations: Iterable[str | os.PathLike]
) -> Iterable[tuple[list[dict[str, Any]], dict[str, Any] | None]]:
    """Metrics of the evaluations of these weights, and the best possible value if the distribution is known."""
    reports = [read_report(path) for path in evaluations]
    if not reports:
        return
    from transformers import AutoModelForCausalLM

    with without_zero3_init():
        digest = weights_sha256(load_pretrained(AutoModelForCausalLM, str(folder)))
    for report in reports:
        if report.get("model", {}).get("sha256") != digest:
            continue
        yield metrics_of(report)


def _summary(folder: Path, summary: RunSummary, stages: list[Stage]) -> str:
    config = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    kind = (config.get("architectures") or [config.get("model_type", "model")])[0].removesuffix("ForCausalLM")
    steps = ", then ".join(stage.stage for stage in stages)
    return f"A {kind} of {_total(summary):,} parameters: {steps}."


def _data(description: str | None, data: Mapping[str, Any]) -> str:
    """Description of the data of the last stage; the first line is their name."""
    if "hmm" not in data:
        return description or "Data without a name in the record of the run"
    drawn = f"rawn during training by hmm-datasets from the process with fingerprint `{data['hmm']}`."
    return f"Sequences d{drawn}" if description is None else f"{description}\n\nD{drawn}"
