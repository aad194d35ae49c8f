"""The report of the trial of objectives: a table, and a picture of all distances."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from mean_text import mean_text
from report_page import write_report_page
from theory import Task

from hmm_datasets.report.plots import PAPER, WIDTH, save_figure
from hmm_datasets.report.tables import Table

PASSED = 1e-3
"""Nats per token from its own target, within which a policy passes."""
NO_TARGET = "none"
_FLOOR = 1e-5  # nats per token, below which a point is drawn there


def write_report(
    folder: Path,
    task: Task,
    rows: Sequence[dict[str, Any]],
    faults: Sequence[dict[str, Any]],
    settings: dict[str, Any],
) -> None:
    """Write `report.json`, `report.md` and `objectives.png`, and print the tables."""
    tilted = task.tilted()
    best = {"reward": task.expected_reward(tilted), "from_reference": task.divergence(tilted, task.reference)}
    content = {"tilted": best, "settings": settings, "trials": list(rows), "faults": list(faults)}
    tables = [table_of(rows, best, settings), *([faults_table(faults)] if faults else [])]
    write_report_page(folder, tables, content, {"objectives.png": partial(plot_distances, rows)})


def table_of(rows: Sequence[dict[str, Any]], best: dict[str, float], settings: dict[str, Any]) -> Table:
    """A row for every trial; distances are in nats per token, with intervals over seeds."""
    cells = []
    for row in rows:
        target, results = row["target"], row["results"]
        own = [result["from_own"] for result in results] if target else []
        verdict = ("passed" if max(own) < PASSED else "missed") if own else NO_TARGET
        cells.append(
            [
                row["name"],
                f"{max(0.0, target['from_tilted']):.5f}" if target else NO_TARGET,
                mean_text(own, ".5f") if own else NO_TARGET,
                mean_text([result["from_tilted"] for result in results], ".5f"),
                mean_text([result["reward"] for result in results], ".3f"),
                mean_text([result["from_reference"] for result in results], ".4f"),
                f"{row['learning_rate']:g}",
                f"{np.mean([result['seconds'] for result in results]):.0f}",
                verdict,
            ]
        )
    header = ["objective", "target from tilted", "policy from target", "from tilted", "reward", "from reference"]
    note = (
        f"Divergences in nats per token, exact; mean and 95% interval over {len(settings['seeds'])} seeds. The tilted "
        f"distribution has reward {best['reward']:.3f} and is {best['from_reference']:.4f} from the reference. "
        f"{settings['steps']} steps of {settings['batch_size']}; passed: every seed within {PASSED:g} of its target."
    )
    return Table("Where objectives end", [*header, "learning rate", "seconds", "verdict"], cells, note)


def faults_table(faults: Sequence[dict[str, Any]]) -> Table:
    """A row for every fault that was put back: how far from its target the trial ends without and with it."""
    rows = []
    for fault in faults:
        clean, found = ([result["from_own"] for result in fault[key]] for key in ("clean", "results"))
        seen = "caught" if min(found) > PASSED else "not caught"
        seen = seen if max(clean) < PASSED else "no verdict"
        rows.append(
            [fault["name"], fault["trial"], mean_text(clean, ".5f"), mean_text(found, ".5f"), seen, fault["thread"]]
        )
    note = (
        f"Nats per token from the trial's target. Caught: within {PASSED:g} without the fault, further with it; no "
        "verdict where the trial without it does not pass."
    )
    return Table("Faults put back", ["fault", "trial", "without it", "with it", "verdict", "thread"], rows, note)


@rc_context(PAPER)
def plot_distances(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot for every trial the distance of target and policies from the tilted distribution, and from the target."""
    figure = Figure(figsize=(2 * WIDTH, 0.9 + 0.16 * len(rows)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for place, row in enumerate(rows):
        results = row["results"]
        for axes, key, color in ((left, "from_tilted", "#0072B2"), (right, "from_own", "#D55E00")):
            values = [max(_FLOOR, result[key]) for result in results if key in result]
            axes.plot(values, [place] * len(values), "o", color=color, markersize=3.5, alpha=0.7)
        if row["target"]:
            left.plot(max(_FLOOR, row["target"]["from_tilted"]), place, "x", color="black", markersize=5)
    left.plot([], [], "x", color="black", label="where theory says it ends")
    left.plot([], [], "o", color="#0072B2", markersize=3.5, label="where the trainer ended, by seed")
    right.axvline(PASSED, color="gray", linewidth=0.8, linestyle="--")
    left.set(xscale="log", xlabel="from the tilted distribution, nats per token", xlim=(0.7 * _FLOOR, None))
    right.set(xscale="log", xlabel="from its own target, nats per token", xlim=(0.7 * _FLOOR, None))
    left.set_yticks(range(len(rows)), [row["name"] for row in rows])
    left.set_ylim(len(rows) - 0.5, -0.5)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    save_figure(figure, path)
