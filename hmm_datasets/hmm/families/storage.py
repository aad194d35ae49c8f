"""The folder of a family: `family.json` with its settings, and a folder for each of its HMMs.

[`load_source`] reads such a folder, or that of an HMM or of another process, wherever a process is named.
"""

import dataclasses
import os
import typing
from pathlib import Path
from typing import Any

from ...digests import check_digests
from ...errors import InputError
from ...files import inside, read_json, restored
from ...hub_download import RepoType, download
from ..format import FORMAT_VERSION
from ..model import HMM
from ..process import Process
from ..process_names import is_process_name, named_process
from ..process_storage import PROCESS_NAME, TABLES_NAME, load_process
from ..storage import CONFIG_NAME, WEIGHTS_NAME, checked_fields, naming
from .automata import RandomAutomata
from .chains import RandomChains
from .family import FAMILY_NAME, Family
from .mixture import HMMMixture
from .permuted import PermutedEmissions, PermutedSymbols

_FIELDS = {"family": str, "format_version": int, "num_hmms": int, "settings": dict[str, Any], "fingerprint": str}
_KINDS = {
    kind.stored_name: kind for kind in (HMMMixture, PermutedEmissions, PermutedSymbols, RandomAutomata, RandomChains)
}


def load_source(
    name_or_path: str | os.PathLike, *, revision: str | None = None, repo_type: RepoType = "model"
) -> Process:
    """An HMM, a family or another process, by its name or from a folder or the Hub.

    Args:
        name_or_path (`str` or path): a folder that `save_pretrained` wrote; a name on the Hub: `"USER/NAME"` or an
            address such as `"hf://datasets/USER/NAME@REVISION"`; or a call such as `"process:mess3(x=0.05, a=0.85)"`
            (see [`~hmm_datasets.hmm.process_names`]).
        revision (`str`, *optional*): branch, tag or commit on the Hub.
        repo_type (`str`, *optional*, defaults to `"model"`): type of the repository, `"model"` or `"dataset"`.

    Raises:
        `InputError`: there is no such process or folder, its format is another, or its tables do not match its
            settings.

    ```python
    >>> import tempfile
    >>> from hmm_datasets.hmm.families import RandomChains
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     RandomChains(5, alpha=1.0).save_pretrained(folder)
    ...     load_source(folder).num_symbols
    5

    ```
    """
    if is_process_name(name_or_path):
        return named_process(str(name_or_path))
    folder = restored(name_or_path)
    if not folder.is_dir():
        folder = download_source(str(name_or_path), revision=revision, repo_type=repo_type)
    if (folder / PROCESS_NAME).is_file():
        return load_process(folder, load_source)
    if not (folder / FAMILY_NAME).is_file():
        return HMM.from_pretrained(folder)
    path = folder / FAMILY_NAME
    config = checked_fields(path, read_json(path), _FIELDS)
    kind = _KINDS.get(config["family"])
    if kind is None or config["format_version"] != FORMAT_VERSION:
        found = config["family"], config["format_version"]
        raise InputError(f"{path}: {found}; expected one of {', '.join(_KINDS)} and format_version {FORMAT_VERSION}")
    parts = [HMM.from_pretrained(inside(folder, f"hmm-{index}", path)) for index in range(config["num_hmms"])]
    family = _make(kind, parts, config["settings"], path)
    with naming(path):
        fingerprint = family.fingerprint()
    if fingerprint != config["fingerprint"]:
        raise InputError(
            f"{path}: HMMs and settings have fingerprint {fingerprint}, the file expects "
            f"{config['fingerprint']}; copy the whole folder again"
        )
    check_digests(folder, names=(FAMILY_NAME,))
    return family


def download_source(name: str, *, revision: str | None = None, repo_type: RepoType = "model") -> Path:
    """Download the files of a process from the Hub and return their folder; see [`load_source`]."""
    names = (FAMILY_NAME, PROCESS_NAME, TABLES_NAME, CONFIG_NAME, WEIGHTS_NAME)
    # In the patterns of the Hub `*` also stands for what has a slash in it: parts may have parts.
    patterns = [*names, *(f"{part}-*/{name}" for part in ("hmm", "part") for name in names)]
    return download(name, patterns, revision=revision, repo_type=repo_type, expected="a process")


def _make(kind: type[Family], parts: list[HMM], settings: dict[str, Any], path: Path) -> Family:
    names = {field.name for field in dataclasses.fields(kind)}
    if "hmm" in names and len(parts) != 1:
        raise InputError(f"{path}: num_hmms is {len(parts)}; expected 1 for {kind.__name__}")
    made_of = {"hmms": tuple(parts)} if "hmms" in names else {"hmm": parts[0]} if "hmm" in names else {}
    if set(settings) | set(made_of) != names:
        odd = ", ".join(sorted((set(settings) | set(made_of)) ^ names))[:200]
        raise InputError(f"{path}: settings: {odd} missing or unknown; expected those of {kind.__name__}")
    hints = typing.get_type_hints(kind)
    checked_fields(path, settings, {name: hints[name] for name in settings}, "settings: ")
    # JSON has lists where the settings have tuples.
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    with naming(path, settings):
        return kind(**made_of, **values)
