"""The report of the samplers: a table for each part, and a picture."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from mean_text import mean_text
from report_page import write_report_page

from hmm_datasets.report.plots import PAPER, WIDTH, save_figure
from hmm_datasets.report.tables import Table

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_SHARES = {"variation", "lost", "detected", "best", "found"}
_FLOOR = 1e-9  # nats per token, below which a divergence is 0

Results = dict[str, list[list[dict[str, Any]]]]
"""For each part and each seed its rows."""


def write_report(folder: Path, results: Results, settings: dict[str, Any]) -> None:
    """Write `report.json`, `report.md` and `samplers.png`, and print the tables."""
    tables = [TABLES[part](found) for part, found in results.items()]
    pictures = {"samplers.png": partial(plot_samplers, results)} if _PANELS.keys() & results.keys() else {}
    write_report_page(folder, tables, {"settings": settings, "results": results}, pictures)


def _cells(found: Sequence[Sequence[dict[str, Any]]], names: Sequence[str], form: str = ".4f") -> list[list[str]]:
    # A row for each row of a seed, with intervals over seeds; an empty cell for what a row does not have.
    return [
        [
            mean_text([row[name] for row in rows], form, is_share=name in _SHARES) if name in rows[0] else ""
            for name in names
        ]
        for rows in zip(*found, strict=True)
    ]


def decoding_table(found: Sequence[Sequence[dict[str, Any]]]) -> Table:
    """Distance of what is emitted from the process."""
    names = ("divergence", "variation", "lost", "entropy", "detected", "best", "green")
    rows = [[row["name"], *cells] for row, cells in zip(found[0], _cells(found, names), strict=True)]
    entropy = mean_text([rows[0]["true_entropy"] for rows in found])
    note = (
        f"Exact for each of {len(found)} random HMMs, with 95% intervals over them; sequences of five of eight "
        f"symbols. Divergence from the process and entropy in nats per token; that of the process is {entropy}. Lost "
        "is the share of the process that is never emitted. Detected: watermarked sequences that a count of green "
        "tokens, or of SynthID's values, finds with one false alarm in a hundred; best test: those that the likelihood"
        " ratio finds, and no test more; green: how many of five."
    )
    header = ["settings", "divergence", "total variation", "lost", "entropy", "detected", "best test", "green"]
    return Table("What decoding emits", header, rows, note)


def beams_table(found: Sequence[Sequence[dict[str, Any]]]) -> Table:
    """How often beams find the most likely sequence."""
    rows = [
        [
            str(rows[0]["width"]),
            mean_text([row["found"] for row in rows], ".3f", is_share=True),
            f"{np.mean([row['gap'] for row in rows]):.3f}",
            f"{max(row['most'] for row in rows):.3f}",
        ]
        for rows in zip(*found, strict=True)
    ]
    note = (
        "Random HMMs, sequences of six of five symbols: the share of HMMs whose most likely sequence is found, and "
        "how many nats below it the found one is on average and at most; 95% intervals over seeds of the share."
    )
    return Table("The most likely sequence", ["beams", "found", "nats below", "at most"], rows, note)


def assisted_table(found: Sequence[Sequence[dict[str, Any]]]) -> Table:
    """Whether assisted generation has the target's distribution."""
    cells = []
    for rows in zip(*found, strict=True):
        accepted = [row["accepted"] / row["proposed"] for row in rows if row["proposed"]]
        by_position = np.mean([row["by_position"] for row in rows], axis=0)
        is_as_chance = all(row["variation"] <= row["most_by_chance"] for row in rows)
        cells.append(
            [
                rows[0]["name"],
                mean_text([row["variation"] for row in rows], is_share=True),
                f"{np.mean([row['chance'] for row in rows]):.4f}",
                f"{np.mean([row['most_by_chance'] for row in rows]):.4f}",
                ", ".join(f"{value:.4f}" for value in by_position),
                mean_text(accepted, is_share=True) if accepted else "",
                f"{np.mean([row['expected'] for row in rows]):.4f}" if accepted else "",
                f"{np.mean([row['shown'] for row in rows]):.4f}",
                "none seen" if is_as_chance else "differs",
            ]
        )
    note = (
        "Total variation between what is emitted and the target's own distribution of sequences of four of three "
        "symbols, and what as many exact draws have: the median and the 99th percentile. Taken: proposals, one at a "
        "time; 95% intervals over seeds. Would be seen: the difference, in total variation towards the uniform "
        "distribution, that nine of ten samples of this size would show."
    )
    header = ["draft", "total variation", "by chance", "99% of chance", "by position", "taken", "exact"]
    return Table("Assisted generation", [*header, "would be seen", "difference"], cells, note)


