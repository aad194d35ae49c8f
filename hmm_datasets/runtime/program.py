"""Start and end of a recipe: settings from `--config FILE.yaml` and flags, errors in one line, a clean exit.

A run that went back to an earlier checkpoint continues by an ordinary resume, so all ranks start again together: each
replaces itself by a new process with the same command, environment and process id (`execve`). Its launcher does not
notice. Memory, devices, sockets and threads are those of a new process, so nothing has to be undone, whatever shards
the model. Ranks find each other at a new port of the machine of rank 0: the store of the launcher, or of the process
group before, still has the keys of the connections that are gone.
"""

import atexit
import contextlib
import faulthandler
import io
import logging
import multiprocessing
import os
import re
import socket
import sys
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from ..errors import InputError, LostPeer, RolledBack, with_causes
from . import environment, heartbeats
from .command_line import CommandLine
from .credentials import masked_arguments, remember_words
from .lock import exclusive_lock
from .once import one_command
from .one_line_errors import one_line_errors
from .parent_watch import end_forks_with_this_process, end_with_launcher
from .plain_output import plain_output
from .rendezvous import announce_waits
from .setting_rules import check_output_dir
from .settings import complete, settings_help
from .shipped import shipped

_HELP, _HELP_ALL = {"-h", "--help"}, "--help_all"


# What a rank hears from gloo, NCCL or the store of torch when another rank has ended, cannot be reached or does not
# come. NCCL's text is several lines, and the peer is often named in the last one.
_LOST_PEER = re.compile(
    r"[Cc]onnection (closed|reset) by (remote )?peer|Broken pipe|Timed out waiting|Failed to recv, got 0 bytes"
    r"|Connection was likely closed|Application timeout caused pair closure|timed out in monitoredBarrier"
    r"|remote process exited or there was a network error|ncclRemoteError|NCCL error.*unhandled system error"
    r"|Got completion from peer|[Ww]atchdog caught collective operation timeout|NCCL communicator was aborted"
    r"|NCCL operations have failed or timed out|Timed out after \d+ seconds waiting for clients"
)
# What a rank did wrong itself, or its device, disk or connection to the Hub, even if a peer is named after it.
_OWN_FAULT = re.compile(
    r"out of memory|CUDA error|Cuda failure|CUDA_ERROR|ncclUnhandledCudaError|\bECC\b|device-side assert"
    r"|cu(BLAS|DNN) error|CUBLAS_STATUS|CUDNN_STATUS|illegal memory access|shared memory segment"
    r"|No space left on device|ibv_\w+ failed|Traceback \(most recent call last\)|CAS service|reqwest",
    re.IGNORECASE,
)


def start_again(variables: Mapping[str, str]) -> NoReturn:
    """Replace this process by a new one with the same command; to be called by all ranks.

    Args:
        variables (mapping of `str` to `str`): the environment that this process was started with, and the time of
            the first start.

    Raises:
        `InputError`: the command cannot be started.
    """
    rendezvous = _new_rendezvous()
    for child in multiprocessing.active_children():  # workers of data loaders, which would wait for ever
        child.kill()
        child.join()
    sys.stdout.flush()
    sys.stderr.flush()
    _close_on_exec()
    command = [sys.executable, *sys.orig_argv[1:]]
    try:
        os.execve(sys.executable, command, {**variables, **rendezvous})
    except OSError as error:
        raise InputError(
            f"{command[0]}: cannot be started again ({error.strerror}); start the same command to continue"
        ) from error


