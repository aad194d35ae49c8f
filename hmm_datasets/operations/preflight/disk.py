"""The checks of the disk of a host: whether a run has room and may write there, and whether hosts share it."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .report import GIB, Check

_WRITTEN = 1 << 20  # bytes
_SECONDS = 5  # until a file of rank 0 is seen on another host; a network disk may be slow to show it


def existing_folder(output_dir: str | os.PathLike) -> Path:
    """The folder, or the nearest one above it that exists."""
    path = Path(output_dir).absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def check_disk(output_dir: str | os.PathLike, min_gib: float) -> Check:
    """Free space where the run will write, and whether a file can be written there."""
    folder = existing_folder(output_dir)
    free = shutil.disk_usage(folder).free / GIB
    space = f"{free:.1f} GiB free at {folder}, {min_gib:g} needed"
    if free < min_gib:
        return Check("disk", False, f"{space}; free some, or choose another output_dir")
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(os.urandom(_WRITTEN))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return Check("disk", False, f"{folder} cannot be written: {error.strerror}; choose another output_dir")
    return Check("disk", True, space)


@contextlib.contextmanager
def file_to_share(output_dir: str | os.PathLike) -> Iterator[str | None]:
    """The path of a file in the output folder, deleted in the end; None if none can be written there."""
    with contextlib.ExitStack() as stack:
        path = None
        with contextlib.suppress(OSError):  # the check of the disk reports it
            folder = existing_folder(output_dir)
            path = stack.enter_context(tempfile.NamedTemporaryFile(prefix=".preflight-", dir=folder)).name
        yield path


def check_shared_output(path: str | None) -> Check:
    """Whether this host sees the file that rank 0 wrote into the output folder; None if rank 0 could not write it."""
    if path is None:
        return Check("shared output", True, "not checked, since rank 0 cannot write there")
    folder = os.path.dirname(path)
    for _ in range(_SECONDS):
        if os.path.exists(path):
            return Check("shared output", True, f"other hosts see what rank 0 writes into {folder}")
        time.sleep(1.0)
    remedy = "choose an output_dir on a disk that all hosts share"
    return Check("shared output", False, f"does not see the file that rank 0 wrote into {folder}; {remedy}")
