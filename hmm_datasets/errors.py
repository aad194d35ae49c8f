"""Errors a user can mend, told in one line.

Every check of user input in this package raises `InputError`. Programs (recipes and the command line) run
their body under [`one_line_errors`], which turns such an error into one line on stderr and exit code 2.
"""

import contextlib
import errno
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

# What libraries that keep the number of the error to themselves say of a full disk: safetensors, Arrow, torch.save.
_FULL = re.compile(
    r"No space left on device|[Dd]isk quota exceeded|PytorchStreamWriter failed|unexpected pos \d+ vs \d+"
)


class InputError(ValueError):
    """Bad input: the message says, in one line, what and where, what was expected and found, how to mend it."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


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


def format_bytes(count: float) -> str:
    """A number of bytes, in the decimal unit that suits it.

    ```python
    >>> format_bytes(999), format_bytes(12_345_678)
    ('999 bytes', '12.3 MB')

    ```
    """
    if count < 1000:
        return f"{count:.0f} bytes"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 999.95:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Print an [`InputError`] as `error: ...` on stderr and exit with code 2; other exceptions pass.

    Of several processes rank 0 speaks at once. The others wait five seconds, in which the launcher ends them if
    rank 0 failed too; a rank that fails alone is still heard, with its number and host.
    """
    try:
        yield
    except InputError as error:
        rank = int(os.environ.get("RANK", "0"))
        origin = ""
        if rank > 0:
            time.sleep(5)
            origin = f"rank {rank} on {socket.gethostname()}: "
        print(f"{origin}error: {error}", file=sys.stderr, flush=True)
        sys.exit(2)
