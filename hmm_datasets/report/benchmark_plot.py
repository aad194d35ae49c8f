"""The plot of a model's scores: its excess over the optimum on each process, beside that of simpler predictors."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from ..intervals import half_width
from ..statistics import context_spans
from .plots import PAPER, STYLES, WIDTH, save_figure

_MARKED = {
    "uniform": {"color": STYLES["uniform"]["color"], "label": "uniform", "marker": "x"},
    "bigram": {"color": STYLES["bigram"]["color"], "label": "bigram, in context", "marker": "|"},
    "mixture": {"color": STYLES["bayes"]["color"], "label": "knows the processes, not which", "marker": "d"},
}
OVER_SYMBOLS = ("excess", "standard_error", "share")
"""Figures of the distribution over the symbols, where it is known."""
_COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # of models


def plot_benchmark(reports: Sequence[dict[str, Any]], path: str | os.PathLike) -> None:
    """Plot the excess of models on each process and in the mean with 95% intervals, and its mean by position.

    Full markers are the excess over the whole vocabulary, hollow ones that of the distribution normalized over the
    symbols, where it is known. Processes are ordered by their optimum, from the most predictable one.

    Args:
        reports (sequence of `dict`): results of [`run_benchmark`] on the same processes.
        path (path): where the PNG goes; a PDF is written next to it.
    """
    order = sorted(reports[0]["processes"], key=lambda name: reports[0]["processes"][name]["optimum"])
    names = [*order, "mean"] if len(order) > 1 else order
    tables = [{**report["processes"], "mean": report["mean"]} for report in reports]
    heights = np.arange(len(names), dtype=float)
    by_position = all("positions" in report["mean"] for report in reports)
    with rc_context(PAPER):
        height = 1.2 + (0.2 + 0.05 * (len(reports) - 1)) * len(names)
        figure = Figure(figsize=(WIDTH * (2.3 if by_position else 1.3), height), layout="constrained")
        panels = figure.subplots(1, 2 if by_position else 1, squeeze=False)[0]
        axes = panels[0]
        axes.axvline(0, color="black", linewidth=0.8)
        for name, style in _MARKED.items():
            values = [tables[0][row]["baselines"][name] for row in names]
            axes.plot(values, heights, linestyle="", markersize=4, **style)
        lowest = 0.0
        for number, (report, rows) in enumerate(zip(reports, tables, strict=True)):
            color, shift = _COLORS[number % len(_COLORS)], 0.6 * ((number + 1) / (len(reports) + 1) - 0.5)
            label = Path(report["model"]["name"]).name if len(reports) > 1 else "model"
            for figures, style in (
                (rows, {"label": label}),
                (_over_symbols(rows, names), {"markerfacecolor": "white"}),
            ):
                if figures:
                    excess, errors = ([figures[row][key] for row in names] for key in OVER_SYMBOLS[:2])
                    bars = [half_width(error, report["num_sequences"]) or 0 for error in errors]
                    style = {"fmt": "o", "color": color, "capsize": 2, **style}
                    axes.errorbar(excess, heights + shift, xerr=bars, **style)
                    lowest = min(lowest, *(value - bar for value, bar in zip(excess, bars, strict=True)))
            if by_position:
                for kind, line in (("excess", "-"), ("over_symbols", "--")):
                    panels[1].plot(*_by_powers(report["mean"]["positions"], kind), color=color, linestyle=line)
        axes.set(yticks=heights, yticklabels=names, ylim=(len(names) - 0.4, -0.6))
        # Linear near 0, so that the optimum and scores below it by chance are on the axis.
        axes.set_xscale("symlog", linthresh=0.01)
        axes.set_xlim(left=1.1 * min(lowest, -0.002), right=1.3 * axes.get_xlim()[1])
        axes.set_xlabel("nats per symbol above the optimal loss, 95% intervals")
        axes.grid(axis="y", visible=False)
        if by_position:
            panels[1].set_yscale("symlog", linthresh=0.01)
            panels[1].set(xscale="log", xlabel="symbols read before", ylabel="mean of processes, nats")
            axes.set_title("full: whole vocabulary; hollow: over the symbols")
            panels[1].set_title("solid: whole vocabulary; dashed: over the symbols")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=2 + 2 * by_position)
        save_figure(figure, path)


def _over_symbols(rows: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    known = all("over_symbols" in rows[name] for name in names)
    return {name: rows[name]["over_symbols"] for name in names} if known else {}


def _by_powers(positions: dict[str, Any], kind: str) -> tuple[list[float], list[float]]:
    """Means from one power of two symbols of context to the next: their geometric middle, and the means.

    These are rounded, so that what rounding leaves of an exact model is drawn as 0.
    """
    first, values = positions["first"], np.round(positions[kind], 9)
    spans = context_spans(first + len(values))
    return [(a * (b - 1)) ** 0.5 for a, b in spans], [float(np.mean(values[a - first : b - first])) for a, b in spans]
