"""Pictures of an HMM: its tables as heat maps, its beliefs in the simplex."""

import os
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from .plots import save_figure

_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
_MOST_NAMES = 60  # more would not be read


def plot_table(
    table: Float[np.ndarray, "H n"],
    path: str | os.PathLike,
    *,
    title: str,
    columns: str,
    names: Sequence[str] | None = None,
) -> None:
    """A table of distributions as a heat map, a row per state; the colour is the square root of the probability.

    Args:
        table (`np.ndarray` of shape `(H, n)`): rows that sum to one.
        path (path): where the PNG goes.
        title, columns (`str`): above the plot; below it.
        names (sequence of `str`, *optional*): of the columns, written where there are few enough to read.
    """
    states, width = table.shape
    size = 5.6 * np.clip(np.array([width, states]) / max(width, states), 0.3, 1.0)
    figure = Figure(figsize=(size[0] + 2.2, size[1] + 1.4), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(table, norm=PowerNorm(0.5, vmin=0, vmax=1), cmap="cividis", interpolation="nearest")
    axes.set(title=title, xlabel=columns, ylabel="state")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.get_major_locator().set_params(integer=True)
    if names is not None and width <= _MOST_NAMES:
        axes.set_xticks(range(width), names, rotation=90, fontsize=8 if width <= 30 else 6)
    figure.colorbar(image, ax=axes, label="probability", shrink=0.8, ticks=[0, 0.01, 0.05, 0.2, 0.5, 1])
    save_figure(figure, path)


def plot_beliefs(beliefs: Float[np.ndarray, "N 3"], path: str | os.PathLike, *, title: str) -> None:
    """Beliefs over three states in the triangle whose corners are certainty; the colour is the belief itself."""
    figure = Figure(figsize=(6.4, 5.8), layout="constrained")
    axes = figure.subplots()
    draw_simplex(axes, beliefs, np.clip(beliefs, 0, 1))
    axes.set(title=title)
    save_figure(figure, path)


def draw_simplex(axes: Axes, beliefs: Float[np.ndarray, "N 3"], colours: Float[np.ndarray, "N 3"]) -> None:
    """Points in the triangle whose corners are certainty; those of a PDF are an image, since they are many."""
    axes.plot(*np.vstack([_CORNERS, _CORNERS[:1]]).T, color="black", linewidth=0.8)
    axes.scatter(*(beliefs @ _CORNERS).T, c=colours, s=1.5, linewidths=0, rasterized=True)
    for state, (x, y) in enumerate(_CORNERS):
        side = ("left", "right", "center")[state]
        axes.annotate(f"state {state}", (x, y), (0, 6 if y > 0 else -12), textcoords="offset points", ha=side)
    axes.set(aspect="equal", xlim=(-0.08, 1.08), ylim=(-0.1, 0.97))
    axes.axis("off")
