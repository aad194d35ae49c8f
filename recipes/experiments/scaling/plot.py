"""The pictures of the experiment."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fits import METHODS
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from panels import shared_legend, wrapped_title

from hmm_datasets.report.plots import PAPER, markers, run_style, save_figure
from hmm_datasets.training.plan.law import Law

KNOWN_COLOR, FREE_COLOR = "#0072B2", "#E69F00"


@rc_context(PAPER)
def plot_runs(results: Sequence[Mapping[str, Any]], laws: Mapping[str, Law], path: Path) -> None:
    """Draw for each process the excess of the runs of each compute by size, above the law of all runs."""
    figure = Figure(figsize=(0.4 + 2.4 * min(3, len(results)), 2.7 * -(-len(results) // 3)), layout="constrained")
    grid = figure.subplots(-(-len(results) // 3), min(3, len(results)), squeeze=False)
    for axes, result in zip(grid.flat, results, strict=False):
        plot_process(axes, result, laws[result["name"]])
    for axes in list(grid.flat)[len(results) :]:
        axes.set_axis_off()
    shared_legend(figure, 4)
    save_figure(figure, path)


def plot_process(axes: Axes, result: Mapping[str, Any], law: Law) -> None:
    """Draw the runs of a process: a curve for each compute, and dotted what the law says."""
    runs = [*result["runs"], *result["beyond"]]
    for number, compute in enumerate(sorted({run["compute"] for run in runs})):
        level = [run for run in runs if run["compute"] == compute]
        style = {**run_style(number), **markers(number, 1), "linestyle": ""}
        axes.plot(*_columns(level, "parameters", "excess"), label=f"{compute:.0e} FLOPs".replace("e+", "e"), **style)
        sizes, tokens = _columns(level, "parameters", "tokens")
        order = np.argsort(sizes)
        excess = law.loss(sizes, tokens) - law.floor
        axes.plot(sizes[order], excess[order], color=style["color"], linestyle=":", linewidth=1)
    axes.set(title=wrapped_title(result["name"]), xlabel="parameters", ylabel="excess (nats per symbol)")
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_minor_formatter(NullFormatter())  # they would overlap where there is only one power of ten


@rc_context(PAPER)
def plot_fits(results: Sequence[Mapping[str, Any]], errors: Mapping[str, Any], path: Path) -> None:
    """Draw for each process the error of the predicted loss of the largest compute, by way of fitting."""
    figure = Figure(figsize=(0.9 + 1.7 * len(results), 2.9), layout="constrained")
    panels = figure.subplots(1, len(results), sharey=True, squeeze=False)[0]
    names = list(METHODS)
    for axes, result in zip(panels, results, strict=True):
        found, last = errors[result["name"]], list(next(iter(errors[result["name"]].values()))[0])[-2]
        for label, values in found.items():
            name, _, floor = label.rpartition(", ")
            is_known = floor == "floor known"
            first, others = values[0][last], [one[last] for one in values[1:]] or [values[0][last]]
            low, high = np.quantile(others, [0.025, 0.975])
            place = names.index(name) + (0.15 if is_known else -0.15)
            color = KNOWN_COLOR if is_known else FREE_COLOR
            axes.plot([low, high], [place, place], color=color, linewidth=1)
            axes.plot(first, place, "o", color=color, markersize=4, label=floor if name == names[0] else None)
        axes.axvline(0, color="black", linestyle=":", linewidth=1)
        axes.set_yticks(range(len(names)), names)
        axes.set(title=wrapped_title(result["name"]), xlabel="predicted minus found\n(nats per symbol)")
    shared_legend(figure, 2)
    save_figure(figure, path)


def _columns(runs: Sequence[Mapping[str, Any]], *names: str) -> list[np.ndarray]:
    return [np.array([run[name] for run in runs], float) for name in names]
