"""Plots of a run, in colours that the colour-blind can tell apart (Okabe and Ito, 2008)."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from ..files import atomic_file
from .curves import Panel

STYLES = {
    "uniform": {"color": "#CC79A7", "linestyle": "-", "label": "uniform"},
    "unigram": {"color": "#E69F00", "linestyle": "--", "label": "unigram, in context"},
    "process_unigram": {"color": "#E69F00", "linestyle": "-", "label": "unigram of the process"},
    "bigram": {"color": "#0072B2", "linestyle": "--", "label": "bigram, in context"},
    "process_bigram": {"color": "#0072B2", "linestyle": "-", "label": "bigram of the process"},
    "bayes": {"color": "#009E73", "linestyle": "-", "label": "Bayes-optimal"},
    "informed": {"color": "#009E73", "linestyle": "--", "label": "told the HMM"},
}
"""One look for each predictor: the colour says what it counts, dashes that it counts in the context alone."""

_SIZE = (8.4, 4.4)


def plot_loss(history: Sequence[dict[str, Any]], path: str | os.PathLike, *, title: str) -> None:
    """Held-out cross-entropy of the model against tokens, the predictors of the HMM as lines.

    Args:
        history (sequence of `dict`): rows of `history.jsonl`, some with `eval_cross_entropy` and its kin.
        path (path): where the PNG goes.
        title (`str`): above the plot.
    """
    held_out = _evaluations(history)
    figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
    for name, style in _styles(held_out[-1], "eval_cross_entropy_"):
        level = held_out[-1][f"eval_cross_entropy_{name}"]
        axes.axhline(level, linewidth=1.4, **{**style, "label": f"{style['label']}: {level:.3f}"})
    places, losses = zip(*((row["tokens"], row["eval_cross_entropy"]) for row in held_out), strict=True)
    axes.plot(places, losses, color="black", marker="o", markersize=3, linewidth=1.4, label="model")
    axes.set(xlabel="tokens", ylabel="held-out cross-entropy (nats a token)", title=title, xscale="log")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    _finish(figure, [axes], path)


def plot_divergence(history: Sequence[dict[str, Any]], path: str | os.PathLike, *, title: str) -> None:
    """KL divergence of the model from each predictor against the training step, both on logarithmic scales.

    A dip in a curve is the time at which the model predicts most like that predictor.
    """
    held_out = _evaluations(history)
    steps = [row["step"] for row in held_out]
    figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
    for name, style in _styles(held_out[-1], "eval_kl_"):
        values = [row[f"eval_kl_{name}"] for row in held_out]
        axes.plot(steps, values, marker="o", markersize=3, linewidth=1.4, **style)
    axes.set(xlabel="optimizer step", ylabel="KL(predictor || model) (nats a token)", title=title)
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    _finish(figure, [axes], path)


def plot_positions(measured: dict[str, Any], path: str | os.PathLike, *, title: str) -> None:
    """Cross-entropy of the model and the predictors along the sequence, and below it the model's excess over Bayes.

    Args:
        measured (`dict`): the result of [`~hmm_datasets.metrics.law.measure_law`].
        path (path): where the PNG goes.
        title (`str`): above the plot.
    """
    figure, (above, below) = plt.subplots(
        2, figsize=(8.4, 6.2), sharex=True, height_ratios=(2, 1), layout="constrained"
    )
    entropy = measured["cross_entropy"]
    places = np.arange(1, len(entropy["model"]["by_position"]) + 1)
    for name, style in _styles(entropy):
        above.plot(places, entropy[name]["by_position"], linewidth=1.4, **style)
    above.plot(places, entropy["model"]["by_position"], color="black", linewidth=1.4, label="model")
    above.set(ylabel="cross-entropy (nats)", title=title)
    gap, error = (np.array(measured["bayes_gap"][name]) for name in ("by_position", "by_position_error"))
    floor = STYLES[measured["floor"]]
    below.axhline(0, linewidth=1.4, color=floor["color"], linestyle=floor["linestyle"])
    below.fill_between(places, gap - 1.96 * error, gap + 1.96 * error, color="black", alpha=0.15, linewidth=0)
    below.plot(places, gap, color="black", linewidth=1.4, label=f"model less {floor['label']},\n95% interval")
    below.set(xlabel="position in the sequence", ylabel="excess (nats)")
    _finish(figure, [above, below], path)


def plot_panel(panel: Panel, path: str | os.PathLike, *, title: str) -> None:
    """Curves of a run against its tokens, on a logarithmic axis where that suits them.

    Args:
        panel ([`~hmm_datasets.report.curves.Panel`]): such as the losses.
        path (path): where the PNG goes.
        title (`str`): above the plot.
    """
    figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
    if panel.level is not None:
        name, level = panel.level
        style = {**STYLES["bayes"], "label": f"{name}: {level:.3f}"}
        axes.axhline(level, linewidth=1.4, **style)
    for curve, colour in zip(panel.curves, ("#0072B2", "black"), strict=False):
        label = f"{curve.label}: {curve.values[-1]:.3f}" if curve.label else None
        is_sparse = len(curve.values) < 60
        axes.plot(
            curve.tokens,
            curve.values,
            color=colour,
            marker="o" if is_sparse else None,
            markersize=3,
            linewidth=1.2,
            label=label,
        )
    axes.set(xlabel="tokens", ylabel=panel.title, title=title)
    if panel.suits_logarithm():
        axes.set_xscale("log")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if axes.get_ylim()[1] >= 1e4:
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    _finish(figure, [axes], path)


def plot_stages(stages: dict[str, Sequence[dict[str, Any]]], path: str | os.PathLike, *, title: str) -> None:
    """Training loss of consecutive stages (pretraining, midtraining, SFT) against the tokens seen since the first."""
    figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
    before = 0
    for colour, (name, history) in zip(("#0072B2", "#E69F00", "#009E73"), stages.items(), strict=False):
        train = [(before + row["tokens"], row["loss"]) for row in history if "loss" in row]
        axes.plot(*zip(*train, strict=True), color=colour, linewidth=1.5, label=name)
        before = train[-1][0]
    axes.set(xlabel="tokens", ylabel="training loss (nats a token)", title=title)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    _finish(figure, [axes], path)


def _styles(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, dict[str, Any]]]:
    """The predictors that `values` knows, and how they look."""
    return [(name, style) for name, style in STYLES.items() if f"{prefix}{name}" in values]


def _evaluations(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The evaluated rows a logarithmic axis can show, one a step."""
    rows = {row["step"]: row for row in history if "eval_cross_entropy" in row and row["step"] > 0}
    return list(rows.values())


def _finish(figure: Figure, all_axes: Sequence[Axes], path: str | os.PathLike) -> None:
    for axes in all_axes:
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8.5, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save_figure(figure, path)


def save_figure(figure: Figure, path: str | os.PathLike) -> None:
    """Write a PNG, whole or not at all, and close the figure."""
    with atomic_file(Path(path)) as temporary:
        figure.savefig(temporary, dpi=150, format="png")
    plt.close(figure)
