"""Names of files that were read from a file, which may come from anyone: they have to stay in their folder."""

import os
import re
from pathlib import Path
from typing import Any

from ..errors import InputError

_ODD = re.compile(r"[\\\x00-\x1f\x7f\ud800-\udfff]")  # backslashes, control characters, halves of characters


def inside(
    folder: str | os.PathLike, name: Any, source: str | os.PathLike | None = None, as_link: bool = False
) -> Path:
    """The path in `folder` of a name that was read from a file, which may come from anyone.

    Links may lead elsewhere within the folder, and from a snapshot of the Hub's cache to its blobs.

    Args:
        folder (path): the folder that the name has to stay in.
        name: the name, with `/` between its parts.
        source (path, *optional*, defaults to the folder): the file that has the name, for the message.
        as_link (`bool`, *optional*, defaults to `False`): whether the last part may be a link to anywhere, because it
            is moved or deleted and not followed.

    Raises:
        `InputError`: it is no name of something in the folder.
    """
    folder, where = Path(folder), folder if source is None else source
    if not isinstance(name, str) or _ODD.search(name) or not all(map(_is_plain, name.split("/"))):
        raise InputError(
            f"{where}: names {ascii(name)[:200]}, expected the name of something in {folder} (relative, with / "
            "between its parts, none of them ..); take the file again from where it was made"
        )
    path = folder / name
    real = os.path.join(os.path.realpath(path.parent), path.name) if as_link else os.path.realpath(path)
    if not Path(real).is_relative_to(_reach(folder)) or real == os.path.realpath(folder):
        raise InputError(
            f"{where}: names {name!r}, which is a link to {real}, not in {folder}; put what the link leads to in its "
            "place"
        )
    return path


def _is_plain(part: str) -> bool:
    return part not in ("", ".", "..") and len(part.encode()) <= 255


def _reach(folder: Path) -> Path:
    """Where links in a folder may lead: the folder, or the whole repository of a snapshot in the Hub's cache."""
    real = Path(os.path.realpath(folder))
    for parent in (real, *real.parents):
        if parent.parent.name == "snapshots" and (parent.parent.parent / "blobs").is_dir():
            return parent.parent.parent
    return real
