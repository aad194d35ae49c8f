"""The YAML file of a sweep, and its cells: one for every combination of settings.

A cell is named by its settings, `num_states=50,length=32,seed=0`, which is also the name of its folder. So the same
file always means the same folders, and more values or seeds add folders to those that are there.
"""

import hashlib
import itertools
import json
import os
import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from string import Formatter
from typing import Any

from ...errors import InputError, suggestion
from ...files import inside, read_yaml
from ...runtime.credentials import Secret, conceal, masked_arguments
from ...runtime.shipped import local_or_shipped
from ..launching import RECIPE_COMMANDS, recipe_names, split_command

_KEYS = ("recipe", "config", "settings", "grid", "cells", "then", "output_dir", "table", "slurm")
_TABLE_KEYS = ("values", "x", "y")
_MAX_VALUE, _MAX_NAME = 32, 180  # characters in the name of a folder
_SAFE = re.compile(r"[A-Za-z0-9._+-]+")
# YAML 1.1 reads 1e-3 as text; everybody means the number.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+")


@dataclass(frozen=True)
class Cell:
    """A run of a sweep.

    Attributes:
        name (`str`): its settings as the name of its folder.
        folder (`Path`): its folder, with its settings, its log and its state.
        varied (`dict`): the settings that it has from `grid` and `cells`.
        settings (`dict`): all settings of its run, except for `output_dir`.
        then (sequence of sequences of `str`): commands to run after the recipe, without `hmm-datasets`.
    """

    name: str
    folder: Path
    varied: Mapping[str, Any]
    settings: Mapping[str, Any]
    then: tuple[tuple[str, ...], ...] = ()

    @property
    def output_dir(self) -> Path:
        """The `output_dir` of its run: a folder of its own, so that it can be pushed as it is."""
        return self.folder / "run"

    @property
    def run_settings(self) -> dict[str, Any]:
        """The settings file of its run."""
        return {**self.settings, "output_dir": str(self.output_dir)}


@dataclass(frozen=True)
class Sweep:
    """The content of the file of a sweep.

    Attributes:
        path (`Path`): the file.
        recipe (`str`): the command of the recipe, such as `fit`.
        output_dir (`Path`): the folder of the sweep.
        names (sequence of `str`): the settings that its cells are named by, in the order of the file.
        cells (sequence of [`Cell`]): the runs.
        values (sequence of `str`): dotted paths of the results to show; chosen from what there is if empty.
        x, y (`str`, *optional*): settings on the axes of the figures.
        slurm (mapping): parameters of submitit's `AutoExecutor`.
    """

    path: Path
    recipe: str
    output_dir: Path
    names: tuple[str, ...]
    cells: tuple[Cell, ...]
    values: tuple[str, ...]
    x: str | None
    y: str | None
    slurm: Mapping[str, Any]

    def values_of(self, name: str) -> list[Any]:
        """The values of a setting over all cells, in the order of the file; numbers sorted if all are numbers."""
        values = list({json.dumps(cell.varied[name]): cell.varied[name] for cell in self.cells}.values())
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        return sorted(values) if numbers else values


def is_seed(name: str) -> bool:
    """Whether a setting only repeats a run: `seed`, `data_seed` and the like."""
    return name == "seed" or name.endswith("_seed")


def read_sweep(path: str | os.PathLike, commands: Collection[str] = tuple(RECIPE_COMMANDS)) -> Sweep:
    """Read the file of a sweep and make its cells. Whether the recipe knows the settings is not checked here.

    Args:
        path (path): the YAML file, own or shipped.
        commands (collection of `str`): the commands that `then` may use.

    Raises:
        `InputError`: something in the file is missing, unknown, or given twice; the message names file and entry.
    """
    path = local_or_shipped(path, "recipes")
    content = read_yaml(path)
    _refuse_unknown(path, "", content, _KEYS)
    recipe, output = content.get("recipe"), content.get("output_dir")
    if recipe not in recipe_names():
        raise InputError(f"{path}: recipe is {recipe!r}; expected one of {', '.join(recipe_names())}")
    if not isinstance(output, str) or not output:
        raise InputError(f"{path}: output_dir is {output!r}; expected the folder of the sweep")
    varied = _combinations(path, content)
    fixed = _fixed_settings(path, content)
    names = tuple(varied[0])
    for name in ("output_dir", "config"):
        if name in names or name in (content.get("settings") or {}):
            raise InputError(f"{path}: {name} cannot be a setting of the cells; it stands at the top of the file")
    both = [name for name in names if name in (content.get("settings") or {})]
    if both:
        raise InputError(f"{path}: {both[0]} is both in settings and in grid or cells; leave it in one of them")
    _refuse_secrets(path, varied)
    then = _then(path, content, commands)
    table = _mapping(path, content, "table", ", ".join(_TABLE_KEYS))
    _refuse_unknown(path, "table: ", table, _TABLE_KEYS)
    values = table.get("values") or []
    values = [values] if isinstance(values, str) else values
    for axis in ("x", "y"):
        if table.get(axis) is not None and table[axis] not in names:
            raise InputError(f"{path}: table: {axis} is {table[axis]!r}; expected one of {', '.join(names)}")
    if table.get("x") is not None and table.get("x") == table.get("y"):
        raise InputError(f"{path}: table: x and y are both {table['x']!r}; expected two settings")
    cells: dict[str, Cell] = {}
    for settings in varied:
        name = cell_name(settings)
        if name in cells:
            raise InputError(f"{path}: two cells have the same settings, {name}; leave one of them out")
        cell = Cell(name, inside(output, name, path, as_link=True), settings, fixed | settings)
        known = {**cell.settings, "output_dir": str(cell.output_dir)}
        cells[name] = replace(cell, then=tuple(_filled(path, words, known) for words in then))
    slurm = _mapping(path, content, "slurm", "parameters of submitit's AutoExecutor")
    axes = (table.get("x"), table.get("y"))
    return Sweep(path, recipe, Path(output), names, tuple(cells.values()), tuple(values), *axes, slurm)


