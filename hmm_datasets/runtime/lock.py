"""One writer per folder: a lock that never outlives its process, on a local disk or one shared by several machines.

The lock is a heartbeat ([`~hmm_datasets.runtime.heartbeat_file`]) of the process that writes, with the time since
when. It is made by exclusive creation, which is atomic on network disks; `flock` does not work on some of them. The
holder writes a heartbeat every ten seconds. A process that finds a lock does the following:

- If the holder is on this machine and has ended, the lock is taken over at once. If the holder is running, it is given
  ten seconds to end (ranks whose launcher was killed need one second); then the new process is refused.
- If the holder is on another machine, the new process watches the number. If it changes, the new process is refused.
  If it does not change for a minute, the lock is taken over. Clocks of different machines are never compared.

A holder that was silent for so long (suspended, or its disk did not answer) may have lost its lock, and the other may
even have finished and released it. So the lock is read by all ranks before every write of the process
([`~hmm_datasets.files.check_may_write`]), and with every heartbeat. If it is gone, or is that of another process, the
process ends at once and writes nothing.
"""

import contextlib
import errno
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..display import format_duration
from ..errors import InputError, disk_full, is_disk_full, path_error
from ..files import before_write, discard_unfinished
from ..records import Finite
from . import environment, heartbeats
from .heartbeat_file import FILE_BYTES, HeartbeatFile, ProcessHeartbeat, read_heartbeat
from .process_identity import this_process
from .set_aside import mend

LOCK_NAME = ".lock"
"""Name of the lock in the folder that it protects."""

BEAT_EVERY = 10.0
"""Seconds between two heartbeats of a holder."""

SILENCE = 60.0
"""Seconds without a heartbeat after which a holder on another machine is considered dead."""

PATIENCE = 10.0
"""Seconds that a running holder on this machine is given to end."""

_LOOK_EVERY = 0.25
_MESSAGE_AFTER = 2.0
_GONE_AFTER = 1.0  # seconds; a heartbeat that is just being written may be read in part

_held: "dict[Path, _Held | None]" = {}  # by this process, or by rank 0 for it; None if ranks were not connected then
_ending = threading.Lock()
_ended_by: int | None = None  # the thread that ends this process


@dataclass(frozen=True)
class Holder(ProcessHeartbeat):
    """The process that holds a lock, in the file of the lock.

    Attributes:
        since (`float`): time at which it took the lock, in seconds since 1970.
        token (`str`): random identifier of this lock.
    """

    since: Finite
    token: str

    @classmethod
    def this_process(cls) -> "Holder":
        """This process as the holder of a new lock."""
        return cls(**asdict(this_process()), beat=0, since=time.time(), token=secrets.token_hex(8))


@contextlib.contextmanager
def exclusive_lock(
    folder: str | os.PathLike, lock: str | os.PathLike | None = None, *, nested: bool = False
) -> Iterator[None]:
    """A context in which other processes cannot write to a folder.

    Of several ranks, rank 0 holds the lock. If they are connected and rank 0 is refused, all of them raise the error.

    Args:
        folder (path): the protected folder; made if it is missing.
        lock (path, *optional*): the file of the lock; by default `.lock` in the folder.
        nested (`bool`, *optional*, defaults to `False`): allow a context of this process inside another one on the
            same folder; otherwise it is refused.

    Raises:
        `InputError`: another process writes there; the message gives its host, process id and age.
    """
    folder = Path(folder)
    lock = Path(lock if lock is not None else folder / LOCK_NAME).absolute()
    if nested and lock in _held:
        yield
        return
    acquired, refusal = None, None
    if environment.rank() == 0:
        try:
            acquired = _acquire(folder, lock)
            mend(folder, locked=True)
        except (InputError, OSError) as error:
            refusal = str(error if isinstance(error, InputError) else path_error(folder, error))
            if acquired is not None:
                acquired.release()
    token, refusal = _from_rank_0(None if acquired is None else acquired.token, refusal)
    if refusal is not None:
        raise InputError(refusal)
    held = acquired if acquired is not None or token is None else _Held(lock, token)
    _held[lock] = held
    if held is not None:
        before_write.append(held.check)
    try:
        yield
    finally:
        del _held[lock]
        if held is not None:
            before_write.remove(held.check)
        if acquired is not None:
            acquired.release()