def unmasking_table(found: Sequence[Sequence[dict[str, Any]]]) -> Table:
    """The error of samplers that fill in several tokens at once."""
    cells = [
        [row["denoiser"], row["order"], str(row["steps"]), *numbers]
        for row, numbers in zip(found[0], _cells(found, ("divergence", "variation", "entropy"), ".5f"), strict=True)
    ]
    true = found[0][0]["true_entropy"]
    note = (
        f"Mess3, sequences of eight: divergence from the process and entropy in nats per token (the process has "
        f"{true:.5f}), and total variation of whole sequences. Exact, for the exact denoiser and the trained ones; "
        "95% intervals over the seeds of the latter."
    )
    header = ["denoiser", "order", "steps", "divergence", "total variation", "entropy"]
    return Table("Filling in masks", header, cells, note)


def calibration_table(found: Sequence[Sequence[dict[str, Any]]]) -> Table:
    """The calibration error as it is estimated, beside the true one."""
    counts = [name for name in found[0][0] if name.startswith("of ")]
    names = ["divergence", "true", "binned", *counts]
    rows = [[row["name"], *cells] for row, cells in zip(found[0], _cells(found, names), strict=True)]
    note = (
        "Of the most probable next symbol, over beginnings of random HMMs. True: mean distance of the probability "
        "that is said from the one that is right; ten bins: the error of Guo et al. with endless data; then its mean "
        "with so many predictions. 95% intervals over HMMs."
    )
    header = ["predictor", "divergence", "true", "ten bins", *(f"{name[3:]} predictions" for name in counts)]
    return Table("Calibration", header, rows, note)


TABLES: dict[str, Callable[[Sequence[Sequence[dict[str, Any]]]], Table]] = {
    "decoding": decoding_table,
    "beams": beams_table,
    "assisted": assisted_table,
    "unmasking": unmasking_table,
    "calibration": calibration_table,
}


@rc_context(PAPER)
def plot_samplers(results: Results, path: Path) -> None:
    """Plot the error of decodings, and of unmasking by the number of steps, as far as these parts were measured."""
    shown = [part for part in _PANELS if part in results]
    figure = Figure(figsize=(WIDTH * len(shown), WIDTH), layout="constrained")
    for axes, part in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        _PANELS[part](axes, results[part])
    save_figure(figure, path)


def _plot_decoding(axes: Axes, found: Sequence[Sequence[dict[str, Any]]]) -> None:
    rows = [row for row in zip(*found, strict=True) if row[0]["name"] != "none"]
    names = [row[0]["name"] for row in rows]
    for shift, (key, color) in enumerate(zip(("divergence", "lost"), _COLORS, strict=False)):
        values = [np.mean([one[key] for one in row]) for row in rows]
        axes.barh(np.arange(len(rows)) + 0.4 * shift - 0.2, values, height=0.4, color=color, label=key)
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.set(xlabel="nats per token; share")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def _plot_unmasking(axes: Axes, found: Sequence[Sequence[dict[str, Any]]]) -> None:
    orders = list(dict.fromkeys(row["order"] for row in found[0]))
    for denoiser, style in (("exact", "o-"), ("trained", "s--")):
        axes.plot([], [], style, color="gray", markersize=3.5, label=f"{denoiser} denoiser")
        for color, order in zip(_COLORS, orders, strict=True):
            chosen = [n for n, row in enumerate(found[0]) if (row["denoiser"], row["order"]) == (denoiser, order)]
            values = {found[0][n]["steps"]: np.mean([rows[n]["divergence"] for rows in found]) for n in chosen}
            # With one token for each step an exact denoiser is right, which a logarithmic axis cannot show.
            shown = {steps: value for steps, value in values.items() if value > _FLOOR}
            axes.plot(list(shown), list(shown.values()), style, color=color, markersize=3.5)
    for color, order in zip(_COLORS, orders, strict=True):
        axes.plot([], [], color=color, label=order)
    axes.set(xscale="log", yscale="log", xlabel="steps for 8 tokens", ylabel="divergence, nats per token")
    axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    axes.set_xticks([], minor=True)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


_PANELS: dict[str, Callable[[Axes, Sequence[Sequence[dict[str, Any]]]], None]] = {
    "decoding": _plot_decoding,
    "unmasking": _plot_unmasking,
}
