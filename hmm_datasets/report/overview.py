"""Plots of a finished run: as text in the terminal, and as PNGs in `plots/` of its folder."""

import math
import os
import shutil
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import read_log
from .curves import Curve, Panel, panels_of

PLOTS_NAME = "plots"

_MIN_ROWS = 10  # fewer losses are not worth a plot


def draw_run(folder: str | os.PathLike, *, in_terminal: bool = True) -> list[Path]:
    """Print the curves of the run in `folder` and write them to `plots/`, if it has ten losses or more.

    By now the run is trained and saved, so an error here is printed and not raised: a batch script must not take the
    run for failed.

    Args:
        folder (path): folder of a run, with `history.jsonl`.
        in_terminal (`bool`, *optional*, defaults to `True`): print the curves, besides writing them to files.

    Returns:
        list of `Path`: the PNGs; empty if the run is too short.
    """
    folder = Path(folder)
    try:
        history = read_log(folder / "history.jsonl")
        if sum("loss" in row for row in history) < _MIN_ROWS:
            return []
        panels = panels_of(history)
        if in_terminal:
            print_plots(panels)
        return write_plots(panels, folder)
    except Exception:
        traceback.print_exc()
        print(f"{folder}: trained and saved; drawing its plots failed with the error above", file=sys.stderr)
        return []


def draw_fit(history: Sequence[Mapping[str, Any]], num_tokens: int, folder: str | os.PathLike) -> list[Path]:
    """Print the log-likelihoods of a fit by tokens seen and write them to `plots/` of its folder.

    Args:
        history (sequence of mappings): a row per epoch, see [`~hmm_datasets.hmm.fitting.state.FitResult`]; of several
            first guesses, the one of the last row is drawn.
        num_tokens (`int`): tokens per epoch.
        folder (path): folder of the fit.

    Returns:
        list of `Path`: the PNGs; empty for fewer than two epochs.
    """
    rows = [row for row in history if row["restart"] == history[-1]["restart"]]
    if len(rows) < 2:
        return []
    curves = []
    for label, name in (("training", "train_log_likelihood"), ("held out", "test_log_likelihood")):
        points = [(row["epoch"] * num_tokens, row[name]) for row in rows if math.isfinite(row.get(name, math.nan))]
        if points:
            curves.append(Curve(label, *zip(*points, strict=True)))
    panels = [Panel("log_likelihood", "log-likelihood (nats per token)", curves)]
    print_plots(panels)
    return write_plots(panels, Path(folder))


def print_plots(panels: list[Panel]) -> None:
    """Print panels at the width of the terminal, in characters that standard output can encode."""
    from .terminal import text_plots

    encoding = sys.stdout.encoding or "utf-8"
    text = text_plots(panels, shutil.get_terminal_size().columns)
    print(f"\n{text}\n".encode(encoding, "replace").decode(encoding))


def write_plots(panels: list[Panel], folder: Path) -> list[Path]:
    """Write one PNG per panel."""
    from .plots import plot_panel

    paths = []
    for panel in panels:
        paths.append(folder / PLOTS_NAME / f"{panel.name}.png")
        plot_panel(panel, paths[-1], title=folder.resolve().name)
    return paths
