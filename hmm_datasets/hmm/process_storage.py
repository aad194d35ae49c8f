"""Folders of processes that are no HMMs.

`process.json` has the kind and the settings, `tables.safetensors` the arrays, and `part-0`, `part-1`, ... are the
folders of the processes that it is made of. That of a family of HMMs has `family.json` and `hmm-0`, `hmm-1`, ...
instead, with the same content. [`~hmm_datasets.load_source`] reads all of them, and those of HMMs.
"""

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError
from ..files import atomic_file, check_digests, inside, read_json, write_digests, write_json
from .storage import FORMAT_VERSION, checked_fields, errors_naming, read_tables

if TYPE_CHECKING:
    from .process import Process

PROCESS_NAME = "process.json"
FAMILY_NAME = "family.json"
TABLES_NAME = "tables.safetensors"
KINDS: dict[str, str] = {
    "generalized": "generalized:GeneralizedHMM",
    "chain_mixture": "families.mixture:ChainMixture",
    "factored": "structured.factored:FactoredProcess",
    "factorial": "structured.factorial:FactorialHMM",
    "input_output": "structured.input_output:InputOutputHMM",
    "markov_chain": "structured.markov:MarkovChain",
    "process_mixture": "families.mixture:ProcessMixture",
    "semi_markov": "structured.semi_markov:SemiMarkov",
    "associative_recall": "families.tasks:AssociativeRecall",
    "bijection": "families.tasks:Bijection",
    "copying": "families.tasks:Copying",
    "pcfg": "grammar.pcfg:PCFG",
    "Mixture": "families.mixture:HMMMixture",
    "PermutedEmissions": "families.permuted:PermutedEmissions",
    "PermutedSymbols": "families.permuted:PermutedSymbols",
    "RandomAutomata": "families.automata:RandomAutomata",
    "RandomChains": "families.chains:RandomChains",
}
"""Module of each kind of process, relative to this package, and its class: `"generalized:GeneralizedHMM"`."""

FORMATS = {
    PROCESS_NAME: ("process", "num_parts", "part-"),
    FAMILY_NAME: ("family", "num_hmms", "hmm-"),
}
"""Keys of the kind and of the number of parts in the file that describes a process, and the folders of its parts."""

_HMM = "model:HMM"  # named, since the model imports this module


def class_of(where: str) -> Any:
    """The class of an entry of [`KINDS`]."""
    module, _, kind = where.partition(":")
    return getattr(importlib.import_module(f".{module}", __package__), kind)


def save_process(process: "Process", folder: str | os.PathLike) -> None:
    """Write the folder; the file that marks it is written last, followed only by the digests.

    Raises:
        `InputError`: the process or a part of it is of a class that this package does not load.
    """
    from safetensors.numpy import save_file

    _check_loadable(process)
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
        },
    )
    write_digests(folder, [*[TABLES_NAME] * bool(arrays), name])


def _check_loadable(process: "Process") -> None:
    for part in process.parts():
        _check_loadable(part)
    name = getattr(process, "stored_name", None)
    is_known = isinstance(process, class_of(_HMM)) or (name in KINDS and class_of(KINDS[name]) is type(process))
    if not is_known:
        raise InputError(
            f"{process!r} is of the class {type(process).__qualname__}, which this package cannot load again, so it "
            "is not saved; keep the code that makes it, or save sequences of it with numpy.save"
        )


def load_process(folder: Path) -> "Process":
    """Read a folder of any kind, and those of its parts.

    Raises:
        `InputError`: its format is another, or its tables do not match its settings.
    """
    marker = next((name for name in FORMATS if (folder / name).is_file()), None)
    if marker is None:
        return class_of(_HMM).from_pretrained(folder)
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
    name = content[kind_key]
    kind = class_of(KINDS[name]) if name in KINDS else None
    if kind is None or kind.stored_in != marker or content["format_version"] != FORMAT_VERSION:
        known = sorted(name for name, where in KINDS.items() if class_of(where).stored_in == marker)
        raise InputError(
            f"{path}: {kind_key} {name!r}, format_version {content['format_version']!r}; expected one of "
            f"{', '.join(known)} and format_version {FORMAT_VERSION}"
        )
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
