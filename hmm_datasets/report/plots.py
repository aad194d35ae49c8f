"""Plots of a run, in colors that color-blind readers can distinguish (Okabe and Ito, 2008)."""

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.category import StrCategoryFormatter
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter, FixedFormatter, Formatter, FuncFormatter, LogLocator, NullFormatter

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

_COLORS = ("black", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("-", "--", "-.", ":")

_NGRAM_COLORS = ("#56B4E9", "#D55E00", "#F0E442")  # of orders 3 and more

Drawing = Callable[[Any, Path], None]
"""A function that draws data into a file."""

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
    "legend.handlelength": 3.0,  # two dashes and a gap, by which curves of one color differ
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

MIN_KL = 1e-6
"""Nats; smaller divergences are rounding, and would compress the rest of a logarithmic axis."""


@contextlib.contextmanager
def paper_figure(
    path: str | os.PathLike, height: float, shape: tuple[int, int] = (1, 1), **panels: Any
) -> Iterator[tuple[Figure, Sequence[Axes]]]:
    """A figure as wide as the column of a paper, which is written when the block ends.

    If it has no legend and curves with labels, the legend goes below, and more than three lines of it add height.

    Args:
        path (path): where the PNG goes; a PDF is written next to it.
        height (`float`): in inches.
        shape (`tuple`): rows and columns of panels.
        panels (*optional*): further settings of `subplots`.
    """
    with rc_context(PAPER):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots(*shape, squeeze=False, **panels).flat
        yield figure, list(axes)
        labels = [label for panel in figure.axes for label in panel.get_legend_handles_labels()[1]]
        if labels and not figure.legends:
            columns = 2 if max(map(len, labels)) < 24 else 1
            figure.legend(loc="outside lower center", ncols=columns)
            figure.set_figheight(height + 0.16 * max(0, math.ceil(len(labels) / columns) - 3))
        save_figure(figure, path)


def plot_positions(measured: Mapping[str, Any], path: str | os.PathLike, *, title: str = "") -> None:
    """Plot the cross-entropy of predictors by position and, if a model was measured, below it the model's excess.

    Args:
        measured (mapping): the result of [`~hmm_datasets.evaluation.optimum.measure_optimum`], or of
            [`~hmm_datasets.report.process_description.describe_process`].
        path (path): where the PNG goes; a PDF is written next to it.
        title (`str`, *optional*): title of the plot.
    """
    entropy, panels = measured["cross_entropy"], 2 if "bayes_gap" in measured else 1
    ratios = {"height_ratios": (2, 1)[:panels], "sharex": True}
    with paper_figure(path, 1.6 + 1.3 * panels, (panels, 1), **ratios) as (_, axes):
        positions = np.arange(1, len(entropy["uniform"]["by_position"]) + 1)
        for number, (name, style) in enumerate(predictor_styles(entropy)):
            draw_curve(axes[0], number, positions, entropy[name]["by_position"], **style)
        axes[0].set(ylabel="cross-entropy (nats)", title=title)
        if panels == 2:
            axes[0].plot(positions, entropy["model"]["by_position"], label="model", **model_style(len(positions)))
            gap, error = (np.array(measured["bayes_gap"][key], float) for key in ("by_position", "by_position_error"))
            best = STYLES[measured["floor"]]
            axes[1].axhline(0, color=best["color"], linestyle=best["linestyle"])
            draw_band(axes[1], positions, gap, error, measured["num_sequences"], label="95% interval")
            axes[1].plot(positions, gap, **model_style(len(positions)))
            axes[1].set(ylabel="excess (nats)")
        axes[-1].set(xlabel="position in the sequence")
        axes[-1].xaxis.get_major_locator().set_params(integer=True)


def plot_panel(panel: Panel, path: str | os.PathLike, *, title: str) -> None:
    """Plot the curves of a panel against tokens.

    Args:
        panel ([`~hmm_datasets.report.curves.Panel`]): the panel.
        path (path): where the PNG goes.
        title (`str`): title of the plot.
    """
    with paper_figure(path, 2.4) as (_, (axes,)):
        if panel.level is not None:
            name, level = panel.level
            axes.axhline(level, **{**STYLES["bayes"], "label": f"{name}: {level:.3f}"})
        for number, curve in enumerate(panel.curves):
            label = f"{curve.label}: {curve.values[-1]:.3f}" if curve.label else None
            mark = "o" if len(curve.values) < 60 else None
            axes.plot(curve.tokens, curve.values, **run_style(number), marker=mark, markersize=2, label=label)
        axes.set(xlabel="tokens", ylabel=panel.title, title=title)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        if panel.suits_logarithm():
            logarithmic_counts(axes)
        if axes.get_ylim()[1] >= 1e4:
            axes.yaxis.set_major_formatter(EngFormatter(sep=""))


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


def draw_curve(axes: Axes, number: int, x: Any, values: Any, errors: Any = None, count: int = 0, **style: Any) -> None:
    """Draw curve `number` with a few markers, and its 95% interval if there are standard errors over sequences."""
    style = run_style(number) | style
    if errors is not None:
        draw_band(axes, x, values, errors, count, style["color"])
    axes.plot(x, values, **markers(number, len(x)), **style)


def logarithmic_counts(axes: Axes) -> None:
    """Make the axis of steps or tokens logarithmic, with numbers such as `20k`."""
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_minor_formatter(NullFormatter())
    low, high = axes.dataLim.intervalx
    if high < 10 * low:  # there may be no power of ten for a tick
        axes.xaxis.set_minor_locator(LogLocator(subs=(2, 3, 5)))
        axes.xaxis.set_minor_formatter(EngFormatter(sep=""))


def logarithmic_divergences(axes: Axes) -> None:
    """Make the axis of divergences logarithmic, if one of them is above rounding error."""
    if axes.dataLim.y1 > MIN_KL:
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(bottom=max(axes.get_ylim()[0], MIN_KL))


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


def draw_figures(figures: Mapping[str, tuple[Any, Drawing]], folder: str | os.PathLike) -> list[Path]:
    """Draw the figures for which there are data into files of their names; return the PNGs."""
    paths = []
    for name, (data, draw) in figures.items():
        if data:
            paths.append(Path(folder) / f"{name}.png")
            draw(data, paths[-1])
    return paths


def save_figure(figure: Figure, path: str | os.PathLike) -> None:
    """Write a figure atomically, as PNG and as PDF. The same figure gives the same bytes with any backend.

    Names in titles, labels and legends are shown as they are, with control codes as text: a `$` begins no formula,
    except in the labels of ticks that matplotlib writes itself, such as powers of ten. A figure with a legend or label
    that does not fit into it is written larger, so that nothing is cut off.

    Args:
        figure ([`~matplotlib.figure.Figure`]): the figure.
        path (path): the PNG, with 300 dots per inch; or the PDF. The other has the same name.

    Raises:
        `InputError`: the path ends in neither `.png` nor `.pdf`.
    """
    path = Path(path)
    if path.suffix not in (".png", ".pdf"):
        raise InputError(f"{path}: a plot is written as PNG and PDF; expected a name that ends in .png")
    _without_formulas(figure)
    # With fonts of type 42 the text in a PDF stays text, which journals ask for.
    with contextlib.ExitStack() as files, rc_context({"pdf.fonttype": 42}):
        figure.draw_without_rendering()
        inside = figure.bbox_inches.padded(0.01).extents
        needed = figure.get_tightbbox().extents
        is_cut = (needed[:2] < inside[:2]).any() or (needed[2:] > inside[2:]).any()
        dots_and_size: dict[str, Any] = {"dpi": 300, "bbox_inches": "tight" if is_cut else None}
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
