"""The report of a sweep: a table with mean and spread over seeds, a CSV with a row for each cell, figures and a page.

A heat map shows the mean over seeds by two settings; if further settings vary, there is one for each combination of
their values. If only one setting varies, its figure is a line. Results that are not there yet are shown as missing.

The plan of a sweep is a table too, of its cells and what they will consume.
"""

import csv
import io
import itertools
import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from ...display import format_duration
from ...files import atomic_file, write_json
from ...report.comparison_plots import plot_heat_map
from ...report.page import Section, embed, flattened, render_page
from ...report.plots import PAPER, WIDTH, save_figure
from ...report.tables import Table
from .file import is_seed

if TYPE_CHECKING:
    from .cells import CellState
    from .file import Sweep
    from .planning import SweepPlan

_MAX_FIGURES = 24


def write_tables(results: Mapping[str, Any]) -> None:
    """Write `sweep.json` and `sweep.csv` in the folder of a sweep.

    Args:
        results (`dict`): the result of [`~hmm_datasets.operations.sweeps.results.collect`].
    """
    folder = Path(results["folder"])
    write_json(folder / "sweep.json", results)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["cell", *results["settings"], "state", *results["values"]])
    for cell in results["cells"]:
        settings = [_label(cell["settings"][name]) for name in results["settings"]]
        numbers = ["" if number is None else repr(number) for number in cell["values"].values()]
        writer.writerow([cell["name"], *settings, cell["state"], *numbers])
    with atomic_file(folder / "sweep.csv") as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8")


def write_sweep_page(results: Mapping[str, Any]) -> None:
    """Write `sweep.html`, and `plots/` with a PNG and a PDF of each figure."""
    folder = Path(results["folder"])
    made_of = {name: results[name] for name in ("file", "recipe", "folder", "settings", "shared")}
    figures = [embed(path, caption) for path, caption in _draw(results, folder / "plots")]
    render_page(
        folder / "sweep.html",
        title=f"Sweep of {results['recipe']}: {', '.join(results['settings'])}",
        subtitle=f"{results['file']}, {len(results['cells'])} cells in {results['folder']}, {results['time']}",
        summary=[states_sentence(results), *_failures(results)],
        sections=[
            Section("Results", [sweep_table(results)], figures),
            Section("Cells", [cells_table(results)]),
        ],
        provenance=list(flattened(made_of)),
    )


def states_sentence(results: Mapping[str, Any]) -> str:
    """How many cells are finished, failed and so on.

    ```python
    >>> states_sentence({"cells": [{"state": "finished"}, {"state": "failed"}, {"state": "finished"}]})
    '2 of 3 cells are finished; 1 failed.'

    ```
    """
    counts = Counter(cell["state"] for cell in results["cells"])
    finished = counts.pop("finished", 0)
    others = [f"; {count} {state}" for state, count in sorted(counts.items())]
    return f"{finished} of {len(results['cells'])} cells are finished{''.join(others)}."


def _failures(results: Mapping[str, Any]) -> list[str]:
    return [f"{cell['name']}: {cell['errors'][-1]}" for cell in results["cells"] if cell["state"] == "failed"]


def sweep_table(results: Mapping[str, Any]) -> Table:
    """A row for each combination of settings but seeds: the mean of each value and its standard deviation."""
    names = [name for name in results["settings"] if not _is_repeat(results, name)]
    repeats = any(_is_repeat(results, name) for name in results["settings"])
    rows, missing = [], False
    for settings, cells in _groups(results, names):
        finished = [cell for cell in cells if cell["state"] == "finished"]
        row = [_label(value) for value in settings]
        row += [f"{len(finished)} of {len(cells)}"] if repeats else []
        for path in results["values"]:
            numbers = _numbers(cells, path)
            missing |= not numbers
            row.append(_mean_and_spread(numbers))
        rows.append(row)
    header = [*names, *(["seeds"] if repeats else []), *results["values"]]
    notes = ["Mean ± standard deviation over seeds."] if repeats else []
    notes += ["A dash stands for what is missing."] if missing else []
    return Table("", header or ["cells"], rows, " ".join(notes))


