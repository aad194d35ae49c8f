"""The results of a sweep, from the files that its runs wrote: a table, a CSV with a row for each cell, and a heat map.

A number is read at a dotted path, such as `test_log_likelihood` or `optimum.bayes_gap.bayes_gap`, from the first of
these files that has it: `summary.json`, `report.json`, `report.json` in a folder below, `run.json`. The heat map
shows the mean of the first value over seeds, and over whatever else varies, by two settings.
"""

import difflib
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...files import atomic_file, check_digests, read_json, write_json
from ...report.tables import Table, csv_text
from ...runtime.credentials import masked
from .cells import FINISHED, CellState, read_states
from .file import Sweep, is_seed

_MAX_VALUES = 6  # shown if the file of the sweep names none


def collect(sweep: Sweep, states: Mapping[str, CellState] | None = None) -> dict[str, Any]:
    """The results of the finished cells, and the states of all.

    Args:
        sweep ([`~hmm_datasets.operations.sweeps.file.Sweep`]): the sweep.
        states (`dict`, *optional*): the states of its cells; read from their folders by default.

    Returns:
        `dict`, ready for JSON: `file`, `recipe`; `values`, the paths that are shown; `cells`, a list with `name`,
        `folder`, `settings`, `state`, `attempts`, `errors` and `values`, where what is missing is `None`.
    """
    states = read_states(sweep) if states is None else states
    numbers = {
        cell.name: dict(_numbers_of_run(cell.output_dir)) if states[cell.name].state == FINISHED else {}
        for cell in sweep.cells
    }
    there = dict.fromkeys(path for by_path in numbers.values() for path in by_path if "." not in path)
    values = list(sweep.values) or list(there)[:_MAX_VALUES]
    cells = [
        {
            "name": cell.name,
            "folder": str(cell.folder),
            "settings": dict(cell.varied),
            "state": states[cell.name].state,
            "attempts": states[cell.name].attempts,
            "errors": states[cell.name].errors,
            "values": {path: numbers[cell.name].get(path) for path in values},
        }
        for cell in sweep.cells
    ]
    return {"file": masked(str(sweep.path)), "recipe": sweep.recipe, "values": values, "cells": cells}


def check_values(sweep: Sweep, results: Mapping[str, Any]) -> None:
    """Refuse a value that no finished cell has.

    Raises:
        `InputError`: names the value, and those of a finished cell that are most like it.
    """
    finished = [cell for cell in results["cells"] if cell["state"] == FINISHED]
    for path in sweep.values if finished else ():
        if not _numbers(finished, path):
            run = Path(finished[0]["folder"], "run")
            known = [name for name, _ in _numbers_of_run(run)]
            near = difflib.get_close_matches(path, known, n=3) or known[:12]
            raise InputError(
                f"{sweep.path}: table: values: no finished cell has a number at {path!r}; {run} has "
                f"{', '.join(near) or 'no numbers'}"
            )


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
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield ".".join(parts), value


def write_results(sweep: Sweep, results: Mapping[str, Any]) -> None:
    """Write the results in the folder of the sweep: `sweep.json`, and `sweep.csv` with a row for each cell.

    Args:
        sweep ([`~hmm_datasets.operations.sweeps.file.Sweep`]): the sweep.
        results (`dict`): the result of [`collect`].
    """
    write_json(sweep.output_dir / "sweep.json", results)
    rows = [["cell", *sweep.names, "state", *results["values"]]]
    for cell in results["cells"]:
        numbers = ["" if number is None else repr(number) for number in cell["values"].values()]
        rows.append([cell["name"], *map(_label, cell["settings"].values()), cell["state"], *numbers])
    with atomic_file(sweep.output_dir / "sweep.csv") as temporary:
        temporary.write_text(csv_text(rows), encoding="utf-8")


def draw_heat_map(sweep: Sweep, results: Mapping[str, Any]) -> Path | None:
    """Draw `sweep.png` and a PDF beside it; None if fewer than two settings vary, or no cell has the value.

    The axes are those that the file of the sweep names, or else the first settings that vary and are not seeds.
    """
    from ...report.comparison_plots import plot_heat_map

    varied = [name for name in sweep.names if not is_seed(name) and len(sweep.values_of(name)) > 1]
    x = sweep.x or next((name for name in varied if name != sweep.y), None)
    y = sweep.y or next((name for name in varied if name != x), None)
    path = next((path for path in results["values"] if _numbers(results["cells"], path)), None)
    if x is None or y is None or path is None:
        return None
    columns, rows = ([_label(value) for value in sweep.values_of(name)] for name in (x, y))
    numbers = {key: _numbers(cells, path) for key, cells in _grouped(results, (y, x)).items()}
    means = {key: statistics.fmean(values) for key, values in numbers.items() if values}
    table = [[means.get((row, column)) for column in columns] for row in rows]
    png = sweep.output_dir / "sweep.png"
    plot_heat_map({"x": x, "y": y, "value": path, "cells": table, "x_values": columns, "y_values": rows}, png)
    return png


def sweep_table(sweep: Sweep, results: Mapping[str, Any]) -> Table:
    """A row for each combination of settings but seeds: the mean of each value and its standard deviation."""
    names = [name for name in sweep.names if not is_seed(name)]
    rows = []
    for key, cells in _grouped(results, names).items():
        finished = sum(cell["state"] == FINISHED for cell in cells)
        means = [_mean_and_spread(_numbers(cells, path)) for path in results["values"]]
        rows.append([*key, f"{finished} of {len(cells)}", *means])
    return Table("", [*names, "finished", *results["values"]], rows, "Mean ± standard deviation; - if there is none.")


def _grouped(results: Mapping[str, Any], names: Sequence[str]) -> dict[tuple[str, ...], list[Mapping[str, Any]]]:
    """The cells by the values of some settings, as they are shown."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for cell in results["cells"]:
        groups.setdefault(tuple(_label(cell["settings"][name]) for name in names), []).append(cell)
    return groups


def _numbers(cells: Sequence[Mapping[str, Any]], path: str) -> list[float]:
    return [cell["values"][path] for cell in cells if cell["values"][path] is not None]


def _mean_and_spread(numbers: Sequence[float]) -> str:
    mean = f"{statistics.fmean(numbers):.5g}" if numbers else "-"
    return mean if len(numbers) < 2 else f"{mean} ± {statistics.stdev(numbers):.2g}"


def _label(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
