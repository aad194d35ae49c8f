"""Atomic files and folders: written under a temporary name, synced, then renamed. Full disks are reported.

A process keeps track of its unfinished files, so that it can delete them when it has to end at once
([`discard_unfinished`]).
"""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Generator
from pathlib import Path

from ..display import format_bytes
from ..errors import disk_full, is_disk_full, is_path_error, path_error, path_errors
from .check_write import check_may_write
from .replacing import move_into, put_folder, restored
from .syncing import sync, sync_tree
from .temporary import LONGEST_NAME, remove, temporary_name, tidy

_unfinished: set[Path] = set()


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike) -> Generator[Path]:
    """A context that gives a temporary path in the same folder, renamed to `path` on success, deleted on any error.

    Where `path` is a link, the file that it leads to is replaced.

    Raises:
        `InputError`: the disk is full, or the path cannot be used.
    """
    path = _target(path)
    temporary = _begin(path, lambda new: os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)))
    with _becoming(path, temporary):
        # A new file shows the process's mask; to read it otherwise, it has to be changed for all threads.
        mode = temporary.stat().st_mode
        yield temporary
        sync(temporary)
        os.chmod(temporary, mode)  # of a library that wrote another file and renamed it
        check_may_write()
        os.replace(temporary, path)
        sync(path.parent)


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike, *, replace: bool = True) -> Generator[Path]:
    """A context that gives an empty temporary folder, which replaces `path` on success and is deleted on any error.

    Args:
        path (path): the folder.
        replace (`bool`, *optional*, defaults to `True`): whether a folder that is not empty is replaced. What another
            process has put there meanwhile is never replaced without it.

    Raises:
        `InputError`: the disk is full, the path cannot be used, or there is a folder that must not be replaced.
    """
    path = restored(_target(path))
    temporary = _begin(path, Path.mkdir)
    with _becoming(path, temporary):
        yield temporary
        sync_tree(temporary)
        put_folder(temporary, path, replace=replace)


@contextlib.contextmanager
def scratch_folder(path: str | os.PathLike) -> Generator[Path]:
    """A context that gives an empty hidden folder on the disk of `path`, beside it, and deletes it at the end.

    If the process is killed, the next one that writes into the folder of `path` deletes it.
    """
    temporary = _begin(Path(path), Path.mkdir)
    with unfinished(temporary):
        yield temporary


@contextlib.contextmanager
def written_together(folder: str | os.PathLike) -> Generator[Path]:
    """A context that gives an empty temporary folder; its content is moved to `folder` on success, else deleted.

    Raises:
        `InputError`: the disk is full, or another process is moving files there.
    """
    check_may_write()
    folder = restored(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tidy(folder)
    temporary = temporary_name(folder / "unfinished", "new")
    temporary.mkdir()
    with _becoming(folder, temporary):
        yield temporary
        move_into(temporary, folder)


@contextlib.contextmanager
def unfinished(path: Path) -> Generator[None]:
    """A context at whose end `path` is deleted, unless it has been renamed."""
    _unfinished.add(path)
    try:
        yield
    finally:
        remove(path)
        _unfinished.discard(path)


def discard_unfinished(after: float = 0.0) -> None:
    """Delete all unfinished files of this process, before it ends at once.

    Args:
        after (`float`, *optional*): seconds to wait first, until other processes have stopped writing there too.
    """
    if _unfinished:
        time.sleep(after)
    for path in list(_unfinished):
        remove(path)


@contextlib.contextmanager
def _becoming(path: Path, temporary: Path) -> Generator[None]:
    """A context in which `temporary` is written and renamed to `path`; after an error it is deleted.

    Raises:
        `InputError`: the disk is full, whatever the error of the library that noticed it, or the path cannot be used.
    """
    with unfinished(temporary):
        try:
            yield
        except Exception as error:
            if not is_disk_full(error):
                if isinstance(error, OSError) and is_path_error(error) and _is_about(error, path, temporary):
                    raise path_error(path, OSError(error.errno, error.strerror)) from error
                raise
            needed = f"more than {format_bytes(size_of(temporary))}"
            remove(temporary)
            raise disk_full(path, needed) from error


def _begin(path: Path, make: Callable[[Path], None]) -> Path:
    """The temporary file or folder of a path, which `make` makes.

    Raises:
        `InputError`: the path cannot be used, for example because its disk is read-only or its parent a file.
    """
    check_may_write()
    with path_errors(path):
        temporary = temporary_name(path, "new")
        if len(os.fsencode(path.name)) > LONGEST_NAME:
            with contextlib.suppress(FileNotFoundError):
                os.lstat(path)  # the temporary name is shorter than one that may be too long
        path.parent.mkdir(parents=True, exist_ok=True)
        tidy(path.parent)
        make(temporary)
    return temporary


def _is_about(error: OSError, *paths: Path) -> bool:
    """Whether an error names no path, as one of a handle, or one of these or something in them."""
    names = [name for name in (error.filename, error.filename2) if isinstance(name, str | os.PathLike)]
    return not names or any(Path(name) == path or path in Path(name).parents for name in names for path in paths)


def _target(path: str | os.PathLike) -> Path:
    """The path that is written: for a link, that of what it leads to, which need not exist."""
    path = Path(path)
    if not os.path.islink(path):
        return path
    real = Path(os.path.realpath(path))
    if real.is_symlink():
        raise path_error(path, OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)))
    return real


def size_of(path: Path) -> int:
    """Size in bytes of a file, or of all files in a folder; 0 if it does not exist."""
    files = [path, *path.rglob("*")]
    return sum(file.stat().st_size for file in files if file.is_file())
