"""Running Python that a model wrote: a separate process which can do little, and whose traces go with it.

The process starts with an empty environment and limits on processor time, memory, open files and the size of files
(`setrlimit`). Within it an audit hook (PEP 578) refuses what a function under test has no use for: new processes,
connections, native code, and any file but those of Python's library. It is killed, with its group, when its time is
over. Where Linux lets users make namespaces (`unshare`), it also has no network, sees no other processes, takes with
it whatever it has started, and has all file systems read-only but for an empty one in memory.

That contains mistakes, and the harm that a model's code does by accident. It is no barrier to someone who writes code
in order to break out: Python's own documentation says that audit hooks are none, and kernels have bugs. Run code of
unknown origin in a virtual machine. A program costs some 30 ms.
"""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

SECONDS, MEGABYTES = 5.0, 512
"""Limits of a program."""

_CONFINED = Path(__file__).with_name("confined.py")
_NAMESPACES = ("--user", "--map-root-user", "--net", "--pid", "--mount", "--ipc", "--fork", "--kill-child")


def passes(program: str, *, seconds: float = SECONDS, megabytes: int = MEGABYTES) -> bool:
    """Whether a program ends without an exception, within its limits.

    Args:
        program (`str`): Python source.
        seconds (`float`, *optional*, defaults to 5.0): time that it may take.
        megabytes (`int`, *optional*, defaults to 512): memory that it may have.

    ```python
    >>> passes("assert 1 + 1 == 2"), passes("assert 1 + 1 == 3"), passes("import os; os._exit(0)")
    (True, False, False)

    ```
    """
    return _ends(program, _own_namespaces(), seconds, megabytes)


@cache
def _own_namespaces() -> tuple[str, ...]:
    """The command that starts a program in namespaces of its own; empty where that is not possible."""
    found = shutil.which("unshare")
    if found is None:
        return ()
    # Some systems let users make namespaces, but do nothing in them, so a whole program is tried.
    command = (found, *_NAMESPACES)
    return command if _ends("", command, SECONDS, MEGABYTES) else ()


def _ends(program: str, namespaces: tuple[str, ...], seconds: float, megabytes: int) -> bool:
    # The program's word that it came to its end; whatever it prints itself is dropped.
    token = secrets.token_hex(16)
    command = [*namespaces, sys.executable, "-I", "-S", "-B", str(_CONFINED)]
    limits = [str(int(seconds) + 1), str(megabytes * 2**20), "namespaces" if namespaces else ""]
    with tempfile.TemporaryDirectory(prefix="hmm-datasets-") as folder:
        process = subprocess.Popen(
            [*command, token, *limits],
            cwd=folder,
            env={"PATH": os.defpath, "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(program.encode("utf-8", errors="replace"), timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        finally:
            # The group is there as long as its leader was not waited for, or something that it started lives.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.communicate()
    return process.returncode == 0 and said.decode(errors="replace") == token