def _mapping(path: Path, content: Mapping[str, Any], key: str, expected: str) -> dict[str, Any]:
    value = content.get(key) or {}
    if not isinstance(value, dict):
        raise InputError(f"{path}: {key} is {value!r}; expected a mapping with {expected}")
    return value


def cell_name(settings: Mapping[str, Any]) -> str:
    """Settings as the name of a folder: safe characters, and a digest for what is too long or was replaced.

    ```python
    >>> cell_name({"num_states": 50, "learning_rate": 0.003, "use_peft": True})
    'num_states=50,learning_rate=0.003,use_peft=true'

    ```
    """
    name = ",".join(f"{key}={_safe(value)}" for key, value in settings.items())
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 7]}-{_digest(name)}"


def _safe(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    if _SAFE.fullmatch(text) and len(text) <= _MAX_VALUE:
        return text
    end = "-".join(_SAFE.findall(text))[-(_MAX_VALUE - 7) :].strip("-.")  # paths differ at their ends
    return f"{end}-{_digest(text)}" if end else _digest(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def _refuse_unknown(path: Path, where: str, content: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in content:
        if key not in known:
            hint = suggestion(str(key), known) or f"; expected some of {', '.join(known)}"
            raise InputError(f"{path}: {where}unknown entry {key!r}{hint}")


def _combinations(path: Path, content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The varied settings of every cell: those of `cells`, each combined with all of `grid`."""
    grid, listed = content.get("grid") or {}, content.get("cells") or [{}]
    if not isinstance(grid, dict) or not all(isinstance(values, list) and values for values in grid.values()):
        raise InputError(f"{path}: grid: expected a mapping from settings to lists of values")
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise InputError(f"{path}: cells: expected a list of mappings from settings to values")
    keys = set(listed[0])
    for number, entry in enumerate(listed, start=1):
        if set(entry) != keys:
            name = sorted(map(str, set(entry) ^ keys))[0]
            raise InputError(f"{path}: cells: entry {number} and entry 1 do not both have {name}; give it in all")
        if both := sorted(map(str, entry.keys() & grid.keys())):
            raise InputError(f"{path}: {both[0]} is both in grid and in cells; leave it in one of them")
    combined = [
        {str(key): _number(value) for key, value in {**entry, **dict(zip(grid, values, strict=True))}.items()}
        for entry in listed
        for values in itertools.product(*grid.values())
    ]
    if not combined[0]:
        raise InputError(f"{path}: has neither grid nor cells; give the settings that vary and their values")
    return combined


def _refuse_secrets(path: Path, varied: list[dict[str, Any]]) -> None:
    for settings in varied:
        for name, value in conceal(settings).items():
            if isinstance(value, Secret):
                raise InputError(f"{path}: {name} is a secret, but cells are named by it; put it under settings")


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def _fixed_settings(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that all cells share: those of `config`, and above them `settings`."""
    config, settings = content.get("config"), _mapping(path, content, "settings", "settings and their values")
    fixed = {}
    if config is not None:
        fixed = read_yaml(local_or_shipped(str(config), "recipes"))
        fixed.pop("output_dir", None)
    return conceal(fixed | {str(key): _number(value) for key, value in settings.items()})


def _then(path: Path, content: Mapping[str, Any], commands: Collection[str]) -> list[list[str]]:
    lines = content.get("then") or []
    lines = [lines] if isinstance(lines, str) else lines
    if not isinstance(lines, list) or not all(isinstance(line, str) and line.strip() for line in lines):
        raise InputError(f"{path}: then: expected a list of command lines, such as `evaluate {{output_dir}}`")
    split = []
    for line in lines:
        words = shlex.split(line)
        words = words[1:] if words[0] == "hmm-datasets" else words
        if masked_arguments(words) != words:
            shown = " ".join(masked_arguments(words))
            raise InputError(f"{path}: then: {shown!r} has a secret, which files would show; set HF_TOKEN instead")
        if not words or words[0] == "sweep" or (words[0] not in commands and split_command(words) is None):
            hint = suggestion(words[0] if words else "", commands) or "; `hmm-datasets --help` lists all"
            raise InputError(f"{path}: then: {line!r} does not begin with a command of hmm-datasets{hint}")
        split.append(words)
    return split


def _filled(path: Path, words: list[str], values: Mapping[str, Any]) -> tuple[str, ...]:
    """A command with `{output_dir}` and the settings of a cell in place of their names."""
    for word in words:
        try:
            fields = [field for _, field, _, _ in Formatter().parse(word) if field is not None]
        except ValueError as error:
            raise InputError(f"{path}: then: {word!r}: {error}; write {{{{ for a brace") from None
        for field in fields:
            if isinstance(values.get(field), Secret):
                raise InputError(
                    f"{path}: then: {{{field}}} is a secret, which files would show; leave it out and set HF_TOKEN"
                )
            if field not in values:
                known = (f"{{{name}}}" for name in values)
                hint = suggestion(f"{{{field}}}", known) or "; expected {output_dir} or a setting of the cells"
                raise InputError(f"{path}: then: {{{field}}} is not a setting of the cells{hint}")
    return tuple(word.format_map(values) for word in words)
