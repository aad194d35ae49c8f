"""The folder of a process other than an HMM or a family of HMMs.

`process.json` has the kind and the settings, `tables.safetensors` the arrays, and `part-0`, `part-1`, ... are the
folders of the processes that it is made of. [`~hmm_datasets.load_source`] reads all of them.
"""

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..digests import check_digests, write_digests
from ..errors import InputError
from ..files import atomic_file, inside, read_json, write_json
from .format import FORMAT_VERSION
from .storage import checked_fields, naming, read_tables

if TYPE_CHECKING:
    from .process import Process

PROCESS_NAME = "process.json"
TABLES_NAME = "tables.safetensors"

KINDS: dict[str, str] = {
    "generalized": "generalized:GeneralizedHMM",
    "chain_mixture": "chain_mixture:ChainMixture",
    "factored": "factored:FactoredProcess",
    "factorial": "factorial:FactorialHMM",
    "input_output": "input_output:InputOutputHMM",
    "markov_chain": "markov:MarkovChain",
    "process_mixture": "process_mixture:ProcessMixture",
    "semi_markov": "semi_markov:SemiMarkov",
    "associative_recall": "tasks:AssociativeRecall",
    "bijection": "tasks:Bijection",
    "copying": "tasks:Copying",
    "pcfg": "grammar.pcfg:PCFG",
}
"""Module of each kind of process, relative to this package, and its class: `"generalized:GeneralizedHMM"`."""


_FIELDS = {
    "process": str,
    "format_version": int,
    "settings": dict[str, Any],
    "arrays": list[str],
    "num_parts": int,
    "fingerprint": str,
}
_SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("num_chains", "num_values", "num_pairs", "num_keys", "num_queries"), int),
    **dict.fromkeys(("num_letters", "string_length"), int),
    "num_symbols": int | None,
    "vocabulary": list[str] | None,
    "nonterminals": list[str] | None,
    "noise": float,
    "parents": list[Any],
}
"""Types of settings, by their names, which mean the same in every kind; those of others are checked by their class."""


def save_process(process: "Process", folder: str | os.PathLike) -> None:
    """Write the folder; `process.json`, which marks it, is written last, followed only by the digests."""
    from safetensors.numpy import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    parts, arrays = process.parts(), process.arrays()
    for index, part in enumerate(parts):
        part.save_pretrained(folder / f"part-{index}")
    if arrays:
        with atomic_file(folder / TABLES_NAME) as temporary:
            save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, temporary)
    write_json(
        folder / PROCESS_NAME,
        {
            "process": process.stored_name,
            "format_version": FORMAT_VERSION,
            "settings": process.settings(),
            "arrays": sorted(arrays),
            "num_parts": len(parts),
            "fingerprint": process.fingerprint(),
        },
    )
    write_digests(folder, [*[TABLES_NAME] * bool(arrays), PROCESS_NAME])


def load_process(folder: Path, load_part: "Callable[[Path], Process]") -> "Process":
    """Read the folder; `load_part` reads those of the processes that it is made of.

    Raises:
        `InputError`: its format is another, or its tables do not match its settings.
    """
    path = folder / PROCESS_NAME
    content = checked_fields(path, read_json(path), _FIELDS)
    name = content["process"]
    if name not in KINDS or content["format_version"] != FORMAT_VERSION:
        raise InputError(
            f"{path}: process {name!r}, format_version {content['format_version']!r}; expected one of "
            f"{', '.join(sorted(KINDS))} and {FORMAT_VERSION}"
        )
    module, _, kind_name = KINDS[name].partition(":")
    kind = getattr(importlib.import_module(f".{module}", __package__), kind_name)
    given = content["settings"]
    settings = checked_fields(path, given, {name: _SETTINGS.get(name, Any) for name in given}, "settings: ")
    parts = tuple(load_part(inside(folder, f"part-{index}", path)) for index in range(content["num_parts"]))
    arrays = read_tables(folder / TABLES_NAME) if content["arrays"] else {}
    with naming(path, settings):
        process = kind.made_of(settings, arrays, parts)
        fingerprint = process.fingerprint()
    if fingerprint != content["fingerprint"]:
        raise InputError(
            f"{path}: has fingerprint {content['fingerprint']}, its tables and parts have {fingerprint}; "
            "the files belong to different processes, copy all of them again"
        )
    check_digests(folder, names=(PROCESS_NAME, TABLES_NAME))
    return process
