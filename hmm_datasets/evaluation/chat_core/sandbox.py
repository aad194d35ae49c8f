"""Running Python that a model wrote, inside bubblewrap (https://github.com/containers/bubblewrap) and nowhere else.

The function that a model wrote and its test run in two sandboxes. The test calls the function through a pair of pipes,
on which there are only literals, so the function has the arguments and nothing else of the test: it can neither see
what is expected nor report that it passed. Whether it did is the exit code of the sandbox of the test. This process
reads nothing that either of them writes.

A sandbox has no network, sees no processes but its own, and of the file system only Python and the libraries of the
system, read-only; nothing can be written. Processor time, memory, the number of processes (none but its own) and of
open files are limited (`setrlimit`), and it ends with this process, or when its time is over. Memory that the kernel
keeps for a process outside its address space, as shared memory of System V, is limited by the time alone. A question
costs some 100 ms.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from ...errors import InputError

SECONDS, MEGABYTES = 5.0, 512
"""Limits of a function and its test."""

_SANDBOXED = Path(__file__).with_name("sandboxed.py")
_SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/nix/store")
_INSTEAD = "or leave humaneval out of --chat_core_tasks"


def passes(answer: str, test: str, name: str, *, seconds: float = SECONDS, megabytes: int = MEGABYTES) -> bool:
    """Whether a function passes its test, within the limits.

    Args:
        answer (`str`): Python that defines the function.
        test (`str`): Python that defines `check(candidate)`, which raises if the function is wrong.
        name (`str`): name of the function.
        seconds (`float`, *optional*, defaults to 5.0): time that both may take.
        megabytes (`int`, *optional*, defaults to 512): memory that each may have.

    Raises:
        `InputError`: there is no bubblewrap here, or it does not work.
    """
    check_sandbox()
    return _run(answer, test, name, seconds, megabytes)[0]


@cache
def check_sandbox() -> None:
    """Raise [`InputError`] if there is no bubblewrap here, or it does not work."""
    if not sys.platform.startswith("linux") or shutil.which("bwrap") is None:
        raise InputError(
            "task chat_core: humaneval runs Python that the model writes, and only inside bubblewrap (bwrap, for "
            f"Linux), which is not here; install it with apt install bubblewrap, {_INSTEAD}"
        )
    # Some systems have it, but do not let users make namespaces.
    passed, reason = _run("def f(x): return x", "def check(f): assert f(1) == 1", "f", 4 * SECONDS, MEGABYTES)
    if not passed:
        raise InputError(
            f"task chat_core: humaneval runs Python that the model writes, and only inside bubblewrap, which fails "
            f"here ({reason}); allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, on Ubuntu "
            f"kernel.apparmor_restrict_unprivileged_userns=0), {_INSTEAD}"
        )


def _run(answer: str, test: str, name: str, seconds: float, megabytes: int) -> tuple[bool, str]:
    """Whether the test passes, and the last line that bubblewrap wrote if not."""
    calls, results = os.pipe(), os.pipe()
    ends = {"answer": (calls[0], results[1]), "test": (results[0], calls[1])}
    processes: dict[str, subprocess.Popen] = {}
    with tempfile.TemporaryDirectory(prefix="hmm-datasets-") as folder:
        errors = Path(folder, "errors")
        try:
            for role, source in (("answer", answer), ("test", test)):
                path = Path(folder, f"{role}.py")
                path.write_text(source, encoding="utf-8", errors="replace")
                command = [*_sandbox(path), role, name, str(int(seconds) + 1), str(megabytes * 2**20)]
                with errors.open("ab") as file:
                    processes[role] = subprocess.Popen(
                        command, env={}, stdin=ends[role][0], stdout=ends[role][1], stderr=file
                    )
        finally:
            for end in (*calls, *results):
                os.close(end)
        try:
            passed = processes["test"].wait(seconds) == 0
        except subprocess.TimeoutExpired:
            passed = False
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
        lines = errors.read_text(errors="replace").splitlines()
    return passed, lines[-1] if lines else "a function that returns its argument does not pass"


def _sandbox(source: Path) -> list[str]:
    """The command that runs a source in a sandbox; the role, the name and the limits follow."""
    python = Path(sys.executable).resolve()
    command = [str(shutil.which("bwrap")), "--die-with-parent", "--new-session"]
    command += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    # Root stays root in a user namespace of its own, and is limited in nothing, so it becomes nobody instead.
    root = ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
    command += root if os.getuid() == 0 else ("--unshare-user",)
    for path in _SYSTEM:
        command += ["--ro-bind-try", path, path]
    # In a folder of its own, since nobody may not enter a home, such as /root, on the way to Python.
    command += ["--ro-bind", str(python.parent.parent), "/python", "--setenv", "LD_LIBRARY_PATH", "/python/lib"]
    command += ["--dev-bind", "/dev/null", "/dev/null", "--dev-bind", "/dev/urandom", "/dev/urandom"]
    command += ["--ro-bind", str(_SANDBOXED), "/sandboxed.py", "--ro-bind", str(source), "/source.py"]
    program = [f"/python/{python.parent.name}/{python.name}", "-I", "-S", "-B", "/sandboxed.py"]
    return [*command, "--remount-ro", "/", "--chdir", "/", *program]
