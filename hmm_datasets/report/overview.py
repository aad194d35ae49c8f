"""Plots of a finished run: as text in the terminal, and as PNGs in `plots/` of its folder."""

import math
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..files import read_log
from .curves import Curve, Panel, panels_of
from .tables import Table, figure_text

PLOTS_NAME = "plots"

_LIKELIHOODS = {
    "train_log_likelihood": ("training", 1),
    "test_log_likelihood": ("held out", 1),
    "unique_test_cross_entropy": ("distinct held out", -1),
    "test_final_token_cross_entropy": ("final token, held out", -1),
}
_DIVERGENCES = {"kl_uniform": ("uniform", 1), "kl_unigram": ("unigram", 1), "kl_bigram": ("bigram", 1)}
_SHOWN_EPOCHS = {0, 1, 2, 5, *(step * 10**power for power in range(1, 6) for step in (1, 2, 5))}


def _loss(value: float | None) -> str:
    return figure_text(None if value is None else -value)


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


_COLUMNS: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "epoch": ("epoch", _count),
    "tokens": ("tokens", _count),
    "s": ("seconds", partial(figure_text, form=".3g")),
    "s left": ("seconds_left", partial(figure_text, form=".3g")),
    "train": ("train_log_likelihood", _loss),
    "held out": ("test_log_likelihood", _loss),
    "distinct": ("unique_test_cross_entropy", figure_text),
    "final token": ("test_final_token_cross_entropy", figure_text),
    "KL uniform": ("kl_uniform", figure_text),
    "unigram": ("kl_unigram", figure_text),
    "bigram": ("kl_bigram", figure_text),
}
"""Columns of the history of a fit: name in its rows, and how a value is written."""

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
    panels = [Panel("log_likelihood", "log-likelihood (nats per token)", _curves(rows, _LIKELIHOODS, num_tokens))]
    divergences = _curves(rows, _DIVERGENCES, num_tokens)
    if divergences:
        panels.append(Panel("divergence", "KL(n-gram || HMM) (nats per token)", divergences))
    print_plots(panels)
    return write_plots(panels, Path(folder))


def _curves(rows: Sequence[Mapping[str, Any]], names: Mapping[str, tuple[str, int]], num_tokens: int) -> list[Curve]:
    """Curves of values of rows, which are of the HMM that an epoch started with."""
    curves = []
    for name, (label, sign) in names.items():
        values = [(row["epoch"] * num_tokens, row.get(name)) for row in rows]
        points = [(tokens, sign * value) for tokens, value in values if value is not None and math.isfinite(value)]
        if points:
            curves.append(Curve(label, *zip(*points, strict=True)))
    return curves


def fit_table(history: Sequence[Mapping[str, Any]]) -> Table:
    """A row for some epochs of a fit, more of the first, and the last: losses and divergences in nats per token."""
    rows = [row for row in history if row["restart"] == history[-1]["restart"]]
    shown = [row for row in rows if row["epoch"] in _SHOWN_EPOCHS or row is rows[-1]]
    columns = {
        title: column for title, column in _COLUMNS.items() if any(row.get(column[0]) is not None for row in shown)
    }
    cells = [[form(row.get(name)) for name, form in columns.values()] for row in shown]
    return Table("", list(columns), cells, "Nats per token, of the HMM that an epoch starts with.")


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
