"""Errors that a user can correct, reported in one line.

Every check of user input in this package raises `InputError`. Programs (recipes and the command line) run under
[`one_line_errors`], which turns such an error into one line on stderr and exit code 2.
"""

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path

from . import launch_environment
from .quantities import format_bytes

# Messages about a full disk from libraries that do not give the errno: safetensors, Arrow, torch.save.
_FULL = re.compile(
    r"No space left on device|[Dd]isk quota exceeded"
    r"|PytorchStreamWriter failed|iostream error|unexpected pos \d+ vs \d+"
)


# Control characters but for tabs and line ends, characters that turn the direction of writing, halves of characters.
_CODES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Text without codes that a terminal obeys, which names in a file and tokens of a model may have in them.

    ```python
    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'

    ```
    """
    return _CODES.sub(lambda match: ascii(match[0])[1:-1], text)


class InputError(ValueError):
    """Bad input. The message gives in one line what is wrong and where, what was expected, and how to correct it."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


class RankError(InputError):
    """An error of one rank. The message names the rank and its host, even for rank 0."""


class LostPeer(RankError):
    """Another process has ended. The cause is in the error of that process, if there is one."""


class DiskFull(InputError):
    """A disk or a quota is full. Once there is room again, the same command goes on."""


class RolledBack(InputError):
    """The run went back to an earlier checkpoint; started again, the same command continues from there.

    A recipe starts itself again (see `hmm_datasets.launch`).
    """


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or one of its causes, means that a disk or a quota is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if _FULL.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def disk_full(path: str | os.PathLike, needed: str, advice: str = "start the same command again") -> DiskFull:
    """The error for a file or folder that could not be written because its disk is full.

    Args:
        path (path): the file or folder. Delete what was written of it before this call, because the message gives the
            free space.
        needed (`str`): the space needed, in words.
        advice (`str`, *optional*): what to do once there is space.
    """
    folder = next(parent for parent in Path(path).absolute().parents if parent.is_dir())
    free = format_bytes(shutil.disk_usage(folder).free)
    return DiskFull(f"{path}: no room left on the disk: it needs {needed}, {free} are free; make room and {advice}")


def is_not_permitted(error: OSError) -> bool:
    """Whether an error means that a disk, a file or a folder may not be written, or not be read."""
    return error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)


def not_permitted(path: str | os.PathLike, error: OSError) -> InputError:
    """The error for a file or folder on a read-only disk, or of somebody else."""
    return InputError(
        f"{path}: cannot be used ({error.strerror}); choose another file or folder, or make this one writable"
    )


@contextlib.contextmanager
def one_line_errors() -> Generator[None]:
    """A context that turns an [`InputError`], a full disk or a read-only one into one line, `error: ...`, and exit
    code 2.

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
        rank = launch_environment.rank()
        origin = f"rank {rank} on {socket.gethostname()}: " if rank > 0 or isinstance(error, RankError) else ""
        if rank > 0 or isinstance(error, LostPeer):
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the handler of a training run does not end it
            time.sleep(5)
        line = printable(f"error: {origin}{error}")
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
        name = getattr(error, "filename2", None) or getattr(error, "filename", None)  # of a copy, where to
        if name is not None and isinstance(error, OSError) and is_not_permitted(error):
            raise not_permitted(name, error) from error
        if not is_disk_full(error):
            raise
        caches = (os.environ.get(name) for name in ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TMPDIR"))
        folders = [Path.cwd(), Path.home(), Path(tempfile.gettempdir()), *map(Path, filter(None, caches))]
        free = {folder: shutil.disk_usage(folder).free for folder in folders if folder.is_dir()}
        fullest = min(free, key=free.__getitem__)
        what = name or f"one of {', '.join(map(str, dict.fromkeys(free)))}"
        raise DiskFull(
            f"{what}: no room left on the disk ({' '.join(str(error).split())[:200]}); {format_bytes(free[fullest])} "
            f"are free in {fullest}; make room and start the same command again"
        ) from error


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
