"""A number of every run, arranged in a table by two settings."""

from collections.abc import Mapping
from numbers import Real
from typing import Any

from ..errors import InputError


def cells(reports: Mapping[str, Mapping[str, Any]], x: str, y: str, value: str) -> dict[str, Any]:
    """Arrange a number of every run in a table by two settings.

    Args:
        reports (`dict`): for each name of a run the content of its `report.json`.
        x, y (`str`): dotted paths to a number or a string in each report, such as `optimum.num_states`.
        value (`str`): dotted path to a number in each report.

    Returns:
        `dict`: `x`, `y`, `value`; `x_values` and `y_values`, the sorted values of each setting; `cells`, a row for
        each of `y_values`, with the mean over runs of the same settings, or `None` if there is no run; `runs`, the
        number of runs in each cell.

    Raises:
        `InputError`: a report does not have a path, or the path leads to a value of another type.

    ```python
    >>> reports = {"a": {"n": 1, "m": 1, "loss": 2.0}, "b": {"n": 2, "m": 1, "loss": 3.0}}
    >>> cells(reports, "n", "m", "loss")["cells"]
    [[2.0, 3.0]]

    ```
    """
    found: dict[tuple[Any, Any], list[float]] = {}
    for name, report in reports.items():
        cell = (look_up(report, x, name), look_up(report, y, name))
        number = look_up(report, value, name)
        if not isinstance(number, Real):
            raise InputError(f"{name}: {value} is {number!r}; expected a number")
        found.setdefault(cell, []).append(float(number))
    columns, rows = (
        sorted({cell[side] for cell in found}, key=lambda value: (isinstance(value, str), value)) for side in (0, 1)
    )
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
    """The value at a dotted path in the report of a run."""
    value: Any = report
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            known = f"expected one of {', '.join(value)}" if isinstance(value, Mapping) else "nothing is below it"
            raise InputError(f"{name}: report.json has no {path}: {part!r} is missing; {known}")
        value = value[part]
    if not isinstance(value, Real | str):
        raise InputError(f"{name}: {path} leads to {type(value).__name__}; expected a number or a string")
    return value