def writer_id(folder: str | os.PathLike) -> str:
    """An identifier of the holder of a folder's lock, the same on all ranks, for names that no other writer has.

    It is empty if this process does not hold the lock.
    """
    held = _held.get(Path(folder, LOCK_NAME).absolute())
    return "" if held is None else held.token


class _Held:
    """A lock that this process, or rank 0 on its behalf, holds as long as the file has this token.

    Rank 0 deletes it when it is done, while another rank may still be writing its last lines. So a file that is gone
    is a lost lock for rank 0 alone, whose end ends the others, and one with another token for every rank.
    """

    is_holder = False

    def __init__(self, path: Path, token: str):
        self.path, self.token = path, token
        self._gone_since: float | None = None

    def check(self) -> None:
        """End this process if the lock is lost."""
        while _ended_by != threading.get_ident() and self._is_missing():
            time.sleep(_GONE_AFTER / 20)

    def _is_missing(self) -> bool:
        """Whether the lock is not there, but has been until a moment ago; ends this process if it is lost."""
        now = time.monotonic()
        try:
            content = self.path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            content = b""
        except OSError:  # the disk cannot be read at the moment, nor be written
            return False
        other = read_heartbeat(content, Holder)
        if other is not None and other.token == self.token:
            self._gone_since = None
            return False
        if other is not None:
            self._end(f"process {other.process} on {other.host} has taken this over")
        if not self.is_holder:
            return False
        self._gone_since = now if self._gone_since is None else self._gone_since
        if now - self._gone_since > _GONE_AFTER:
            self._end("deleted, by hand or by another process that had taken it over")
        return True

    def _end(self, what: str) -> None:
        """End this process at once: nothing that runs on the way out may write."""
        global _ended_by
        if not _ending.acquire(blocking=False):
            threading.Event().wait()  # until another thread has ended this process
        _ended_by = threading.get_ident()
        message = (
            f"{self.path}: {what}, which happens when the holder has no heartbeat for {SILENCE:.0f} s; process "
            f"{os.getpid()} ends, and writes nothing more"
        )
        discard_unfinished()
        heartbeats.end_at_once(message)
        print(f"error: {message}", file=sys.stderr, flush=True)
        os._exit(1)


class _HeldLock(_Held):
    """A lock of this process, which writes its heartbeats."""

    is_holder = True

    def __init__(self, path: Path, holder: Holder, handle: int, made: Path | None):
        super().__init__(path, holder.token)
        self.holder, self.handle, self.made = holder, handle, made
        # Through the open handle: the lock of another process may be at the path.
        self._file = HeartbeatFile(path, self._record, BEAT_EVERY, "exclusive-lock", handle)
        self._file.start()

    def _record(self, number: int) -> Holder:
        self._is_missing()
        return replace(self.holder, beat=number)

    def release(self) -> None:
        """End the heartbeats and delete the lock, and the folder too if it was made for the lock and is empty."""
        self._file.end()
        os.close(self.handle)
        holder = read_heartbeat(self.path, Holder)
        if holder is not None and holder.token == self.token:
            self.path.unlink()
        if self.made is not None:
            with contextlib.suppress(OSError):
                self.made.rmdir()


def _acquire(folder: Path, path: Path) -> _HeldLock:
    watch = _Watch(folder)
    made = None
    while True:
        made = made if folder.exists() else folder  # the holder may have moved it away when it was done
        holder = Holder.this_process()
        handle = _take(folder, path, holder, watch)
        if handle is not None:
            for left in path.parent.glob(f"{path.name}.*"):
                left.unlink(missing_ok=True)  # left by a process that was killed while taking this lock over
            return _HeldLock(path, holder, handle, made)
        time.sleep(_LOOK_EVERY)


