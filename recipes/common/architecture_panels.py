"""Figures that compare architectures: curves with the range over seeds, side by side."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib import rc_context
from matplotlib.figure import Figure
from panels import shared_legend

from hmm_datasets.report.plots import PAPER, save_figure

ARCHITECTURE_STYLES = {
    "llama": {"color": "black", "marker": "o", "label": "Llama"},
    "mamba": {"color": "#009E73", "marker": "^", "label": "Mamba"},
    "lstm": {"color": "#D55E00", "marker": "s", "label": "LSTM"},
    "gru": {"color": "#0072B2", "marker": "D", "label": "GRU"},
}
"""Colour, marker and name of each architecture."""


@dataclass(frozen=True)
class ArchitecturePanel:
    """One panel of a figure.

    Args:
        title (`str`): its title.
        x (array of shape `(T,)`): values of the horizontal axis.
        curves (`dict`): for each architecture its values, an array (seeds, T).
        x_label, y_label (`str`): names of the axes with their units.
        log_x, log_y (`bool`, *optional*): logarithmic axes.
        trained (`float`, *optional*): where the trained length ends, a vertical line.
        levels (`dict`, *optional*): horizontal lines by name.
    """

    title: str
    x: Sequence[float]
    curves: Mapping[str, Float[np.ndarray, "S T"]]
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False
    trained: float | None = None
    levels: Mapping[str, float] | None = None


def draw_panels(panels: Sequence[ArchitecturePanel], path: str | os.PathLike) -> None:
    """Draw panels side by side: means over seeds, and bands from the smallest to the largest."""
    with rc_context(PAPER):
        figure = Figure(figsize=(2.5 * len(panels), 2.3), layout="constrained")
        for panel, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
            for name, values in panel.curves.items():
                every = max(1, len(panel.x) // 8)
                axes.plot(panel.x, np.mean(values, axis=0), markevery=every, **ARCHITECTURE_STYLES[name])
                low, high = np.min(values, axis=0), np.max(values, axis=0)
                axes.fill_between(
                    panel.x, low, high, color=ARCHITECTURE_STYLES[name]["color"], alpha=0.15, linewidth=0
                )
            for (name, level), dashes in zip((panel.levels or {}).items(), ("--", ":", "-."), strict=False):
                axes.axhline(level, color="#666666", linestyle=dashes, linewidth=0.8, label=name)
            if panel.trained is not None:
                axes.axvline(panel.trained, color="#666666", linestyle="-.", linewidth=0.8, label="trained length")
            if panel.log_x:
                axes.set_xscale("log", base=2)
                axes.set_xticks(panel.x, [f"{x:g}" for x in panel.x])
                axes.minorticks_off()
            if panel.log_y:
                axes.set_yscale("log")
            axes.set_title(panel.title)
            axes.set_xlabel(panel.x_label)
            axes.set_ylabel(panel.y_label)
        shared_legend(figure, 6)
        save_figure(figure, path)
