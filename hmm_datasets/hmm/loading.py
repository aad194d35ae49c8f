"""A process by its name, from a folder or from the Hub."""

import os
from pathlib import Path

from ..files import restored
from ..hub.download import RepoType, download
from .names import is_process_name, named_process
from .process import Process
from .storage import CONFIG_NAME, FORMATS, TABLES_NAME, WEIGHTS_NAME, load_process


def load_source(
    name_or_path: str | os.PathLike, *, revision: str | None = None, repo_type: RepoType = "model"
) -> Process:
    """An HMM, a family or another process, by its name or from a folder or the Hub.

    Args:
        name_or_path (`str` or path): a folder that `save_pretrained` wrote; a name on the Hub: `"USER/NAME"` or an
            address such as `"hf://datasets/USER/NAME@REVISION"`; or a call such as `"process:mess3(x=0.05, a=0.85)"`
            (see [`~hmm_datasets.hmm.names`]).
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
    return load_process(folder)


def download_source(name: str, *, revision: str | None = None, repo_type: RepoType = "model") -> Path:
    """Download the files of a process from the Hub and return their folder; see [`load_source`]."""
    names = (*FORMATS, TABLES_NAME, CONFIG_NAME, WEIGHTS_NAME)
    # In the patterns of the Hub `*` also stands for what has a slash in it: parts may have parts.
    patterns = [*names, *(f"{part}-*/{name}" for part in ("hmm", "part") for name in names)]
    return download(name, patterns, revision=revision, repo_type=repo_type, expected="a process")
