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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ...errors import InputError, suggestion
from ...files import inside, read_yaml
from ...records import as_record
from ...runtime.credentials import Secret, conceal, masked_arguments
from ...runtime.shipped import local_or_shipped
from ..launching import RECIPE_COMMANDS, recipe_names, split_command

_MAX_VALUE, _MAX_NAME = 32, 180  # characters in the name of a folder
_SAFE = re.compile(r"[A-Za-z0-9._+-]+")
# YAML 1.1 reads 1e-3 as text; everybody means the number.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+")
_TOP = ("output_dir", "config")


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
class SweepTable:
    """The entry `table`: dotted paths of the numbers to show, and the settings on the axes of the heat map."""

    values: list[str] | str = field(default_factory=list)
    x: str | None = None
    y: str | None = None


@dataclass(frozen=True)
class SweepFile:
    """The entries of the file, see the guide on sweeps."""

    recipe: str
    output_dir: Annotated[str, msgspec.Meta(min_length=1)]
    config: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, Annotated[list[Any], msgspec.Meta(min_length=1)]] = field(default_factory=dict)
    cells: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    then: list[str] | str = field(default_factory=list)
    table: SweepTable = field(default_factory=SweepTable)
    slurm: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sweep:
    """A sweep as its file describes it.

    Attributes:
        path (`Path`): the file.
        recipe (`str`): the command of the recipe, such as `fit`.
        output_dir (`Path`): the folder of the sweep.
        cells (sequence of [`Cell`]): the runs.
        values (sequence of `str`): dotted paths of the results to show; chosen from what there is if empty.
        x, y (`str`, *optional*): settings on the axes of the heat map.
        slurm (mapping): parameters of submitit's `AutoExecutor`.
    """

    path: Path
    recipe: str
    output_dir: Path
    cells: Sequence[Cell]
    values: Sequence[str]
    x: str | None
    y: str | None
    slurm: Mapping[str, Any]

    @property
    def names(self) -> tuple[str, ...]:
        """The settings that its cells are named by, in the order of the file."""
        return tuple(self.cells[0].varied)

    def values_of(self, name: str) -> list[Any]:
        """The values of a setting over all cells, in the order of the file; numbers sorted if all are numbers."""
        values = list({json.dumps(cell.varied[name]): cell.varied[name] for cell in self.cells}.values())
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        return sorted(values) if numbers else values


def is_seed(name: str) -> bool:
    """Whether a setting only repeats a run: `seed`, `data_seed` and the like."""
    return name == "seed" or name.endswith("_seed")


def read_sweep(path: str | os.PathLike, commands: Collection[str] = tuple(RECIPE_COMMANDS)) -> Sweep:
    """Read the file of a sweep and make its cells. Whether the recipe has the settings is not checked here.

    Args:
        path (path): the YAML file, own or shipped.
        commands (collection of `str`): the commands that `then` may use.

    Raises:
        `InputError`: something in the file is missing, unknown, or given twice; the message names file and entry.
    """
    path = local_or_shipped(path, "recipes")
    file = _read_file(path)
    if file.recipe not in recipe_names():
        raise InputError(f"{path}: recipe is {file.recipe!r}; expected one of {', '.join(recipe_names())}")
    varied = _combinations(path, file)
    for name in [*varied[0], *file.settings]:
        if name in _TOP:
            raise InputError(f"{path}: {name} cannot be a setting of the cells; it stands at the top of the file")
        if name in varied[0] and name in file.settings:
            raise InputError(f"{path}: {name} is both in settings and in grid or cells; leave it in one of them")
    for axis in filter(None, (file.table.x, file.table.y)):
        if axis not in varied[0] or file.table.x == file.table.y:
            raise InputError(f"{path}: table: x or y is {axis!r}; expected two of {', '.join(varied[0])}")
    fixed = {} if file.config is None else read_yaml(local_or_shipped(file.config, "recipes"))
    fixed.pop("output_dir", None)
    fixed = conceal(fixed | {name: _number(value) for name, value in file.settings.items()})
    then = _then(path, file, commands)
    cells: dict[str, Cell] = {}
    for settings in varied:
        name = cell_name(settings)
        if name in cells:
            raise InputError(f"{path}: two cells have the same settings, {name}; leave one of them out")
        cell = Cell(name, inside(file.output_dir, name, path, as_link=True), settings, fixed | settings)
        cells[name] = replace(cell, then=tuple(_filled(path, words, cell.run_settings) for words in then))
    content = (Path(file.output_dir), list(cells.values()), _listed(file.table.values), file.table.x, file.table.y)
    return Sweep(path, file.recipe, *content, file.slurm)


