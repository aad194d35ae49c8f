"""Figures of an evaluation, each a PNG and a PDF as wide as the column of a paper.

Colors are those of Okabe and Ito (2008), which color-blind readers can distinguish, and curves never differ in color
alone. Bands and bars are 95% intervals.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from .hmm_plots import belief_colors, draw_simplex
from .plots import (
    PAPER,
    POINTS,
    WIDTH,
    draw_band,
    draw_intervals,
    markers,
    plot_positions,
    predictor_styles,
    save_figure,
)

_MIN_KL = 1e-6  # nats; smaller values are rounding, and would compress the rest of a logarithmic axis

_CLOSEST = {"linestyle": "", "marker": "*", "markersize": 9, "markerfacecolor": "black", "markeredgewidth": 0.6}
_PASSED = {"linestyle": "", "marker": "o", "markersize": 8, "markerfacecolor": "none", "markeredgewidth": 1.2}

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
    folder = Path(folder)
    training, points = report.get("training", {}), items.get("beliefs", ())
    steps = [row for row in training.get("rows", ()) if row["step"] > 0]
    probed = [row for row in training.get("rows", ()) if row.get("belief_r2") is not None]
    in_simplex = _in_simplex(points)
    figures: dict[str, tuple[Any, Callable[[Any, Path], None]]] = {
        "positions": (report.get("optimum"), plot_positions),
        "kl_positions": (report.get("optimum"), plot_kl_positions),
        "training": (training if len(steps) > 1 else None, plot_training),
        "beliefs": (report.get("beliefs"), plot_belief_layers),
        "simplex": (points if in_simplex else None, plot_simplex),
        "vectors": (None if in_simplex else points, plot_vectors),
        "beliefs_training": (probed if len(probed) > 1 else None, plot_beliefs_training),
        "core": (report.get("core"), plot_core),
    }
    paths = []
    for name, (data, draw) in figures.items():
        if data:
            paths.append(folder / f"{name}.png")
            draw(data, paths[-1])
    return paths


@rc_context(PAPER)
def plot_kl_positions(optimum: Report, path: str | os.PathLike) -> None:
    """Plot KL(predictor || model) by position in the sequence.

    Args:
        optimum (`dict`): the result of [`~hmm_datasets.evaluation.optimum.measure_optimum`].
        path (path): where the PNG goes; a PDF is written next to it.
    """
    figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
    axes = figure.subplots()
    highest = 0.0
    for number, (name, style) in enumerate(predictor_styles(optimum["kl"])):
        values, errors = (np.array(optimum["kl"][name][key], float) for key in ("by_position", "by_position_error"))
        highest = max(highest, np.nanmax(values))
        if values.max() < _MIN_KL:
            style = {**style, "label": f"{style['label']} (below {_MIN_KL:g})"}
        positions = np.arange(1, len(values) + 1)
        draw_band(axes, positions, values, errors, optimum["num_sequences"], style["color"])
        axes.plot(positions, values, **style, **markers(number, len(values)))
    _logarithmic(axes, highest)
    axes.set(xlabel="position in the sequence", ylabel="KL(predictor || model) (nats)")
    axes.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(loc="outside lower center", ncols=2)
    save_figure(figure, path)


def _logarithmic(axes: Axes, highest: float) -> None:
    """Make the axis of divergences logarithmic, if one of them is above rounding error."""
    if highest > _MIN_KL:
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(bottom=max(axes.get_ylim()[0], _MIN_KL))


@rc_context(PAPER)
def plot_training(training: Report, path: str | os.PathLike) -> None:
    """Plot KL(predictor || model) during training, with the steps at which each predictor is closest and passed.

    A strip above the plot shows the learning phases.

    Args:
        training (`dict`): the result of [`learning_phases`], with two or more steps after step 0.
        path (path): where the PNG goes; a PDF is written next to it.
    """
    rows = [row for row in training["rows"] if row["step"] > 0]
    steps = [row["step"] for row in rows]
    figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
    (strip, axes) = figure.subplots(2, sharex=True, height_ratios=(0.075, 1))
    styles = dict(predictor_styles(training["predictors"]))
    lines = []
    for number, (name, style) in enumerate(styles.items()):
        phase = training["predictors"][name]
        values = [row[f"kl_{name}"] for row in rows]
        line = {**style, "label": f"{style['label']}: {_when(phase)}", **markers(number, len(rows))}
        lines += axes.plot(steps, values, **line)
        for step, mark in ((phase["closest_step"], _CLOSEST), (phase["passed_step"], _PASSED)):
            if step in steps:
                axes.plot(step, values[steps.index(step)], markeredgecolor=style["color"], zorder=3, **mark)
    _logarithmic(axes, max(row[f"kl_{name}"] for row in rows for name in styles))
    axes.set(xlabel="optimizer step", ylabel="KL(predictor || model) (nats per token)", xscale="log")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_minor_formatter(NullFormatter())
    if steps[-1] < 10 * steps[0]:  # there may be no power of ten for a tick
        axes.xaxis.set_minor_locator(LogLocator(subs=(2, 3, 5)))
        axes.xaxis.set_minor_formatter(EngFormatter(sep=""))
    marks = [
        Line2D([], [], markeredgecolor="gray", label=label, **mark)
        for label, mark in (("closest", _CLOSEST), ("passed", _PASSED))
    ]
    figure.legend(handles=[*lines, *marks], loc="outside lower center")
    _draw_phases(strip, training["phases"], steps, styles)
    save_figure(figure, path)


def _when(phase: Report) -> str:
    passed = "never passed" if phase["passed_step"] is None else f"passed at {phase['passed_step']:,}"
    return f"closest at {phase['closest_step']:,}, {passed}"


def _draw_phases(strip: Axes, phases: Sequence[Report], steps: list[int], styles: Report) -> None:
    """Draw a strip with the color and the marker of the nearest predictor."""
    strip.axis("off")
    strip.set_ylim(0, 1)
    # A phase ends half way between two evaluations on the logarithmic axis.
    edges = np.sqrt(np.multiply(steps[:-1], steps[1:], dtype=float)).tolist()
    edges = [float(steps[0]), *edges, float(steps[-1])]
    for phase in phases:
        inside = [index for index, step in enumerate(steps) if phase["first_step"] <= step <= phase["last_step"]]
        if not inside:
            continue  # the phase has only step 0
        low, high = edges[inside[0]], edges[inside[-1] + 1]
        style = styles[phase["predictor"]]
        strip.axvspan(low, high, color=style["color"], alpha=0.35, linewidth=0)
        marker = markers([*styles].index(phase["predictor"]), 1)["marker"]
        strip.plot(np.sqrt(low * high), 0.5, marker, color=style["color"], markersize=3)


@rc_context(PAPER)
def plot_belief_layers(beliefs: Report, path: str | os.PathLike) -> None:
    """Plot the held-out R2 of linear probes by layer, with the two controls.

    Args:
        beliefs (`dict`): the result of [`~hmm_datasets.evaluation.beliefs.probe_beliefs`].
        path (path): where the PNG goes; a PDF is written next to it.
    """
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    axes = figure.subplots()
    layers = beliefs["layers"]
    styles = {
        "r2": {"color": "#009E73", "marker": "o", "linestyle": "-", "label": "trained model"},
        "untrained_r2": {"color": "#E69F00", "marker": "s", "linestyle": "--", "label": "untrained model"},
        "shuffled_r2": {"color": "#0072B2", "marker": "^", "linestyle": ":", "label": "shuffled beliefs"},
    }
    single = [name for name in layers if name != "all"]
    for key, style in styles.items():
        values = np.array([layers[name].get(key) for name in layers], float)
        axes.plot(range(len(single)), values[: len(single)], markersize=4, **style)
        # Not connected by the line, since all layers together are not the layer after the last.
        axes.plot(range(len(single), len(layers)), values[len(single) :], **{**style, "label": None}, markersize=4)
    # If there are many layers, only some are named, but always "all".
    named = [*range(0, len(single), math.ceil(len(single) / 14)), *range(len(single), len(layers))]
    axes.set(xlabel="layer probed (0 is the embedding)", ylabel="R² of beliefs, held out")
    axes.set_xticks(named, [list(layers)[index] for index in named])
    axes.set(ylim=(min(-0.05, axes.get_ylim()[0]), 1.03), xlim=(-0.4, len(layers) - 0.6))
    figure.legend(loc="outside lower center", ncols=3, columnspacing=1.2)
    save_figure(figure, path)


@rc_context(PAPER)
def plot_simplex(points: Sequence[Report], path: str | os.PathLike) -> None:
    """Plot true beliefs over three or four states next to probed ones; the color is the true belief.

    Four states are the corners of a tetrahedron, which is drawn in a row for each of two corners, as seen from above.

    Args:
        points (sequence of `dict`): `belief` and `probed`, three or four numbers each.
        path (path): where the PNG goes; a PDF is written next to it.
    """
    true = np.array([point["belief"] for point in points])
    views = (3,) if true.shape[1] == 3 else (3, 0)
    figure = Figure(figsize=(WIDTH, 1.75 * len(views)), layout="constrained")
    rows = figure.subplots(len(views), 2, squeeze=False)
    for panels, above in zip(rows, views, strict=True):
        for axes, key, title in zip(panels, ("belief", "probed"), ("true beliefs", "linear probe"), strict=True):
            draw_simplex(axes, np.array([point[key] for point in points]), belief_colors(true), above)
            axes.set_title(title, pad=8)
    save_figure(figure, path)


def _in_simplex(points: Sequence[Report]) -> bool:
    """Whether points are distributions over three or four states."""
    beliefs = np.array([point["belief"] for point in points])
    return beliefs.shape[1:] in ((3,), (4,)) and bool(
        (beliefs > -1e-5).all() and (np.abs(beliefs.sum(1) - 1) < 1e-4).all()
    )


@rc_context(PAPER)
def plot_vectors(points: Sequence[Report], path: str | os.PathLike) -> None:
    """Plot true predictive vectors next to probed ones, by the first two principal components of the true ones.

    The color is the third component, or the second if there are no more.

    Args:
        points (sequence of `dict`): `belief` and `probed`, two numbers or more each.
        path (path): where the PNG goes; a PDF is written next to it.
    """
    true, probed = (np.array([point[key] for point in points]) for key in ("belief", "probed"))
    mean = true.mean(axis=0)
    directions = np.linalg.svd(true - mean, full_matrices=False)[2][:3].T
    colors = ((true - mean) @ directions)[:, -1]
    figure = Figure(figsize=(WIDTH, 1.9), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, vectors, title in zip(panels, (true, probed), ("predictive vectors", "linear probe"), strict=True):
        x, y = ((vectors - mean) @ directions)[:, :2].T
        axes.scatter(x, y, c=colors, cmap="viridis", s=1.5, linewidths=0, rasterized=True)
        axes.set(title=title, xlabel="first component", aspect="equal")
    panels[0].set_ylabel("second component")
    save_figure(figure, path)


@rc_context(PAPER)
def plot_beliefs_training(rows: Sequence[Report], path: str | os.PathLike) -> None:
    """Plot the held-out R2 of the belief, and of its parts, from all layers, by checkpoint.

    Args:
        rows (sequence of `dict`): `step`, and `belief_r2` and for each part `belief_PART_r2`.
        path (path): where the PNG goes; a PDF is written next to it.
    """
    figure = Figure(figsize=(WIDTH, 2.3), layout="constrained")
    axes = figure.subplots()
    for key in (key for key in rows[0] if key.startswith("belief_") and key.endswith("_r2")):
        name = key.removeprefix("belief_").removesuffix("r2").strip("_")
        values = [np.nan if row[key] is None else row[key] for row in rows]
        axes.plot([row["step"] for row in rows], values, marker="o", markersize=3, label=name or "belief")
    axes.set(xlabel="step", ylabel="R² of beliefs, held out", xscale="symlog")
    axes.set_ylim(min(-0.05, axes.get_ylim()[0]), 1.03)
    figure.legend(loc="outside lower center", ncols=3)
    save_figure(figure, path)


@rc_context(PAPER)
def plot_core(core: Report, path: str | os.PathLike) -> None:
    """Plot the centered accuracy of each task with its interval, the control with corrupted inputs, and the mean.

    Args:
        core (`dict`): the result of the CORE metric.
        path (path): where the PNG goes; a PDF is written next to it.
    """
    rows = [(name, task["centered"], task["low"], task["high"], task["corrupted_centered"])
            for name, task in core["tasks"].items()]  # fmt: skip
    rows.append((core["name"], core["score"], core["low"], core["high"], core["corrupted_score"]))
    figure = Figure(figsize=(WIDTH, 1.1 + 0.2 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color="gray", linewidth=0.8)
    heights = np.arange(len(rows), dtype=float)
    heights[-1] += 0.6  # the name of the score has up to three lines
    axes.axhline(len(rows) - 1.4, color="black", linewidth=0.5)
    _, scores, lows, highs, corrupted = (np.array(column, object) for column in zip(*rows, strict=True))
    scores, lows, highs, corrupted = (column.astype(float) for column in (scores, lows, highs, corrupted))
    axes.plot(corrupted, heights, marker="x", markersize=4, linestyle="", color="#D55E00", label="corrupted input")
    draw_intervals(axes, scores, lows, highs, heights, label="model, 95% interval", **POINTS)
    names = [row[0].replace(" (", "\n(").replace(", ", ",\n") for row in rows]
    axes.set(yticks=heights, yticklabels=names, ylim=(len(rows) + 0.4, -0.6))
    figure.supxlabel(f"centered accuracy (0 is chance, {core['baselines']} baselines)", fontsize=8)
    axes.get_yticklabels()[-1].set_fontweight("bold")
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside upper center", ncols=2)
    save_figure(figure, path)
