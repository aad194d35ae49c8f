"""The items of an evaluation as Parquet for the Hub, with a card that has its tables and plots."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa

from ...files import read_jsonl
from ...report.evaluation_tables import evaluation_tables, read_report, summary
from ..cards import write_card
from ..parquet import write_split
from ..redaction import Redaction

_SPLIT = "test"
_NATS = "nats/token"


def write_evaluation_dataset(
    source: Path, folder: Path, *, name: str, licence: str | None = None, repo_id: str | None = None
) -> None:
    """Write what a repository of an evaluation has besides the evaluation's own files.

    Args:
        source (`Path`): folder of the evaluation, with `report.json`, `items/` and `plots/`.
        folder (`Path`): where `data/` and `README.md` go.
        name (`str`): title of the card.
        licence (`str`, *optional*): licence, an identifier of the Hub.
        repo_id (`str`, *optional*): name on the Hub, for the commands in the card.
    """
    report = read_report(source)
    configs = []
    for path in sorted((source / "items").glob("*.jsonl")):
        rows = read_jsonl(path)
        if rows:
            table = pa.Table.from_pylist(rows)
            features = datasets.Features.from_arrow_schema(table.schema)
            write_split(folder, _SPLIT, [table], features, prefix=f"data/{path.stem}")
            split = {"split": _SPLIT, "path": f"data/{path.stem}/{_SPLIT}-*", "rows": len(rows), "tokens": None}
            configs.append({"name": path.stem, "splits": [split]})
    redaction = Redaction(source)
    tables = [table.markdown() for group in evaluation_tables(report).values() for table in group]
    write_card(
        "evaluation",
        folder,
        {
            "name": name,
            "summary": redaction.without_paths(" ".join(summary(report))),
            "license": licence,
            "model": redaction.without_paths(str(report["model"].get("name") or report["model"]["type"])),
            "sha256": report["model"]["sha256"],
            "tables": [redaction.without_paths(table) for table in tables],
            "plots": [f"plots/{path.name}" for path in sorted((source / "plots").glob("*.png"))],
            "configs": configs,
            "command": redaction.without_paths(report["command"]),
            "versions": report["versions"],
            "repo_id": repo_id,
        },
    )


def metric(name: str, value: float, error: float | None = None, unit: str = _NATS) -> dict[str, Any]:
    """A metric of a card; the standard error is None if it was not estimated."""
    return {"name": name, "value": value, "standard_error": error, "unit": unit}


def metrics_of(report: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """The metrics of an evaluation, and the loss of the optimal predictor on the same sequences if it is known.

    Args:
        report (mapping): the content of `report.json`.
    """
    metrics, optimal_loss = [], None
    if "optimum" in report:
        entropy, gap, best = (report["optimum"][name] for name in ("cross_entropy", "bayes_gap", "floor"))
        title = "optimal loss" if best == "bayes" else "lower bound of the optimal loss"
        predictor = "Optimal predictor" if best == "bayes" else "Oracle, whose loss is a lower bound,"
        metrics.append(metric("Held-out cross-entropy", *_value(entropy["model"], "cross_entropy")))
        metrics.append(metric(f"Excess over the {title}", *_value(gap, "bayes_gap")))
        optimal_loss = metric(f"{predictor} on the same sequences", *_value(entropy[best], "cross_entropy"))
    if "text" in report:
        metrics.append(metric("Held-out text", *_value(report["text"], "bits_per_byte"), unit="bits/byte"))
    return metrics, optimal_loss


def _value(measured: Mapping[str, Any], name: str) -> tuple[float, float | None]:
    return measured[name], measured.get("standard_error")
