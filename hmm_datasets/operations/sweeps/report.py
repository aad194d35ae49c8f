"""The results of a sweep, from the files that its runs wrote: tables, a CSV with a row for each cell, figures, a page.

A number is found by a dotted path, such as `test_log_likelihood` or `optimum.bayes_gap.bayes_gap`, in the first of
these files that has it: `summary.json`, `report.json`, `report.json` in a folder below, `run.json`.

A heat map shows the mean over seeds by two settings; if further settings vary, there is one for each combination of
their values. If only one setting varies, its figure is a line. Results that are not there yet are shown as missing.
"""

import difflib
import itertools
import json
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from ...display import format_duration
from ...errors import InputError
from ...files import atomic_file, check_digests, read_json, write_json
from ...report.comparison_plots import plot_heat_map
from ...report.page import Section, embed, flattened, render_page
from ...report.plots import PAPER, WIDTH, save_figure
from ...report.tables import Table, csv_text
from ...runtime.credentials import masked
from .cells import FAILED, FINISHED, WAITING, CellState, read_states
from .file import Sweep, is_seed

_MAX_FIGURES = 24

# Shown if the file of the sweep names no values and a finished cell has them.
_USUAL = (
    "optimum.bayes_gap.bayes_gap",
    "text.bits_per_byte",
    "core.score",
    "evaluation.bayes_gap",
    "evaluation.reward",
    "evaluation.loss",
    "test_log_likelihood",
    "train_log_likelihood",
)
_MAX_OTHERS = 6


def collect(sweep: Sweep, states: Mapping[str, CellState | None] | None = None) -> dict[str, Any]:
    """The results of the finished cells, and the states of all.

    Args:
        sweep ([`~hmm_datasets.operations.sweeps.file.Sweep`]): the sweep.
        states (`dict`, *optional*): the states of its cells; read from their folders by default.

    Returns:
        `dict`, ready for JSON: `file`, `recipe`, `folder`, `time`; `settings`, for each setting that varies its values
        in order; `shared`, the other settings; `values`, the paths that are shown; `x`, `y`, the settings on the axes,
        or `None`; `cells`, a list with `name`, `folder`, `settings`, `state`, `attempts`, `seconds`, `errors` and
        `values`, where what is missing is `None`.
    """
    states = read_states(sweep) if states is None else states
    numbers = {
        cell.name: dict(_numbers_of_run(cell.output_dir))
        for cell in sweep.cells
        if (state := states[cell.name]) is not None and state.state == FINISHED
    }
    values = list(sweep.values) or _usual_values(numbers)
    cells = []
    for cell in sweep.cells:
        state, found = states[cell.name] or CellState([]), numbers.get(cell.name, {})
        cells.append(
            {
                "name": cell.name,
                "folder": str(cell.folder),
                "settings": dict(cell.varied),
                "state": state.state if states[cell.name] else WAITING,
                "attempts": state.attempts,
                "seconds": state.seconds,
                "errors": state.errors,
                "values": {path: found.get(path) for path in values},
            }
        )
    x, y = _axes(sweep)
    return {
        "file": masked(str(sweep.path)),
        "recipe": sweep.recipe,
        "folder": str(sweep.output_dir),
        "settings": {name: sweep.values_of(name) for name in sweep.names},
        "shared": {name: value for name, value in sweep.cells[0].settings.items() if name not in sweep.names},
        "time": time.strftime("%Y-%m-%d %H:%M"),
        "values": values,
        "x": x,
        "y": y,
        "cells": cells,
    }


def check_values(sweep: Sweep, results: Mapping[str, Any]) -> None:
    """Refuse a value that no finished cell has.

    Raises:
        `InputError`: names the value, and those of a finished cell that are most like it.
    """
    finished = [cell for cell in sweep.cells if _state(results, cell.name) == FINISHED]
    for path in sweep.values if finished else ():
        if all(cell["values"][path] is None for cell in results["cells"] if cell["state"] == FINISHED):
            known = [name for name, _ in _numbers_of_run(finished[0].output_dir)]
            near = difflib.get_close_matches(path, known, n=3) or known[:12]
            raise InputError(
                f"{sweep.path}: table: values: no finished cell has a number at {path!r}; "
                f"{finished[0].output_dir} has {', '.join(near) or 'no numbers'}"
            )


def _state(results: Mapping[str, Any], name: str) -> str:
    return next(cell["state"] for cell in results["cells"] if cell["name"] == name)


def _axes(sweep: Sweep) -> tuple[str | None, str | None]:
    """The axes that the file names, or else the first settings that have several values and are not seeds."""
    varied = [name for name in sweep.names if not is_seed(name) and len(sweep.values_of(name)) > 1]
    x = sweep.x or next((name for name in varied if name != sweep.y), None)
    y = sweep.y or next((name for name in varied if name != x), None)
    return x, y


def _usual_values(numbers: Mapping[str, Mapping[str, float]]) -> list[str]:
    there = dict.fromkeys(path for found in numbers.values() for path in found)
    return [path for path in _USUAL if path in there] or [path for path in there if "." not in path][:_MAX_OTHERS]


def _numbers_of_run(folder: Path) -> Iterator[tuple[str, float]]:
    """All numbers in the files of a run by their dotted paths; of equal paths the first counts."""
    seen = set()
    nested = sorted(folder.glob("*/report.json"))
    for path in (folder / "summary.json", folder / "report.json", *nested, folder / "run.json"):
        if path.is_file():
            check_digests(path.parent, names=(path.name,))
            for name, number in _leaves(read_json(path), ()):
                if name not in seen:
                    seen.add(name)
                    yield name, number


def _leaves(value: Any, parts: Sequence[str]) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*parts, str(key)))
    elif _is_number(value):
        yield ".".join(parts), value


def write_tables(results: Mapping[str, Any]) -> None:
    """Write `sweep.json` and `sweep.csv` in the folder of a sweep.

    Args:
        results (`dict`): the result of [`collect`].
    """
    folder = Path(results["folder"])
    write_json(folder / "sweep.json", results)
    rows = [["cell", *results["settings"], "state", *results["values"]]]
    for cell in results["cells"]:
        settings = [_label(cell["settings"][name]) for name in results["settings"]]
        numbers = ["" if number is None else repr(number) for number in cell["values"].values()]
        rows.append([cell["name"], *settings, cell["state"], *numbers])
    with atomic_file(folder / "sweep.csv") as temporary:
        temporary.write_text(csv_text(rows), encoding="utf-8")


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
    finished = counts.pop(FINISHED, 0)
    others = [f"; {count} {state}" for state, count in sorted(counts.items())]
    return f"{finished} of {len(results['cells'])} cells are finished{''.join(others)}."


def _failures(results: Mapping[str, Any]) -> list[str]:
    return [f"{cell['name']}: {cell['errors'][-1]}" for cell in results["cells"] if cell["state"] == FAILED]


def sweep_table(results: Mapping[str, Any]) -> Table:
    """A row for each combination of settings but seeds: the mean of each value and its standard deviation."""
    names = [name for name in results["settings"] if not _is_repeat(results, name)]
    repeats = any(_is_repeat(results, name) for name in results["settings"])
    rows, missing = [], False
    for settings, cells in _groups(results, names):
        finished = [cell for cell in cells if cell["state"] == FINISHED]
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
