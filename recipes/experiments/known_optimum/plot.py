"""The report of the experiment on known optima: a table of trials, and the frontier between reward and divergence."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from report_page import write_report_page

from hmm_datasets.hmm.model import HMM
from hmm_datasets.hmm.tilted import TiltedHMM
from hmm_datasets.intervals import half_width
from hmm_datasets.report.plots import PAPER, WIDTH, save_figure
from hmm_datasets.report.tables import Table

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
_SHOWN = ("dpo", "grpo")


def write_known_optimum(folder: str | Path, results: Sequence[dict[str, Any]]) -> None:
    """Write `report.json`, `report.md` and `frontier.png`, and print the table.

    Args:
        folder (path): the folder of the experiment, with `hmm/`.
        results (sequence of `dict`): what its trials wrote.
    """
    folder = Path(folder)
    pictures = {"frontier.png": lambda path: plot_frontier(HMM.from_pretrained(folder / "hmm"), results, path)}
    write_report_page(folder, [known_optimum_table(results)], {"trials": list(results)}, pictures)


def known_optimum_table(results: Sequence[dict[str, Any]]) -> Table:
    """One row per trial: the divergence of its policy from the optimum, with an interval, and its reward."""
    rows = []
    for result in results:
        final, exact = result["final"], result["exact"]
        interval = f"{final['divergence']:.5f} ± {half_width(final['standard_error'], final['num_sequences']):.5f}"
        rows.append(
            [
                result["name"],
                f"{result['beta']:g}",
                interval,
                f"{final['reward']:.3f}",
                f"{exact['expected_reward']:.3f}",
                f"{final['kl_to_reference']:.3f}",
                f"{exact['kl_to_reference']:.3f}",
                f"{result['seconds']:.0f}",
            ]
        )
    header = ("trial", "beta", "KL from the optimum", "reward", "optimal", "KL to the HMM", "optimal", "seconds")
    note = (
        "KL(policy || optimum) in nats per token, with 95% intervals; beta times it is the regret. Reward and KL to "
        "the HMM are per sequence."
    )
    return Table("Distance from the exact optimum of post-training", header, rows, note)


@rc_context(PAPER)
def plot_frontier(hmm: HMM, results: Sequence[dict[str, Any]], path: str | Path) -> None:
    """Plot expected reward against divergence from the HMM: the exact optima of all `beta`, and the policies."""
    exact = results[0]["exact"]
    betas = np.geomspace(0.05, 50, 60)
    optima = [TiltedHMM(hmm, exact["rewards"], beta, exact["length"]) for beta in betas]
    figure = Figure(figsize=(1.35 * WIDTH, 2.9), layout="constrained")
    axes = figure.subplots()
    axes.plot(
        [optimum.kl_to_reference for optimum in optima],
        [optimum.expected_reward for optimum in optima],
        color="black",
        linewidth=1.0,
        label="exact optima of all beta",
    )
    shown = [result for result in results if result["name"] in _SHOWN] or list(results)
    for number, result in enumerate(shown):
        color = _COLORS[number % len(_COLORS)]
        along = [*result["along"], result["final"]]
        axes.plot(
            [row["kl_to_reference"] for row in along],
            [row["reward"] for row in along],
            color=color,
            marker="o",
            linewidth=0.7,
            label=f"{result['name']}, beta {result['beta']:g}",
        )
        axes.plot(
            result["exact"]["kl_to_reference"],
            result["exact"]["expected_reward"],
            color=color,
            marker="x",
            markersize=6,
        )
    others = [result for result in results if result not in shown]
    if others:
        axes.plot(
            [result["final"]["kl_to_reference"] for result in others],
            [result["final"]["reward"] for result in others],
            color="gray",
            marker=".",
            linestyle="none",
            label="other settings",
        )
    furthest = max(row["kl_to_reference"] for result in results for row in [*result["along"], result["final"]])
    axes.set(xlabel="KL(policy || HMM), nats per sequence", ylabel="expected reward of a sequence")
    axes.set_xlim(-0.05, 1.15 * furthest)
    axes.set_ylim(
        None, 1.1 * max(optimum.expected_reward for optimum in optima if optimum.kl_to_reference < 1.15 * furthest)
    )
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    save_figure(figure, path)
