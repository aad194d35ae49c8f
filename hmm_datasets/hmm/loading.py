"""A process by its name, from a folder or from the Hub."""

import os
import re
from pathlib import Path

from ..errors import InputError, path_errors, suggestion
from ..files import restored
from ..hub.download import RepoType, download, is_address, reading_hub, without_network
from .names import constructor_names, is_process_name, named_process
from .process import Process
from .process_storage import FAMILY_NAME, FORMATS, PROCESS_NAME, TABLES_NAME, load_process
from .storage import CONFIG_NAME, WEIGHTS_NAME


def load_source(
    name_or_path: str | os.PathLike | Process, *, revision: str | None = None, repo_type: RepoType | None = None
) -> Process:
    """An HMM, a family or another process, by its name or from a folder or the Hub.

    Args:
        name_or_path (`str`, path or [`~hmm_datasets.hmm.process.Process`]): a folder that `save_pretrained` wrote; a
            call such as `"mess3(x=0.05, a=0.85)"` (see [`~hmm_datasets.hmm.names`]); a name on the Hub: `"USER/NAME"`
            or an address such as `"hf://datasets/USER/NAME@REVISION"`; or a process, which is returned as it is.
        revision (`str`, *optional*): branch, tag or commit on the Hub.
        repo_type (`str`, *optional*): type of the repository, `"model"` or `"dataset"`; by default that of the one
            that exists, a model's first.

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
    if isinstance(name_or_path, Process):
        return name_or_path
    if is_process_name(name_or_path):
        return named_process(str(name_or_path))
    if os.path.isfile(name_or_path):
        raise InputError(
            f"{name_or_path}: is a file, and a process is a folder; write the tables of a file to one in Python: "
            "HMM(start=, transition=, emission=).save_pretrained(FOLDER)"
        )
    with path_errors(name_or_path):
        folder = restored(name_or_path)
        is_there = folder.is_dir()
    if not is_there:
        folder = download_source(str(name_or_path), revision=revision, repo_type=repo_type)
    return load_process(folder)


def download_source(name: str, *, revision: str | None = None, repo_type: RepoType | None = None) -> Path:
    """Download the files of a process from the Hub and return their folder; see [`load_source`]."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not is_address(name):
        near = suggestion(name.partition("(")[0], constructor_names()) or ";"
        raise InputError(
            f"{name}: neither a folder nor a process that has a name{near} expected a folder, one of those "
            "that `hmm-datasets describe` lists, or USER/NAME on the Hub"
        )
    names = (*FORMATS, TABLES_NAME, CONFIG_NAME, WEIGHTS_NAME)
    # In the patterns of the Hub `*` also stands for what has a slash in it: parts may have parts.
    patterns = [*names, *(f"{part}-*/{name}" for part in ("hmm", "part") for name in names)]

    def of_type(kind: RepoType) -> Path:
        return download(name, patterns, revision=revision, repo_type=kind, expected="a process")

    try:
        return of_type(repo_type or "model")
    except InputError:
        if repo_type is not None or is_address(name) or repository_of_process(name) != "dataset":
            raise
        return of_type("dataset")


def repository_of_process(name: str) -> RepoType | None:
    """The type of the Hub repository of this name (model or dataset) if it has a process, else None."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    hub = HfApi()
    if without_network():
        return None
    try:
        with reading_hub():
            for kind, file in (
                *(("model", file) for file in (CONFIG_NAME, FAMILY_NAME, PROCESS_NAME)),
                *(("dataset", file) for file in (WEIGHTS_NAME, FAMILY_NAME, PROCESS_NAME)),
            ):
                if hub.file_exists(name, file, repo_type=kind):
                    return kind
    except (HFValidationError, OSError):
        pass  # whoever reads the repository reports what is wrong with its name
    return None