def _take(folder: Path, path: Path, holder: Holder, watch: "_Watch") -> int | None:
    """Create a lock, or replace one whose holder is dead; `None` if neither was possible now.

    Of several processes that find the same dead lock, one may replace it: the one that holds the lock of that lock,
    which is named after its token. It is moved over the dead one, so that a lock is never away from its path. A
    process that comes after that finds another content there, and takes its own attempt back.
    """
    handle = _create(folder, path, holder)
    if handle is not None:
        return handle
    content = _read(path)
    if content is None or not watch.is_dead(path, content):
        return None
    dead = read_heartbeat(content, Holder)
    claim = path.with_name(f"{path.name}.{'unreadable' if dead is None else dead.token}")
    handle = _take(folder, claim, holder, watch)
    if handle is None:
        return None
    with contextlib.suppress(FileNotFoundError):  # removed by a process that has the lock by now
        if _read(path) == content:
            os.replace(claim, path)
            return handle
        claim.unlink()
    os.close(handle)
    return None


class _Watch:
    """What a process that waits for a lock has seen, to tell whether the holder is dead.

    Args:
        folder (`Path`): the protected folder.
    """

    def __init__(self, folder: Path):
        self._folder, self._began = folder, time.monotonic()
        self._seen: dict[Path, tuple[bytes, float]] = {}  # content of each lock, and the time when it was first seen
        self._has_reported = False

    def is_dead(self, path: Path, content: bytes) -> bool:
        """Whether the holder of a lock is dead, by the content of its file; an `InputError` if it is running."""
        now = time.monotonic()
        other = read_heartbeat(content, Holder)
        before, since = self._seen.setdefault(path, (content, now))
        if other is not None and other.is_here:
            if not other.is_alive_here:
                return True
            if other.process == os.getpid() or now - self._began > PATIENCE:
                raise _refusal(self._folder, path, other, f"end it (kill {other.process})")
        elif content != before:
            earlier = read_heartbeat(before, Holder)
            if other is not None and earlier is not None and other.token == earlier.token:
                raise _refusal(self._folder, path, other, "end it there")
            self._seen[path] = (content, now)
        elif now - since > SILENCE:
            return True
        if not self._has_reported and now - self._began > _MESSAGE_AFTER:
            self._has_reported = True
            writer = "another process" if other is None else f"process {other.process} on {other.host}"
            waiting = f"{self._folder}: waiting up to {SILENCE:.0f} s to see whether {writer} still writes there"
            print(waiting, file=sys.stderr, flush=True)
        return False


def _create(folder: Path, path: Path, holder: Holder) -> int | None:
    """Create the lock and return an open handle to it; `None` if a lock exists."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise InputError(f"{folder}: is a file; choose another folder") from None
    except OSError as error:
        raise path_error(path, error) from error
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            os.write(handle, holder.to_bytes())
        except OSError:
            os.close(handle)
            path.unlink()
            raise
    except FileExistsError:
        return None
    except OSError as error:
        if is_disk_full(error):
            raise disk_full(path, f"{FILE_BYTES} bytes") from error
        raise path_error(path, error) from error
    return handle


def _read(path: Path) -> bytes | None:
    """The content of a lock; `None` if it has just been released or replaced."""
    try:
        return path.read_bytes()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return None
        raise path_error(path, error) from error


def _refusal(folder: Path, path: Path, holder: Holder, how: str) -> InputError:
    age = max(0.0, time.time() - holder.since)
    return InputError(
        f"{folder}: process {holder.process} on {holder.host} has been writing there for {format_duration(age)}; wait "
        f"for it to end or {how}, or choose another folder; the lock of a dead process ({path}) is taken over "
        f"automatically, from another machine after {SILENCE:.0f} s without a heartbeat"
    )


def _from_rank_0(token: str | None, refusal: str | None) -> tuple[str | None, str | None]:
    """The token of the lock and the refusal that rank 0 has, on every rank, if the ranks are connected."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return token, refusal
    answer = [token, refusal]
    torch.distributed.broadcast_object_list(answer, src=0)
    return answer[0], answer[1]
