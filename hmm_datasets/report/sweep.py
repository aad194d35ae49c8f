"""Runs of a sweep as a table of two of their settings."""

from collections.abc import Mapping
from numbers import Real
from typing import Any

from ..errors import InputError


def cells(reports: Mapping[str, Mapping[str, Any]], x: str, y: str, value: str) -> dict[str, Any]:
    """A number of every run, by two settings.

    Args:
        reports (`dict`): by name of run what its `report.json` holds.
        x, y (`str`): dotted paths to a number or a text in each report, such as `optimum.num_states`.
        value (`str`): that to a number.

    Returns:
        `dict`: `x`, `y`, `value`; `x_values`, `y_values`, what there is of each, numbers in order; `cells`, a row for
        each of `y_values`, the mean over runs of the same settings, `None` where there is none; `runs`, how many.

    Raises:
        `InputError`: a path that a report does not have, or that leads to something else.

    ```python
    >>> reports = {"a": {"n": 1, "m": 1, "loss": 2.0}, "b": {"n": 2, "m": 1, "loss": 3.0}}
    >>> cells(reports, "n", "m", "loss")["cells"]
    [[2.0, 3.0]]

    ```
    """
    found: dict[tuple[Any, Any], list[float]] = {}
    for name, report in reports.items():
        place = (look_up(report, x, name), look_up(report, y, name))
        number = look_up(report, value, name)
        if not isinstance(number, Real):
            raise InputError(f"{name}: {value} is {number!r}; expected a number")
        found.setdefault(place, []).append(float(number))
    columns, rows = (_ordered({place[side] for place in found}) for side in (0, 1))
    lists = [[found.get((column, row), []) for column in columns] for row in rows]
    return {
        "x": x,
        "y": y,
        "value": value,
        "x_values": columns,
        "y_values": rows,
        "cells": [[sum(numbers) / len(numbers) if numbers else None for numbers in row] for row in lists],
        "runs": [[len(numbers) for numbers in row] for row in lists],
    }


def look_up(report: Mapping[str, Any], path: str, name: str) -> float | str:
    """What a dotted path leads to in the report of a run."""
    place: Any = report
    for part in path.split("."):
        if not isinstance(place, Mapping) or part not in place:
            known = f"there is {', '.join(place)}" if isinstance(place, Mapping) else "nothing is below it"
            raise InputError(f"{name}: report.json has no {path}: no {part!r} there; {known}")
        place = place[part]
    if not isinstance(place, Real | str):
        raise InputError(f"{name}: {path} leads to {type(place).__name__}; expected a number or a text")
    return place


def _ordered(values: set) -> list:
    return sorted(values, key=lambda value: (isinstance(value, str), value))