def cells_table(results: Mapping[str, Any]) -> Table:
    """A row for each cell."""
    header = ["cell", "state", "attempts", "time", *results["values"]]
    rows = [
        [
            cell["name"],
            cell["state"],
            str(cell["attempts"]),
            format_duration(cell["seconds"]) if cell["seconds"] else "-",
            *("-" if number is None else f"{number:.6g}" for number in cell["values"].values()),
        ]
        for cell in results["cells"]
    ]
    return Table("", header, rows)


def _is_repeat(results: Mapping[str, Any], name: str) -> bool:
    return name not in (results["x"], results["y"]) and is_seed(name)


def _groups(results: Mapping[str, Any], names: Sequence[str]) -> Iterator[tuple[list[Any], list[Mapping[str, Any]]]]:
    """The cells that have the same values of some settings, in the order of these values."""
    orders = [[json.dumps(value) for value in results["settings"][name]] for name in names]

    def place(cell: Mapping[str, Any]) -> list[int]:
        return [order.index(json.dumps(cell["settings"][name])) for name, order in zip(names, orders, strict=True)]

    for _, cells in itertools.groupby(sorted(results["cells"], key=place), place):
        found = list(cells)
        yield [found[0]["settings"][name] for name in names], found


def _numbers(cells: Sequence[Mapping[str, Any]], path: str) -> list[float]:
    return [cell["values"][path] for cell in cells if cell["values"][path] is not None]


def _mean_and_spread(numbers: Sequence[float]) -> str:
    if not numbers:
        return "-"
    mean = f"{statistics.fmean(numbers):.5g}"
    return mean if len(numbers) == 1 else f"{mean} ± {statistics.stdev(numbers):.2g}"


