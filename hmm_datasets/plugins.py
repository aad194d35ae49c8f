"""Parts of this package that other distributions add, by the entry points in their metadata.

A distribution registers a part in its `pyproject.toml`, and once it is installed the part has that name here:

    [project.entry-points."hmm_datasets.processes"]
    dice = "outside_dice:Dice"

[`GROUPS`] has the groups. The parts of this package have the same form and are looked up by the same function, but
stand in tables of the modules that use them: the metadata of a checkout is only as new as its last installation.
A part is imported when it is named, so that a distribution that cannot be imported is in the way of nothing else.
What a file or a repository on the Hub names is never imported unless a distribution that is installed registers it.
"""

import functools
import importlib.util
from collections.abc import Collection, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from .errors import InputError

GROUPS = {
    "hmm_datasets.processes": "process",
    "hmm_datasets.metrics": "metric",
    "hmm_datasets.components": "component",
    "hmm_datasets.corpora": "corpus",
}
"""What a part of each group is."""


@functools.cache
def _installed(group: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))


def parts(
    group: str, own: Mapping[str, str] | None = None, *, reserved: Collection[str] = ()
) -> dict[str, EntryPoint]:
    """The parts of a group by name; none of them is imported.

    Args:
        group (`str`): one of [`GROUPS`].
        own (mapping from `str` to `str`, *optional*): the parts of this package by name: module, relative to
            `hmm_datasets.hmm`, and attribute, as in `"model:HMM"`.
        reserved (collection of `str`, *optional*): further names that no distribution may register.

    Raises:
        `InputError`: a distribution registers a name that is taken.
    """
    known = {name: EntryPoint(name, f"hmm_datasets.hmm.{where}", group) for name, where in (own or {}).items()}
    for entry in _installed(group):
        taken = known.get(entry.name)
        if entry.name in reserved or (taken is not None and taken.value != entry.value):
            raise InputError(
                f"{_origin(entry)} registers the {GROUPS[group]} {entry.name}, a name that "
                f"{'this package' if taken is None or taken.dist is None else _origin(taken)} has; "
                f"uninstall it, or ask its author for another name"
            )
        known[entry.name] = entry
    return known


def load(entry: EntryPoint) -> Any:
    """The part of an entry point.

    Raises:
        `InputError`: the distribution that registers it cannot be imported, or does not have it.
    """
    if entry.dist is None:  # a part of this package
        return entry.load()
    try:
        return entry.load()
    except Exception as error:
        raise _not_imported(entry, error) from None


def load_as(entry: EntryPoint, kind: type) -> Any:
    """The part of an entry point, which is a subclass of a class.

    Raises:
        `InputError`: it is none, or cannot be imported.
    """
    part = load(entry)
    if not (isinstance(part, type) and issubclass(part, kind)):
        raise InputError(
            f"{_origin(entry)} registers {entry.value} as the {GROUPS[entry.group]} {entry.name}; expected a subclass "
            f"of {kind.__module__}.{kind.__name__}"
        )
    return part


def file_of(entry: EntryPoint) -> Path:
    """The file of the module of an entry point, which is not imported.

    Raises:
        `InputError`: there is no such module.
    """
    try:
        spec = importlib.util.find_spec(entry.module)
    except Exception as error:
        raise _not_imported(entry, error) from None
    if spec is None or spec.origin is None:
        raise _not_imported(entry, ModuleNotFoundError(f"no module {entry.module}"))
    return Path(spec.origin)


def distribution_of(entry: EntryPoint) -> str | None:
    """Name and version of the distribution that registers a part; None for a part of this package."""
    return None if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def _origin(entry: EntryPoint) -> str:
    return f"the installed distribution {distribution_of(entry)}"


def _not_imported(entry: EntryPoint, error: Exception) -> InputError:
    return InputError(
        f"{_origin(entry)}, which has the {GROUPS[entry.group]} {entry.name}, cannot be imported "
        f"({type(error).__name__}: {error}); update or uninstall it"
    )
