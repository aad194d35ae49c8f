"""Fits of several numbers of states side by side: a row for each, a table, a curve, and which of them is best.

The best has the lowest loss of held-out sequences, or without any the lowest BIC. Where intervals overlap, sizes may
differ nevertheless: they are measured on the same sequences, so that a difference varies less than either loss.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from hmm_datasets.hmm.analysis.losses import window_losses
from hmm_datasets.hmm.fitting.state import FitResult
from hmm_datasets.hmm.token_files import TokenRows
from hmm_datasets.intervals import influence_interval
from hmm_datasets.report.plots import paper_figure
from hmm_datasets.report.tables import Table, figure_text, interval_text


def size_row(
    result: FitResult,
    test_tokens: Int[Any, "N L"] | None = None,
    test_lengths: Int[np.ndarray, "N"] | None = None,
    *,
    device: Any = None,
) -> dict[str, Any]:
    """What a fit of some number of states reached.

    Args:
        result ([`~hmm_datasets.hmm.fitting.state.FitResult`]): the fit.
        test_tokens (array of shape `(N, L)`, *optional*): held-out sequences.
        test_lengths (array of shape `(N,)`, *optional*): number of tokens in each.
        device (*optional*): where to compute; the CPU by default.

    Returns:
        `dict`: `num_states`, `parameters`, `train_loss`, `test_loss` with the bounds `test_low` and `test_high` of its
        95% interval over sequences (nats per observed token; None without them), `aic`, `bic`, `converged` and
        `epoch`.
    """
    row: dict[str, Any] = {"num_states": result.hmm.num_states, "parameters": result.num_parameters}
    row |= {"train_loss": -result.train_log_likelihood, "test_loss": None, "test_low": None, "test_high": None}
    if test_tokens is not None:
        losses, _ = window_losses(result.hmm, test_tokens, test_lengths, device=device)
        counts = TokenRows(np.asarray(test_tokens), test_lengths).row_counts
        shares = counts / counts.sum()
        mean = float((shares * np.where(shares > 0, losses, 0.0)).sum())
        row["test_loss"] = mean if np.isfinite(mean) else None
        with np.errstate(invalid="ignore"):
            bounds = influence_interval(mean, shares * np.where(shares > 0, losses - mean, 0.0), shares)
        if bounds is not None:
            row |= {"test_low": bounds.low, "test_high": bounds.high}
    return row | {"aic": result.aic, "bic": result.bic, "converged": result.converged, "epoch": result.epoch}


def best_size(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row with the lowest held-out loss, or without held-out sequences with the lowest BIC."""
    measured = [row for row in rows if row["test_loss"] is not None]
    return min(measured or rows, key=lambda row: row["test_loss"] if measured else row["bic"])


def sizes_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A row for each number of states, the best marked with a star."""
    best, held_out = best_size(rows), any(row["test_loss"] is not None for row in rows)
    header = ["states", "parameters", "train"]
    header += ["held out", "95% interval"] if held_out else []
    header += ["AIC", "BIC", "converged", "epoch"]
    cells = []
    for row in rows:
        line = [f"{row['num_states']}{' *' if row is best else ''}", f"{row['parameters']:,}"]
        line.append(figure_text(row["train_loss"]))
        if held_out:
            line += [figure_text(row["test_loss"]), interval_text(row["test_low"], row["test_high"])]
        line += [f"{row['aic']:,.0f}", f"{row['bic']:,.0f}", "yes" if row["converged"] else "no", str(row["epoch"])]
        cells.append(line)
    by = "held-out loss; its interval is over sequences" if held_out else "BIC, since no sequences are held out"
    return Table("", header, cells, f"Losses in nats per token. * lowest {by}.")


def plot_sizes(rows: Sequence[dict[str, Any]], path: str | os.PathLike, *, title: str) -> None:
    """Plot the loss on training and held-out sequences by the number of states.

    Args:
        rows (sequence of `dict`): results of [`size_row`].
        path (path): where the PNG goes.
        title (`str`): title of the plot.
    """
    rows = sorted(rows, key=lambda row: row["num_states"])
    states = [row["num_states"] for row in rows]
    with paper_figure(path, 2.6) as (_, (axes,)):
        axes.plot(
            states, [row["train_loss"] for row in rows], color="#E69F00", marker="s", markersize=4, label="training"
        )
        measured = [row for row in rows if row["test_loss"] is not None]
        if measured:
            places, losses = [row["num_states"] for row in measured], [row["test_loss"] for row in measured]
            spread = [0.0 if row["test_low"] is None else row["test_high"] - row["test_loss"] for row in measured]
            axes.errorbar(
                places, losses, spread, fmt="o-", color="#0072B2", capsize=2, label="held out, 95% over sequences"
            )
        best = best_size(rows)["num_states"]
        axes.axvline(best, color="black", linestyle=":", linewidth=1, label=f"best: {best} states")
        axes.set(xlabel="hidden states", ylabel="loss (nats per token)", title=title, xscale="log")
        axes.set_xticks(states, list(map(str, states)), minor=False)
        axes.minorticks_off()
