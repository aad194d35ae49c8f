"""How a recipe starts and ends: settings from `--config FILE.yaml` and flags, errors in one line, a clean exit."""

import atexit
import contextlib
import faulthandler
import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator

from . import launch_environment
from .credentials import masked_arguments
from .errors import LostPeer, one_line_errors
from .exclusive_lock import exclusive_lock
from .launcher_watch import end_with_launcher


def run(main: Callable[..., None], *kinds: type | str) -> None:
    """Parse the command line into settings and call `main` with them.

    While `main` runs, its `output_dir` is locked. A process that a launcher started ends when that one is gone.

    Args:
        main (callable): takes one argument for each of `kinds`.
        kinds (`type` or `str`): dataclasses of settings, or names of those in `hmm_datasets.training.settings`, which
            loads only now.
    """
    end_with_launcher()
    # DeepSpeed calls old names of torch's at every step; nobody who runs a recipe can mend that.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    with contextlib.suppress(io.UnsupportedOperation):  # where stderr is no file, as in a notebook
        faulthandler.enable()  # a process that a signal kills says where it was
    with exit_without_teardown(), one_line_errors(), _one_line_of_lost_peers():
        import torch

        if not torch.accelerator.is_available():
            os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed warns that it found no GPU
        from .training import settings

        kinds = [getattr(settings, kind) if isinstance(kind, str) else kind for kind in kinds]
        chosen = settings.parse_settings(*kinds)
        sys.argv[:] = masked_arguments(sys.argv)  # trackers write the command line down
        output_dir = next(filter(None, (getattr(one, "output_dir", None) for one in chosen)), None)
        with contextlib.nullcontext() if output_dir is None else exclusive_lock(output_dir):
            main(*chosen)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            from accelerate import PartialState

            # Together: a rank that leaves while another still holds a connection to it can make that one abort.
            state = PartialState()
            state.wait_for_everyone()
            state.destroy_process_group()


# Gloo's words for it, which are all that tells its errors from others.
_LOST_PEER = re.compile(r"(Connection (closed|reset) by peer|Timed out waiting|Broken pipe)")


@contextlib.contextmanager
def _one_line_of_lost_peers() -> Iterator[None]:
    """Tell in one line that another process is gone; what it says of itself, if anything, stands in its own log."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0] if str(error) else ""
        if launch_environment.world_size() == 1 or not _LOST_PEER.search(reason):
            raise
        raise LostPeer(
            f"lost another process ({reason}); look for the one that ended first, here or on another host; the same "
            "command goes on from the newest checkpoint"
        ) from None


@contextlib.contextmanager
def exit_without_teardown() -> Iterator[None]:
    """Let this process, where it is one of several, end after its exit handlers, without tearing Python down.

    Gloo's threads may let go of their last tensors only then, and abort a process whose work is all done: SIGABRT,
    "terminate called without an active exception" (PyTorch pull request 179291, issue 190489). Meant for the body of
    a program, once, before it imports torch: handlers run in the reverse of the order in which they registered.
    """
    code = 1  # of an exception that nobody catches

    def leave() -> None:
        if launch_environment.world_size() > 1:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    atexit.register(leave)
    try:
        yield
        code = 0
    except SystemExit as request:
        code = request.code if isinstance(request.code, int) else int(request.code is not None)
        raise
