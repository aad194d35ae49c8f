"""Plots of an HMM: its tables as heat maps, its beliefs in the simplex."""

import os
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from .plots import draw_points, paper_figure, save_figure

_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
_FOUR_COLORS = np.array([[0.0, 0.45, 0.70], [0.90, 0.62, 0.0], [0.0, 0.62, 0.45], [0.80, 0.47, 0.65]])
"""Colors of four states that the color-blind can distinguish (Okabe and Ito 2008)."""

_MAX_NAMES = 60  # more would not be readable


def plot_table(
    table: Float[np.ndarray, "H n"],
    path: str | os.PathLike,
    *,
    title: str,
    columns: str,
    names: Sequence[str] | None = None,
) -> None:
    """Plot a table of distributions as a heat map, one row per state, with colors by the square root of probability.

    Args:
        table (`np.ndarray` of shape `(H, n)`): rows that sum to one.
        path (path): where the PNG goes.
        title, columns (`str`): title of the plot, and label of its columns.
        names (sequence of `str`, *optional*): names of the columns, written if there are few enough to read.
    """
    states, width = table.shape
    size = 5.6 * np.clip(np.array([width, states]) / max(width, states), 0.3, 1.0)
    figure = Figure(figsize=(size[0] + 2.2, size[1] + 1.4), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(table, norm=PowerNorm(0.5, vmin=0, vmax=1), cmap="cividis", interpolation="nearest")
    axes.set(title=title, xlabel=columns, ylabel="state")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.get_major_locator().set_params(integer=True)
    if names is not None and width <= _MAX_NAMES:
        axes.set_xticks(range(width), names, rotation=90, fontsize=8 if width <= 30 else 6)
    figure.colorbar(image, ax=axes, label="probability", shrink=0.8, ticks=[0, 0.01, 0.05, 0.2, 0.5, 1])
    save_figure(figure, path)


def plot_simplices(columns: Mapping[str, Float[np.ndarray, "N H"]], path: str | os.PathLike) -> None:
    """Plot beliefs over three or four states in the simplex, each with the color of that of the first column.

    Four states are the corners of a tetrahedron, which is drawn in a row for each of two corners, as seen from above.

    Args:
        columns (mapping): title and beliefs of each column.
        path (path): where the PNG goes; a PDF is written next to it.
    """
    colors = belief_colors(next(iter(columns.values())))
    views = (3,) if next(iter(columns.values())).shape[1] == 3 else (3, 0)
    height = 0.2 + 3.1 * len(views) / len(columns)
    with paper_figure(path, height, (len(views), len(columns))) as (_, panels):
        for place, axes in enumerate(panels):
            title, beliefs = list(columns.items())[place % len(columns)]
            draw_simplex(axes, beliefs, colors, views[place // len(columns)])
            axes.set_title(title, pad=8)


def belief_colors(beliefs: Float[np.ndarray, "N H"]) -> Float[np.ndarray, "N 3"]:
    """The color of each belief over three or four states: that of its states, mixed by their probabilities."""
    return beliefs if beliefs.shape[1] == 3 else beliefs @ _FOUR_COLORS


def draw_simplex(
    axes: Axes, beliefs: Float[np.ndarray, "N H"], colors: Float[np.ndarray, "N 3"], above: int = 3
) -> None:
    """Draw the simplex of three states, or that of four as seen from above one corner, and points in it.

    In a PDF the points are an image, since there are many.
    """
    corners = np.insert(_CORNERS, above, _CORNERS.mean(0), axis=0) if beliefs.shape[1] == 4 else _CORNERS
    axes.plot(*np.vstack([_CORNERS, _CORNERS[:1]]).T, color="black", linewidth=0.8)
    for corner in _CORNERS if len(corners) == 4 else ():
        axes.plot(*np.array([corner, corners[above]]).T, color="0.6", linewidth=0.6, zorder=0)
    draw_points(axes, beliefs @ corners, colors, s=1.5)
    for state, (x, y) in enumerate(corners):
        side = "center" if 0 < x < 1 else "left" if x == 0 else "right"
        axes.annotate(f"state {state}", (x, y), (0, 6 if y > 0 else -12), textcoords="offset points", ha=side)
    axes.set(aspect="equal", xlim=(-0.08, 1.08), ylim=(-0.1, 0.97))
    axes.axis("off")
