"""The folder of a process other than an HMM or a family of HMMs.

`process.json` has the kind and the settings, `tables.safetensors` the arrays, and `part-0`, `part-1`, ... are the
folders of the processes that it is made of. [`~hmm_datasets.load_source`] reads all of them.
"""

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..digests import write_digests
from ..errors import InputError
from ..files import atomic_file, inside, read_json, write_json
from .format import FORMAT_VERSION
from .storage import read_tables

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
    content = read_json(path)
    name = content.get("process") if isinstance(content, dict) else None
    if name not in KINDS or content.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"{path}: process {name!r}, format_version {content.get('format_version')!r}; expected one of "
            f"{', '.join(sorted(KINDS))} and {FORMAT_VERSION}"
        )
    module, _, kind_name = KINDS[name].partition(":")
    kind = getattr(importlib.import_module(f".{module}", __package__), kind_name)
    parts = tuple(load_part(inside(folder, f"part-{index}", path)) for index in range(content["num_parts"]))
    arrays = read_tables(folder / TABLES_NAME) if content["arrays"] else {}
    try:
        process = kind.made_of(content["settings"], arrays, parts)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if process.fingerprint() != content["fingerprint"]:
        raise InputError(
            f"{path}: has fingerprint {content['fingerprint']}, its tables and parts have {process.fingerprint()}; "
            "the files belong to different processes, copy all of them again"
        )
    return process
