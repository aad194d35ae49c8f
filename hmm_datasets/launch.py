"""Start and end of a recipe: settings from `--config FILE.yaml` and flags, errors in one line, a clean exit."""

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

    While `main` runs, its `output_dir` is locked. A process started by a launcher ends when the launcher has ended.

    Args:
        main (callable): takes one argument for each of `kinds`.
        kinds (`type` or `str`): dataclasses of settings, or names of dataclasses in `hmm_datasets.training.settings`,
            which is imported only here.
    """
    end_with_launcher()
    # DeepSpeed calls deprecated functions of torch at every step, which users of a recipe cannot change.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    with contextlib.suppress(io.UnsupportedOperation):  # stderr is not a file, for example in a notebook
        faulthandler.enable()  # prints a traceback when a signal kills the process
    with exit_without_teardown(), one_line_errors(), _one_line_of_lost_peers():
        import torch

        launch_environment.expect_no_gpu_if_there_is_none()
        from .training import command_line, settings

        kinds = [getattr(settings, kind) if isinstance(kind, str) else kind for kind in kinds]
        chosen = command_line.parse_settings(*kinds)
        sys.argv[:] = masked_arguments(sys.argv)  # trackers record the command line
        output_dir = next(filter(None, (getattr(one, "output_dir", None) for one in chosen)), None)
        with contextlib.nullcontext() if output_dir is None else exclusive_lock(output_dir):
            main(*chosen)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            from accelerate import PartialState

            # All ranks together, because a rank that leaves early can make others abort that are still connected to
            # it.
            state = PartialState()
            state.wait_for_everyone()
            state.destroy_process_group()


# Messages of gloo, which has no class for these errors.
_LOST_PEER = re.compile(r"(Connection (closed|reset) by peer|Timed out waiting|Broken pipe)")


@contextlib.contextmanager
def _one_line_of_lost_peers() -> Iterator[None]:
    """Report in one line that another process has ended. The reason, if known, is in the log of that process."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0] if str(error) else ""
        if launch_environment.world_size() == 1 or not _LOST_PEER.search(reason):
            raise
        raise LostPeer(
            f"lost another process ({reason}); look for the error of the one that ended first, here or on another "
            "host; the same command resumes from the newest checkpoint"
        ) from None


@contextlib.contextmanager
def exit_without_teardown() -> Iterator[None]:
    """End this process, if it is one of several, after its exit handlers and without the teardown of Python.

    Threads of gloo may release their last tensors only during the teardown, and then abort a process that has finished
    its work: SIGABRT, "terminate called without an active exception" (PyTorch pull request 179291, issue 190489). Use
    this context once around the body of a program, before torch is imported, because exit handlers run in reverse
    order of registration.
    """
    code = 1  # for an exception that is not caught

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
