"""Figures that compare several evaluations, each a PNG and a PDF as wide as the column of a paper."""

import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from .benchmark_plot import plot_benchmark
from .plots import PAPER, POINTS, WIDTH, draw_band, draw_intervals, markers, run_style, save_figure

FIGURES = {
    "optimum": "Left: excess over the optimal loss with 95% intervals. Right: paired difference from the first run.",
    "text": "Left: bits per byte of held-out text with 95% intervals. Right: paired difference from the first run.",
    "chat": "Left: loss of the assistant's words with 95% intervals. Right: paired difference from the first run.",
    "core": "Left: score with 95% intervals. Right: paired difference from the first run.",
    "positions": "Excess over the optimal loss by position, with 95% intervals if there are few runs.",
    "training": "KL divergence of the model from the Bayes-optimal predictor during training.",
    "questions": "Centered accuracy by task with 95% intervals.",
    "benchmark": "Excess over the optimal loss on each process of the benchmark, with 95% intervals.",
}
"""Caption of each figure, by the name of its file."""

_MAX_BANDS = 4  # more overlapping bands could not be distinguished


def draw_comparison(comparison: Mapping[str, Any], folder: str | os.PathLike) -> list[Path]:
    """Draw all figures for which a comparison has data.

    Args:
        comparison (`dict`): the result of [`~hmm_datasets.evaluation.comparison.compare_reports`].
        folder (path): where the figures go.

    Returns:
        list of `Path`: the PNGs; each has a PDF of the same name.
    """
    folder = Path(folder)
    training = {name: curves for name, curves in comparison.get("training", {}).items() if any(curves["tokens"])}
    figures: dict[str, tuple[Any, Callable[[Any, Path], None]]] = {
        **{task: (comparison["tasks"].get(task), plot_values) for task in ("optimum", "text", "chat", "core")},
        "positions": (comparison.get("positions"), plot_positions_of_runs),
        "training": (training, plot_training_of_runs),
        "questions": (comparison.get("questions"), plot_questions),
        "benchmark": (comparison.get("benchmark"), plot_benchmark),
    }
    paths = []
    for name, (curves, draw) in figures.items():
        if curves:
            paths.append(folder / f"{name}.png")
            draw(curves, paths[-1])
    return paths


@rc_context(PAPER)
def plot_values(results: Mapping[str, Any], path: str | os.PathLike) -> None:
    """Plot the value of every run with its interval, and the paired difference from the first run if there is one.

    Args:
        results (`dict`): `measure` and `rows` of a task.
        path (path): where the PNG goes; a PDF is written next to it.
    """
    rows = results["rows"]
    changes = [row["difference"] for row in rows]
    sides = [([(row["value"], row["low"], row["high"]) for row in rows], "value")]
    if any(changes):
        points = [(None, None, None) if change is None else tuple(change.values()) for change in changes]
        sides.append((points, "minus the first"))
    size = (WIDTH, 0.75 + 0.22 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(sides), sharey=True, squeeze=False)
    for axes, (points, label) in zip(panels[0], sides, strict=True):
        values, lows, highs = np.array(points, float).T
        draw_intervals(axes, values, lows, highs, range(len(rows)), **POINTS)
        axes.set(
            xlabel=label if len(sides) == 2 else "", yticks=range(len(rows)), yticklabels=[row["run"] for row in rows]
        )
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.grid(axis="y", visible=False)
    if len(sides) == 2:
        panels[0, 1].axvline(0, color="gray", linewidth=0.8, zorder=0)
    figure.supxlabel(textwrap.fill(results["measure"], 60), fontsize=8)
    save_figure(figure, path)


@rc_context(PAPER)
def plot_positions_of_runs(runs: Mapping[str, Any], path: str | os.PathLike) -> None:
    """Plot the excess over the optimal loss by position for every run."""
    figure = Figure(figsize=(WIDTH, 2.6 + 0.13 * len(runs)), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0, color="gray", linewidth=0.8)
    for number, (name, curve) in enumerate(runs.items()):
        gap, error = (np.array(curve[key], float) for key in ("by_position", "by_position_error"))
        positions, style = np.arange(1, len(gap) + 1), run_style(number)
        if len(runs) <= _MAX_BANDS:
            draw_band(axes, positions, gap, error, curve["num_sequences"], style["color"])
        axes.plot(positions, gap, **style, **markers(number, len(gap)), label=name)
    axes.set(xlabel="position in the sequence", ylabel="excess over the optimal loss (nats)")
    axes.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(loc="outside lower center")
    save_figure(figure, path)


