"""Plots of a run, in colors that color-blind readers can distinguish (Okabe and Ito, 2008)."""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.category import StrCategoryFormatter
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter, FixedFormatter, Formatter, FuncFormatter, NullFormatter

from ..errors import InputError, printable
from ..files import atomic_file
from ..intervals import half_width
from .curves import Panel
from .tables import PREDICTORS

_COLORS_AND_LINES = {
    "uniform": ("#CC79A7", "-"),
    "unigram": ("#E69F00", "--"),
    "process_unigram": ("#E69F00", "-"),
    "bigram": ("#0072B2", "-."),
    "process_bigram": ("#0072B2", "-"),
    "bayes": ("#009E73", "-"),
    "oracle": ("#009E73", "--"),
}
STYLES = {
    name: {"color": color, "linestyle": line, "label": PREDICTORS[name]}
    for name, (color, line) in _COLORS_AND_LINES.items()
}
"""Style of each predictor. The color shows the kind; a dashed line is an n-gram that is counted in the context."""

POINTS = {"fmt": "o", "color": "#0072B2", "markersize": 4, "capsize": 2}
"""Plot style of points with intervals."""

_COLORS = ("black", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("-", "--", "-.", ":")

_NGRAM_COLORS = ("#56B4E9", "#D55E00", "#F0E442")  # of orders 3 and more

WIDTH = 3.5
"""Width of a figure in inches: the column of a paper."""

PAPER = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "lines.linewidth": 1.1,
    "lines.markersize": 3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
}
"""Settings of matplotlib for a figure that is printed at its actual size."""

SIZE = (8.4, 4.4)
"""Width and height of a plot for a screen, in inches."""


@rc_context(PAPER)
def plot_positions(measured: dict[str, Any], path: str | os.PathLike, *, title: str = "") -> None:
    """Plot the cross-entropy of the model and the predictors by position, and below it the model's excess.

    Args:
        measured (`dict`): the result of [`~hmm_datasets.evaluation.optimum.measure_optimum`].
        path (path): where the PNG goes; a PDF is written next to it.
        title (`str`, *optional*): title of the plot.
    """
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    (above, below) = figure.subplots(2, sharex=True, height_ratios=(2, 1))
    entropy = measured["cross_entropy"]
    positions = np.arange(1, len(entropy["model"]["by_position"]) + 1)
    for number, (name, style) in enumerate(predictor_styles(entropy)):
        above.plot(positions, entropy[name]["by_position"], **style, **markers(number, len(positions)))
    above.plot(positions, entropy["model"]["by_position"], label="model", **model_style(len(positions)))
    above.set(ylabel="cross-entropy (nats)", title=title)
    gap, error = (np.array(measured["bayes_gap"][name], float) for name in ("by_position", "by_position_error"))
    best = STYLES[measured["floor"]]
    below.axhline(0, color=best["color"], linestyle=best["linestyle"])
    draw_band(below, positions, gap, error, measured["num_sequences"], label="95% interval")
    below.plot(positions, gap, **model_style(len(positions)))
    below.set(xlabel="position in the sequence", ylabel="excess (nats)")
    below.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(loc="outside lower center", ncols=2)
    save_figure(figure, path)


def plot_predictors(entropies: Mapping[str, Any], path: str | os.PathLike, *, title: str) -> None:
    """Plot the expected loss of each predictor of a process by position.

    Args:
        entropies (mapping): the `cross_entropy` of [`~hmm_datasets.report.hmm_description.describe`].
        path (path): where the PNG goes.
        title (`str`): title of the plot.
    """
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    for number, (name, style) in enumerate(predictor_styles(entropies)):
        losses = entropies[name]["by_position"]
        axes.plot(np.arange(1, len(losses) + 1), losses, **style, **markers(number, len(losses)))
    axes.set(xlabel="position in the sequence", ylabel="expected loss (nats)", title=title)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    save_figure(figure, path)


def plot_panel(panel: Panel, path: str | os.PathLike, *, title: str) -> None:
    """Plot the curves of a panel against tokens.

    Args:
        panel ([`~hmm_datasets.report.curves.Panel`]): the panel.
        path (path): where the PNG goes.
        title (`str`): title of the plot.
    """
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    if panel.level is not None:
        name, level = panel.level
        style = {**STYLES["bayes"], "label": f"{name}: {level:.3f}"}
        axes.axhline(level, linewidth=1.4, **style)
    for number, curve in enumerate(panel.curves):
        label = f"{curve.label}: {curve.values[-1]:.3f}" if curve.label else None
        is_sparse = len(curve.values) < 60
        axes.plot(
            curve.tokens,
            curve.values,
            **run_style(number),
            marker="o" if is_sparse else None,
            markersize=3,
            linewidth=1.2,
            label=label,
        )
    axes.set(xlabel="tokens", ylabel=panel.title, title=title)
    if panel.suits_logarithm():
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if axes.get_ylim()[1] >= 1e4:
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    save_plot(figure, axes, path)


