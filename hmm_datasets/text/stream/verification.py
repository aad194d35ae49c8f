"""Verification of the files of a token stream: their SHA-256 must be that in `index.json`.

Opening a stream checks its files. Up to 256 MB are checked immediately, which takes half a second or less. Larger
streams are checked in a background thread, so that reading can begin. When a file differs, the error is printed, every
later read of the stream in this process raises it as an [`InputError`], and so does [`check_streams`], which a
training run calls at each step. Of several processes on a machine only the first one checks (`LOCAL_RANK` 0); loader
workers do not check.
"""

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...errors import InputError
from ...files import file_digest
from ...runtime import environment
from .index import INDEX_NAME, TokenIndex

AT_ONCE = 256 * 10**6
"""Maximum size in bytes of a stream that is checked before it is read."""

_running: list["Verification"] = []


class Verification:
    """The check of one stream, finished or running.

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
            f"{folder}: {size / 1e9:.1f} GB are checked against {INDEX_NAME} in the background; a changed file will "
            "end the run",
            file=sys.stderr,
        )
        self._thread = threading.Thread(target=self._run, name=f"verify {folder.name}", daemon=True)
        _running.append(self)
        self._thread.start()

    def check(self) -> None:
        """Raise the error of a file that differs, if one has been found.

        A forked worker raises nothing, since its error would appear as a traceback in the main process, which checks
        too.
        """
        if self.error is not None and os.getpid() == self._process:
            raise self.error

    def wait(self) -> None:
        """Wait until all files are checked; raise the error of a file that differs."""
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
        return ((self.folder / name, digest) for name, digest in self.index.digests.items())


def begin_verification(folder: Path, index: TokenIndex) -> Verification | None:
    """Check the files of a stream in the first process of this machine; return `None` in the others."""
    return Verification(folder, index) if environment.local_rank() == 0 else None


def check_streams() -> None:
    """Raise the error of the first stream with a changed file in this process."""
    for verification in list(_running):
        verification.check()


def differing_files(files: Iterable[tuple[Path, str]]) -> Iterator[str]:
    """Yield an error message for each file whose SHA-256 differs from the expected one."""
    for path, expected in files:
        digest = file_digest(path)
        if digest != expected:
            yield (
                f"{path}: SHA-256 is {digest}, but {INDEX_NAME} says {expected}; "
                "the file changed since it was written, copy or write it again"
            )


def _raise_first(problems: Iterator[str]) -> None:
    for problem in problems:
        raise InputError(problem)
