"""Pictures of several evaluations beside each other, each a PNG and a PDF as wide as the column of a paper."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from .plots import (
    PAPER,
    WIDTH,
    markers,
    save_figure,
)
from .tables import Z_95

FIGURES = {
    "optimum": "Excess over the floor with 95% intervals; right, the paired difference from the first run.",
    "text": "Bits a byte of held-out text with 95% intervals; right, the paired difference from the first run.",
    "core": "Score with 95% intervals; right, the paired difference from the first run.",
    "positions": "Excess over the floor by position, of few runs with 95% intervals.",
    "training": "KL of the model from the Bayes-optimal predictor along training.",
    "questions": "Centered accuracy by task with 95% intervals.",
    "heat_map": "A value of the runs of a sweep, by two of their settings.",
}
"""What each picture shows, by the name of its file."""

_COLOURS = ("black", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MOST_BANDS = 4  # more on top of each other would not be told apart
_DASHES = ("-", "--", "-.", ":")

_UNITS = {
    "optimum.num_states": "states",
    "optimum.num_symbols": "symbols",
    "optimum.length": "length (symbols)",
    "optimum.bayes_gap.bayes_gap": "excess over the floor\n(nats per token)",
    "text.bits_per_byte": "bits per byte",
    "model.parameters": "parameters",
    "core.score": "CORE score",
    "beliefs.layers.all.r2": "R² of beliefs",
}


def draw_comparison(comparison: Mapping[str, Any], folder: str | os.PathLike) -> list[Path]:
    """Draw what a comparison has data for.

    Args:
        comparison (`dict`): the result of [`~hmm_datasets.report.comparison.compare_reports`].
        folder (path): where pictures go.

    Returns:
        list of `Path`: the PNGs; a PDF lies beside each.
    """
    folder = Path(folder)
    training = {name: found for name, found in comparison.get("training", {}).items() if any(found["tokens"])}
    pictures: dict[str, tuple[Any, Callable[[Any, Path], None]]] = {
        **{task: (comparison["tasks"].get(task), plot_values) for task in ("optimum", "text", "core")},
        "positions": (comparison.get("positions"), plot_positions_of_runs),
        "training": (training, plot_training_of_runs),
        "questions": (comparison.get("questions"), plot_questions),
        "heat_map": (comparison.get("heat_map"), plot_heat_map),
    }
    paths = []
    for name, (found, draw) in pictures.items():
        if found:
            paths.append(folder / f"{name}.png")
            draw(found, paths[-1])
    return paths


def run_style(number: int) -> dict[str, Any]:
    """How run `number` looks: no two of 28 alike, and no two neighbours by colour alone."""
    return {"color": _COLOURS[number % 7], "linestyle": _DASHES[(number + number // 7) % 4]}


@rc_context(PAPER)
def plot_values(found: Mapping[str, Any], path: str | os.PathLike) -> None:
    """A value of every run with its interval, and beside it the paired difference from the first, if there is one.

    Args:
        found (`dict`): `measure` and `rows` of a task.
        path (path): where the PNG goes, a PDF beside it.
    """
    rows = found["rows"]
    changes = [row["difference"] for row in rows]
    sides = [([(row["value"], row["low"], row["high"]) for row in rows], "value")]
    if any(changes):
        points = [(None, None, None) if change is None else tuple(change.values()) for change in changes]
        sides.append((points, "less the first"))
    size = (WIDTH, 0.75 + 0.22 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(sides), sharey=True, squeeze=False)
    for axes, (points, label) in zip(panels[0], sides, strict=True):
        values, lows, highs = np.array(points, float).T
        bars = np.nan_to_num(np.maximum([values - lows, highs - values], 0))
        axes.errorbar(values, range(len(rows)), xerr=bars, fmt="o", color="#0072B2", markersize=4, capsize=2)
        axes.set(
            xlabel=label if len(sides) == 2 else "", yticks=range(len(rows)), yticklabels=[row["run"] for row in rows]
        )
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.grid(axis="y", visible=False)
    if len(sides) == 2:
        panels[0, 1].axvline(0, color="gray", linewidth=0.8, zorder=0)
    figure.supxlabel(found["measure"], fontsize=8)
    save_figure(figure, path, vector=True)


@rc_context(PAPER)
def plot_positions_of_runs(runs: Mapping[str, Any], path: str | os.PathLike) -> None:
    """Excess over the floor by position, of every run."""
    figure = Figure(figsize=(WIDTH, 2.6 + 0.13 * len(runs)), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0, color="gray", linewidth=0.8)
    for number, (name, found) in enumerate(runs.items()):
        gap, error = (np.array(found[key], float) for key in ("by_position", "by_position_error"))
        places, look = np.arange(1, len(gap) + 1), run_style(number)
        if len(runs) <= _MOST_BANDS:
            band = {"color": look["color"], "alpha": 0.15, "linewidth": 0}
            axes.fill_between(places, gap - Z_95 * error, gap + Z_95 * error, **band)
        axes.plot(places, gap, **look, **markers(number, len(gap)), label=name)
    axes.set(xlabel="position in the sequence", ylabel="excess over the floor (nats)")
    axes.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(loc="outside lower center")
    save_figure(figure, path, vector=True)


@rc_context(PAPER)
def plot_training_of_runs(runs: Mapping[str, Any], path: str | os.PathLike) -> None:
    """KL(Bayes || model) along training, of every run that has it, against the tokens it saw."""
    figure = Figure(figsize=(WIDTH, 2.6 + 0.13 * len(runs)), layout="constrained")
    axes = figure.subplots()
    for number, (name, found) in enumerate(runs.items()):
        points = [(x, y) for x, y in zip(found["tokens"], found["kl_bayes"], strict=True) if x > 0]
        axes.plot(*zip(*points, strict=True), **run_style(number), **markers(number, len(points)), label=name)
    axes.set(xlabel="tokens", ylabel="KL(Bayes-optimal || model)\n(nats per token)", xscale="log", yscale="log")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    figure.legend(loc="outside lower center")
    save_figure(figure, path, vector=True)


@rc_context(PAPER)
def plot_questions(tasks: Mapping[str, Sequence[Mapping[str, Any]]], path: str | os.PathLike) -> None:
    """Centered accuracy by task, the runs of a task one below the other."""
    count = max(map(len, tasks.values()))
    size = (WIDTH, 0.8 + 0.13 * count + len(tasks) * (0.1 + 0.09 * count))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color="gray", linewidth=0.8)
    for number in range(count):
        rows = [found[number] for found in tasks.values()]
        values, lows, highs = (np.array([row[key] for row in rows], float) for key in ("value", "low", "high"))
        places = np.arange(len(rows)) + 0.7 * ((number + 0.5) / count - 0.5)
        bars = np.nan_to_num(np.maximum([values - lows, highs - values], 0))
        mark = {"fmt": markers(number, 1)["marker"], "color": run_style(number)["color"]}
        axes.errorbar(values, places, xerr=bars, **mark, capsize=1.5, linewidth=0.8, label=rows[0]["run"])
    axes.set(yticks=range(len(tasks)), yticklabels=list(tasks), ylim=(len(tasks) - 0.5, -0.5))
    axes.grid(axis="y", visible=False)
    figure.supxlabel("centered accuracy (0 is chance)", fontsize=8)
    figure.legend(loc="outside upper center")
    save_figure(figure, path, vector=True)


@rc_context(PAPER)
def plot_heat_map(sweep: Mapping[str, Any], path: str | os.PathLike) -> None:
    """A value by two settings, written in its cells; a cell without a run is empty.

    Args:
        sweep (`dict`): the result of [`~hmm_datasets.report.sweep.cells`].
        path (path): where the PNG goes, a PDF beside it.
    """
    table = np.array(sweep["cells"], float)
    size = (WIDTH, np.clip(0.9 + 0.35 * len(table), 1.6, 5))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(table, cmap="viridis", aspect="auto", origin="lower", interpolation="nearest")
    low, high = np.nanmin(table), np.nanmax(table)
    for row, column in np.argwhere(np.isfinite(table)):
        value = table[row, column]
        is_dark = value < (low + high) / 2
        text = {"color": "white" if is_dark else "black", "ha": "center", "va": "center", "fontsize": 6.5}
        axes.text(column, row, f"{value:.3g}", **text)
    x, y, value = (_UNITS.get(sweep[key], sweep[key]) for key in ("x", "y", "value"))
    axes.set(xlabel=x, ylabel=y, xticks=range(table.shape[1]), yticks=range(table.shape[0]))
    axes.set(xticklabels=list(map(_label, sweep["x_values"])), yticklabels=list(map(_label, sweep["y_values"])))
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axes, label=value)
    bar.outline.set_visible(False)
    save_figure(figure, path, vector=True)


def _label(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.6g}"
