"""The results of a sweep, from the files that its runs wrote: a table, a CSV with a row for each cell, and a heat map.

A number is read at a dotted path, such as `test_log_likelihood` or `optimum.bayes_gap.bayes_gap`, from the first of
these files that has it: `summary.json`, `report.json`, `report.json` in a folder below, `run.json`. The heat map
shows the mean of the first value over seeds, and over whatever else varies, by two settings.
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

from ...errors import InputError
from ...files import atomic_file, check_digests, read_json, write_json
from ...report.tables import Table, csv_text
from ...runtime.credentials import masked
from .cells import FINISHED, WAITING, CellState, read_states
from .file import Sweep, is_seed

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
        in order; `values`, the paths that are shown; `cells`, a list with `name`, `folder`, `settings`, `state`,
        `attempts`, `seconds`, `errors` and `values`, where what is missing is `None`.
    """
    states = read_states(sweep) if states is None else states
    numbers: dict[str, dict[str, float]] = {}
    for cell in sweep.cells:
        state = states[cell.name]
        is_finished = state is not None and state.state == FINISHED
        numbers[cell.name] = dict(_numbers_of_run(cell.output_dir)) if is_finished else {}
    values = list(sweep.values) or _usual_values(numbers)
    cells = []
    for cell in sweep.cells:
        state = states[cell.name] or CellState([])
        cells.append(
            {
                "name": cell.name,
                "folder": str(cell.folder),
                "settings": dict(cell.varied),
                "state": state.state if states[cell.name] else WAITING,
                "attempts": state.attempts,
                "seconds": state.seconds,
                "errors": state.errors,
                "values": {path: numbers[cell.name].get(path) for path in values},
            }
        )
    return {
        "file": masked(str(sweep.path)),
        "recipe": sweep.recipe,
        "folder": str(sweep.output_dir),
        "settings": {name: sweep.values_of(name) for name in sweep.names},
        "time": time.strftime("%Y-%m-%d %H:%M"),
        "values": values,
        "cells": cells,
    }


def check_values(sweep: Sweep, results: Mapping[str, Any]) -> None:
    """Refuse a value that no finished cell has.

    Raises:
        `InputError`: names the value, and those of a finished cell that are most like it.
    """
    finished = [cell for cell in results["cells"] if cell["state"] == FINISHED]
    for path in sweep.values if finished else ():
        if all(cell["values"][path] is None for cell in finished):
            run = Path(finished[0]["folder"], "run")
            known = [name for name, _ in _numbers_of_run(run)]
            near = difflib.get_close_matches(path, known, n=3) or known[:12]
            raise InputError(
                f"{sweep.path}: table: values: no finished cell has a number at {path!r}; {run} has "
                f"{', '.join(near) or 'no numbers'}"
            )


def _usual_values(numbers: Mapping[str, Mapping[str, float]]) -> list[str]:
    there = dict.fromkeys(path for by_path in numbers.values() for path in by_path)
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


def write_results(results: Mapping[str, Any]) -> None:
    """Write the results in the folder of a sweep: `sweep.json`, and `sweep.csv` with a row for each cell.

    `means.csv` has a row for each combination of settings but seeds, with the number, mean and standard deviation of
    each value; `means.tex` has the printed table for a paper.

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
    texts = {
        "sweep.csv": csv_text(rows),
        "means.csv": csv_text(_means(results)),
        "means.tex": sweep_table(results).latex(),
    }
    for name, text in texts.items():
        with atomic_file(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")


def _means(results: Mapping[str, Any]) -> Iterator[list[Any]]:
    names = [name for name in results["settings"] if not is_seed(name)]
    paths = results["values"]
    yield [*names, *(f"{path}{part}" for path in paths for part in ("", " standard deviation", " count"))]
    for _, cells in _groups(results, names):
        row = [_label(cells[0]["settings"][name]) for name in names]
        for path in paths:
            numbers = _numbers(cells, path)
            mean = repr(statistics.fmean(numbers)) if numbers else ""
            row += [mean, repr(statistics.stdev(numbers)) if len(numbers) > 1 else "", len(numbers)]
        yield row


def draw_heat_map(sweep: Sweep, results: Mapping[str, Any]) -> Path | None:
    """Draw `sweep.png` and a PDF beside it; None if fewer than two settings vary, or no cell has the value.

    The axes are those that the file of the sweep names, or else the first settings that vary and are not seeds.
    """
    from ...report.comparison_plots import plot_heat_map

    varied = [name for name, values in results["settings"].items() if not is_seed(name) and len(values) > 1]
    x = sweep.x or next((name for name in varied if name != sweep.y), None)
    y = sweep.y or next((name for name in varied if name != x), None)
    path = next((path for path in results["values"] if _numbers(results["cells"], path)), None)
    if x is None or y is None or path is None:
        return None
    columns, rows = results["settings"][x], results["settings"][y]
    means = {key: _mean(cells, path) for key, cells in _groups(results, (y, x))}
    table = [[means.get((json.dumps(row), json.dumps(column))) for column in columns] for row in rows]
    labels = [[value if _is_number(value) else _label(value) for value in values] for values in (columns, rows)]
    png = Path(results["folder"], "sweep.png")
    plot_heat_map({"x": x, "y": y, "value": path, "cells": table, "x_values": labels[0], "y_values": labels[1]}, png)
    return png


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


def sweep_table(results: Mapping[str, Any]) -> Table:
    """A row for each combination of settings but seeds: the mean of each value and its standard deviation."""
    names = [name for name in results["settings"] if not is_seed(name)]
    has_seeds = len(names) < len(results["settings"])
    rows = []
    for _, cells in _groups(results, names):
        finished = sum(cell["state"] == FINISHED for cell in cells)
        row = [_label(cells[0]["settings"][name]) for name in names]
        row += [f"{finished} of {len(cells)}"] if has_seeds else []
        rows.append(row + [_mean_and_spread(_numbers(cells, path)) for path in results["values"]])
    header = [*names, *(["seeds"] if has_seeds else []), *results["values"]]
    notes = ["Mean ± standard deviation over seeds."] if has_seeds else []
    notes += ["A dash stands for what is missing."] if any("-" in row for row in rows) else []
    return Table("", header or ["cells"], rows, " ".join(notes))


def _groups(
    results: Mapping[str, Any], names: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], list[Mapping[str, Any]]]]:
    """The cells that have the same values of some settings, with these values as JSON, in their order."""
    orders = [[json.dumps(value) for value in results["settings"][name]] for name in names]

    def place(cell: Mapping[str, Any]) -> list[int]:
        return [order.index(json.dumps(cell["settings"][name])) for name, order in zip(names, orders, strict=True)]

    for places, cells in itertools.groupby(sorted(results["cells"], key=place), place):
        yield tuple(order[number] for number, order in zip(places, orders, strict=True)), list(cells)


def _numbers(cells: Sequence[Mapping[str, Any]], path: str) -> list[float]:
    return [cell["values"][path] for cell in cells if cell["values"][path] is not None]


def _mean(cells: Sequence[Mapping[str, Any]], path: str) -> float | None:
    numbers = _numbers(cells, path)
    return statistics.fmean(numbers) if numbers else None


def _mean_and_spread(numbers: Sequence[float]) -> str:
    if not numbers:
        return "-"
    mean = f"{statistics.fmean(numbers):.5g}"
    return mean if len(numbers) == 1 else f"{mean} ± {statistics.stdev(numbers):.2g}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _label(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
