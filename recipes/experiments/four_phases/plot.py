"""The result of the experiment on four algorithmic phases: its table, and its picture."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullFormatter
from published import Finding, Paper, write_result

from hmm_datasets.report.plots import PAPER, save_figure

PAPER_OF_PHASES = Paper(
    "Competition dynamics shape algorithmic phases of in-context learning",
    "2412.01003",
    "diagram of the four algorithms over data diversity and training",
)
_COLOURS = {
    "unigram_retrieval": "#E69F00",
    "unigram_inference": "#56B4E9",
    "bigram_inference": "#0072B2",
    "bigram_retrieval": "#D55E00",
    "uniform": "#BBBBBB",
}
_SIZE = (8.4, 3.4)


def write_four_phases(folder: str | Path, results: Mapping[int, Mapping[str, Any]], protocol: str) -> None:
    """Write `result.json` and `result.md`, and draw `four_phases.png`.

    Args:
        folder (path): folder of the experiment.
        results (mapping): by number of chains, the result of a
            [`measured_run`][small_runs.measured_run].
        protocol (`str`): how the models were trained and measured.
    """
    write_result(
        folder,
        PAPER_OF_PHASES,
        phase_findings(results),
        protocol=protocol,
        tokens=sum(result["tokens"] for result in results.values()),
        seconds=sum(result["seconds"] for result in results.values()),
        pictures={"four_phases.png": partial(plot_four_phases, results)},
        more={"models": {str(chains): result for chains, result in results.items()}},
    )


def phases(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """The first step of each phase, and the algorithm that the model is nearest to in it.

    Before training no algorithm is near, so that the row of step 0 does not count.

    ```python
    >>> phases([{"step": 0, "nearest": "b"}, {"step": 1, "nearest": "a"}, {"step": 2, "nearest": "a"}])
    [(1, 'a')]

    ```
    """
    changes: list[tuple[int, str]] = []
    for row in rows:
        if row["step"] > 0 and (not changes or changes[-1][1] != row["nearest"]):
            changes.append((row["step"], row["nearest"]))
    return changes


def phase_findings(results: Mapping[int, Mapping[str, Any]]) -> list[Finding]:
    """The divergence of each model from its optimum at the end, and its phases in words."""
    entries = []
    for chains, result in results.items():
        order = ", ".join(f"{_named(name)} from step {step:,}" for step, name in phases(result["rows"]))
        last = result["rows"][-1]
        where = "of the mixture", "of new chains"
        pairs = (("mixture", "bigram_retrieval"), ("new", "bigram_inference"))
        for (kind, name), words in zip(pairs, where, strict=True):
            entries.append(
                Finding(
                    f"{chains:,} chains: KL({_named(name)} || model) on sequences {words} (nats per token)",
                    last[kind][name],
                    difference=f"nearest: {order}" if kind == "mixture" else "",
                )
            )
    return entries


@rc_context(PAPER)
def plot_four_phases(results: Mapping[int, Mapping[str, Any]], path: str | Path) -> None:
    """Draw the nearest algorithm by number of chains and step, and the divergence from the best predictors."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.25, 1, 1))
    _plot_diagram(left, results)
    shades = _shades(len(results))
    for shade, (chains, result) in zip(shades, results.items(), strict=True):
        rows = [row for row in result["rows"] if row["step"] > 0]
        steps = [row["step"] for row in rows]
        label = f"{chains:,} chains"
        middle.plot(steps, [row["mixture"]["bigram_retrieval"] for row in rows], color=shade, marker="o", label=label)
        right.plot(steps, [row["new"]["bigram_inference"] for row in rows], color=shade, marker="o", label=label)
    middle.set(title="sequences of the mixture", ylabel="KL(bigram retrieval || model)\n(nats per token)")
    right.set(title="sequences of new chains", ylabel="KL(bigram inference || model)\n(nats per token)")
    for axes in (middle, right):
        axes.set(xlabel="optimizer step", xscale="log", yscale="log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    handles = [Patch(color=colour, label=_named(name)) for name, colour in _COLOURS.items()]
    figure.legend(handles=[*handles, *middle.get_lines()], loc="outside lower center", ncols=4)
    save_figure(figure, path)


def _plot_diagram(axes: Axes, results: Mapping[int, Mapping[str, Any]]) -> None:
    rows = [[row for row in result["rows"] if row["step"] > 0] for result in results.values()]
    steps = np.log([row["step"] for row in rows[0]])
    codes = [[list(_COLOURS).index(row["nearest"]) for row in line] for line in rows]
    levels = np.log2(list(results))
    edges_x, edges_y = np.exp(_edges(steps)), 2 ** _edges(levels)
    colours = ListedColormap(list(_COLOURS.values()))
    axes.pcolormesh(
        edges_x,
        edges_y,
        codes,
        cmap=colours,
        norm=BoundaryNorm(np.arange(len(_COLOURS) + 1) - 0.5, len(_COLOURS)),
        edgecolor="white",
    )
    axes.set(title="nearest algorithm", xlabel="optimizer step", ylabel="chains in the mixture", xscale="log")
    axes.set_yscale("log", base=2)
    axes.set_yticks(list(results), [f"{chains:,}" for chains in results])
    axes.minorticks_off()
    axes.grid(False)


def _edges(centers: np.ndarray) -> np.ndarray:
    """The borders of cells around sorted centers."""
    if len(centers) == 1:
        return np.array([centers[0] - 0.5, centers[0] + 0.5])
    between = (centers[1:] + centers[:-1]) / 2
    return np.concatenate([[2 * centers[0] - between[0]], between, [2 * centers[-1] - between[-1]]])


def _shades(count: int) -> list[str]:
    """Greys from light to black."""
    return [str(round(float(level), 3)) for level in np.linspace(0.75, 0.0, count)]


def _named(algorithm: str) -> str:
    return algorithm.replace("_", " ")
