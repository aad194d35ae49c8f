"""The measures of an evaluation as metrics of a card."""

from collections.abc import Mapping
from typing import Any

_NATS = "nats/token"


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
