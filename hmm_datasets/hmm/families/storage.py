"""The folder of a family: `family.json` with its settings, and a folder for each of its HMMs.

[`load_source`] reads such a folder, or that of an HMM or of another process, wherever a process is named.
"""

import dataclasses
import os
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...files import inside, read_json
from ...hub_download import RepoType, download
from ..format import FORMAT_VERSION
from ..model import HMM
from ..process import Process
from ..process_names import is_process_name, named_process
from ..process_storage import PROCESS_NAME, TABLES_NAME, load_process
from ..storage import CONFIG_NAME, WEIGHTS_NAME
from .automata import RandomAutomata
from .chains import RandomChains
from .family import FAMILY_NAME, Family
from .mixture import HMMMixture
from .permuted import PermutedEmissions, PermutedSymbols

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
    folder = Path(name_or_path)
    if not folder.is_dir():
        folder = download_source(str(name_or_path), revision=revision, repo_type=repo_type)
    if (folder / PROCESS_NAME).is_file():
        return load_process(folder, load_source)
    if not (folder / FAMILY_NAME).is_file():
        return HMM.from_pretrained(folder)
    path = folder / FAMILY_NAME
    config = read_json(path)
    kind = _KINDS.get(config.get("family")) if isinstance(config, dict) else None
    if kind is None or config.get("format_version") != FORMAT_VERSION:
        found = (config.get("family"), config.get("format_version")) if isinstance(config, dict) else config
        raise InputError(f"{path}: {found}; expected one of {', '.join(_KINDS)} and format_version {FORMAT_VERSION}")
    parts = [HMM.from_pretrained(inside(folder, f"hmm-{index}", path)) for index in range(config["num_hmms"])]
    family = _make(kind, parts, config["settings"], path)
    if family.fingerprint() != config.get("fingerprint"):
        raise InputError(
            f"{path}: HMMs and settings have fingerprint {family.fingerprint()}, the file expects "
            f"{config.get('fingerprint')}; copy the whole folder again"
        )
    return family


def download_source(name: str, *, revision: str | None = None, repo_type: RepoType = "model") -> Path:
    """Download the files of a process from the Hub and return their folder; see [`load_source`]."""
    names = (FAMILY_NAME, PROCESS_NAME, TABLES_NAME, CONFIG_NAME, WEIGHTS_NAME)
    # In the patterns of the Hub `*` also stands for what has a slash in it: parts may have parts.
    patterns = [*names, *(f"{part}-*/{name}" for part in ("hmm", "part") for name in names)]
    return download(name, patterns, revision=revision, repo_type=repo_type, expected="a process")


def _make(kind: type[Family], parts: list[HMM], settings: dict[str, Any], path: Path) -> Family:
    names = {field.name for field in dataclasses.fields(kind)}
    made_of = {"hmms": tuple(parts)} if "hmms" in names else {"hmm": parts[0]} if "hmm" in names else {}
    if set(settings) | set(made_of) != names:
        raise InputError(f"{path}: settings {', '.join(sorted(settings))}; expected those of {kind.__name__}")
    # JSON has lists where the settings have tuples.
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    try:
        return kind(**made_of, **values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
