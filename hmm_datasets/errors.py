"""Errors a user can mend, told in one line.

Every check of user input in this package raises `InputError`. Programs (recipes and the command line) run
their body under [`one_line_errors`], which turns such an error into one line on stderr and exit code 2.
"""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator


class InputError(ValueError):
    """Bad input: the message says, in one line, what and where, what was expected and found, how to mend it."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


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
