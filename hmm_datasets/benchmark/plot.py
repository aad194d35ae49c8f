"""The plot of a model's scores: its excess over the optimum on each process, beside that of simpler predictors."""

import os
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from ..report.plots import PAPER, STYLES, WIDTH, save_figure
from ..report.tables import Z_95

_MARKED = {
    "uniform": {"color": STYLES["uniform"]["color"], "label": "uniform", "marker": "x"},
    "bigram": {"color": STYLES["bigram"]["color"], "label": "bigram, in context", "marker": "|"},
    "mixture": {"color": STYLES["bayes"]["color"], "label": "knows the processes, not which", "marker": "d"},
}


def plot_benchmark(report: dict[str, Any], path: str | os.PathLike) -> None:
    """Plot the excess on each process and in the mean, with 95% intervals.

    Args:
        report (`dict`): result of [`~hmm_datasets.benchmark.report.run_benchmark`].
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
            xerr=[Z_95 * row["standard_error"] for row in rows.values()],
            fmt="o",
            color="#D55E00",
            capsize=2,
            label="model, 95% interval",
        )
        axes.set(yticks=heights, yticklabels=list(rows), ylim=(len(rows) - 0.4, -0.6))
        # Linear near 0, so that the optimum and scores below it by chance are on the axis.
        axes.set_xscale("symlog", linthresh=0.01)
        lowest = min(row["excess"] - Z_95 * row["standard_error"] for row in rows.values())
        axes.set_xlim(left=1.1 * min(lowest, -0.002), right=1.3 * axes.get_xlim()[1])
        axes.set_xlabel("nats per symbol above the optimum")
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside upper center", ncols=2)
        save_figure(figure, path, vector=True)