def predictor_styles(names: Iterable[str]) -> list[tuple[str, dict[str, Any]]]:
    """The predictors among `names`, from the weakest to the strongest, with their plot styles.

    ```python
    >>> [(name, style["label"]) for name, style in predictor_styles(["model", "bayes", "3-gram"])]
    [('3-gram', '3-gram, in context'), ('bayes', 'Bayes-optimal')]

    ```
    """
    names = set(names)
    orders = sorted(int(name.removesuffix("-gram")) for name in names if name.endswith("-gram"))
    styles = {name: style for name, style in STYLES.items() if name not in ("bayes", "oracle")}
    for order in orders:
        color, dashes = _NGRAM_COLORS[(order - 3) % 3], (":", "--", "-.")[(order - 3) // 3 % 3]
        styles[f"{order}-gram"] = {"color": color, "linestyle": dashes, "label": f"{order}-gram, in context"}
    styles |= {name: STYLES[name] for name in ("bayes", "oracle")}
    return [(name, style) for name, style in styles.items() if name in names]


def run_style(number: int) -> dict[str, Any]:
    """Color and line style of run or curve `number`: 28 different ones; neighbors differ in more than color."""
    return {"color": _COLORS[number % 7], "linestyle": _DASHES[number % 4]}


def model_style(points: int) -> dict[str, Any]:
    """Plot style of a model's curve with this many points."""
    return {"color": "black", "linewidth": 1.6, "marker": "x" if points == 1 else None}


def markers(number: int, points: int) -> dict[str, Any]:
    """A few markers for curve `number`, shifted between curves, so that curves differ in more than color."""
    every = max(1, points // 8)
    return {"marker": "osD^vP*X"[number % 8], "markevery": (number % every, every)}


def draw_band(axes: Axes, x: Any, values: Any, errors: Any, count: int, color: str = "black", **style: Any) -> None:
    """Draw the 95% interval around a curve from its standard errors over `count` sequences, if there is one."""
    half = half_width(errors, count)
    if half is not None:
        axes.fill_between(x, values - half, values + half, color=color, alpha=0.15, linewidth=0, **style)


def draw_intervals(axes: Axes, values: Any, lows: Any, highs: Any, heights: Any, **style: Any) -> None:
    """Draw points with horizontal intervals; those that are NaN are left out."""
    bars = np.nan_to_num(np.maximum([values - lows, highs - values], 0))
    axes.errorbar(values, heights, xerr=bars, **style)


def draw_points(axes: Axes, points: Any, colors: Any, **style: Any) -> None:
    """Draw many points, each with a color of its own that was computed from its place.

    Matplotlib refuses a color that rounding has put outside of 0 to 1, so that it is clipped here. In a PDF the points
    are an image.

    Args:
        axes ([`~matplotlib.axes.Axes`]): where.
        points (`np.ndarray` of shape `(N, 2)`): the points.
        colors (`np.ndarray` of shape `(N, 3)` or `(N, 4)`): red, green, blue, and opacity, from 0 to 1.
        style (*optional*): further settings of `scatter`.
    """
    axes.scatter(*points.T, c=np.clip(colors, 0, 1), linewidths=0, rasterized=True, **style)


def save_plot(figure: Figure, axes: Axes, path: str | os.PathLike) -> None:
    """Write a figure of [`SIZE`] with its legend beside it."""
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8.5, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save_figure(figure, path)


def save_figure(figure: Figure, path: str | os.PathLike) -> None:
    """Write a figure atomically, as PNG and as PDF. The same figure gives the same bytes with any backend.

    Names in titles, labels and legends are shown as they are, with control codes as text: a `$` begins no formula,
    except in the labels of ticks that matplotlib writes itself, such as powers of ten. A figure with a legend or label
    that does not fit into it is written larger, so that nothing is cut off.

    Args:
        figure ([`~matplotlib.figure.Figure`]): the figure.
        path (path): the PNG, with 300 dots per inch, or 150 if the figure is as wide as [`SIZE`]; or the PDF. The
            other has the same name.

    Raises:
        `InputError`: the path ends in neither `.png` nor `.pdf`.
    """
    path, dots = Path(path), 300 if figure.get_figwidth() < SIZE[0] else 150
    if path.suffix not in (".png", ".pdf"):
        raise InputError(f"{path}: a plot is written as PNG and PDF; expected a name that ends in .png")
    _without_formulas(figure)
    # With fonts of type 42 the text in a PDF stays text, which journals ask for.
    with contextlib.ExitStack() as files, rc_context({"pdf.fonttype": 42}):
        figure.draw_without_rendering()
        inside = figure.bbox_inches.padded(0.01).extents
        needed = figure.get_tightbbox().extents
        is_cut = (needed[:2] < inside[:2]).any() or (needed[2:] > inside[2:]).any()
        dots_and_size: dict[str, Any] = {"dpi": dots, "bbox_inches": "tight" if is_cut else None}
        figure.savefig(files.enter_context(atomic_file(path.with_suffix(".png"))), format="png", **dots_and_size)
        figure.set_layout_engine("none")  # keep the layout of the PNG
        pdf = files.enter_context(atomic_file(path.with_suffix(".pdf")))
        figure.savefig(pdf, format="pdf", metadata={"CreationDate": None}, **dots_and_size)


def _without_formulas(figure: Figure) -> None:
    ticks: set[Artist] = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            ticks.update(axis.get_ticklabels(which="both"))
            formatter = axis.get_major_formatter()
            if isinstance(formatter, FixedFormatter | FuncFormatter | StrCategoryFormatter):
                axis.set_major_formatter(FuncFormatter(_dollars_kept(formatter)))
    for text in figure.findobj(Text):
        if text not in ticks:
            text.set_parse_math(False)
            text.set_text(printable(text.get_text()))


def _dollars_kept(formatter: Formatter) -> Callable[[float, int | None], str]:
    return lambda value, position=None: printable(formatter(value, position)).replace("$", r"\$")
