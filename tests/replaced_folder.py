"""A program that kills a writer at each of its file operations: `replaced_folder.py FOLDER WRITER RENAMES`.

It is a program of its own, since a fork of a process that has imported everything takes many times as long. It ends
with an assertion if what a reader finds is neither the old content nor the new one, or if something is left behind.
"""

import os
import signal
import sys
from pathlib import Path

from hmm_datasets.files import atomic_folder, replacing, restored, written_together

_OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.scandir"}


def in_child(work) -> int:
    """Do work in a fork; the signal that ended it, or its exit code as a negative number."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)


def killed_at(point: int, work) -> bool:
    """Do work in a fork that is killed at its file operation of this number, if it has so many."""

    def counted():
        passed = 0

        def count(event: str, _arguments: tuple) -> None:
            nonlocal passed
            passed += event in _OPERATIONS
            if event in _OPERATIONS and passed == point:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        work()

    ended = in_child(counted)
    assert ended in (0, signal.SIGKILL)
    return ended == signal.SIGKILL


def contents(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def write_folder(folder: Path, version: str) -> None:
    with atomic_folder(folder) as temporary:
        for name in ("a", "b"):
            (temporary / name).write_text(version)


def write_evaluation(folder: Path, version: str) -> None:
    with written_together(folder) as temporary:
        (temporary / "items").mkdir()
        (temporary / "items" / f"{version}.txt").write_text(version)
        (temporary / "report").write_text(version)


def main(root: Path, writer: str, renames: str) -> int:
    """Kill a writer at every point; the number of kills."""
    if renames == "two renames":
        replacing._exchange = lambda first, second: False
    write, point = {"folder": write_folder, "evaluation": write_evaluation}[writer], 1
    write(root / "model" / "old", "old")
    write(root / "model" / "new", "new")
    old, new = contents(root / "model" / "old"), contents(root / "model" / "new")
    while True:
        folder = root / str(point) / "run"
        assert in_child(lambda folder=folder: write(folder, "old")) == 0
        if not killed_at(point, lambda folder=folder: write(folder, "new")):
            return point - 1
        if writer == "folder" and renames == "exchange":
            assert contents(folder) in (old, new), "whoever looks, at any time"
        # What a reader finds, who knows of no replacement, in another process.
        assert in_child(lambda folder=folder: restored(folder)) == 0
        visible = {name: text for name, text in contents(folder).items() if not name.startswith(".")}
        assert visible in (old, new)
        assert in_child(lambda folder=folder: write(folder, "new")) == 0
        assert contents(folder) == new
        assert os.listdir(folder.parent) == ["run"], "nothing is left behind"
        point += 1


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
