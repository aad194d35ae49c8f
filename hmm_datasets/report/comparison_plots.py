"""Figures that compare several evaluations, each a PNG and a PDF as wide as the column of a paper."""

import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from .benchmark_plot import plot_benchmark
from .plots import (
    draw_curve,
    draw_figures,
    draw_rows,
    logarithmic_counts,
    logarithmic_divergences,
    paper_figure,
)

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

_POINT = ("value", "low", "high")
_MAX_BANDS = 4  # more overlapping bands could not be distinguished


def draw_comparison(comparison: Mapping[str, Any], folder: str | os.PathLike) -> list[Path]:
    """Draw all figures for which a comparison has data.

    Args:
        comparison (`dict`): the result of [`~hmm_datasets.evaluation.comparison.compare_reports`].
        folder (path): where the figures go.

    Returns:
        list of `Path`: the PNGs; each has a PDF of the same name.
    """
    training = {name: curves for name, curves in comparison.get("training", {}).items() if any(curves["tokens"])}
    figures = {
        **{task: (comparison["tasks"].get(task), plot_values) for task in ("optimum", "text", "chat", "core")},
        "positions": (comparison.get("positions"), plot_positions_of_runs),
        "training": (training, plot_training_of_runs),
        "questions": (comparison.get("questions"), plot_questions),
        "benchmark": (comparison.get("benchmark"), plot_benchmark),
    }
    return draw_figures(figures, folder)


def plot_values(results: Mapping[str, Any], path: str | os.PathLike) -> None:
    """Plot the value of every run with its interval, and the paired difference from the first run if there is one.

    Args:
        results (`dict`): `measure` and `rows` of a task.
        path (path): where the PNG goes; a PDF is written next to it.
    """
    rows = results["rows"]
    sides = {"value": rows, "minus the first": [row["difference"] or dict.fromkeys(_POINT) for row in rows]}
    sides = sides if any(row["difference"] for row in rows) else {"": rows}
    names = [row["run"] for row in rows]
    with paper_figure(path, 0.75 + 0.22 * len(rows), (1, len(sides)), sharey=True) as (figure, panels):
        for axes, (label, points) in zip(panels, sides.items(), strict=True):
            draw_rows(axes, names, [[[point[key] for key in _POINT] for point in points]], [{"color": "#0072B2"}])
            axes.set_xlabel(label)
            axes.xaxis.set_major_locator(MaxNLocator(3))
        panels[-1].axvline(0, color="gray", linewidth=0.8 * (len(sides) - 1), zorder=0)
        figure.supxlabel(textwrap.fill(results["measure"], 60), fontsize=8)


def plot_positions_of_runs(runs: Mapping[str, Any], path: str | os.PathLike) -> None:
    """Plot the excess over the optimal loss by position for every run."""
    with paper_figure(path, 2.8) as (_, (axes,)):
        axes.axhline(0, color="gray", linewidth=0.8)
        for number, (name, curve) in enumerate(runs.items()):
            gap, error = (np.array(curve[key], float) for key in ("by_position", "by_position_error"))
            error = error if len(runs) <= _MAX_BANDS else None
            draw_curve(axes, number, np.arange(1, len(gap) + 1), gap, error, curve["num_sequences"], label=name)
        axes.set(xlabel="position in the sequence", ylabel="excess over the optimal loss (nats)")
        axes.xaxis.get_major_locator().set_params(integer=True)


def plot_training_of_runs(runs: Mapping[str, Any], path: str | os.PathLike) -> None:
    """Plot KL(Bayes || model) against tokens for every run that has it."""
    with paper_figure(path, 2.8) as (_, (axes,)):
        for number, (name, curve) in enumerate(runs.items()):
            points = [(x, y) for x, y in zip(curve["tokens"], curve["kl_bayes"], strict=True) if x > 0]
            draw_curve(axes, number, *zip(*points, strict=True), label=name)
        logarithmic_counts(axes)
        logarithmic_divergences(axes)
        axes.set(xlabel="tokens", ylabel="KL(Bayes-optimal || model)\n(nats per token)")


def plot_questions(tasks: Mapping[str, Sequence[Mapping[str, Any]]], path: str | os.PathLike) -> None:
    """Plot the centered accuracy by task, with the runs of a task below each other."""
    runs = list(zip(*tasks.values(), strict=True))
    series = [[[row[key] for key in _POINT] for row in rows] for rows in runs]
    height = 1.2 + len(tasks) * (0.1 + 0.09 * len(runs))
    with paper_figure(path, height) as (_, (axes,)):
        axes.axvline(0, color="gray", linewidth=0.8)
        draw_rows(axes, list(tasks), series, [{"label": rows[0]["run"]} for rows in runs])
        axes.set_xlabel("centered accuracy (0 is chance)")
