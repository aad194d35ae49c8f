"""Files shipped with the package: recipes and their settings, launch and DeepSpeed configurations, card templates.

In a checkout they are at its top level, in an installed package in its folder `shipped`.
"""

import os
import shutil
from pathlib import Path

from ..errors import InputError, path_errors
from ..files import atomic_file, atomic_folder

FOLDERS = ("recipes", "accelerate_configs", "ds_configs", "model_cards")
EXPERIMENTS = "recipes/experiments"
_LISTED = (".yaml", ".json", ".py", ".sbatch", ".pbs", ".sh")


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
    with path_errors(name):
        if Path(name).exists() or Path(name).is_absolute():
            return Path(name)
    names = [name] if Path(name).parts[:1] and Path(name).parts[0] in FOLDERS else []
    names += [f"{folder}/{name}{suffix}" for folder in folders for suffix in ("", ".yaml", ".json")]
    paths = (path for spelling in names for path in _locations(spelling))
    return next((path for path in paths if path.is_file()), Path(name))


def _locations(name: str | os.PathLike) -> list[Path]:
    """Where a shipped file can be: what is looked for below recipes/ is also looked for below recipes/experiments/."""
    folder, *parts = Path(name).parts
    if folder != "recipes" or not parts:
        return [shipped(name)]
    return [shipped(name), shipped(EXPERIMENTS).joinpath(*parts)]


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
        destination = _short(source)
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
            for path in _locations(f"{folder}/{name.removeprefix(folder + '/')}{suffix}"):
                path = path.resolve()
                if path.exists() and shipped(folder) in path.parents and path != shipped(EXPERIMENTS):
                    return path
    raise InputError(f"{name}: no shipped file has that name; `hmm-datasets configs` lists all of them")


def list_shipped() -> dict[str, list[str]]:
    """The names of shipped files by folder, each as for [`copy_shipped`]."""
    names = {}
    for folder in FOLDERS[:3]:
        root = shipped(folder)
        files = (path for path in sorted(root.rglob("*")) if path.suffix in _LISTED)
        names[folder] = sorted(_short(path).as_posix() for path in files)
    return names


def _short(path: Path) -> Path:
    """A shipped file without the folder that it is looked for in: `demo/sft.yaml`, `icll/small.yaml`, `zero3.yaml`."""
    return path.relative_to(next(root for root in map(shipped, (EXPERIMENTS, *FOLDERS)) if path.is_relative_to(root)))
