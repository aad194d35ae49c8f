"""Plots of a finished run: as text in the terminal and in `plots/plots.txt` of its folder, and as PNGs there."""

import math
import os
import shutil
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import atomic_file, read_log
from .curves import Curve, Panel, panels_of
from .tables import Table, figure_text

PLOTS_NAME = "plots"
_MIN_ROWS = 10  # fewer losses are not worth a plot

_LIKELIHOODS = {
    "train_log_likelihood": ("training", 1),
    "test_log_likelihood": ("held out", 1),
    "unique_test_cross_entropy": ("distinct held out", -1),
    "test_final_token_cross_entropy": ("final token, held out", -1),
}
_DIVERGENCES = {"kl_uniform": ("uniform", 1), "kl_unigram": ("unigram", 1), "kl_bigram": ("bigram", 1)}
_SHOWN_EPOCHS = {0, 1, 2, 5, *(step * 10**power for power in range(1, 6) for step in (1, 2, 5))}


_COLUMNS = {
    "epoch": ("epoch", ",.0f", 1),
    "tokens": ("tokens", ",.0f", 1),
    "s": ("seconds", ".3g", 1),
    "s left": ("seconds_left", ".3g", 1),
    "train": ("train_log_likelihood", ".4f", -1),
    "held out": ("test_log_likelihood", ".4f", -1),
    "distinct": ("unique_test_cross_entropy", ".4f", 1),
    "final token": ("test_final_token_cross_entropy", ".4f", 1),
    "KL uniform": ("kl_uniform", ".4f", 1),
    "unigram": ("kl_unigram", ".4f", 1),
    "bigram": ("kl_bigram", ".4f", 1),
}
"""Columns of the history of a fit: name in its rows, format, and the factor that makes a loss of it."""


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
    cells = [[_cell(row.get(name), *how) for name, *how in columns.values()] for row in shown]
    return Table("", list(columns), cells, "Nats per token, of the HMM that an epoch starts with.")


def _cell(value: float | None, form: str, factor: int) -> str:
    return figure_text(None if value is None else factor * value, form)


def print_plots(panels: list[Panel]) -> None:
    """Print panels at the width of the terminal, in characters that standard output can encode."""
    from .terminal import text_plots

    encoding = sys.stdout.encoding or "utf-8"
    text = text_plots(panels, shutil.get_terminal_size().columns)
    print(f"\n{text}\n".encode(encoding, "replace").decode(encoding))


def write_plots(panels: list[Panel], folder: Path) -> list[Path]:
    """Write one PNG per panel, and all of them as text of 80 columns."""
    from .plots import plot_panel
    from .terminal import text_plots

    with atomic_file(folder / PLOTS_NAME / "plots.txt") as temporary:
        temporary.write_text(text_plots(panels, 80) + "\n", encoding="utf-8")

    paths = []
    for panel in panels:
        paths.append(folder / PLOTS_NAME / f"{panel.name}.png")
        plot_panel(panel, paths[-1], title=folder.resolve().name)
    return paths
