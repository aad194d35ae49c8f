"""Whether the files of a token stream are those that were written: SHA-256 against `index.json`.

Whoever opens a stream has its files checked: up to 256 MB at once, which takes half a second or less, and more on a
thread while reading begins. The first file that differs is told on the screen, makes every later reading of the stream
in this process an [`InputError`], and [`check_streams`] raise it, which a training run calls at each step. Of several
processes of a machine the first alone checks (`LOCAL_RANK` 0); loader workers do not.
"""

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from ... import launch_environment
from ...digests import file_digest
from ...errors import InputError
from .index import INDEX_NAME, TokenIndex

AT_ONCE = 256 * 10**6
"""Bytes of tokens and ends that are checked before the first is read."""

_running: list["Verification"] = []


class Verification:
    """The check of one stream, done or on its way.

    Args:
        folder (`Path`), index ([`TokenIndex`]): the stream.

    Raises:
        `InputError`: a file of a small stream differs.
    """

    def __init__(self, folder: Path, index: TokenIndex):
        self.folder, self.index = folder, index
        self.error: InputError | None = None
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        size = sum(path.stat().st_size for path, _ in self._files())
        if size <= AT_ONCE:
            _raise_first(differing_files(self._files()))
            return
        print(
            f"{folder}: {size / 1e9:.1f} GB are checked against {INDEX_NAME} in the background; a file that differs "
            "ends the run",
            file=sys.stderr,
        )
        self._thread = threading.Thread(target=self._run, name=f"verify {folder.name}", daemon=True)
        _running.append(self)
        self._thread.start()

    def check(self) -> None:
        """Raise the error of a file that differs, if one was found so far.

        In a forked worker nothing is raised: it would come out as a traceback in the main process, which checks too.
        """
        if self.error is not None and os.getpid() == self._process:
            raise self.error

    def wait(self) -> None:
        """Return once all is checked, or raise."""
        if self._thread is not None:
            self._thread.join()
        self.check()

    def _run(self) -> None:
        try:
            _raise_first(differing_files(self._files()))
        except InputError as error:
            self.error = error
        except OSError as error:
            self.error = InputError(f"{self.folder}: cannot be read ({error.strerror}); copy the folder again")
        else:
            _running.remove(self)
            return
        print(self.error, file=sys.stderr, flush=True)

    def _files(self) -> Iterator[tuple[Path, str]]:
        for shard in self.index.shards:
            yield self.folder / shard.name, shard.sha256
            yield self.folder / shard.ends_name, shard.ends_sha256


def begin_verification(folder: Path, index: TokenIndex) -> Verification | None:
    """Check the files of a stream, in the process that does so on this machine; `None` in others."""
    return Verification(folder, index) if launch_environment.local_rank() == 0 else None


def check_streams() -> None:
    """Raise the error of the first stream that was found changed in this process."""
    for verification in list(_running):
        verification.check()


def differing_files(files: Iterable[tuple[Path, str]]) -> Iterator[str]:
    """Yield a line for each file whose SHA-256 is another than expected."""
    for path, expected in files:
        found = file_digest(path)
        if found != expected:
            yield (
                f"{path}: SHA-256 is {found}, but {INDEX_NAME} says {expected}; "
                "the file changed since it was written, copy or write it again"
            )


def _raise_first(problems: Iterator[str]) -> None:
    for problem in problems:
        raise InputError(problem)
