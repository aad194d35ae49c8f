"""The report of the frontier: tables of what can be had and of where policies land, and a picture of both."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from mean_text import mean_text
from methods import DRAWS
from panels import shared_legend
from report_page import write_report_page
from rewards import MEMBERS, NUM_ENSEMBLES, Rewards, ensemble_gains, share_of

from hmm_datasets.hmm import processes
from hmm_datasets.hmm.analysis.reward_totals import reward_totals
from hmm_datasets.intervals import half_width
from hmm_datasets.report.plots import PAPER, WIDTH, save_figure
from hmm_datasets.report.tables import Table

NO_SHARE = "none"
DIVERGENCES = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Nats per sequence for which the tables say what can be had."""
LENGTHS = (16, 64, 256)
"""Symbols of the sequences of Mess3, whose best of `n` is compared with what can be had."""
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#000000")


def write_report(folder: Path, rewards: Rewards, rows: Sequence[dict[str, Any]], settings: dict[str, Any]) -> None:
    """Write `report.json`, `report.md` and `frontier.png`, and print the tables."""
    tables = [possible_table(rewards), best_table(rewards)]
    if rows:
        tables += [landing_table(rewards, rows), share_table(rows)]
    gains = {members: ensemble_gains(rewards, members, NUM_ENSEMBLES, np.array(DIVERGENCES)) for members in MEMBERS}
    tables.append(ensemble_table(rewards, gains))
    figures = {"settings": settings, "policies": list(rows)}
    write_report_page(folder, tables, figures, {"frontier.png": partial(plot_frontier, rewards, rows)})


def possible_table(rewards: Rewards) -> Table:
    """The most of both rewards by divergence."""
    cells = []
    for nats in DIVERGENCES:
        proxy, gold = rewards.totals.at_divergence(nats), rewards.gold_totals.at_divergence(nats)
        cells.append([f"{nats:g}", f"{proxy.reward:.4f}", f"{proxy.gold:.4f}", f"{gold.reward:.4f}"])
    before, turn = rewards.totals.reference, rewards.totals.turning_point()
    turns = (
        f"Its gold reward is highest at beta {turn.beta:.4f}, where the divergence is {turn.outcome.divergence:.4f}, "
        f"the proxy {turn.outcome.reward:.4f} and the gold reward {turn.outcome.gold:.4f}."
        if turn
        else "Its gold reward does not fall."
    )
    note = (
        f"Exact; divergences in nats per sequence. The HMM itself has proxy {before.reward:.4f} and gold "
        f"{before.gold:.4f}. {turns}"
    )
    header = ["divergence", "most proxy", "gold of that policy", "most gold"]
    return Table("What can be had", header, cells, note)


def best_table(rewards: Rewards) -> Table:
    """The best of n: its divergence beside the bound, and its share of what can be had."""
    others = [reward_totals(processes.mess3(0.05, 0.85), [0, 1, 2], length) for length in LENGTHS]
    cells = []
    for n in DRAWS:
        best, bound = rewards.totals.best_of(n), math.log(n) - (n - 1) / n
        numbers = [best.divergence, bound, best.reward, best.gold]
        shares = [share_of(totals, totals.best_of(n)) for totals in (rewards.totals, *others)]
        texts = (NO_SHARE if share is None else f"{share:.1%}" for share in shares)
        cells.append([str(n), *(f"{number:.4f}" for number in numbers), *texts])
    header = ["n", "divergence", "log n - (n - 1) / n", "proxy", "gold", "share"]
    note = (
        "Exact. The share is that of the gain that is possible at the same divergence; the last columns have it for "
        "sequences of Mess3 with rewards 0, 1 and 2."
    )
    return Table("The best of n", [*header, *(f"{length} symbols of Mess3" for length in LENGTHS)], cells, note)


def landing_table(rewards: Rewards, rows: Sequence[dict[str, Any]]) -> Table:
    """Where the policies of each method and strength land, with intervals over seeds."""
    cells = []
    for row in rows:
        results = row["results"]
        shares = [result["share"] for result in results if result["share"] is not None]
        most = rewards.totals.at_divergence(float(np.mean([result["divergence"] for result in results])))
        cells.append(
            [
                row["method"],
                row["strength"],
                mean_text([result["divergence"] for result in results], ".3f"),
                mean_text([result["reward"] for result in results], ".3f"),
                f"{most.reward:.3f}",
                mean_text([100 * share for share in shares], ".2f") + " %" if shares else NO_SHARE,
                mean_text([result["gold"] for result in results], ".3f"),
                f"{most.gold:.3f}",
                f"{row['learning_rate']:g}",
                f"{np.mean([result['seconds'] for result in results]):.0f}",
            ]
        )
    header = ["method", "strength", "divergence", "proxy", "most possible", "share", "gold", "gold of the most"]
    note = "What policies come to is exact; mean and 95% interval over seeds. Divergences in nats per sequence."
    return Table("Where trainers land", [*header, "learning rate", "seconds"], cells, note)


