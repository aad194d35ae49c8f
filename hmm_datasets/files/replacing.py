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
import time
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import InputError
from .check_write import check_may_write
from .syncing import sync, sync_tree
from .temporary import discard, is_alive, is_mine, new_owner, short_name, temporaries, temporary_name, tidy

PATIENCE = 10.0
"""Seconds that a process which is replacing a folder is given to finish; it needs milliseconds."""

_ARRIVING, _OWNER = ".arriving", ".owner."
_arriving: set[Path] = set()  # folders whose files this process is moving


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
                with contextlib.suppress(OSError):
                    os.rename(removed[-1], target)
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
    there. A process that is still doing this is waited for. Nothing is overwritten: a rename fails where there is a
    folder with content, so that a writer who is only slow continues unharmed. Where nothing can be renamed, the path
    is left as it is.

    Raises:
        `InputError`: another process is writing there and does not finish.
    """
    path = Path(path)
    with contextlib.suppress(OSError):
        if not os.path.lexists(path):
            _move_back(path)
        if (path / _ARRIVING).is_dir():
            _finish_arrival(path)
    return path


def restore_all(folder: Path) -> None:
    """Put back everything in a folder that a process moved out of the way before it was killed; see [`restored`]."""
    with contextlib.suppress(OSError):
        for name in {name for _, name, kind, _ in temporaries(folder) if kind == "old"}:
            restored(folder / name)


def _move_back(path: Path) -> None:
    began = time.monotonic()
    while not os.path.lexists(path):
        old = [
            (entry, owner)
            for entry, name, kind, owner in temporaries(path.parent)
            if kind == "old" and name == short_name(path.name)
        ]
        if not old:
            return
        if time.monotonic() - began > PATIENCE or any(is_alive(owner) is False for _, owner in old):
            newest, _ = max(old, key=lambda one: one[0].lstat().st_ctime)
            with contextlib.suppress(OSError):  # another process was first
                os.rename(newest, path)
            return
        time.sleep(0.01)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange what two names stand for, in one step; False if the system or the file system cannot."""
    function = _renameat2()
    if function is None:
        return False
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
    if function(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM, errno.EXDEV, errno.ENOENT):
        return False
    raise OSError(number, os.strerror(number), str(first), None, str(second))


@cache
def _renameat2() -> Any:
    """The function of the C library; None if it has none, as on other systems than Linux."""
    try:
        function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    except TypeError:  # Windows, where a library has to be named
        return None
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return function


def move_into(source: Path, target: Path) -> None:
    """Sync the content of a folder and move it to another one, replacing files and folders of the same names.

    Both folders must be on the same disk. From the first rename on the move is finished, by [`restored`] if not by
    this process.

    Raises:
        `InputError`: another process is moving files there.
    """
    check_may_write()
    (source / f"{_OWNER}{new_owner()}").touch()
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
        _finish_arrival(target)
    _move_all(arriving, target)


def _move_all(arriving: Path, target: Path) -> None:
    _arriving.add(arriving)
    try:
        for path in sorted(arriving.iterdir()):
            if path.name.startswith(_OWNER):
                continue
            if path.is_dir():
                put_folder(path, target / path.name, at_once=False)  # what is left in `arriving` must be new
            else:
                os.replace(path, target / path.name)
        sync(target)
        discard(arriving)
    finally:
        _arriving.discard(arriving)


def _finish_arrival(folder: Path) -> None:
    """Move the files that a process was moving into a folder when it was killed."""
    arriving = folder / _ARRIVING
    began = time.monotonic()
    while arriving.is_dir():
        mark = next(arriving.glob(f"{_OWNER}*"), None)
        owner = "" if mark is None else mark.name.removeprefix(_OWNER)
        is_running = is_alive(owner) and (arriving in _arriving or not is_mine(owner))
        waited = time.monotonic() - began
        if is_running and waited > PATIENCE:
            raise InputError(f"{folder}: process {owner.split('-')[1]} is writing there; wait for it to end")
        if is_running is False or (is_running is None and waited > PATIENCE):
            with contextlib.suppress(FileNotFoundError):  # of several processes one can rename the mark
                if mark is not None:
                    os.rename(mark, arriving / f"{_OWNER}{new_owner()}")
                _move_all(arriving, folder)
                return
        time.sleep(0.01)