def _new_rendezvous() -> dict[str, str]:
    """Leave the process group, if there is one; returns the variables by which the ranks find each other again."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return {}
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    port = [_free_port() if torch.distributed.get_rank() == 0 else 0]
    broadcast_object_list(port)
    state = PartialState()
    state.wait_for_everyone()
    state.destroy_process_group()
    return {"MASTER_PORT": str(port[0]), "TORCHELASTIC_USE_AGENT_STORE": "False"}


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("", 0))
        return listening.getsockname()[1]


def _close_on_exec() -> None:
    """Keep only the standard files open in the new process; libraries may have opened others, such as devices."""
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2:
                with contextlib.suppress(OSError):
                    os.set_inheritable(int(name), False)


def run(main: Callable[..., None]) -> None:
    """Parse the command line into the settings that `main` takes, and call it with them.

    `--help` describes the settings that its annotations declare, and `--help_all` those of other libraries too. While
    `main` runs, its `output_dir` is locked. From the start of the process until its end there are heartbeats. A
    process started by a launcher ends when the launcher has ended. If the run goes back to an earlier checkpoint, this
    process and those of all other ranks start the command again. Recipes import what several experiments share from
    `recipes/common`.

    Args:
        main (callable): each of its arguments is annotated with a dataclass of settings.
    """
    sys.path.append(str(shipped("recipes/common")))
    end_with_launcher()
    end_forks_with_this_process()
    _silence_libraries()
    with contextlib.suppress(io.UnsupportedOperation):  # stderr is not a file, for example in a notebook
        faulthandler.enable()  # prints a traceback when a signal kills the process
    with environment.begun() as variables, plain_output(), exit_without_teardown(), one_line_errors(), one_command():
        environment.check_alone()
        remember_words(sys.argv)
        command = CommandLine.read(sys.argv[1:])
        if not {*_HELP, _HELP_ALL}.isdisjoint(command.words):
            print(_help(main, is_whole=_HELP_ALL in command.words))
            return
        output_dir = command.value("output_dir")
        check_output_dir("output_dir", output_dir)
        with heartbeats.heartbeat(output_dir if isinstance(output_dir, str) else None), _one_line_of_lost_peers():
            _run(main, command, variables)


def declared_settings(main: Callable[..., None]) -> list[type]:
    """The classes of settings that the main function of a recipe takes, without fields of slow libraries."""
    return [kind for name, kind in typing.get_type_hints(main).items() if name != "return"]


def _help(main: Callable[..., None], is_whole: bool) -> str:
    kinds = declared_settings(main)
    description = (sys.modules[main.__module__].__doc__ or "").strip()
    text = settings_help([*map(complete, kinds)], sys.maxsize) if is_whole else settings_help(kinds)
    return f"{description}\n\nSettings, with their defaults, as flags or in a YAML file (--config FILE):\n{text}"


def _silence_libraries() -> None:
    """Leave out what libraries warn of and a user of a recipe cannot change."""
    # DeepSpeed calls deprecated functions of torch at every step.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    # TRL's settings and trainers use names that transformers has changed.
    warnings.filterwarnings("ignore", r"`(is_)?gradient_checkpointing\w*` is deprecated", FutureWarning)
    # The token that pads is not in the configuration of a new model, where it would change the initial weights.
    padding = "Updated tokens: {'pad_token_id'"
    logging.getLogger("transformers.trainer_utils").addFilter(lambda record: padding not in record.getMessage())


def _run(main: Callable[..., None], command: CommandLine, variables: dict[str, str]) -> None:
    import torch

    announce_waits()
    environment.silence_missing_gpu_warnings()
    kinds = [*map(complete, declared_settings(main))]
    heartbeats.enter("rendezvous")  # of the ranks, when the settings are made
    chosen = command.settings(*kinds)
    sys.argv[:] = masked_arguments(sys.argv)  # trackers record the command line
    if any(getattr(part, "dataloader_num_workers", 0) for part in chosen):
        multiprocessing.Lock()  # as the loader makes when its workers start, long after this
    output_dir = next(filter(None, (getattr(part, "output_dir", None) for part in chosen)), None)
    lock = contextlib.nullcontext() if output_dir is None else exclusive_lock(output_dir)
    with lock, heartbeats.heartbeat(output_dir):
        if environment.rank() == 0:
            heartbeats.forget_earlier()
        trains = any(hasattr(part, "max_steps") for part in chosen)
        heartbeats.enter("setup" if trains else "working")
        is_to_continue = _goes_back(main, chosen)
    if is_to_continue:
        heartbeats.enter("import")
        start_again(variables)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        from accelerate import PartialState

        from ..compat.torch import wait_for_rank_zero

        # All ranks together, because a rank that leaves early can make others abort that are still connected to
        # it. Rank 0 may still have pushed to the Hub, or let a model answer.
        with heartbeats.during("working"):
            wait_for_rank_zero()
        state = PartialState()
        state.wait_for_everyone()
        state.destroy_process_group()


def _goes_back(main: Callable[..., None], chosen: Sequence[Any]) -> bool:
    """Call `main`; returns whether the run went back. Its objects, such as data loaders, are gone by then."""
    try:
        main(*chosen)
    except RolledBack:
        return True
    return False


@contextlib.contextmanager
def _one_line_of_lost_peers() -> Iterator[None]:
    """Report in one line that another process has ended. The reason, if known, is in the log of that process.

    A fault of this rank is raised even if the loss of another was noticed after it, as while the rank left a barrier.
    """
    try:
        yield
    except RuntimeError as error:
        reason = "" if environment.world_size() == 1 else _reason_of_lost_peer(str(error))
        if not reason:
            raise
        for cause in list(with_causes(error))[1:]:
            if isinstance(cause, InputError) or _OWN_FAULT.search(f"{type(cause).__name__}: {cause}"):
                raise cause from None
        raise LostPeer(
            f"lost another process ({reason}); look for the error of the one that ended first, here or on another "
            "host; the same command resumes from the newest checkpoint"
        ) from None


def _reason_of_lost_peer(text: str) -> str:
    """The first line that means that another process was lost; empty if there is none, or a fault of this process."""
    line = next(filter(_LOST_PEER.search, text.splitlines()), "").strip()
    if not line or _OWN_FAULT.search(text):
        return ""
    # Without the place in the source of gloo, and its advice.
    return re.sub(r"^\[\S+:\d+\] ", "", line).partition(". This is typically")[0][:300]


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
        if environment.world_size() > 1:
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
