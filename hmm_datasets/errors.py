"""Errors a user can mend, told in one line.

Every check of user input in this package raises `InputError`. Programs (recipes and the command line) run
their body under [`one_line_errors`], which turns such an error into one line on stderr and exit code 2.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator


class InputError(ValueError):
    """Bad input: the message says, in one line, what and where, what was expected and found, how to mend it."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


class RankError(InputError):
    """An error of one rank: its line names the rank and its host, also where that is rank 0."""


class LostPeer(RankError):
    """Another process is gone; that one's own error, if it has any, is the one to read."""


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """End by an [`InputError`] with one line, `error: ...`, and exit code 2; other exceptions pass.

    Of several processes rank 0 speaks at once. The others, and whoever lost another process, wait five seconds, in
    which the launcher ends them if another failed first; a rank that fails alone is still heard, with number and
    host. Under torch's launcher (torchrun, accelerate) the line ends the launcher's own report, and so is the last
    thing on the screen; elsewhere it goes to stderr.
    """
    try:
        yield
    except InputError as error:
        moment = time.time()
        rank = int(os.environ.get("RANK", "0"))
        origin = f"rank {rank} on {socket.gethostname()}: " if rank > 0 or isinstance(error, RankError) else ""
        if rank > 0 or isinstance(error, LostPeer):
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a run's own handler would not end it
            time.sleep(5)
        line = f"error: {origin}{error}"
        if not _reported_by_launcher(line, moment):
            print(line, file=sys.stderr, flush=True)
        sys.exit(2)


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