def _read_file(path: Path) -> SweepFile:
    content = {name: value for name, value in read_yaml(path).items() if value is not None}
    table = content.get("table")
    for where, entries, kind in (("", content, SweepFile), ("table: ", table, SweepTable)):
        known = [entry.name for entry in fields(kind)]
        for name in entries if isinstance(entries, dict) else ():
            if name not in known:
                hint = suggestion(str(name), known) or f"; expected some of {', '.join(known)}"
                raise InputError(f"{path}: {where}unknown entry {name!r}{hint}")
    return as_record(content, SweepFile, path, "the guide on sweeps describes the entries")


def _listed(value: list[str] | str) -> list[str]:
    return [value] if isinstance(value, str) else value


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


def _combinations(path: Path, file: SweepFile) -> list[dict[str, Any]]:
    """The varied settings of every cell: those of `cells`, each combined with all of `grid`."""
    for number, entry in enumerate(file.cells, start=1):
        if name := next(iter(sorted(entry.keys() ^ file.cells[0].keys())), None):
            raise InputError(f"{path}: cells: entry {number} and entry 1 do not both have {name}; give it in all")
        if name := next(iter(sorted(entry.keys() & file.grid.keys())), None):
            raise InputError(f"{path}: {name} is both in grid and in cells; leave it in one of them")
    combined = [
        {name: _number(value) for name, value in {**entry, **dict(zip(file.grid, values, strict=True))}.items()}
        for entry in file.cells
        for values in itertools.product(*file.grid.values())
    ]
    if not combined or not combined[0]:
        raise InputError(f"{path}: has neither grid nor cells; give the settings that vary and their values")
    for name, value in (item for settings in combined for item in conceal(settings).items()):
        if isinstance(value, Secret):
            raise InputError(f"{path}: {name} is a secret, but cells are named by it; put it under settings")
    return combined


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def _then(path: Path, file: SweepFile, commands: Collection[str]) -> list[list[str]]:
    split = []
    for line in _listed(file.then):
        words = shlex.split(line)
        words = words[1:] if words[:1] == ["hmm-datasets"] else words
        if masked_arguments(words) != words:
            shown = " ".join(masked_arguments(words))
            raise InputError(f"{path}: then: {shown!r} has a secret, which files would show; set HF_TOKEN instead")
        if not words or words[0] == "sweep" or (words[0] not in commands and split_command(words) is None):
            hint = suggestion(words[0] if words else "", commands) or "; `hmm-datasets --help` lists all"
            raise InputError(f"{path}: then: {line!r} does not begin with a command of hmm-datasets{hint}")
        split.append(words)
    return split


def _filled(path: Path, words: list[str], settings: Mapping[str, Any]) -> tuple[str, ...]:
    """A command with `{output_dir}` and the settings of a cell in place of their names, but for secrets."""
    values = {name: value for name, value in settings.items() if not isinstance(value, Secret)}
    try:
        return tuple(word.format_map(values) for word in words)
    except (KeyError, ValueError, IndexError) as error:
        name = f"{{{error.args[0]}}}"
        hint = suggestion(name, [f"{{{known}}}" for known in values]) or "; write {{ and }} for braces"
        raise InputError(
            f"{path}: then: {name} is neither output_dir nor a setting of the cells, or it is a secret, which files "
            f"would show (set HF_TOKEN instead){hint}"
        ) from None
