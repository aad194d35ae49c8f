"""The results of the experiment as tables in the terminal and in `report.md`, with `icll.png` and `report.json`.

    python recipes/experiments/icll/compare.py --experiment outputs/icll

For every source and model it shows the divergence from exact predictors (Bayes-optimal, or an oracle that is given the
permutation; unigram and bigram of the process) and from predictors that only count in the context, and the model's
excess over the optimum, or over the oracle where the optimum cannot be computed.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting


@dataclass
class ComparisonSettings:
    """The experiment to report on."""

    experiment: str = setting(MISSING, "Folder of the experiment.")


def main(settings: ComparisonSettings) -> None:
    """Read the results, print and write them."""
    from report_page import write_report_page

    from hmm_datasets.files import read_json

    root = Path(settings.experiment)
    rows = results(read_json(root / "models" / "sweep.json")["cells"])
    tables = [divergences_table(rows), quality_table(rows)]
    others = ["fits/sweep.csv", "models/sweep.csv"]
    write_report_page(root, tables, {"models": rows}, {"icll.png": partial(draw, rows)}, others=others)


def results(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each model, ordered by kind of source, states, words and size.

    Returns:
        list of `dict`: `kind`, `states`, `words`, `model`, `seed`, `parameters`, `loss`, `floor` (bayes or oracle),
        `excess` and its `error` in nats per token, and `kl`, the divergence from each predictor.

    Raises:
        `InputError`: a model is not finished.
    """
    from hmm_datasets.files import read_json

    rows = []
    for cell in cells:
        if cell["state"] != "finished":
            raise InputError(f"{cell['folder']}: the model is not finished; start the experiment again")
        name = Path(cell["settings"]["hmm"]).name
        states, words, kind = re.fullmatch(r"H(\d+)-E(\d+)-(\w+)", name).groups()
        report = read_json(Path(cell["folder"]) / "run" / "evaluation" / "report.json")
        optimum = report["optimum"]
        rows.append(
            {
                "kind": kind,
                "states": int(states),
                "words": int(words),
                "model": cell["settings"]["model"],
                "seed": cell["settings"]["seed"],
                "parameters": report["model"]["parameters"],
                "loss": optimum["cross_entropy"]["model"]["cross_entropy"],
                "floor": optimum["floor"],
                "excess": optimum["bayes_gap"]["bayes_gap"],
                "error": optimum["bayes_gap"]["standard_error"],
                "kl": {predictor: divergence["kl"] for predictor, divergence in optimum["kl"].items()},
            }
        )
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    return sorted(
        rows,
        key=lambda row: (kinds.index(row["kind"]), row["states"], row["words"], row["parameters"], row["seed"]),
    )


def divergences_table(rows: Sequence[Mapping[str, Any]]):
    """A row for each model: its divergence from each predictor."""
    from hmm_datasets.report.tables import PREDICTORS, Table

    names = [name for name in PREDICTORS if any(name in row["kl"] for row in rows)]
    shown = [
        [f"H{row['states']}-E{row['words']} {row['kind']}", row["model"], str(row["seed"]), f"{row['loss']:.4f}"]
        + [f"{row['kl'][name]:.4f}" if name in row["kl"] else "-" for name in names]
        for row in rows
    ]
    header = ["source", "model", "seed", "loss", *(PREDICTORS[name] for name in names)]
    note = "Nats per token. A dash: such a predictor is not defined for the source, or cannot be computed."
    return Table("Divergence of each model from each predictor, KL(predictor || model)", header, shown, note)


def quality_table(rows: Sequence[Mapping[str, Any]]):
    """The excess of each model over the optimum, by states."""
    from hmm_datasets.report.tables import Table, figure_text

    shown = []
    for row in rows:
        named = [row["kind"], str(row["states"]), str(row["words"]), row["model"], f"{row['parameters']:,}"]
        shown.append([*named, str(row["seed"]), row["floor"], f"{row['excess']:.4f}", figure_text(row["error"])])
    header = ["kind", "H", "E", "model", "parameters", "seed", "above", "excess", "standard error"]
    note = (
        "Nats per token above the Bayes-optimal predictor (bayes), or above one that knows the permutation (oracle)."
    )
    return Table("Quality of the models by number of states", header, shown, note)


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the divergences of the largest model, a panel for each kind of source, and the excess of all by size."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from panels import shared_legend

    from hmm_datasets.report.plots import PAPER, WIDTH, predictor_styles, run_style, save_figure

    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    sizes = sorted({(row["states"], row["words"]) for row in rows})
    places, labels = (
        {size: place for place, size in enumerate(sizes)},
        [f"H{states}\nE{words}" for states, words in sizes],
    )
    largest = max(
        row["parameters"] for row in rows if row["kind"] == kinds[0] and (row["states"], row["words"]) == sizes[0]
    )
    model = next(row["model"] for row in rows if row["parameters"] == largest)
    with rc_context(PAPER):
        figure = Figure(figsize=(0.8 * WIDTH * (len(kinds) + 1), 3.4), layout="constrained")
        panels = figure.subplots(1, len(kinds) + 1)
        for axes, kind in zip(panels, kinds, strict=False):
            chosen = [row for row in rows if row["kind"] == kind and row["model"] == model]
            for name, style in predictor_styles({name for row in chosen for name in row["kl"]}):
                points = _means(chosen, places, lambda row, name=name: row["kl"].get(name, math.nan))
                axes.plot(*points, marker="o", markersize=3, **style)
            axes.set(title=f"{kind} sources, model {model}", ylabel="KL(predictor || model) (nats)", yscale="log")
        series = list(dict.fromkeys((row["kind"], row["model"]) for row in rows))
        for number, (kind, size) in enumerate(series):
            chosen = [row for row in rows if (row["kind"], row["model"]) == (kind, size)]
            points = _means(chosen, places, lambda row: row["excess"])
            panels[-1].plot(*points, marker="o", markersize=3, label=f"{kind}, {size}", **run_style(number))
        floors = {kind: {row["floor"] for row in rows if row["kind"] == kind} for kind in kinds}
        mixed = any("oracle" in floor for floor in floors.values())
        panels[-1].set(title="quality", ylabel=f"excess over the optimal loss{' or oracle' * mixed} (nats)")
        panels[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        for axes in panels:
            axes.set_xticks(range(len(sizes)), labels)
            axes.set_xlim(-0.3, len(sizes) - 0.7)
        shared_legend(figure, 4, panels[:-1])
        save_figure(figure, path)


def _means(rows: Sequence[Mapping[str, Any]], places: Mapping[tuple[int, int], int], value) -> tuple[list, list]:
    """Places and means over seeds of a value, where there is one."""
    values: dict[int, list[float]] = {}
    for row in rows:
        number = value(row)
        if math.isfinite(number):
            values.setdefault(places[row["states"], row["words"]], []).append(number)
    return list(values), [sum(numbers) / len(numbers) for numbers in values.values()]


if __name__ == "__main__":
    run(main)
