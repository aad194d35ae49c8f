"""Files shipped with the package: recipes and their settings, launch and DeepSpeed configurations, card templates.

In a checkout they are at its top level, in an installed package in its folder `shipped`.
"""

import os
import shutil
from pathlib import Path

from ..errors import InputError
from ..files import atomic_file, atomic_folder

FOLDERS = ("recipes", "accelerate_configs", "ds_configs", "model_cards")


def shipped(name: str | os.PathLike = "") -> Path:
    """The path of a shipped file, such as `recipes/pretrain.py`. The file need not exist."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "shipped"
    return (installed if installed.is_dir() else package.parent) / name


def local_or_shipped(name: str | os.PathLike, *folders: str) -> Path:
    """The file of the user with this name, or else the shipped one.

    Args:
        name (path): name given by the user, such as `my.yaml` or `recipes/demo/sft.yaml`. For files in `folders` the
            folder and the suffix may be left out, as in `demo/sft.yaml` or `zero3`.
        folders (`str`): those of `FOLDERS` that are searched for shipped files.

    Returns:
        `Path`: the file; `name` itself if there is neither, so that the error on reading it has the name.
    """
    if Path(name).exists() or Path(name).is_absolute():
        return Path(name)
    paths = [shipped(name)] if Path(name).parts[:1] and Path(name).parts[0] in FOLDERS else []
    for folder in folders:
        paths += [shipped(folder) / f"{name}{suffix}" for suffix in ("", ".yaml", ".json")]
    return next((path for path in paths if path.is_file()), Path(name))


def copy_shipped(name: str, destination: str | os.PathLike | None = None) -> Path:
    """Copy a shipped file, or a folder of recipes such as `demo`, for editing; return the path of the copy.

    Args:
        name (`str`): a name as for [`local_or_shipped`], in any folder except that of the cards.
        destination (path, *optional*): path of the copy; by default `name` without its first folder (`demo/sft.yaml`)
            in the current folder, where `--config demo/sft.yaml` of a recipe finds it first.

    Raises:
        `InputError`: there is no shipped file of that name, or the destination exists.
    """
    source = _shipped_path(name)
    if destination is None:
        destination = source.relative_to(shipped()).relative_to(source.relative_to(shipped()).parts[0])
    destination = Path(destination)
    if destination.is_dir() and source.is_file():
        destination /= source.name
    if destination.exists():
        raise InputError(f"{destination} exists; remove it, or name another: hmm-datasets configs copy {name} DEST")
    if source.is_dir():
        with atomic_folder(destination, replace=False) as temporary:
            ignored = shutil.ignore_patterns("__pycache__", "*.png")
            shutil.copytree(source, temporary, ignore=ignored, dirs_exist_ok=True)
    else:
        with atomic_file(destination) as temporary:
            shutil.copyfile(source, temporary)
    return destination


def _shipped_path(name: str) -> Path:
    name = name.rstrip("/")
    for folder in FOLDERS[:3]:
        for suffix in ("", ".yaml", ".json", ".py"):
            path = shipped(folder) / f"{name.removeprefix(folder + '/')}{suffix}"
            if path.exists() and path.resolve().is_relative_to(shipped(folder)) and path != shipped(folder):
                return path
    raise InputError(f"{name}: no shipped file has that name; `hmm-datasets configs` lists all of them")


def list_shipped() -> dict[str, list[str]]:
    """The names of shipped files by folder, each as for [`copy_shipped`]."""
    found = {}
    for folder in FOLDERS[:3]:
        root = shipped(folder)
        files = (
            path for path in sorted(root.rglob("*")) if path.suffix in (".yaml", ".json", ".py", ".sbatch", ".pbs")
        )
        found[folder] = [path.relative_to(root).as_posix() for path in files]
    return found
