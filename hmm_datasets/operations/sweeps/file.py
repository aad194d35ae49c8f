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
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ...errors import InputError, suggestion
from ...files import inside, read_yaml
from ...records import as_record
from ...runtime.credentials import masked, masked_arguments
from ...runtime.recipe_commands import RECIPE_COMMANDS
from ...runtime.settings import with_numbers
from ...runtime.shipped import local_or_shipped
from ..launching import recipe_names, split_command

_MAX_VALUE, _MAX_NAME = 32, 180  # characters in the name of a folder
_SAFE = re.compile(r"[A-Za-z0-9._+-]+")


@dataclass(frozen=True)
class Cell:
    """A run of a sweep.

    Attributes:
        name (`str`): its settings as the name of its folder.
        folder (`Path`): its folder, with its settings, its log and its state.
        varied (`dict`): the settings that it has from `grid` and `cells`.
        settings (`dict`): all settings of its run, as its settings file has them.
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


@dataclass(frozen=True)
class SweepTable:
    """The entry `table`: dotted paths of the numbers to show."""

    values: list[str] | str = field(default_factory=list)


@dataclass(frozen=True)
class SweepFile:
    """The entries of the file, see the guide on sweeps."""

    recipe: str
    output_dir: Annotated[str, msgspec.Meta(min_length=1)]
    config: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, Annotated[list[Any], msgspec.Meta(min_length=1)]] = field(default_factory=dict)
    cells: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)] = field(default_factory=lambda: [{}])
    then: list[str] | str = field(default_factory=list)
    table: SweepTable = field(default_factory=SweepTable)
    slurm: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sweep:
    """A sweep as its file describes it.

    Attributes:
        path (`Path`): the file.
        file ([`SweepFile`]): its entries.
        cells (sequence of [`Cell`]): the runs.
    """

    path: Path
    file: SweepFile
    cells: Sequence[Cell]

    @property
    def output_dir(self) -> Path:
        """The folder of the sweep."""
        return Path(self.file.output_dir)

    @property
    def names(self) -> tuple[str, ...]:
        """The settings that its cells are named by, in the order of the file."""
        return tuple(self.cells[0].varied)


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
        if name == "output_dir":
            raise InputError(f"{path}: output_dir cannot be a setting of the cells; it stands at the top of the file")
        if name in varied[0] and name in file.settings:
            raise InputError(f"{path}: {name} is both in settings and in grid or cells; leave it in one of them")
    fixed = {} if file.config is None else read_yaml(local_or_shipped(file.config, "recipes"))
    fixed |= with_numbers(file.settings)
    for name, value in (item for settings in (fixed, *varied) for item in settings.items()):
        if masked({name: value}) != {name: value}:
            raise InputError(
                f"{path}: {name} is a secret, which the files of the cells would show; leave it out, and set it "
                "in the environment, such as HF_TOKEN"
            )
    then = _then(path, file, commands)
    cells: dict[str, Cell] = {}
    for settings in varied:
        name = cell_name(settings)
        if name in cells:
            raise InputError(f"{path}: two cells have the same settings, {name}; leave one of them out")
        folder = inside(file.output_dir, name, path, as_link=True)
        chosen = fixed | settings | {"output_dir": str(folder / "run")}
        cells[name] = Cell(name, folder, settings, chosen, tuple(_filled(path, words, chosen) for words in then))
    return Sweep(path, file, list(cells.values()))


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


def listed(value: list[str] | str) -> list[str]:
    """An entry of the file that is one text or several."""
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
    names = dict.fromkeys([*file.cells[0], *file.grid])
    for number, entry in enumerate(file.cells, start=1):
        if sorted([*entry, *file.grid]) != sorted(names):
            given = ", ".join([*entry, *file.grid])
            raise InputError(f"{path}: entry {number} of cells and grid give {given}; expected {', '.join(names)}")
    if not names:
        raise InputError(f"{path}: has neither grid nor cells; give the settings that vary and their values")
    return [
        with_numbers({**entry, **dict(zip(file.grid, values, strict=True))})
        for entry in file.cells
        for values in itertools.product(*file.grid.values())
    ]


def _then(path: Path, file: SweepFile, commands: Collection[str]) -> list[list[str]]:
    split = []
    for line in listed(file.then):
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
    """A command with `{output_dir}` and the settings of a cell in place of their names."""
    try:
        return tuple(word.format_map(settings) for word in words)
    except (KeyError, ValueError, IndexError) as error:
        raise InputError(
            f"{path}: then: {{{error.args[0]}}} is neither output_dir nor a setting of the cells; write {{{{ "
            "and }}}} for braces"
        ) from None
