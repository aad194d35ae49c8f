"""The processes that this one starts: requests to stop are passed on to them.

Who passes what on differs on purpose, so it is an argument:

- the launcher of ranks passes SIGTERM, SIGUSR1 and SIGHUP on to all children, which accelerate has started;
- a supervisor passes SIGTERM, SIGINT and SIGHUP on to its command, and SIGUSR1 to the ranks, since a launcher would
  end from it;
- the stages of an experiment and the commands of a cell get SIGTERM;
- a sweep asks its cells to stop with SIGTERM, and kills them on the second signal.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any


def signals(*names: str) -> tuple[signal.Signals, ...]:
    """The signals of these names that the system has; Windows has neither SIGHUP nor SIGUSR1."""
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


class SignalHandler:
    """Handles signals by a function, as a context manager in the main thread; in another it does nothing.

    Args:
        numbers (collection of `signal.Signals`): the signals.
        handle (callable): takes the signal.
        stay_ignored (collection of `signal.Signals`, *optional*): those that are not handled if they are ignored, as
            under nohup or `trap "" USR1`; by default all.
    """

    def __init__(
        self,
        numbers: Collection[signal.Signals],
        handle: Callable[[signal.Signals], Any],
        *,
        stay_ignored: Collection[signal.Signals] | None = None,
    ):
        self._numbers, self._handle = numbers, handle
        self._stay_ignored = numbers if stay_ignored is None else stay_ignored
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self._numbers:
            before = signal.getsignal(number)
            if before != signal.SIG_IGN or number not in self._stay_ignored:
                self._before[number] = before or signal.SIG_DFL  # None stands for a handler not of Python
                signal.signal(number, lambda number, _: self._handle(signal.Signals(number)))

    def __exit__(self, *exception: object) -> None:
        while self._before:
            signal.signal(*self._before.popitem())


class Children:
    """Programs that this process starts and can ask to stop. One that starts after the request gets it at once.

    Attributes:
        asked (`signal.Signals`, *optional*): the last signal that was sent.
    """

    def __init__(self):
        self.asked: signal.Signals | None = None
        self._running: set[subprocess.Popen] = set()

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen:
        """Start a program, with options of `subprocess.Popen`.

        Raises:
            `OSError`: it cannot be started.
        """
        child = subprocess.Popen(command, **options)
        self._running.add(child)
        if self.asked is not None:  # since it began to start
            child.send_signal(self.asked)
        return child

    def run(self, command: Sequence[str], **options: Any) -> int:
        """Start a program, wait for its end, and return its exit code; negative for a signal."""
        with self.start(command, **options) as child:
            code = child.wait()
            self._running.discard(child)  # not after an interrupt, which only this process may have received
        return code

    def send(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal to those that run, and to those that start from now on."""
        self.asked = number
        for child in list(self._running):
            child.send_signal(number)


def send_to_children(number: signal.Signals) -> None:
    """Send a signal to all children of this process, whoever has started them."""
    import psutil

    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            child.send_signal(number)


def wait_for(child: subprocess.Popen, seconds: float) -> int | None:
    """The exit code of a child; None if it has not ended within some seconds."""
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def exit_code(code: int) -> int:
    """The exit code as in a shell: 128 plus the number of the signal that ended a process."""
    return 128 - code if code < 0 else code


def kill_session(child: subprocess.Popen) -> None:
    """Kill a child that was started in a session of its own, and all that it started, or what is left of them."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    else:  # Windows, which has no sessions
        kill_with_children(child.pid)


def kill_with_children(process: int) -> None:
    """Kill a process and all that it started."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process)
        for child in [*parent.children(recursive=True), parent]:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def shared_environment(processes: int = 1) -> dict[str, str]:
    """The environment of a program that shares the cores with others, unless `OMP_NUM_THREADS` is set."""
    environment = os.environ | {
        "TOKENIZERS_PARALLELISM": os.environ.get("TOKENIZERS_PARALLELISM", "true"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    if processes > 1:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    return environment


def with_this_interpreter(words: list[str]) -> list[str]:
    """The command with this interpreter, independent of PATH."""
    # With -P, modules in the current folder do not hide modules of libraries.
    return [sys.executable, *(["-P", "-m", "hmm_datasets.cli"] if words[0] == "hmm-datasets" else []), *words[1:]]
