"""Beliefs as linear probes find them in the last layer of a model and in all layers together, in one picture.

This is the picture of Shai et al., "Transformers represent belief state geometry in their residual stream", 2024
(arXiv 2405.15943): the true beliefs, those probed from one layer, those probed from all. Beliefs over three states are
drawn in their simplex, others by the first two principal components of the true ones.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hmm_datasets.report.hmm_plots import draw_simplex
from hmm_datasets.report.plots import PAPER, WIDTH, draw_points, save_figure

PROBES = ("last layer", "all layers")
_SHOWN = 4000  # points of a panel


@dataclass(frozen=True)
class ProbedBeliefs:
    """Beliefs at the held-out positions, and what probes make of them.

    Attributes:
        true (`np.ndarray` of shape `(N, H)`): the beliefs.
        probed (mapping from `str` to `np.ndarray` of shape `(N, H)`): predictions of each of `PROBES`.
    """

    true: Float[np.ndarray, "N H"]
    probed: Mapping[str, Float[np.ndarray, "N H"]]

    @property
    def distinct(self) -> Float[np.ndarray, "M H"]:
        """The different beliefs among the true ones; those that agree to six digits are one."""
        return np.unique(self.true.round(6), axis=0)

    def nearest(self) -> dict[str, float]:
        """For each probe the share of positions whose probed belief is nearer to the true one than to all others.

        ```python
        >>> true = np.array([[1.0, 0.0], [0.0, 1.0]])
        >>> ProbedBeliefs(true, {"last layer": np.array([[0.9, 0.1], [0.6, 0.4]])}).nearest()
        {'last layer': 0.5}

        ```
        """
        beliefs = self.distinct
        own_number = ((self.true[:, None] - beliefs) ** 2).sum(-1).argmin(1)
        return {
            name: float((((probed[:, None] - beliefs) ** 2).sum(-1).argmin(1) == own_number).mean())
            for name, probed in self.probed.items()
        }


def principal_axes(
    points: Float[np.ndarray, "N H"],
) -> tuple[Float[np.ndarray, "H"], Float[np.ndarray, "H K"]]:
    """The mean of points, and their first three principal directions, or as many as there are numbers.

    ```python
    >>> mean, directions = principal_axes(np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 0.1]]))
    >>> directions[:, 0].round(6).tolist()
    [1.0, 0.0]

    ```
    """
    mean = points.mean(axis=0)
    values, vectors = np.linalg.eigh((points - mean).T @ (points - mean))
    directions = vectors[:, np.argsort(values)[::-1][:3]]
    largest = np.abs(directions).argmax(axis=0)
    return mean, directions * np.sign(directions[largest, range(directions.shape[1])])


@rc_context(PAPER)
def plot_belief_layers(
    figures: Mapping[str, Mapping[str, Mapping[str, Any]]],
    beliefs: Mapping[str, ProbedBeliefs],
    path: str | os.PathLike,
) -> None:
    """Plot a row for each process: true beliefs, those probed from the last and from all layers, and R2 by layer.

    The color of a point is its true belief.

    Args:
        figures (mapping): for each process the `layers` of [`~hmm_datasets.evaluation.beliefs.probe_beliefs`].
        beliefs (mapping of [`ProbedBeliefs`]): of the same processes.
        path (path): where the PNG goes; a PDF is written next to it.
    """
    figure = Figure(figsize=(2 * WIDTH, 1.8 * len(beliefs) + 0.3), layout="constrained")
    rows = figure.subplots(len(beliefs), 4, squeeze=False)
    for panels, (name, cloud) in zip(rows, beliefs.items(), strict=True):
        distinct = cloud.distinct
        count = f", {len(distinct)} different" if len(distinct) <= 100 else ""
        clouds = {f"{name}: true beliefs{count}": cloud.true, **cloud.probed}
        for axes, (title, points) in zip(panels, clouds.items(), strict=False):
            _draw_cloud(axes, cloud.true, points)
            axes.set_title(title, pad=10)
        panels[0].set_ylabel("second component")
        _draw_layers(panels[-1], figures[name])
        panels[-1].set_title("explained by each layer", pad=10)
    figure.legend(*rows[0, -1].get_legend_handles_labels(), loc="outside lower right", ncols=3)
    save_figure(figure, path)


def _draw_cloud(axes: Axes, true: Float[np.ndarray, "N H"], points: Float[np.ndarray, "N H"]) -> None:
    if true.shape[1] == 3:
        draw_simplex(axes, points[:_SHOWN], true[:_SHOWN])
        return
    # Each different belief counts once, so that the rare ones, before the phase is known, are not in one spot.
    distinct = np.unique(true.round(6), axis=0)
    mean, directions = principal_axes(distinct)
    low, high = (reduce((distinct - mean) @ directions, axis=0) for reduce in (np.min, np.max))
    colors = ((true - mean) @ directions - low) / (high - low)
    corners = (distinct - mean) @ directions[:, :2]
    draw_points(axes, ((points - mean) @ directions[:, :2])[:_SHOWN], colors[:_SHOWN], s=4, zorder=2)
    axes.scatter(*corners.T, facecolors="none", edgecolors="black", s=14, linewidths=0.4, zorder=3)
    margin = 0.15 * (high - low)[:2]
    axes.set(xlim=(low[0] - margin[0], high[0] + margin[0]), ylim=(low[1] - margin[1], high[1] + margin[1]))
    axes.set(xticks=[], yticks=[], xlabel="first component", aspect="equal")


def _draw_layers(axes: Axes, layers: Mapping[str, Mapping[str, Any]]) -> None:
    names = list(layers)
    labels = ["emb.", *names[1:-1], "all"]
    for key, label, style in (
        ("r2", "trained", {"color": "black", "marker": "o"}),
        ("untrained_r2", "untrained", {"color": "#E69F00", "marker": "s"}),
        ("shuffled_r2", "shuffled", {"color": "#0072B2", "marker": "^"}),
    ):
        values = [layers[name].get(key) for name in names]
        axes.plot(range(len(names) - 1), values[:-1], label=label, **style)
        axes.plot(len(names) - 1, values[-1], linestyle="none", **style)
    axes.set_xticks(range(len(names)), labels)
    axes.set(ylim=(-0.05, 1.05), xlabel="layer", ylabel="R² of the beliefs")
