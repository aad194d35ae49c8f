"""The results of a sweep: the settings, the state and the numbers of every cell, from the files that its run wrote.

A number is found by a dotted path, such as `test_log_likelihood` or `optimum.bayes_gap.bayes_gap`, in the first of
these files that has it: `summary.json`, `report.json`, `report.json` in a folder below, `run.json`.
"""

import difflib
import time
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...files import check_digests, read_json
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
        in order; `shared`, the other settings; `values`, the paths that are shown; `x`, `y`, the settings on the axes,
        or `None`; `cells`, a list with `name`, `folder`, `settings`, `state`, `attempts`, `seconds`, `errors` and
        `values`, where what is missing is `None`.
    """
    states = read_states(sweep) if states is None else states
    numbers = {
        cell.name: dict(_numbers(cell.output_dir))
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
        "file": str(sweep.path),
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
            known = [name for name, _ in _numbers(finished[0].output_dir)]
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


def _numbers(folder: Path) -> Iterator[tuple[str, float]]:
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
    elif isinstance(value, Real) and not isinstance(value, bool):
        yield ".".join(parts), float(value) if isinstance(value, float) else value
