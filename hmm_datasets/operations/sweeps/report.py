"""The results of a sweep, from the files that its runs wrote: a table with a row for each cell.

A number is read at a dotted path, such as `test_log_likelihood` or `optimum.bayes_gap.bayes_gap`, from the first of
these files that has it: `summary.json`, `report.json`, `report.json` in a folder below, `run.json`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import InputError, suggestion
from ...files import atomic_file, check_digests, read_json, write_json
from ...report.tables import csv_text, figure_text, text_table
from ...runtime.credentials import masked
from .cells import FAILED, FINISHED, LOG_NAME, CellState, read_states
from .file import Sweep, listed


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
    finished = {cell.name: cell.output_dir for cell in sweep.cells if states[cell.name].state == FINISHED}
    numbers = {name: _numbers_of_run(folder) for name, folder in finished.items()}
    values = listed(sweep.file.table.values)
    cells = [
        {
            "name": cell.name,
            "folder": str(cell.folder),
            "settings": dict(cell.varied),
            "state": states[cell.name].state,
            "attempts": states[cell.name].attempts,
            "errors": states[cell.name].errors,
            "values": {path: numbers.get(cell.name, {}).get(path) for path in values},
        }
        for cell in sweep.cells
    ]
    return {"file": masked(str(sweep.path)), "recipe": sweep.file.recipe, "values": values, "cells": cells}


def _numbers_of_run(folder: Path) -> dict[str, float]:
    """All numbers in the files of a run by their dotted paths; of equal paths the first counts."""
    import pandas

    numbers: dict[str, float] = {}
    nested = sorted(folder.glob("*/report.json"))
    for path in (folder / "summary.json", folder / "report.json", *nested, folder / "run.json"):
        if path.is_file():
            check_digests(path.parent, names=(path.name,))
            (found,) = pandas.json_normalize(read_json(path)).to_dict("records") or [{}]
            numbers = {name: value for name, value in found.items() if type(value) in (int, float)} | numbers
    return numbers


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
        labels = [value if isinstance(value, str) else json.dumps(value) for value in cell["settings"].values()]
        rows.append([cell["name"], *labels, cell["state"], *numbers])
    with atomic_file(sweep.output_dir / "sweep.csv") as temporary:
        temporary.write_text(csv_text(rows), encoding="utf-8")


def show_results(sweep: Sweep, results: Mapping[str, Any]) -> None:
    """Write the results, and print a row for each cell, why cells failed, and the files.

    Raises:
        `InputError`: no finished cell has a number of this name; the message has those that are there.
    """
    write_results(sweep, results)
    cells = results["cells"]
    states = [cell["state"] for cell in cells]
    rows = [
        [cell["name"], cell["state"], *(figure_text(number, ".6g") for number in cell["values"].values())]
        for cell in cells
    ]
    counts = [f"; {states.count(state)} {state}" for state in dict.fromkeys(states) if state != FINISHED]
    print(f"\n{text_table(['cell', 'state', *results['values']], rows)}\n")
    print(f"{states.count(FINISHED)} of {len(states)} cells are finished{''.join(counts)}.")
    for cell in cells:
        if cell["state"] == FAILED:
            print(f"failed: {cell['name']}: {'; '.join(cell['errors'])}\n        {cell['folder']}/{LOG_NAME}")
    print(f"{sweep.output_dir}/: sweep.csv, sweep.json", flush=True)
    run = next((Path(cell["folder"], "run") for cell in cells if cell["state"] == FINISHED), None)
    for path in () if run is None else results["values"]:
        if all(cell["values"][path] is None for cell in cells):
            known = _numbers_of_run(run)
            hint = suggestion(path, known) or f"; {run} has {', '.join(list(known)[:12]) or 'no numbers'}"
            raise InputError(f"{sweep.path}: table: values: no finished cell has a number at {path!r}{hint}")
