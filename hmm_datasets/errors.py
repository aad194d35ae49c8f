"""Errors a user can mend, told in one line.

Every check of user input in this package raises `InputError`. Programs (recipes and the command line) run
their body under [`one_line_errors`], which turns such an error into one line on stderr and exit code 2.
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

# What libraries that keep the number of the error to themselves say of a full disk: safetensors, Arrow, torch.save.
_FULL = re.compile(
    r"No space left on device|[Dd]isk quota exceeded"
    r"|PytorchStreamWriter failed|iostream error|unexpected pos \d+ vs \d+"
)


class InputError(ValueError):
    """Bad input: the message says, in one line, what and where, what was expected and found, how to mend it."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


class RankError(InputError):
    """An error of one rank: its line names the rank and its host, also where that is rank 0."""


class LostPeer(RankError):
    """Another process is gone; that one's own error, if it has any, is the one to read."""


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or one that it came from, says that a disk or a quota has no room left."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if _FULL.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def disk_full(path: str | os.PathLike, needed: str, advice: str = "start the same command again") -> InputError:
    """The error for a file or folder that found no room on its disk.

    Args:
        path (path): what was being written; nothing of it may be left when this is called, since it says how much is
            free now.
        needed (`str`): how much it takes, in words.
        advice (`str`, *optional*): what to do once there is room.
    """
    folder = next(parent for parent in Path(path).absolute().parents if parent.is_dir())
    free = format_bytes(shutil.disk_usage(folder).free)
    return InputError(f"{path}: no room left on the disk: it needs {needed}, {free} are free; make room and {advice}")


@contextlib.contextmanager
def one_line_errors() -> Generator[None]:
    """End by an [`InputError`] or a full disk with one line, `error: ...`, and exit code 2; other exceptions pass.

    Of several processes rank 0 speaks at once. The others, and whoever lost another process, wait five seconds, in
    which the launcher ends them if another failed first; a rank that fails alone is still heard, with number and
    host. Under torch's launcher (torchrun, accelerate) the line ends the launcher's own report, and so is the last
    thing on the screen; elsewhere it goes to stderr.
    """
    try:
        with _full_disks_named():
            yield
    except InputError as error:
        moment = time.time()
        rank = launch_environment.rank()
        origin = f"rank {rank} on {socket.gethostname()}: " if rank > 0 or isinstance(error, RankError) else ""
        if rank > 0 or isinstance(error, LostPeer):
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a run's own handler would not end it
            time.sleep(5)
        line = f"error: {origin}{error}"
        if not _reported_by_launcher(line, moment):
            print(line, file=sys.stderr, flush=True)
        sys.exit(2)


@contextlib.contextmanager
def _full_disks_named() -> Generator[None]:
    """Make an [`InputError`] of a full disk that nobody nearer to it has told of, such as that of a cache."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if not is_disk_full(error):
            raise
        caches = (os.environ.get(name) for name in ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TMPDIR"))
        places = [Path.cwd(), Path.home(), Path(tempfile.gettempdir()), *map(Path, filter(None, caches))]
        free = {place: shutil.disk_usage(place).free for place in places if place.is_dir()}
        fullest = min(free, key=free.__getitem__)
        what = getattr(error, "filename", None) or f"one of {', '.join(map(str, dict.fromkeys(free)))}"
        raise InputError(
            f"{what}: no room left on the disk ({' '.join(str(error).split())[:200]}); {format_bytes(free[fullest])} "
            f"are free in {fullest}; make room and start the same command again"
        ) from error


def _reported_by_launcher(line: str, moment: float) -> bool:
    """Leave a line to torch's launcher, in the form of `torch.distributed.elastic`; False where none will say it."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if not path or restarts[0] != restarts[1]:  # it says nothing of a failure after which it starts again
        return False
    report = {"message": f"\n{line}", "timestamp": int(moment)}  # the message as it is, on a line of its own
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(report, file)
    except OSError:
        return False
    return True
