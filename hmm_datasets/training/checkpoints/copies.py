"""Copies of the checkpoints of a run in another place, made in the background while training continues.

Rank 0 copies each checkpoint in a thread. It works from a snapshot of hard links, so that a checkpoint may be deleted
meanwhile. A copy is written under a hidden name, compared with the digests of the checkpoint, synced, and then
renamed, so it is complete or absent. Copying never ends or delays a run: if it is slower than the run saves,
checkpoints are left out, the older ones first, and what goes wrong is an event of the run.
"""

import os
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from ...display import format_bytes, format_duration
from ...errors import InputError
from ...files import atomic_file, check_may_write, digest_problems, put_folder, remove, size_of, sync_tree, unfinished
from ...runtime.events import append_event
from ..record import HISTORY_NAME
from .unfinished import remove_unfinished, unfinished_folder
from .verifying import list_steps, verify_checkpoint

WAITING = 2
"""Maximum number of checkpoints that wait for the one that is being copied."""

Outdated = Callable[[list[int]], list[int]]
_SNAPSHOT_PREFIX = ".copy."


class CheckpointCopies:
    """Copies checkpoints of a run; on rank 0.

    Args:
        run (`Path`): folder of the run.
        destination (`Path`): folder of the copies, on any disk.
        say (callable): writes a line.
    """

    def __init__(self, run: Path, destination: Path, say: Callable[[str], None]):
        self._run, self._destination, self._say = run, destination, say
        self._waiting: deque[tuple[str, Path, Outdated]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        for left in run.glob(f"{_SNAPSHOT_PREFIX}*"):  # of a run that was killed
            shutil.rmtree(left, ignore_errors=True)

    def start(self, checkpoint: Path, outdated: Outdated) -> None:
        """Copy a checkpoint in the background, then delete outdated copies.

        Args:
            checkpoint (`Path`): the checkpoint.
            outdated (callable): from the steps of all copies, newest first, to those to delete. It must not read what
                training changes.
        """
        try:
            snapshot = _snapshot(self._run, checkpoint)
        except OSError as error:
            self._failed(checkpoint.name, error)
            return
        with self._changed:
            self._waiting.append((checkpoint.name, snapshot, outdated))
            late = [self._waiting.popleft() for _ in range(len(self._waiting) - WAITING)]
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True, name="checkpoint-copies")
                self._thread.start()
        for name, snapshot, _ in late:
            shutil.rmtree(snapshot.parent, ignore_errors=True)
            self._tell(name, f"{name} was not copied: copies are slower than checkpoints are saved; newer ones are")

    def finish(self, timeout: float) -> None:
        """Wait for the copies under way, at most so many seconds."""
        with self._changed:
            thread, count = self._thread, len(self._waiting)
        if thread is None:
            return
        self._say(f"{self._destination}: waiting for the copy of {'a checkpoint' if not count else 'checkpoints'}")
        thread.join(timeout)
        if thread.is_alive():
            self._tell(
                None, f"copies to {self._destination} took longer than {format_duration(timeout)}; not waited for"
            )

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._thread = None
                    return
                name, snapshot, outdated = self._waiting.popleft()
            began = time.monotonic()
            try:
                size = self._copy(name, snapshot, outdated)
                self._tell(
                    name,
                    f"{name} was copied to {self._destination}: {format_bytes(size)} in "
                    f"{format_duration(time.monotonic() - began)}",
                    failed=False,
                )
            except Exception as error:  # whatever happens to the other disk, the run continues
                self._failed(name, error)
            finally:
                shutil.rmtree(snapshot.parent, ignore_errors=True)

    def _copy(self, name: str, snapshot: Path, outdated: Outdated) -> int:
        """Copy a snapshot, and delete outdated copies; returns the bytes.

        Raises:
            `InputError`: the copy is not what was copied.
        """
        parent = unfinished_folder(self._destination)
        remove_unfinished(self._destination)
        parent.mkdir(parents=True)
        with unfinished(parent):
            copy = Path(shutil.copytree(snapshot, parent / name))
            problems = verify_checkpoint(copy).problems or digest_problems(copy)
            if problems:
                raise InputError(f"{problems[0]}; look at the disk of {self._destination}")
            size = size_of(copy)
            sync_tree(copy)
            put_folder(copy, self._destination / name)
            if (self._run / HISTORY_NAME).is_file():
                shutil.copyfile(self._run / HISTORY_NAME, parent / HISTORY_NAME)
                check_may_write()
                os.replace(parent / HISTORY_NAME, self._destination / HISTORY_NAME)
            for step in outdated(list_steps(self._destination)):
                os.replace(self._destination / f"checkpoint-{step}", parent / f"deleted-{step}")
        return size

    def _failed(self, name: str, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if isinstance(error, shutil.Error):  # it lists all files that could not be copied, with their paths
            reason = str(error.args[0][0][-1]).partition(": '")[0]
        self._tell(name, f"{name} was not copied to {self._destination}: {reason}; training continues")

    def _tell(self, name: str | None, message: str, *, failed: bool = True) -> None:
        if failed:
            self._say(message)
        step = {} if name is None else {"step": int(name.removeprefix("checkpoint-"))}
        try:
            append_event(self._run, "copy", message, failed=failed, **step)
        except (OSError, InputError) as error:  # a full disk
            self._say(f"{self._run}: the event could not be written ({error})")


def restore_history(run: Path, copies: Path) -> None:
    """Bring the history of a run back from its copies, if the run has none."""
    if not (run / HISTORY_NAME).exists() and (copies / HISTORY_NAME).is_file():
        with atomic_file(run / HISTORY_NAME) as temporary:
            shutil.copyfile(copies / HISTORY_NAME, temporary)


def _snapshot(run: Path, checkpoint: Path) -> Path:
    """Hard links to the files of a checkpoint, in a hidden folder; copies, if the disk has no links."""
    snapshot = Path(tempfile.mkdtemp(prefix=_SNAPSHOT_PREFIX, dir=run))
    try:
        target = snapshot / checkpoint.name
        try:
            shutil.copytree(checkpoint, target, copy_function=os.link)
        except (OSError, shutil.Error):
            remove(target)
            shutil.copytree(checkpoint, target)
    except (OSError, shutil.Error):
        shutil.rmtree(snapshot, ignore_errors=True)
        raise
    return target
