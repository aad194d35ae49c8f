"""One writer per folder: a lock that outlives no process, on one machine or on a disk that several share.

The lock is a small JSON file that says which process on which host has been writing since when. It appears by
exclusive creation, which network disks do atomically, unlike `flock`, which some do not know at all. A thread of its
holder counts up a number in it every ten seconds. Whoever finds a lock decides:

- Of a process on this machine: it is taken over at once if that process is gone. If it lives, it is given ten seconds
  to end (ranks whose launcher was killed need one), then the newcomer is refused.
- Of a process on another machine, which cannot be looked at: the newcomer watches the number. If it moves, the
  newcomer is refused; if it stands still for a minute, the lock is taken over. No two clocks are compared.

A holder that finds another's lock in place of its own (it was stopped for minutes, and is awake again) ends at once.
"""

import contextlib
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from . import launch_environment
from .errors import InputError, disk_full, is_disk_full
from .files import discard_unfinished
from .quantities import format_duration

LOCK_NAME = ".lock"
"""What the lock is called in the folder that it guards."""

BEAT_EVERY = 10.0
"""Seconds between two signs of life of a holder."""

SILENCE = 60.0
"""Seconds without a sign of life after which the holder on another machine is taken for dead."""

PATIENCE = 10.0
"""Seconds that a living holder on this machine is given to end."""

_LOOK_EVERY = 0.25
_WORTH_A_LINE = 2.0
_WIDTH = 512  # bytes of a lock: always as many, so that a beat needs no room on a full disk

_held: set[Path] = set()  # locks of this process, or of rank 0 for it


