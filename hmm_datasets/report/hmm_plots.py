"""Plots of an HMM: its tables as heat maps, its beliefs in the simplex."""

import os
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from .plots import draw_points, save_figure

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


def plot_emission_history(
    tables: Float[np.ndarray, "K H E"],
    epochs: Sequence[int],
    states: Sequence[int],
    path: str | os.PathLike,
    *,
    title: str,
    names: Sequence[str] | None = None,
    num_symbols: int = 20,
) -> None:
    """Plot how the emissions of some states change over the epochs of a fit: a heat map for each state.

    Rows are the symbols that a state emits most in any of the epochs, in the order of the last one.

    Args:
        tables (`np.ndarray` of shape `(K, H, E)`): the emission table after each of `epochs`.
        epochs (sequence of `int`): numbers of the epochs, ascending.
        states (sequence of `int`): the states to show.
        path (path): where the PNG goes; a PDF is written next to it.
        title (`str`): title of the plot.
        names (sequence of `str`, *optional*): names of the symbols.
        num_symbols (`int`, *optional*, defaults to 20): number of rows for each state.
    """
    size = min(num_symbols, tables.shape[2])
    figure = Figure(figsize=(1.2 + 3.1 * len(states), 1.6 + 0.17 * size), layout="constrained")
    norm = PowerNorm(0.5, vmin=0, vmax=1)
    for axes, state in zip(np.atleast_1d(figure.subplots(1, len(states))), states, strict=True):
        emitted = tables[:, state].T
        kept = np.argsort(-emitted.max(1), kind="stable")[:size]
        kept = kept[np.argsort(-emitted[kept, -1], kind="stable")]
        edges = np.append(np.asarray(epochs, float), epochs[-1] + 1) - 0.5
        image = axes.pcolormesh(edges, np.arange(size + 1) - 0.5, emitted[kept], norm=norm, cmap="cividis")
        labels = [str(symbol) if names is None else names[symbol] for symbol in kept]
        axes.set_yticks(range(size), labels, fontsize=7)
        axes.invert_yaxis()
        axes.set(title=f"state {state}", xlabel="epochs")
        axes.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(title)
    figure.colorbar(image, ax=figure.axes, label="probability", shrink=0.8, ticks=[0, 0.01, 0.05, 0.2, 0.5, 1])
    save_figure(figure, path)


def plot_beliefs(beliefs: Float[np.ndarray, "N H"], path: str | os.PathLike, *, title: str) -> None:
    """Plot beliefs over three or four states in the simplex, with the belief itself as the color.

    Four states are the corners of a tetrahedron, which is drawn as seen from above each of them.
    """
    states = beliefs.shape[1]
    figure = Figure(figsize=(6.4, 5.8) if states == 3 else (8.0, 7.6), layout="constrained")
    panels = np.atleast_1d(figure.subplots(*((1, 1) if states == 3 else (2, 2)))).flat
    for above, axes in enumerate(panels):
        draw_simplex(axes, beliefs, belief_colors(beliefs), above)
    figure.suptitle(title)
    save_figure(figure, path)


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
