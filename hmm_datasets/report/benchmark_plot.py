"""The plot of a model's scores: its excess over the optimum on each process, beside that of simpler predictors."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..intervals import half_width
from .plots import STYLES, WIDTH, draw_rows, paper_figure

_MARKED = {
    "uniform": {"color": STYLES["uniform"]["color"], "label": "uniform", "fmt": "x", "capsize": 0},
    "bigram": {"color": STYLES["bigram"]["color"], "label": "bigram, in context", "fmt": "|", "capsize": 0},
    "mixture": {
        "color": STYLES["bayes"]["color"],
        "label": "knows the processes, not which",
        "fmt": "d",
        "capsize": 0,
    },
}
OVER_SYMBOLS = ("excess", "standard_error", "share")
"""Figures of the distribution over the symbols, where it is known."""
_COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # of models


def plot_benchmark(reports: Sequence[dict[str, Any]], path: str | os.PathLike) -> None:
    """Plot the excess of models on each process and in the mean with 95% intervals.

    Full markers are the excess over the whole vocabulary, hollow ones that of the distribution normalized over the
    symbols, where it is known. Processes are ordered by their optimum, from the most predictable one.

    Args:
        reports (sequence of `dict`): results of [`run_benchmark`] on the same processes.
        path (path): where the PNG goes; a PDF is written next to it.
    """
    order = sorted(reports[0]["processes"], key=lambda name: reports[0]["processes"][name]["optimum"])
    names = [*order, "mean"] if len(order) > 1 else order
    tables = [{**report["processes"], "mean": report["mean"]} for report in reports]
    height = 1.2 + (0.2 + 0.05 * (len(reports) - 1)) * len(names)
    with paper_figure(path, height, width=1.3 * WIDTH) as (_, (axes,)):
        axes.axvline(0, color="black", linewidth=0.8)
        above = [[(tables[0][row]["baselines"][name], None, None) for row in names] for name in _MARKED]
        draw_rows(axes, names, above, list(_MARKED.values()), shift=0)
        for kind, style in (("excess", {}), ("over_symbols", {"markerfacecolor": "white"})):
            models = [
                {"fmt": "o", "color": _COLORS[number % len(_COLORS)], "label": _label(report, kind), **style}
                for number, report in enumerate(reports)
            ]
            points = [_points(report, rows, names, kind) for report, rows in zip(reports, tables, strict=True)]
            draw_rows(axes, names, points, models, shift=0.6)
        # Linear near 0, so that the optimum and scores below it by chance are on the axis.
        axes.set_xscale("symlog", linthresh=0.01)
        axes.set_xlim(left=min(1.1 * axes.dataLim.x0, -0.002), right=1.3 * axes.dataLim.x1)
        axes.set_xlabel("nats per symbol above the optimal loss, 95% intervals")


def _label(report: dict[str, Any], kind: str) -> str | None:
    name = Path(report["model"]["name"]).name
    if kind == "excess":
        return name
    return f"{name}, normalized over the symbols" if "over_symbols" in report["mean"] else None


def _points(report: dict[str, Any], rows: dict[str, Any], names: Sequence[str], kind: str) -> list[tuple]:
    """An excess of a model on each process with its interval; None where it is not known."""
    points = []
    for row in (rows[name] for name in names):
        figures = row if kind == "excess" else row.get(kind, {})
        value, error = figures.get("excess"), figures.get("standard_error")
        half = half_width(error, report["num_sequences"]) or 0.0
        points.append((None, None, None) if value is None else (value, value - half, value + half))
    return points
