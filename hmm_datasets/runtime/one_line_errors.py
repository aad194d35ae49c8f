"""How a program ends after an error that its user can correct: with one line, and exit code 2."""

import contextlib
import errno
import json
import os
import shutil
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Generator
from pathlib import Path

from ..display import format_bytes
from ..errors import (
    DiskFull,
    InputError,
    LostPeer,
    RankError,
    first_line,
    is_disk_full,
    is_path_error,
    limit_of_files,
    path_error,
    printable,
)
from . import environment
from .credentials import masked_line


@contextlib.contextmanager
def one_line_errors() -> Generator[None]:
    """A context that turns an [`InputError`], a full disk or a read-only one into one line, `error: ...`, without
    secrets, and exit code 2.

    Other exceptions pass. Of several processes, rank 0 reports immediately. Other ranks, and processes that lost a
    peer, wait five seconds first, so that the launcher can end them if another process failed first. So the error of a
    single rank is still reported, with its number and host. Under torch's launcher (torchrun, accelerate) the line is
    the end of the launcher's report, and thus the last line on the screen; otherwise it goes to stderr.
    """
    try:
        with _disks_named():
            yield
    except InputError as error:
        moment = time.time()
        rank = environment.rank()
        origin = f"rank {rank} on {socket.gethostname()}: " if rank > 0 or isinstance(error, RankError) else ""
        if rank > 0 or isinstance(error, LostPeer):
            time.sleep(5)
        line = printable(masked_line(f"error: {origin}{error}"))
        if not report_to_launcher(line, moment):
            print(line, file=sys.stderr, flush=True)
        sys.exit(2)


@contextlib.contextmanager
def _disks_named() -> Generator[None]:
    """Turn errors about full or read-only disks that were not caught earlier, for example in a cache, into an
    [`InputError`]."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if _is_of_shared_memory(error):
            raise InputError(
                f"/dev/shm: processes cannot share memory there ({first_line(error)}){limit_of_files()}; mount it "
                "writable and large enough (--shm-size or --ipc=host of a container), or set dataloader_num_workers 0"
            ) from error
        name = getattr(error, "filename2", None) or getattr(error, "filename", None)  # of a copy, where to
        # Without a path it may be an error of a connection, but for those of a disk that only handles know.
        is_of_disk = name is not None or not isinstance(error, OSError) or error.errno in (errno.EIO, errno.ESTALE)
        if is_path_error(error) and is_of_disk:
            raise path_error(name or "a file or folder", error) from error
        if not is_disk_full(error):
            raise
        caches = (os.environ.get(name) for name in ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TMPDIR"))
        folders = [Path.cwd(), Path.home(), Path(tempfile.gettempdir()), *map(Path, filter(None, caches))]
        free = {folder: shutil.disk_usage(folder).free for folder in folders if folder.is_dir()}
        fullest = min(free, key=free.__getitem__)
        what = name or f"one of {', '.join(map(str, dict.fromkeys(free)))}"
        raise DiskFull(
            f"{what}: no room left on the disk ({' '.join(str(error).split())[:200]}); {format_bytes(free[fullest])} "
            f"are free in {fullest}{limit_of_files()}; make room and start the same command again"
        ) from error


def _is_of_shared_memory(error: BaseException) -> bool:
    """Whether a semaphore of multiprocessing could not be made."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, OSError) and bool(frames) and Path(frames[-1].filename).name == "synchronize.py"


def report_to_launcher(line: str, moment: float) -> bool:
    """Pass a line to torch's launcher, in the format of `torch.distributed.elastic`; False if none will report it.

    Args:
        line (`str`): what the launcher prints at the end of its report.
        moment (`float`): when it happened, in seconds since 1970; the launcher reports the earliest failure.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if not path or restarts[0] != restarts[1]:  # the launcher does not report failures before its last restart
        return False
    report = {"message": f"\n{line}", "timestamp": int(moment)}  # the newline puts the message on its own line
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(report, file)
    except OSError:
        return False
    return True
