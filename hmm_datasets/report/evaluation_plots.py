"""Figures of an evaluation, each a PNG and a PDF as wide as the column of a paper.

Colors are those of Okabe and Ito (2008), which color-blind readers can distinguish, and curves never differ in color
alone. Bands and bars are 95% intervals.
"""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from .hmm_plots import plot_simplices
from .plots import (
    MIN_KL,
    draw_curve,
    draw_figures,
    logarithmic_counts,
    logarithmic_divergences,
    paper_figure,
    plot_positions,
    predictor_styles,
)

_CLOSEST = {"linestyle": "", "marker": "*", "markersize": 9, "markerfacecolor": "black", "markeredgewidth": 0.6}
_PASSED = {"linestyle": "", "marker": "o", "markersize": 8, "markerfacecolor": "none", "markeredgewidth": 1.2}
_PROBES = {
    "r2": {"color": "#009E73", "marker": "o", "linestyle": "-", "label": "trained model"},
    "untrained_r2": {"color": "#E69F00", "marker": "s", "linestyle": "--", "label": "untrained model"},
    "shuffled_r2": {"color": "#0072B2", "marker": "^", "linestyle": ":", "label": "shuffled beliefs"},
}

Report = Mapping[str, Any]


def draw_evaluation(report: Report, items: Mapping[str, Sequence[dict]], folder: str | os.PathLike) -> list[Path]:
    """Draw all figures for which a report has data.

    Args:
        report (`dict`): the content of `report.json`.
        items (`dict`): for each task its items, as in `items/TASK.jsonl`.
        folder (path): where the figures go.

    Returns:
        list of `Path`: the PNGs; each has a PDF of the same name.
    """
    training, points = report.get("training", {}), items.get("beliefs", ())
    steps = [row for row in training.get("rows", ()) if row["step"] > 0]
    probed = [row for row in training.get("rows", ()) if row.get("belief_r2") is not None]
    true, of_probe = (np.array([point[key] for point in points]) for key in ("belief", "probed"))
    is_simplex = _are_distributions(true)
    figures = {
        "positions": (report.get("optimum"), plot_positions),
        "kl_positions": (report.get("optimum"), plot_kl_positions),
        "training": (training if len(steps) > 1 else None, plot_training),
        "beliefs": (report.get("beliefs"), plot_belief_layers),
        "simplex": ({"true beliefs": true, "linear probe": of_probe} if is_simplex else None, plot_simplices),
        "vectors": (None if is_simplex or not points else (true, of_probe), plot_vectors),
        "beliefs_training": (probed if len(probed) > 1 else None, plot_beliefs_training),
    }
    return draw_figures(figures, folder)


def _are_distributions(beliefs: np.ndarray) -> bool:
    """Whether beliefs are distributions over three or four states."""
    is_narrow = beliefs.shape[1:] in ((3,), (4,))
    return is_narrow and bool((beliefs > -1e-5).all() and (np.abs(beliefs.sum(1) - 1) < 1e-4).all())


def plot_kl_positions(optimum: Report, path: str | os.PathLike) -> None:
    """Plot KL(predictor || model) by position in the sequence.

    Args:
        optimum (`dict`): the result of [`~hmm_datasets.evaluation.optimum.measure_optimum`].
        path (path): where the PNG goes; a PDF is written next to it.
    """
    with paper_figure(path, 3.1) as (_, (axes,)):
        for number, (name, style) in enumerate(predictor_styles(optimum["kl"])):
            values, errors = (
                np.array(optimum["kl"][name][key], float) for key in ("by_position", "by_position_error")
            )
            if values.max() < MIN_KL:
                style = {**style, "label": f"{style['label']} (below {MIN_KL:g})"}
            draw_curve(axes, number, np.arange(1, len(values) + 1), values, errors, optimum["num_sequences"], **style)
        logarithmic_divergences(axes)
        axes.set(xlabel="position in the sequence", ylabel="KL(predictor || model) (nats)")
        axes.xaxis.get_major_locator().set_params(integer=True)


