"""Files that come with the package: recipes and their settings, launch and DeepSpeed configurations, card templates.

In a checkout they stand at its top level, in an installed package in its folder `shipped`.
"""

import os
import shutil
from pathlib import Path

from .errors import InputError

FOLDERS = ("recipes", "accelerate_configs", "ds_configs", "model_cards")


def shipped(name: str | os.PathLike = "") -> Path:
    """The place of a shipped file, such as `recipes/pretrain.py`, whether or not there is one of that name."""
    package = Path(__file__).resolve().parent
    installed = package / "shipped"
    return (installed if installed.is_dir() else package.parent) / name


def local_or_shipped(name: str | os.PathLike, *folders: str) -> Path:
    """A file of the user's; where there is none of that name, the shipped one.

    Args:
        name (path): as the user wrote it: `my.yaml`, `recipes/demo/sft.yaml`; below one of `folders` also without
            folder and ending, as `demo/sft.yaml` or `zero3`.
        folders (`str`): of `FOLDERS`, in which shipped files are looked for.

    Returns:
        `Path`: `name` itself where neither is there, so that the reader's error names it.
    """
    if Path(name).exists() or Path(name).is_absolute():
        return Path(name)
    places = [shipped(name)] if Path(name).parts[:1] and Path(name).parts[0] in FOLDERS else []
    for folder in folders:
        places += [shipped(folder) / f"{name}{ending}" for ending in ("", ".yaml", ".json")]
    return next((place for place in places if place.is_file()), Path(name))


def copy_shipped(name: str, destination: str | os.PathLike | None = None) -> Path:
    """Copy a shipped file, or a folder of recipes such as `demo`, for editing; the copy.

    Args:
        name (`str`): as [`local_or_shipped`] takes it, in any folder but that of the cards.
        destination (path, *optional*): of the copy; by default `name` without its first folder (`demo/sft.yaml`), in
            the current folder, where a recipe's `--config demo/sft.yaml` finds it first.

    Raises:
        `InputError`: nothing of that name is shipped, or the destination exists.
    """
    source = _shipped_place(name)
    if destination is None:
        destination = source.relative_to(shipped()).relative_to(source.relative_to(shipped()).parts[0])
    destination = Path(destination)
    if destination.is_dir() and source.is_file():
        destination /= source.name
    if destination.exists():
        raise InputError(f"{destination} exists; remove it, or name another: hmm-datasets configs copy {name} DEST")
    destination.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, destination, ignore=shutil.ignore_patterns("__pycache__", "*.png"))
    else:
        shutil.copyfile(source, destination)
    return destination


def _shipped_place(name: str) -> Path:
    name = name.rstrip("/")
    for folder in FOLDERS[:3]:
        for ending in ("", ".yaml", ".json", ".py"):
            place = shipped(folder) / f"{name.removeprefix(folder + '/')}{ending}"
            if place.exists() and place.resolve().is_relative_to(shipped(folder)) and place != shipped(folder):
                return place
    raise InputError(f"{name}: nothing of that name is shipped; `hmm-datasets configs` lists what there is")


def list_shipped() -> dict[str, list[str]]:
    """What is there to copy: names by folder, each as [`copy_shipped`] takes it."""
    found = {}
    for folder in FOLDERS[:3]:
        root = shipped(folder)
        files = (path for path in sorted(root.rglob("*")) if path.suffix in (".yaml", ".json", ".py", ".sbatch"))
        found[folder] = [path.relative_to(root).as_posix() for path in files]
    return found