def _label(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _draw(results: Mapping[str, Any], folder: Path) -> list[tuple[Path, str]]:
    """Draw every figure for which there are results; return their PNGs and captions."""
    x, y = results["x"], results["y"]
    if x is None:
        return []
    axes = [name for name in (x, y) if name is not None]
    others = [
        name
        for name, values in results["settings"].items()
        if name not in axes and not _is_repeat(results, name) and len(values) > 1
    ]
    drawn = []
    for settings, cells in _groups(results, others):
        fixed = ", ".join(f"{name} {_label(value)}" for name, value in zip(others, settings, strict=True))
        for path in results["values"]:
            if len(drawn) == _MAX_FIGURES or not _numbers(cells, path):
                continue
            number = f"-{len(drawn) // len(results['values']) + 1}" if others else ""
            name = "".join(letter if letter.isalnum() or letter in "_-" else "_" for letter in path)
            png = folder / f"{name}{number}.png"
            if y is None:
                _plot_line(results, cells, path, png)
            else:
                _plot_heat_map(results, cells, path, png)
            by = " and ".join(axes)
            mean = ", mean over seeds" if any(_is_repeat(results, one) for one in results["settings"]) else ""
            drawn.append((png, f"{path} by {by}{', ' * bool(fixed)}{fixed}{mean}."))
    return drawn


def _plot_heat_map(results: Mapping[str, Any], cells: Sequence[Mapping[str, Any]], path: str, png: Path) -> None:
    columns, rows = (results["settings"][results[axis]] for axis in ("x", "y"))

    def mean(column: Any, row: Any) -> float | None:
        at = [cell for cell in cells if [cell["settings"][results[axis]] for axis in ("x", "y")] == [column, row]]
        numbers = _numbers(at, path)
        return statistics.fmean(numbers) if numbers else None

    values = {
        f"{axis}_values": [value if _is_number(value) else _label(value) for value in found]
        for axis, found in (("x", columns), ("y", rows))
    }
    table = [[mean(column, row) for column in columns] for row in rows]
    plot_heat_map({"x": results["x"], "y": results["y"], "value": path, "cells": table, **values}, png)


@rc_context(PAPER)
def _plot_line(results: Mapping[str, Any], cells: Sequence[Mapping[str, Any]], path: str, png: Path) -> None:
    """Plot a value by one setting: every run as a dot, the mean as a line with a bar of one standard deviation."""
    name = results["x"]
    values = results["settings"][name]
    found = [_numbers([cell for cell in cells if cell["settings"][name] == value], path) for value in values]
    numeric = all(map(_is_number, values))
    places = np.array(values if numeric else range(len(values)), float)
    figure = Figure(figsize=(WIDTH, 2.4), layout="constrained")
    axes = figure.subplots()
    for place, numbers in zip(places, found, strict=True):
        axes.plot([place] * len(numbers), numbers, ".", color="gray", zorder=1)
    there = [number for number, numbers in enumerate(found) if numbers]
    means = [statistics.fmean(found[number]) for number in there]
    spreads = [statistics.stdev(found[number]) if len(found[number]) > 1 else 0.0 for number in there]
    style = "o-" if numeric else "o"
    axes.errorbar(places[there], means, yerr=spreads, fmt=style, color="#0072B2", markersize=4, capsize=2)
    axes.set(xlabel=name, ylabel=path)
    if numeric and len(values) > 2 and min(values) > 0 and max(values) >= 8 * min(values):
        axes.set_xscale("log")
    if not numeric or len(values) <= 8:
        axes.set_xticks(places, [f"{value:,.6g}" if _is_number(value) else _label(value) for value in values])
        axes.minorticks_off()
    save_figure(figure, png, vector=True)


# A cell that was killed could not write that it has stopped.
_WORDS = {"running": "unfinished", "stopped": "unfinished", "waiting": "new"}


def plan_text(sweep: "Sweep", plan: "SweepPlan", states: "Mapping[str, CellState | None]") -> str:
    """A row for each cell with its plan, if its recipe has one, and the totals."""
    header, rows = ["cell", "state"], []
    has_cost = any("cost" in found.get("time", {}) for found in plan.cells.values())
    header += ["parameters", "tokens", "FLOPs", "GiB", "hours", *(["cost"] if has_cost else [])] if plan.cells else []
    for cell in sweep.cells:
        state = states[cell.name]
        row = [cell.name, "new" if state is None else _WORDS.get(state.state, state.state)]
        if plan.cells:
            found = plan.cells[cell.name]
            hours = f"{found['time']['device_hours']:.3g}" if "time" in found else "-"
            row += [f"{found['parameters']:,}", f"{found['tokens']:,}", f"{found['flops']:.3g}", _memory(found), hours]
            row += [f"{found['time']['cost']:,.2f}"] if has_cost else []
        rows.append(row)
    note = "GiB: memory per rank, with data parallelism." if plan.cells else ""
    return f"{Table('', header, rows, note).text()}\n\n{_totals(sweep, plan)}"


def _memory(found: Mapping[str, Any]) -> str:
    """GiB per rank of a run, or of a fit."""
    memory = found["memory"]
    return f"{(memory['ddp']['total'] if isinstance(memory, dict) else memory) / 2**30:.3g}"


def _totals(sweep: "Sweep", plan: "SweepPlan") -> str:
    commands = " and then ".join([sweep.recipe, *(words[0] for words in sweep.cells[0].then)])
    text = f"{len(sweep.cells)} cells of {commands}, in {sweep.output_dir}"
    if not plan.cells:
        return text
    text += f"; together {plan.total('tokens'):,} tokens, {plan.total('flops'):.4g} FLOPs"
    if plan.device_hours is None:
        settings = (
            "assumed_flops" if sweep.recipe == "fit" else "assumed_run, assumed_device or assumed_tokens_per_second"
        )
        return f"{text}; hours: set {settings}"
    costs = [found["time"].get("cost") for found in plan.cells.values()]
    cost = f", {sum(costs):,.2f} at price_per_hour" if None not in costs else ""
    return f"{text}, {format_duration(3600 * plan.device_hours)} of one device{cost}"
