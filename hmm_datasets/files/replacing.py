"""Renaming of whole folders, and of files that belong together, in the place of others.

A folder is replaced by exchanging it with the new one, which Linux does in one step on most file systems. Elsewhere it
takes two renames, with no folder in between. Files that belong together but share a folder with others are moved one
by one out of `.arriving`. If a process is killed in between, [`restored`] puts the old folder back, or moves the other
files; whoever reads or writes such a folder calls it first.
"""

import contextlib
import ctypes
import errno
import os
from pathlib import Path

from ..errors import InputError
from .check_write import check_may_write
from .syncing import sync, sync_tree
from .temporary import discard, short_name, temporaries, temporary_name, tidy

_ARRIVING = ".arriving"


def put_folder(source: Path, target: Path, *, replace: bool = True, at_once: bool = True) -> None:
    """Rename a folder. What was at `target` is deleted, unless another process removed it first.

    Args:
        source (`Path`), target (`Path`): its path before and after, on the same disk.
        replace (`bool`, *optional*, defaults to `True`): whether a folder that is not empty is replaced.
        at_once (`bool`, *optional*, defaults to `True`): exchange the two folders if the file system can. A process
            that is killed right after it leaves the old folder at `source`.

    Raises:
        `InputError`: there is a folder that must not be replaced.
    """
    check_may_write()
    tidy(target.parent)
    removed = []
    while True:
        try:
            os.rename(source, target)  # fails if there is a folder with content, a file or a link
            break
        except FileNotFoundError:
            if removed:  # another process has moved the same folder meanwhile, and its result was moved away
                restored(target)
            for path in removed if os.path.lexists(target) else ():
                discard(path, target)
            raise
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        if target.is_file() and not target.is_symlink():
            raise InputError(f"{target}: is a file; choose another folder")
        if not replace:
            raise InputError(f"{target}: exists already; choose another folder, or delete it")
        if at_once and _exchange(source, target):
            removed.append(source)
            break
        removed.append(temporary_name(target, "old"))
        with contextlib.suppress(FileNotFoundError):
            os.rename(target, removed[-1])
    sync(target.parent)
    for path in removed:
        discard(path, target)


def restored(path: str | os.PathLike) -> Path:
    """The path, whose content is whole again if a process was killed while it replaced it.

    A folder that was moved out of the way is moved back, and files that were on their way into a folder are moved
    there. Nothing is overwritten: a rename fails where there is a folder with content, so that a writer who is only
    slow continues unharmed, and what arrives may be moved by several processes. Where nothing can be renamed, the path
    is left as it is.
    """
    path = Path(path)
    with contextlib.suppress(OSError):
        if not os.path.lexists(path):
            here = short_name(path.name)
            old = [entry for entry, name, kind, _ in temporaries(path.parent) if (name, kind) == (here, "old")]
            if old:
                os.rename(max(old, key=lambda entry: entry.lstat().st_ctime), path)
        if (path / _ARRIVING).is_dir():
            _move_all(path / _ARRIVING, path)
    return path


def restore_all(folder: Path) -> None:
    """Put back everything in a folder that a process moved out of the way before it was killed; see [`restored`]."""
    with contextlib.suppress(OSError):
        for name in {name for _, name, kind, _ in temporaries(folder) if kind == "old"}:
            restored(folder / name)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange what two names stand for, in one step; False if the system or the file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (AttributeError, TypeError):  # systems other than Linux; on Windows a library has to be named
        return False
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
    return renameat2(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0


def move_into(source: Path, target: Path) -> None:
    """Sync the content of a folder and move it to another one, replacing files and folders of the same names.

    Both folders must be on the same disk. From the first rename on the move is finished, by [`restored`] if not by
    this process.
    """
    check_may_write()
    sync_tree(source)
    check_may_write()
    arriving = target / _ARRIVING
    while True:
        try:
            os.rename(source, arriving)
            break
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        _move_all(arriving, target)  # of a process that was killed, or is slow
    _move_all(arriving, target)


def _move_all(arriving: Path, target: Path) -> None:
    """Move what arrives in a folder; several processes may do so at once, each file is moved by one of them."""
    with contextlib.suppress(FileNotFoundError):
        for entry in sorted(os.scandir(arriving), key=lambda entry: entry.name):
            with contextlib.suppress(FileNotFoundError):  # another process was first
                if entry.is_dir():
                    put_folder(Path(entry), target / entry.name, at_once=False)  # what is left must be new
                else:
                    os.replace(entry, target / entry.name)
    sync(target)
    with contextlib.suppress(OSError):  # another process was first, or has already begun the next move
        arriving.rmdir()
