"""The results of the experiment as tables in the terminal and in `report.md`, with `updates.png` and `report.json`.

    python recipes/experiments/tinystories_hmm/compare.py --experiment outputs/tinystories_hmm --best FOLDER

It shows the losses of the fits by size, the held-out loss of the update rules by epoch, the distance of the Llama
from the optimum, and ten sentences of the best HMM and of the Llama: the first whole sentence of each of the first
sequences that have one.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

SHOWN_EPOCHS = (1, 2, 5, 10, 20, 50, 100)
NUM_SENTENCES = 10


@dataclass
class ComparisonSettings:
    """The experiment to report on."""

    experiment: str = setting(MISSING, "Folder of the experiment.")
    best: str = setting(MISSING, "Output folder of the best fit.")


def main(settings: ComparisonSettings) -> None:
    """Read the results, print and write them."""
    from report_page import write_report_page

    from hmm_datasets.files import read_json

    root = Path(settings.experiment)
    cells = {name: read_json(root / name / "sweep.json")["cells"] for name in ("sizes", "updates")}
    curves = held_out_curves(cells["updates"])
    optimum = read_json(root / "evaluation" / "report.json")["optimum"]
    said = {
        name: first_sentences((root / f"said_by_{name}.txt").read_text(encoding="utf-8").splitlines())
        for name in ("hmm", "llama")
    }
    tables = [sizes_table(cells["sizes"]), updates_table(curves), llama_table(optimum)]
    lists = {"hmm": f"Sentences of the best HMM ({settings.best})", "llama": "Sentences of the Llama"}
    for name, title in lists.items():
        print(f"{title}\n" + "".join(f"  {sentence}\n" for sentence in said[name]))
    sections = [f"# {title}\n\n" + "\n".join(f"- {item}" for item in said[name]) for name, title in lists.items()]
    rows = [{**item, "rule": rule, "update_every": every} for (every, rule), item in curves.items()]
    figures = {"best": settings.best, "updates": rows, "sentences": said, "llama": optimum}
    pictures = {"updates.png": partial(draw_updates, curves)}
    others = ["emissions.png", "sizes/sweep.csv", "updates/sweep.csv"]
    write_report_page(root, tables, figures, pictures, sections=sections, others=others)


def sizes_table(cells: Sequence[Mapping[str, Any]]):
    """A row for each E, H and L, with the mean over seeds."""
    from hmm_datasets.report.tables import Table

    paths = ("test.cross_entropy", "test.final_token_cross_entropy")
    paths += tuple(path.replace("test", "unique_test") for path in paths)
    header = ["E", "H", "L", "train", "test", "test, final token", "distinct test", "distinct test, final token"]
    rows = []
    for key, group in _grouped(cells, ("vocabulary_size", "num_states", "length")).items():
        numbers = [-_mean(cell["values"]["train_log_likelihood"] for cell in group)]
        numbers += [_mean(cell["values"][path] for cell in group) for path in paths]
        rows.append([*map(str, key), *("-" if math.isnan(number) else f"{number:.4f}" for number in numbers)])
    note = "Losses in nats per token. Losses of different E are of different texts and do not compare."
    return Table("HMMs of E words, H states, fitted to windows of L words", header, rows, note)


def held_out_curves(cells: Sequence[Mapping[str, Any]]) -> dict[tuple[int | None, str], dict[str, Any]]:
    """The held-out loss by epoch of each update rule, mean over seeds: `losses[k]` is that after `k` epochs.

    Returns:
        `dict`: by `update_every` (`None` for one update per epoch) and `update_rule`, with `losses`, `updates` (per
        epoch) and `best_epoch`.
    """
    from hmm_datasets.files import read_log

    curves = {}
    for (every, rule), group in _grouped(cells, ("update_every", "update_rule")).items():
        histories = [read_log(Path(cell["folder"]) / "run" / "fit" / "history.jsonl") for cell in group]
        losses = [_mean(-row["test_log_likelihood"] for row in rows) for rows in zip(*histories, strict=False)]
        best = min(range(len(losses)), key=losses.__getitem__)
        curves[every, rule] = {"losses": losses, "updates": histories[0][0]["updates"], "best_epoch": best}
    return curves


def updates_table(curves: Mapping[tuple[int | None, str], Mapping[str, Any]]):
    """A row for each update rule: the held-out loss after some epochs, the lowest, and the last."""
    from hmm_datasets.report.tables import Table

    length = min(len(curve["losses"]) for curve in curves.values())
    shown = [epoch for epoch in SHOWN_EPOCHS if epoch < length]
    header = ["batches per update", "rule", "updates per epoch", *(f"after {epoch}" for epoch in shown)]
    header += ["lowest", "in epoch", "last"]
    rows = []
    for (every, rule), curve in curves.items():
        losses = curve["losses"]
        numbers = [*(losses[epoch] for epoch in shown), losses[curve["best_epoch"]]]
        row = ["all" if every is None else str(every), "-" if every is None else rule, f"{curve['updates']:,}"]
        rows.append([*row, *(f"{number:.4f}" for number in numbers), str(curve["best_epoch"]), f"{losses[-1]:.4f}"])
    return Table("Held-out loss after some epochs, by how the tables are updated", header, rows, "Nats per token.")


def llama_table(optimum: Mapping[str, Any]):
    """The distance of the Llama from the optimum, and from simpler predictors."""
    from hmm_datasets.report.tables import PREDICTORS, Table

    rows = []
    for name, title in PREDICTORS.items():
        if name in optimum["cross_entropy"]:
            divergence = f"{optimum['kl'][name]['kl']:.4f}" if name in optimum["kl"] else ""
            rows.append([title, f"{optimum['cross_entropy'][name]['cross_entropy']:.4f}", divergence])
    gap = optimum["bayes_gap"]
    note = f"The Llama is {gap['bayes_gap']:.4f} nats per token above the optimal loss."
    return Table("A Llama on sequences of the best HMM", ["predictor", "loss", "KL from it to the Llama"], rows, note)


def first_sentences(lines: Iterable[str], count: int = NUM_SENTENCES) -> list[str]:
    """The first whole sentence of each line, of the first `count` lines that have one.

    ```python
    >>> first_sentences(["the end. a dog ran. it", "no stop", "x. y z."])
    ['a dog ran.', 'y z.']

    ```
    """
    parts = (line.split(".") for line in lines)
    return [f"{sentence[1].strip()}." for sentence in parts if len(sentence) > 2][:count]


def draw_updates(curves: Mapping[tuple[int | None, str], Mapping[str, Any]], path: Path) -> None:
    """Draw the held-out loss by epoch: a panel for each rule, with one update per epoch in all of them."""
    from matplotlib import colormaps, rc_context
    from matplotlib.figure import Figure

    from hmm_datasets.report.plots import PAPER, WIDTH, save_figure

    rules = list(dict.fromkeys(rule for every, rule in curves if every is not None))
    periods = sorted({every for every, _ in curves if every is not None})
    colors = dict(
        zip(periods, colormaps["viridis"]([k / max(len(periods), 2) for k in range(len(periods))]), strict=True)
    )
    with rc_context(PAPER):
        figure = Figure(figsize=(2 * WIDTH, 2.8), layout="constrained")
        panels = figure.subplots(1, max(len(rules), 1), sharey=True, squeeze=False)[0]
        for axes, rule in zip(panels, rules, strict=False):
            for (every, name), curve in curves.items():
                epochs = range(1, len(curve["losses"]))
                if every is None:
                    axes.plot(epochs, curve["losses"][1:], color="black", linestyle="--", label="all")
                elif name == rule:
                    axes.plot(epochs, curve["losses"][1:], color=colors[every], label=f"{every}")
            axes.set(title=rule, xlabel="epochs")
            axes.xaxis.get_major_locator().set_params(integer=True)
        panels[0].set(ylabel="held-out cross-entropy\n(nats per token)")
        panels[-1].legend(title="batches per update", loc="center left", bbox_to_anchor=(1.0, 0.5))
        save_figure(figure, path)


def _grouped(cells: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[tuple, list[Mapping[str, Any]]]:
    groups: dict[tuple, list[Mapping[str, Any]]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell["settings"][name] for name in names), []).append(cell)
    return groups


def _mean(numbers: Iterable[float | None]) -> float:
    known = [number for number in numbers if number is not None]
    return statistics.fmean(known) if known else math.nan


if __name__ == "__main__":
    run(main)