def plot_training(training: Report, path: str | os.PathLike) -> None:
    """Plot KL(predictor || model) during training, with the steps at which each predictor is closest and passed.

    Args:
        training (`dict`): the result of [`learning_phases`], with two or more steps after step 0.
        path (path): where the PNG goes; a PDF is written next to it.
    """
    rows = [row for row in training["rows"] if row["step"] > 0]
    steps = [row["step"] for row in rows]
    with paper_figure(path, 3.7) as (figure, (axes,)):
        for number, (name, style) in enumerate(predictor_styles(training["predictors"])):
            phase = training["predictors"][name]
            values = [row[f"kl_{name}"] for row in rows]
            draw_curve(axes, number, steps, values, **{**style, "label": f"{style['label']}: {_when(phase)}"})
            for step, mark in ((phase["closest_step"], _CLOSEST), (phase["passed_step"], _PASSED)):
                if step in steps:
                    axes.plot(step, values[steps.index(step)], markeredgecolor=style["color"], zorder=3, **mark)
        logarithmic_divergences(axes)
        logarithmic_counts(axes)
        axes.set(xlabel="optimizer step", ylabel="KL(predictor || model) (nats per token)")
        marks = [
            Line2D([], [], markeredgecolor="gray", label=label, **mark)
            for label, mark in (("closest", _CLOSEST), ("passed", _PASSED))
        ]
        figure.legend(handles=[*axes.get_legend_handles_labels()[0], *marks], loc="outside lower center")


def _when(phase: Report) -> str:
    passed = "never passed" if phase["passed_step"] is None else f"passed at {phase['passed_step']:,}"
    return f"closest at {phase['closest_step']:,}, {passed}"


def plot_belief_layers(beliefs: Report, path: str | os.PathLike) -> None:
    """Plot the held-out R2 of linear probes by layer, with the two controls.

    Args:
        beliefs (`dict`): the result of [`~hmm_datasets.evaluation.beliefs.probe_beliefs`].
        path (path): where the PNG goes; a PDF is written next to it.
    """
    layers = beliefs["layers"]
    single = [name for name in layers if name != "all"]
    # If there are many layers, only some are named, but always "all".
    named = [*range(0, len(single), math.ceil(len(single) / 14)), *range(len(single), len(layers))]
    with paper_figure(path, 2.6) as (_, (axes,)):
        for key, style in _PROBES.items():
            values = np.array([layers[name].get(key) for name in layers], float)
            axes.plot(range(len(single)), values[: len(single)], markersize=4, **style)
            # Not connected by the line, since all layers together are not the layer after the last.
            axes.plot(range(len(single), len(layers)), values[len(single) :], **{**style, "label": None}, markersize=4)
        axes.set(xlabel="layer probed (0 is the embedding)", xlim=(-0.4, len(layers) - 0.6))
        axes.set_xticks(named, [list(layers)[index] for index in named])
        _show_r2(axes)


def _show_r2(axes: Axes) -> None:
    axes.set(ylabel="R² of beliefs, held out", ylim=(min(-0.05, axes.get_ylim()[0]), 1.03))


def plot_vectors(vectors: tuple[np.ndarray, np.ndarray], path: str | os.PathLike) -> None:
    """Plot true predictive vectors next to probed ones, by the first two principal components of the true ones.

    The color is the third component, or the second if there are no more.

    Args:
        vectors (two `np.ndarray` of shape `(N, D)`): true ones and probed ones, `D` above 1.
        path (path): where the PNG goes; a PDF is written next to it.
    """
    mean = vectors[0].mean(axis=0)
    directions = np.linalg.svd(vectors[0] - mean, full_matrices=False)[2][:3].T
    places = [(part - mean) @ directions for part in vectors]
    with paper_figure(path, 1.9, (1, 2), sharex=True, sharey=True) as (_, panels):
        for axes, place, title in zip(panels, places, ("predictive vectors", "linear probe"), strict=True):
            axes.scatter(*place[:, :2].T, c=places[0][:, -1], cmap="viridis", s=1.5, linewidths=0, rasterized=True)
            axes.set(title=title, xlabel="first component", aspect="equal")
        panels[0].set_ylabel("second component")


def plot_beliefs_training(rows: Sequence[Report], path: str | os.PathLike) -> None:
    """Plot the held-out R2 of the belief, and of its parts, from all layers, by checkpoint.

    Args:
        rows (sequence of `dict`): `step`, and `belief_r2` and for each part `belief_PART_r2`.
        path (path): where the PNG goes; a PDF is written next to it.
    """
    keys = [key for key in rows[0] if key.startswith("belief_") and key.endswith("_r2")]
    with paper_figure(path, 2.3) as (_, (axes,)):
        for number, key in enumerate(keys):
            name = key.removeprefix("belief_").removesuffix("r2").strip("_")
            values = np.array([row[key] for row in rows], float)
            draw_curve(axes, number, [row["step"] for row in rows], values, label=name or "belief")
        axes.set(xlabel="step", xscale="symlog")
        _show_r2(axes)
