"""Names of unfinished files and folders, and the deletion of those that processes left when they were killed.

A temporary name says which process made it, so that only those of processes that have ended are touched. They are
deleted by the next process that writes in the same folder.
"""

import contextlib
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal

from ..process_state import machine_id, start_time

_ABANDONED = 86_400.0  # seconds without a change after which temporary files of another machine are deleted
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<kind>new|old)\.(?P<owner>[0-9a-f]{8}-\d+-\d+-[0-9a-f]{8})", re.DOTALL)
LONGEST_NAME = 180  # bytes of a name that temporary names repeat
_tidied: set[tuple[int, Path]] = set()  # process, and folder in which it has deleted what others had left


def tidy(folder: Path) -> None:
    """Delete, once in the life of a process, the temporary files that others have left in a folder."""
    key = (os.getpid(), folder.absolute())
    if key in _tidied:
        return
    _tidied.add(key)
    for path, name, kind, owner in list(temporaries(folder)):
        is_running = is_alive(owner)
        with contextlib.suppress(OSError):
            if is_running or (kind == "old" and not os.path.lexists(folder / name)):
                continue
            if is_running is False or unchanged_for(path) > _ABANDONED:
                discard(path)


def temporary_name(path: Path, kind: Literal["new", "old"]) -> Path:
    """A new name beside a path: `new` for what becomes the path, or can be deleted, `old` for what was there."""
    return path.with_name(f".{short_name(path.name)}.{kind}.{new_owner()}")


def short_name(name: str) -> str:
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()
    return name if len(os.fsencode(name)) <= LONGEST_NAME else digest


def temporaries(folder: Path) -> Iterator[tuple[Path, str, str, str]]:
    """The temporary files in a folder: path, name of what it stands for, kind, and the process that made it."""
    with os.scandir(folder) as entries:
        for entry in entries:
            match = _TEMPORARY.fullmatch(entry.name) if entry.name.startswith(".") else None
            if match is not None:
                yield Path(entry.path), match["name"], match["kind"], match["owner"]


def new_owner() -> str:
    """A new identifier of something that this process makes: machine, process, its start, and a random number."""
    process = os.getpid()
    return f"{_machine()}-{process}-{_started(process)}-{secrets.token_hex(4)}"


def is_alive(owner: str) -> bool | None:
    """Whether the process that made something is running; None if it is on another machine."""
    machine, *numbers = owner.split("-")
    if len(numbers) != 3 or machine != _machine():
        return None
    return _started(int(numbers[0])) == int(numbers[1])


@cache
def _machine() -> str:
    return hashlib.sha256(machine_id().encode()).hexdigest()[:8]


def _started(process: int) -> int:
    """Start time of a process in hundredths; 0 if it has ended."""
    return int((start_time(process) or 0.0) * 100)


def unchanged_for(path: Path) -> float:
    """Seconds since anything in a file or folder changed, by the clock of its disk."""
    probe = temporary_name(path.with_name("clock"), "new")
    probe.touch()
    now = probe.lstat().st_ctime
    probe.unlink()
    return now - max(entry.lstat().st_ctime for entry in [path, *path.rglob("*")])


def discard(path: Path, beside: Path | None = None) -> None:
    """Delete a folder, or anything else, after it was renamed to a name by which it is known as left over.

    Args:
        path (`Path`): what is deleted; it need not exist.
        beside (`Path`, *optional*): where the other name is; in the same folder by default.
    """
    left = temporary_name((beside or path).with_name("deleted"), "new")
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, left)
        remove(left)


def remove(path: Path) -> None:
    """Delete a file, a link or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