def share_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The share of the possible gain by method."""
    cells = []
    for method, results in _by_method(rows):
        shares = [result["share"] for result in results if result["share"] is not None]
        row = (min(shares), np.mean(shares), max(shares)) if shares else ()
        cells.append([method, *([f"{share:.1%}" for share in row] or [NO_SHARE] * 3)])
    note = (
        "Of the gain of proxy reward that is possible at a policy's divergence, over strengths and seeds; a policy "
        "that has not moved has none."
    )
    return Table("Shares", ["method", "least", "mean", "most"], cells, note)


def ensemble_table(rewards: Rewards, gains: dict[int, tuple[np.ndarray, np.ndarray]]) -> Table:
    """Gold reward gained by optimizing the mean of several wrong rewards."""
    before, cells = rewards.gold_totals.reference.reward, []
    for place, nats in enumerate(DIVERGENCES):
        most = rewards.gold_totals.at_divergence(nats).reward - before
        cells.append(
            [f"{nats:g}", f"{most:.3f}", *(weighted_text(of[:, place], weights) for of, weights in gains.values())]
        )
    header = ["divergence", "most possible", *(f"{members} averaged" for members in gains)]
    note = (
        f"Gain of gold reward when the mean of so many rewards is optimized, each the gold one with an error of its "
        f"own; mean and 95% interval over {len(gains[MEMBERS[0]][1])} weighted draws. Exact for each of them."
    )
    return Table("Wrong rewards, averaged", header, cells, note)


def weighted_text(values: np.ndarray, weights: np.ndarray) -> str:
    """The weighted mean of independent draws with its 95% interval."""
    mean = np.average(values, weights=weights)
    error = (weights * (values - mean)).std(ddof=1) / weights.sum() * len(weights) ** 0.5
    return f"{mean:.3f} ± {half_width(float(error), len(values)):.3f}"


def _by_method(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, float]]]]:
    for method, of_method in groupby(rows, key=lambda row: row["method"]):
        yield method, [result for row in of_method for result in row["results"]]


@rc_context(PAPER)
def plot_frontier(rewards: Rewards, rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot proxy, its share of what can be had, and gold reward against divergence: exact curves, and policies."""
    landed = dict(_by_method(rows))
    best = [rewards.totals.best_of(n) for n in DRAWS]
    furthest = max([best[-1].divergence, *(one["divergence"] for of in landed.values() for one in of)])
    nats = np.linspace(0, 1.05 * furthest, 200)
    tilted = [rewards.totals.at_divergence(one) for one in nats]
    gold = [rewards.gold_totals.at_divergence(one).reward for one in nats]
    figure = Figure(figsize=(2 * WIDTH, 1.05 * WIDTH), layout="constrained")
    proxy_axes, share_axes, gold_axes = figure.subplots(1, 3)
    proxy_axes.plot(nats, [one.reward for one in tilted], color="black", label="the most that is possible")
    gold_axes.plot(nats, gold, color="black", linestyle="--", label="the most gold that is possible")
    gold_axes.plot(nats, [one.gold for one in tilted], color="black", linestyle="-.", label="gold of the most proxy")
    turn = rewards.totals.turning_point()
    if turn:
        gold_axes.axvline(
            turn.outcome.divergence, color="gray", linewidth=0.8, linestyle=":", label="where gold turns"
        )
    share_axes.axhline(1, color="black")
    share_axes.set_ylim(top=1.02)
    _draw(proxy_axes, share_axes, gold_axes, "best of n", [_drawn(rewards, one) for one in best], "gray", "s-")
    for color, (method, results) in zip(_COLORS, landed.items(), strict=False):
        _draw(proxy_axes, share_axes, gold_axes, method, results, color, "o")
    for axes, name in ((proxy_axes, "proxy reward"), (share_axes, "share of the gain"), (gold_axes, "gold reward")):
        axes.set(xlabel="divergence, nats per sequence", ylabel=name)
    shared_legend(figure, 4, (proxy_axes, gold_axes))
    save_figure(figure, path)


def _drawn(rewards: Rewards, outcome: Any) -> dict[str, Any]:
    return {**outcome._asdict(), "share": share_of(rewards.totals, outcome)}


def _draw(
    proxy: Axes, share: Axes, gold: Axes, label: str, results: Sequence[dict[str, Any]], color: str, style: str
) -> None:
    nats = [result["divergence"] for result in results]
    for axes, key in ((proxy, "reward"), (share, "share"), (gold, "gold")):
        values = [np.nan if result[key] is None else result[key] for result in results]
        axes.plot(nats, values, style, color=color, markersize=3, linewidth=0.8, alpha=0.8, label=label)
