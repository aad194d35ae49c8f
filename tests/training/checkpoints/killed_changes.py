"""Kills a command that changes the checkpoints of a run at its renames and deletions, one after the other.

`killed_changes.py RUN WORK STRIDE WORDS` copies RUN to WORK/run and runs `hmm-datasets checkpoint WORDS` on it in a
fork that is killed at its first rename or deletion; then at the one STRIDE further, and so on, until it gets to its
end. After each kill every checkpoint must be whole, there or in `set_aside`; the same command is then run again, and
must leave what an undisturbed one leaves. Prints the number of kills, and one line for each that did not.
"""

import contextlib
import io
import os
import re
import shutil
import signal
import sys
from pathlib import Path

from hmm_datasets.cli import main
from hmm_datasets.files import digest_problems, temporary
from hmm_datasets.training.checkpoints.inspection import list_checkpoints


def die_at(number: int) -> None:
    """Kill this process at the rename or deletion of this number."""
    calls = 0
    for name in ("replace", "rename", "unlink", "rmdir"):
        call = getattr(os, name)

        def counted(*arguments, _call=call, **options):
            nonlocal calls
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return _call(*arguments, **options)

        setattr(os, name, counted)


def command(words: list[str]) -> int:
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            return main(["checkpoint", *words]) or 0
        except SystemExit as request:
            return request.code or 0


def in_fork(words: list[str], number: int) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            die_at(number)
            code = command(words)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def contents(folder: Path) -> dict[str, bytes]:
    """The files, without the dates in names and what records of moves say about them."""
    found = {}
    for path in (path for path in folder.rglob("*") if path.is_file() or not any(path.iterdir())):
        name = re.sub(r"set_aside/[^/]+/", "set_aside/DATE/", path.relative_to(folder).as_posix())
        is_record = path.is_dir() or path.name == "set_aside.json"
        found[name] = b"" if is_record else path.read_bytes()
    return found


def main_(run: Path, work: Path, stride: int, words: list[str]) -> None:
    words = [word.replace("RUN", str(work / "run")) for word in words]

    def copied() -> None:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(run, work / "run")

    copied()
    assert in_fork(words, 1 << 30) == 0
    whole = contents(work)
    kills, number, is_killed = 0, 1, True
    while is_killed:
        copied()
        is_killed = in_fork(words, number) == -signal.SIGKILL
        kills, before = kills + is_killed, number
        temporary._tidied.clear()  # as in a new process
        number += stride
        for folder in (work / "run", *(work / "run" / "set_aside").glob("*")):
            for one in list_checkpoints(folder) if folder.is_dir() else ():
                is_slim = folder.parent.name == "set_aside" and not (one.folder / "trainer_state.json").exists()
                if not is_slim and (one.problems or digest_problems(one.folder)):
                    print(f"call {before}: {one.folder}: {one.problems or digest_problems(one.folder)}")
        code = in_fork(words, 1 << 30)
        # A command that was killed at its very end has done everything, and may refuse to do it again.
        if code not in (0, 2) or contents(work) != whole:
            found = contents(work)
            left, lost = sorted(found.keys() - whole.keys()), sorted(whole.keys() - found.keys())
            changed = sorted(name for name in found.keys() & whole.keys() if found[name] != whole[name])
            print(f"call {before}: exit code {code}, left {left}, lost {lost}, changed {changed}")
    print(f"{kills} kills")


if __name__ == "__main__":
    main_(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
