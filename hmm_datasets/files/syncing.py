"""Flushing of files and folders to the disk, as far as their file system can do so."""

import errno
import os
from pathlib import Path

_IS_WINDOWS = not hasattr(os, "killpg")  # which no other system lacks
BINARY = getattr(os, "O_BINARY", 0)  # of Windows, which otherwise writes two characters for the end of a line


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk, where its file system can do so.

    Windows opens no folder, and flushes only files that are open for writing.
    """
    if _IS_WINDOWS and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR | BINARY if _IS_WINDOWS else os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Flush a folder and all files in it to the disk, and let those read and write its files who may do so with it.

    safetensors writes files that only their owner reads, whatever the process's mask allows.
    """
    access = folder.stat().st_mode & 0o666
    for file in [folder, *folder.rglob("*")]:
        if not file.is_symlink() and file.is_file() and (mode := file.stat().st_mode) & access != access:
            os.chmod(file, mode | access)
        sync(file)