@rc_context(PAPER)
def plot_training_of_runs(runs: Mapping[str, Any], path: str | os.PathLike) -> None:
    """Plot KL(Bayes || model) against tokens for every run that has it."""
    figure = Figure(figsize=(WIDTH, 2.6 + 0.13 * len(runs)), layout="constrained")
    axes = figure.subplots()
    for number, (name, curve) in enumerate(runs.items()):
        points = [(x, y) for x, y in zip(curve["tokens"], curve["kl_bayes"], strict=True) if x > 0]
        axes.plot(*zip(*points, strict=True), **run_style(number), **markers(number, len(points)), label=name)
    axes.set(xlabel="tokens", ylabel="KL(Bayes-optimal || model)\n(nats per token)", xscale="log", yscale="log")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    figure.legend(loc="outside lower center")
    save_figure(figure, path)


@rc_context(PAPER)
def plot_questions(tasks: Mapping[str, Sequence[Mapping[str, Any]]], path: str | os.PathLike) -> None:
    """Plot the centered accuracy by task, with the runs of a task below each other."""
    count = max(map(len, tasks.values()))
    size = (WIDTH, 0.8 + 0.13 * count + len(tasks) * (0.1 + 0.09 * count))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color="gray", linewidth=0.8)
    for number in range(count):
        rows = [results[number] for results in tasks.values()]
        values, lows, highs = (np.array([row[key] for row in rows], float) for key in ("value", "low", "high"))
        heights = np.arange(len(rows)) + 0.7 * ((number + 0.5) / count - 0.5)
        mark = {"fmt": markers(number, 1)["marker"], "color": run_style(number)["color"], "capsize": 1.5}
        draw_intervals(axes, values, lows, highs, heights, **mark, linewidth=0.8, label=rows[0]["run"])
    axes.set(yticks=range(len(tasks)), yticklabels=list(tasks), ylim=(len(tasks) - 0.5, -0.5))
    axes.grid(axis="y", visible=False)
    figure.supxlabel("centered accuracy (0 is chance)", fontsize=8)
    figure.legend(loc="outside upper center")
    save_figure(figure, path)


@rc_context(PAPER)
def plot_heat_map(sweep: Mapping[str, Any], path: str | os.PathLike) -> None:
    """Plot a value by two settings, with the numbers in the cells, and a dash where there is no run.

    Args:
        sweep (`dict`): `x`, `y` and `value`, their names; `x_values`, `y_values`; `cells`, a row for each `y`.
        path (path): where the PNG goes; a PDF is written next to it.
    """
    table = np.array(sweep["cells"], float)
    columns, rows = (list(map(_label, sweep[f"{axis}_values"])) for axis in "xy")
    # Cells keep their room beside long labels, such as paths, of some 0.06 inches per character.
    needed = 1.2 + 0.06 * max(map(len, rows)) + len(columns) * max(0.4, 0.06 * max(map(len, columns)))
    size = (max(WIDTH, needed), np.clip(0.9 + 0.35 * len(table), 1.6, 5))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(table, cmap="viridis", aspect="auto", origin="lower", interpolation="nearest")
    low, high = np.nanmin(table), np.nanmax(table)
    # Numbers that differ little get more digits, so that they can be distinguished.
    digits = 3 if low == high else min(6, max(3, 2 + int(np.log10(max(abs(low), abs(high)) / (high - low)))))
    for row, column in np.argwhere(np.isfinite(table)):
        value = table[row, column]
        is_dark = value < (low + high) / 2
        text = {"color": "white" if is_dark else "black", "ha": "center", "va": "center", "fontsize": 6.5}
        axes.text(column, row, f"{value:.{digits}g}", **text)
    for row, column in np.argwhere(~np.isfinite(table)):
        axes.text(column, row, "–", color="gray", ha="center", va="center", fontsize=6.5)
    axes.set(xlabel=sweep["x"], ylabel=sweep["y"], xticks=range(table.shape[1]), yticks=range(table.shape[0]))
    axes.set(xticklabels=columns, yticklabels=rows)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axes, label=sweep["value"])
    bar.outline.set_visible(False)
    save_figure(figure, path)


def _label(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.6g}"