@dataclass
class Holder:
    """Who holds a lock.

    Attributes:
        host (`str`), process (`int`): which process.
        machine (`str`): boot and process namespace: only where these agree does the number of a process say anything.
        started (`float`): when that process started, by its machine: numbers of processes are given again.
        since (`float`): when it took the lock, in seconds since 1970.
        token (`str`): tells this lock from any other.
        beat (`int`): signs of life so far.
    """

    host: str
    process: int
    machine: str
    started: float
    since: float
    token: str
    beat: int = 0

    @classmethod
    def this_process(cls) -> "Holder":
        """This process as the holder of a new lock."""
        return cls(
            socket.gethostname(), os.getpid(), _machine(), _started(os.getpid()), time.time(), secrets.token_hex(8)
        )

    def to_bytes(self) -> bytes:
        """The content of the lock."""
        return json.dumps(asdict(self)).ljust(_WIDTH - 1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> "Holder | None":
        """The holder that a lock names; `None` if it is cut or not ours."""
        try:
            return cls(**json.loads(content))
        except (ValueError, TypeError):
            return None

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this machine."""
        return self.machine == _machine()

    @property
    def is_alive(self) -> bool:
        """Whether the process is there, on this machine."""
        return _started(self.process) == self.started


@contextlib.contextmanager
def exclusive_lock(
    folder: str | os.PathLike, lock: str | os.PathLike | None = None, *, nested: bool = False
) -> Iterator[None]:
    """Keep other processes from writing to a folder while the block runs.

    Of several ranks rank 0 holds the lock; where they can talk to each other, all are refused if it is.

    Args:
        folder (path): what is guarded; made if it is missing.
        lock (path, *optional*): the file of the lock; by default `.lock` in the folder.
        nested (`bool`, *optional*, defaults to `False`): let a block pass that runs within one of this process on the
            same folder; otherwise it is refused as another process is.

    Raises:
        `InputError`: another process writes there; it names host, process and age.
    """
    folder = Path(folder)
    lock = Path(lock if lock is not None else folder / LOCK_NAME).absolute()
    if nested and lock in _held:
        yield
        return
    held, refusal = None, None
    if launch_environment.rank() == 0:
        try:
            held = _acquire(folder, lock)
        except InputError as error:
            refusal = str(error)
    refusal = _told_by_rank_0(refusal)
    if refusal is not None:
        raise InputError(refusal)
    _held.add(lock)
    try:
        yield
    finally:
        _held.remove(lock)
        if held is not None:
            held.release()


class _HeldLock:
    """A lock of this process, and the thread that keeps it."""

    def __init__(self, path: Path, holder: Holder, handle: int, made: Path | None):
        self.path, self.holder, self.handle, self.made = path, holder, handle, made
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="exclusive-lock")
        self._thread.start()

    def _keep(self) -> None:
        while not self._released.wait(BEAT_EVERY):
            content = _read(self.path)
            found = None if content is None else Holder.from_bytes(content)
            if found is not None and found.token != self.holder.token:
                discard_unfinished()
                print(
                    f"error: {self.path}: process {found.process} on {found.host} has taken this over, since nothing "
                    f"was heard of process {self.holder.process} for {SILENCE:.0f} s; this one ends",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(1)
            self.holder.beat += 1
            with contextlib.suppress(OSError):  # a disk that is away for a moment
                os.pwrite(self.handle, self.holder.to_bytes(), 0)

    def release(self) -> None:
        """Delete the lock, and the folder that it guards if it was made for it and holds nothing."""
        self._released.set()
        self._thread.join()
        os.close(self.handle)
        content = _read(self.path)
        if content is not None and Holder.from_bytes(content).token == self.holder.token:
            self.path.unlink()
        if self.made is not None:
            with contextlib.suppress(OSError):
                self.made.rmdir()


def _acquire(folder: Path, path: Path) -> _HeldLock:
    began = time.monotonic()
    told = False
    made = None if folder.exists() else folder
    watched: tuple[bytes, float] | None = None  # what the lock says, and since when
    while True:
        holder = Holder.this_process()
        handle = _create(folder, path, holder)
        if handle is not None:
            for left in path.parent.glob(f"{path.name}.*"):
                left.unlink(missing_ok=True)  # of a process that was killed while it took this lock over
            return _HeldLock(path, holder, handle, made)
        content, now = _read(path), time.monotonic()
        if content is None:
            continue  # it was released just now
        other = Holder.from_bytes(content)
        if other is not None and other.is_here:
            if not other.is_alive:
                _remove(path, other.token)
                continue
            if other.process == os.getpid() or now - began > PATIENCE:
                raise _refusal(folder, path, other, f"end it (kill {other.process})")
        elif watched is None or content != watched[0]:
            before = None if watched is None else Holder.from_bytes(watched[0])
            if other is not None and before is not None and other.token == before.token:
                raise _refusal(folder, path, other, "end it there")
            watched = (content, now)
        elif now - watched[1] > SILENCE:
            _remove(path, None if other is None else other.token)
            continue
        if not told and now - began > _WORTH_A_LINE:
            told = True
            of_whom = "somebody" if other is None else f"process {other.process} on {other.host}"
            waiting = f"{folder}: waiting up to {SILENCE:.0f} s to see whether {of_whom} still writes there"
            print(waiting, file=sys.stderr, flush=True)
        time.sleep(_LOOK_EVERY)


def _create(folder: Path, path: Path, holder: Holder) -> int | None:
    """Create the lock and return an open handle to it; `None` if there is one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            os.write(handle, holder.to_bytes())
        except OSError:
            os.close(handle)
            path.unlink()
            raise
    except FileExistsError:
        if path.is_file():
            return None
        raise InputError(f"{folder}: is a file; choose another folder") from None
    except OSError as error:
        if is_disk_full(error):
            raise disk_full(path, f"{_WIDTH} bytes") from error
        raise InputError(f"{path}: cannot be written ({error.strerror}); choose another folder") from error
    return handle


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _remove(path: Path, token: str | None) -> None:
    """Delete a lock if it is still the one with this token; two that find it dead must not delete a third's."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        os.rename(path, aside)
    except OSError:
        return
    content = _read(aside)
    found = None if content is None else Holder.from_bytes(content)
    if found is not None and found.token != token:
        with contextlib.suppress(OSError):
            os.link(aside, path)
    aside.unlink(missing_ok=True)


def _refusal(folder: Path, path: Path, holder: Holder, how: str) -> InputError:
    age = max(0.0, time.time() - holder.since)
    return InputError(
        f"{folder}: process {holder.process} on {holder.host} has been writing there for {format_duration(age)}; wait "
        f"for it to end or {how}, or choose another folder; the lock of a dead process ({path}) is taken over without "
        f"asking, from another machine after {SILENCE:.0f} s of silence"
    )


def _told_by_rank_0(refusal: str | None) -> str | None:
    """What rank 0 says, on every rank, where they are connected."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return refusal
    words = [refusal]
    torch.distributed.broadcast_object_list(words, src=0)
    return words[0]


@cache
def _machine() -> str:
    """What tells this machine, and within it this container, from others: the boot, and the namespace of processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        import psutil

        return f"{socket.gethostname()} {psutil.boot_time():.0f}"


def _started(process: int) -> float | None:
    """When a process of this machine started, on a clock that nobody sets; `None` if it is gone."""
    stat = Path(f"/proc/{process}/stat")
    if Path("/proc/self/stat").exists():
        try:
            state, *fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if state in "ZX" else float(fields[18])  # in ticks since the boot
    import psutil

    try:
        return psutil.Process(process).create_time()
    except psutil.Error:
        return None
