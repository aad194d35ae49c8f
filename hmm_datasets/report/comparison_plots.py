"""Figures that compare several evaluations, each a PNG and a PDF as wide as the column of a paper."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .plots import (
    draw_curve,
    draw_figures,
    logarithmic_counts,
    logarithmic_divergences,
    paper_figure,
)

FIGURES = {
    "positions": "Excess over the optimal loss by position, with 95% intervals if there are few runs.",
    "training": "KL divergence of the model from the Bayes-optimal predictor during training.",
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
    training = {name: curves for name, curves in comparison.get("training", {}).items() if any(curves["tokens"])}
    figures = {
        "positions": (comparison.get("positions"), plot_positions_of_runs),
        "training": (training, plot_training_of_runs),
    }
    return draw_figures(figures, folder)


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
