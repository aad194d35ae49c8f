"""Folders of processes that are no HMMs.

`process.json` has the kind and the settings, `tables.safetensors` the arrays, and `part-0`, `part-1`, ... are the
folders of the processes that it is made of. That of a family of HMMs has `family.json` and `hmm-0`, `hmm-1`, ...
instead, with the same content. [`~hmm_datasets.load_source`] reads all of them, and those of HMMs.
"""

import os
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import plugins
from ..errors import InputError
from ..files import atomic_file, check_digests, inside, read_json, write_digests, write_json
from .process_table import TABLE
from .storage import FORMAT_VERSION, checked_fields, errors_naming, read_tables

if TYPE_CHECKING:
    from .process import Process

PROCESS_NAME = "process.json"
FAMILY_NAME = "family.json"
TABLES_NAME = "tables.safetensors"
PROCESSES = "hmm_datasets.processes"
"""Entry points by which other distributions register processes: classes by their `stored_name`, and functions."""

KINDS = {kind: where for where, _, _, kind in TABLE if kind is not None}
"""Class of each kind of process by the name in its folder."""

_REMOVED = ("factorial", "semi_markov", "input_output")

FORMATS = {
    PROCESS_NAME: ("process", "num_parts", "part-"),
    FAMILY_NAME: ("family", "num_hmms", "hmm-"),
}
"""Keys of the kind and of the number of parts in the file that describes a process, and the folders of its parts."""

# Named, since their modules import this one.
_HMM = EntryPoint("hmm", "hmm_datasets.hmm.model:HMM", PROCESSES)
_PROCESS = EntryPoint("process", "hmm_datasets.hmm.process:Process", PROCESSES)


def kinds() -> dict[str, EntryPoint]:
    """The classes of processes by the names in their folders, those of other distributions too."""
    return plugins.parts(PROCESSES, KINDS)


def save_process(process: "Process", folder: str | os.PathLike) -> None:
    """Write the folder; the file that marks it is written last, followed only by the digests.

    Raises:
        `InputError`: the process or a part of it is of a class that no program could load again.
    """
    from safetensors.numpy import save_file

    _check_loadable(process)
    origin = plugins.distribution_of(kinds()[process.stored_name])
    folder, name = Path(folder), process.stored_in
    folder.mkdir(parents=True, exist_ok=True)
    parts, arrays = process.parts(), process.arrays()
    kind_key, count_key, part_name = FORMATS[name]
    for index, part in enumerate(parts):
        part.save_pretrained(folder / f"{part_name}{index}")
    if arrays:
        with atomic_file(folder / TABLES_NAME) as temporary:
            save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, temporary)
    write_json(
        folder / name,
        {
            kind_key: process.stored_name,
            "format_version": FORMAT_VERSION,
            "settings": process.settings(),
            **({"arrays": sorted(arrays)} if name == PROCESS_NAME else {}),
            count_key: len(parts),
            "fingerprint": process.fingerprint(),
            **({} if origin is None else {"distribution": origin}),
        },
    )
    write_digests(folder, [*[TABLES_NAME] * bool(arrays), name])


def _check_loadable(process: "Process") -> None:
    for part in process.parts():
        _check_loadable(part)
    if isinstance(process, _HMM.load()):
        return
    name = getattr(process, "stored_name", "")
    entry = kinds().get(name)
    if entry is None or plugins.load(entry) is not type(process):
        raise InputError(
            f"{process!r} is of the class {type(process).__qualname__}, which no installed distribution registers as "
            f"{name!r} in the group {PROCESSES} of its entry points, so that no program could load it again; register "
            "it (docs/reference/your_own_process.md), or save sequences of it with numpy.save"
        )


def load_process(folder: Path) -> "Process":
    """Read a folder of any kind, and those of its parts.

    Raises:
        `InputError`: its format is another, or its tables do not match its settings.
    """
    marker = next((name for name in FORMATS if (folder / name).is_file()), None)
    if marker is None:
        return _HMM.load().from_pretrained(folder)
    path, (kind_key, count_key, part_name) = folder / marker, FORMATS[marker]
    fields: dict[str, Any] = {
        kind_key: str,
        "format_version": int,
        "settings": dict[str, Any],
        count_key: int,
        "fingerprint": str,
    }
    fields |= {"arrays": list[str]} if marker == PROCESS_NAME else {}
    content = checked_fields(path, read_json(path), fields)
    kind = _kind_of(path, kind_key, content)
    settings = checked_fields(path, content["settings"], kind.setting_types(content["settings"]), "settings: ")
    parts = tuple(load_process(inside(folder, f"{part_name}{index}", path)) for index in range(content[count_key]))
    arrays = read_tables(folder / TABLES_NAME) if content.get("arrays") else {}
    with errors_naming(path, settings):
        process = kind.from_parts(settings, arrays, parts)
        fingerprint = process.fingerprint()
    if fingerprint != content["fingerprint"]:
        raise InputError(
            f"{path}: has fingerprint {content['fingerprint']}, its tables and parts have {fingerprint}; "
            "the files belong to different processes, copy all of them again"
        )
    check_digests(folder, names=(marker, TABLES_NAME))
    return process


def _kind_of(path: Path, kind_key: str, content: dict[str, Any]) -> Any:
    """The class of the process that a file describes."""
    name, known = content[kind_key], kinds()
    kind = plugins.load_as(known[name], _PROCESS.load()) if name in known else None
    if kind is None and name in _REMOVED:
        raise InputError(
            f"{path}: {kind_key} {name!r} is a kind that version 0.2.0 no longer has; with commit a02991b load_source "
            "reads its tables, of which docs/how_to/faq.md makes an HMM of the same distribution, which draws other "
            "sequences"
        )
    if kind is None and isinstance(content.get("distribution"), str):
        raise InputError(
            f"{path}: {kind_key} {name!r} is of the distribution {content['distribution']}, which is not installed; "
            "install it with pip if you trust its author, then load the folder again"
        )
    if kind is None or kind.stored_in != path.name or content["format_version"] != FORMAT_VERSION:
        included = {name: entry.load() for name, entry in known.items() if entry.dist is None}
        names = sorted(name for name, kind in included.items() if kind.stored_in == path.name)
        raise InputError(
            f"{path}: {kind_key} {name!r}, format_version {content['format_version']!r}; expected one of "
            f"{', '.join(names)}, or one that an installed distribution registers, and format_version {FORMAT_VERSION}"
        )
    return kind
