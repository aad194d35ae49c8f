"""Atomic files and folders: written under a temporary name, synced, then renamed. Full disks are reported.

A process keeps track of its unfinished files, so that it can delete them when it has to end at once
([`discard_unfinished`]).

A folder is replaced by exchanging it with the new one, which Linux does in one step on most file systems. Elsewhere it
takes two renames, with no folder in between. Files that belong together but share a folder with others are moved one
by one out of `.arriving`. If a process is killed in between, [`restored`] puts the old folder back, or moves the other
files; whoever reads or writes such a folder calls it first. Temporary names say which process made them, so that only
those of processes that have ended are touched. They are deleted by the next process that writes in the same folder.

SHA-256 of the files of a folder, in `digests.json` beside them, with which changed files are found later; and of
the tensors of a model.

Hashing reads every file once, at 0.5 to 2 GB/s per thread (more on processors with SHA instructions), on up to eight
threads. Right after writing, the files are still in memory.
"""

import contextlib
import ctypes
import errno
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .display import format_bytes
from .errors import InputError, disk_full, first_line, is_disk_full, is_path_error, path_error, path_errors
from .foreign_json import parse_json
from .process_state import machine_id, start_time

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PATIENCE = 10.0
"""Seconds that a process which is replacing a folder is given to finish; it needs milliseconds."""

_ABANDONED = 86_400.0  # seconds without a change after which temporary files of another machine are deleted
_ARRIVING, _OWNER = ".arriving", ".owner."
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<kind>new|old)\.(?P<owner>[0-9a-f]{8}-\d+-\d+-[0-9a-f]{8})", re.DOTALL)
_LONGEST = 180  # bytes of a name that temporary names repeat

_IS_WINDOWS = not hasattr(os, "killpg")  # which no other system lacks
_BINARY = getattr(os, "O_BINARY", 0)  # of Windows, which otherwise writes two characters for the end of a line

_logger = logging.getLogger(__name__)

before_write: list[Callable[[], None]] = []
"""Called before each write of this process: a lock adds what ends the process once another one has taken it over."""

_unfinished: set[Path] = set()
_MOST_YAML = 1_000_000  # values in a file
_tidied: set[tuple[int, Path]] = set()  # process, and folder in which it has deleted what others had left
_arriving: set[Path] = set()  # folders whose files this process is moving
_named: set[tuple[Path, int]] = set()  # torn lines that were reported
_ODD = re.compile(r"[\\\x00-\x1f\x7f\ud800-\udfff]")  # backslashes, control characters, halves of characters


def check_may_write() -> None:
    """End this process if it has lost the lock of what it writes; called before each write, and before each rename."""
    for check in list(before_write):
        check()


@contextlib.contextmanager
def unfinished(path: Path) -> Generator[None]:
    """A context at whose end `path` is deleted, unless it has been renamed."""
    _unfinished.add(path)
    try:
        yield
    finally:
        remove(path)
        _unfinished.discard(path)


@contextlib.contextmanager
def _becoming(path: Path, temporary: Path) -> Generator[None]:
    """A context in which `temporary` is written and renamed to `path`; after an error it is deleted.

    Raises:
        `InputError`: the disk is full, whatever the error of the library that noticed it, or the path cannot be used.
    """
    with unfinished(temporary):
        try:
            yield
        except Exception as error:
            if not is_disk_full(error):
                if isinstance(error, OSError) and is_path_error(error) and _is_about(error, path, temporary):
                    raise path_error(path, OSError(error.errno, error.strerror)) from error
                raise
            needed = f"more than {format_bytes(size_of(temporary))}"
            remove(temporary)
            raise disk_full(path, needed) from error


def _begin(path: Path, make: Callable[[Path], None]) -> Path:
    """The temporary file or folder of a path, which `make` makes.

    Raises:
        `InputError`: the path cannot be used, for example because its disk is read-only or its parent a file.
    """
    check_may_write()
    with path_errors(path):
        temporary = _temporary(path, "new")
        if len(os.fsencode(path.name)) > _LONGEST:
            with contextlib.suppress(FileNotFoundError):
                os.lstat(path)  # the temporary name is shorter than one that may be too long
        path.parent.mkdir(parents=True, exist_ok=True)
        tidy(path.parent)
        make(temporary)
    return temporary


def _is_about(error: OSError, *paths: Path) -> bool:
    """Whether an error names no path, as one of a handle, or one of these or something in them."""
    names = [name for name in (error.filename, error.filename2) if isinstance(name, str | os.PathLike)]
    return not names or any(Path(name) == path or path in Path(name).parents for name in names for path in paths)


def discard_unfinished(after: float = 0.0) -> None:
    """Delete all unfinished files of this process, before it ends at once.

    Args:
        after (`float`, *optional*): seconds to wait first, until other processes have stopped writing there too.
    """
    if _unfinished:
        time.sleep(after)
    for path in list(_unfinished):
        remove(path)


def remove(path: Path) -> None:
    """Delete a file, a link or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def discard(path: Path, beside: Path | None = None) -> None:
    """Delete a folder, or anything else, after it was renamed to a name by which it is known as left over.

    Args:
        path (`Path`): what is deleted; it need not exist.
        beside (`Path`, *optional*): where the other name is; in the same folder by default.
    """
    left = name_to_delete(beside or path)
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, left)
        remove(left)


def name_to_delete(path: Path, name: str = "deleted") -> Path:
    """A new name beside a path, by which it is known as left over if this process is killed before it is deleted."""
    return _temporary(path.with_name(name), "new")


def size_of(path: Path) -> int:
    """Size in bytes of a file, or of all files in a folder; 0 if it does not exist."""
    files = [path, *path.rglob("*")]
    return sum(file.stat().st_size for file in files if file.is_file())


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike) -> Generator[Path]:
    """A context that gives a temporary path in the same folder, renamed to `path` on success, deleted on any error.

    Where `path` is a link, the file that it leads to is replaced.

    Raises:
        `InputError`: the disk is full, or the path cannot be used.
    """
    path = _target(path)
    temporary = _begin(path, lambda new: os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)))
    with _becoming(path, temporary):
        # A new file shows the process's mask; to read it otherwise, it has to be changed for all threads.
        mode = temporary.stat().st_mode
        yield temporary
        sync(temporary)
        os.chmod(temporary, mode)  # of a library that wrote another file and renamed it
        check_may_write()
        os.replace(temporary, path)
        sync(path.parent)


def _target(path: str | os.PathLike) -> Path:
    """The path that is written: for a link, that of what it leads to, which need not exist."""
    path = Path(path)
    if not os.path.islink(path):
        return path
    real = Path(os.path.realpath(path))
    if real.is_symlink():
        raise path_error(path, OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)))
    return real


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike, *, replace: bool = True) -> Generator[Path]:
    """A context that gives an empty temporary folder, which replaces `path` on success and is deleted on any error.

    Args:
        path (path): the folder.
        replace (`bool`, *optional*, defaults to `True`): whether a folder that is not empty is replaced. What another
            process has put there meanwhile is never replaced without it.

    Raises:
        `InputError`: the disk is full, the path cannot be used, or there is a folder that must not be replaced.
    """
    path = restored(_target(path))
    temporary = _begin(path, Path.mkdir)
    with _becoming(path, temporary):
        yield temporary
        sync_tree(temporary)
        put_folder(temporary, path, replace=replace)


@contextlib.contextmanager
def scratch_folder(path: str | os.PathLike) -> Generator[Path]:
    """A context that gives an empty hidden folder on the disk of `path`, beside it, and deletes it at the end.

    If the process is killed, the next one that writes into the folder of `path` deletes it.
    """
    temporary = _begin(Path(path), Path.mkdir)
    with unfinished(temporary):
        yield temporary


def put_folder(source: Path, target: Path, *, replace: bool = True, at_once: bool = True) -> None:
    """Rename a folder. What was at `target` is deleted, unless another process removed it first.

    Args:
        source (`Path`), target (`Path`): its path before and after, on the same disk.
        replace (`bool`, *optional*, defaults to `True`): whether a folder that is not empty is replaced.
        at_once (`bool`, *optional*, defaults to `True`): exchange the two folders if the file system can. A process
            that is killed right after it leaves the old folder at `source`.

    Raises:
        `InputError`: there is a folder that must not be replaced.
    """
    check_may_write()
    tidy(target.parent)
    removed = []
    while True:
        try:
            os.rename(source, target)  # fails if there is a folder with content, a file or a link
            break
        except FileNotFoundError:
            if removed:  # another process has moved the same folder meanwhile, and its result was moved away
                with contextlib.suppress(OSError):
                    os.rename(removed[-1], target)
            raise
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        if target.is_file() and not target.is_symlink():
            raise InputError(f"{target}: is a file; choose another folder")
        if not replace:
            raise InputError(f"{target}: exists already; choose another folder, or delete it")
        if at_once and _exchange(source, target):
            removed.append(source)
            break
        removed.append(_temporary(target, "old"))
        with contextlib.suppress(FileNotFoundError):
            os.rename(target, removed[-1])
    sync(target.parent)
    for path in removed:
        discard(path, target)


def restored(path: str | os.PathLike) -> Path:
    """The path, whose content is whole again if a process was killed while it replaced it.

    A folder that was moved out of the way is moved back, and files that were on their way into a folder are moved
    there. A process that is still doing this is waited for. Nothing is overwritten: a rename fails where there is a
    folder with content, so that a writer who is only slow continues unharmed. Where nothing can be renamed, the path
    is left as it is.

    Raises:
        `InputError`: another process is writing there and does not finish.
    """
    path = Path(path)
    with contextlib.suppress(OSError):
        if not os.path.lexists(path):
            _move_back(path)
        if (path / _ARRIVING).is_dir():
            _finish_arrival(path)
    return path


def restore_all(folder: Path) -> None:
    """Put back everything in a folder that a process moved out of the way before it was killed; see [`restored`]."""
    with contextlib.suppress(OSError):
        for name in {name for _, name, kind, _ in _temporaries(folder) if kind == "old"}:
            restored(folder / name)


def _move_back(path: Path) -> None:
    began = time.monotonic()
    while not os.path.lexists(path):
        old = [
            (entry, owner)
            for entry, name, kind, owner in _temporaries(path.parent)
            if kind == "old" and name == _short(path.name)
        ]
        if not old:
            return
        if time.monotonic() - began > PATIENCE or any(_is_alive(owner) is False for _, owner in old):
            newest, _ = max(old, key=lambda one: one[0].lstat().st_ctime)
            with contextlib.suppress(OSError):  # another process was first
                os.rename(newest, path)
            return
        time.sleep(0.01)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange what two names stand for, in one step; False if the system or the file system cannot."""
    function = _renameat2()
    if function is None:
        return False
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
    if function(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM, errno.EXDEV, errno.ENOENT):
        return False
    raise OSError(number, os.strerror(number), str(first), None, str(second))


@cache
def _renameat2() -> Any:
    """The function of the C library; None if it has none, as on other systems than Linux."""
    try:
        function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    except TypeError:  # Windows, where a library has to be named
        return None
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return function


@contextlib.contextmanager
def written_together(folder: str | os.PathLike) -> Generator[Path]:
    """A context that gives an empty temporary folder; its content is moved to `folder` on success, else deleted.

    Raises:
        `InputError`: the disk is full, or another process is moving files there.
    """
    check_may_write()
    folder = restored(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tidy(folder)
    temporary = _temporary(folder / "unfinished", "new")
    temporary.mkdir()
    with _becoming(folder, temporary):
        yield temporary
        move_into(temporary, folder)


def move_into(source: Path, target: Path) -> None:
    """Sync the content of a folder and move it to another one, replacing files and folders of the same names.

    Both folders must be on the same disk. From the first rename on the move is finished, by [`restored`] if not by
    this process.

    Raises:
        `InputError`: another process is moving files there.
    """
    check_may_write()
    (source / f"{_OWNER}{_this_process()}").touch()
    sync_tree(source)
    check_may_write()
    arriving = target / _ARRIVING
    while True:
        try:
            os.rename(source, arriving)
            break
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        _finish_arrival(target)
    _move_all(arriving, target)


def _move_all(arriving: Path, target: Path) -> None:
    _arriving.add(arriving)
    try:
        for path in sorted(arriving.iterdir()):
            if path.name.startswith(_OWNER):
                continue
            if path.is_dir():
                put_folder(path, target / path.name, at_once=False)  # what is left in `arriving` must be new
            else:
                os.replace(path, target / path.name)
        sync(target)
        discard(arriving)
    finally:
        _arriving.discard(arriving)


def _finish_arrival(folder: Path) -> None:
    """Move the files that a process was moving into a folder when it was killed."""
    arriving = folder / _ARRIVING
    began = time.monotonic()
    while arriving.is_dir():
        mark = next(arriving.glob(f"{_OWNER}*"), None)
        owner = "" if mark is None else mark.name.removeprefix(_OWNER)
        is_alive = _is_alive(owner) and (arriving in _arriving or not _is_mine(owner))
        waited = time.monotonic() - began
        if is_alive and waited > PATIENCE:
            raise InputError(f"{folder}: process {owner.split('-')[1]} is writing there; wait for it to end")
        if is_alive is False or (is_alive is None and waited > PATIENCE):
            with contextlib.suppress(FileNotFoundError):  # of several processes one can rename the mark
                if mark is not None:
                    os.rename(mark, arriving / f"{_OWNER}{_this_process()}")
                _move_all(arriving, folder)
                return
        time.sleep(0.01)


def _this_process() -> str:
    """A new identifier of something that this process makes: machine, process, its start, and a random number."""
    process = os.getpid()
    return f"{_machine()}-{process}-{_started(process)}-{secrets.token_hex(4)}"


@cache
def _machine() -> str:
    return hashlib.sha256(machine_id().encode()).hexdigest()[:8]


def _started(process: int) -> int:
    """Start time of a process in hundredths; 0 if it has ended."""
    return int((start_time(process) or 0.0) * 100)


def _is_alive(owner: str) -> bool | None:
    """Whether the process that made something is running; None if it is on another machine."""
    machine, *numbers = owner.split("-")
    if len(numbers) != 3 or machine != _machine():
        return None
    return _started(int(numbers[0])) == int(numbers[1])


def _is_mine(owner: str) -> bool:
    return owner.split("-")[:2] == [_machine(), str(os.getpid())]


def _temporary(path: Path, kind: Literal["new", "old"]) -> Path:
    """A new name beside a path: `new` for what becomes the path, or can be deleted, `old` for what was there."""
    return path.with_name(f".{_short(path.name)}.{kind}.{_this_process()}")


def _short(name: str) -> str:
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()
    return name if len(os.fsencode(name)) <= _LONGEST else digest


def _temporaries(folder: Path) -> Iterator[tuple[Path, str, str, str]]:
    """The temporary files in a folder: path, name of what it stands for, kind, and the process that made it."""
    with os.scandir(folder) as entries:
        for entry in entries:
            found = _TEMPORARY.fullmatch(entry.name) if entry.name.startswith(".") else None
            if found is not None:
                yield Path(entry.path), found["name"], found["kind"], found["owner"]


def tidy(folder: Path) -> set[str]:
    """Delete, once in the life of a process, the temporary files that others have left in a folder.

    Returns:
        set of `str`: what they were to become, or had been before they were to be deleted.
    """
    key, deleted = (os.getpid(), folder.absolute()), set()
    if key in _tidied:
        return deleted
    _tidied.add(key)
    for path, name, kind, owner in list(_temporaries(folder)):
        is_alive = _is_alive(owner)
        with contextlib.suppress(OSError):
            if is_alive or (kind == "old" and not os.path.lexists(folder / name)):
                continue
            if is_alive is False or unchanged_for(path) > _ABANDONED:
                discard(path)
                deleted.add(name)
    return deleted


def unchanged_for(path: Path) -> float:
    """Seconds since anything in a file or folder changed, by the clock of its disk."""
    probe = _temporary(path.with_name("clock"), "new")
    probe.touch()
    now = probe.lstat().st_ctime
    probe.unlink()
    return now - max(one.lstat().st_ctime for one in [path, *path.rglob("*")])


def sync_tree(folder: Path) -> None:
    """Flush a folder and all files in it to the disk, and let those read and write its files who may do so with it.

    safetensors writes files that only their owner reads, whatever the process's mask allows.
    """
    access = folder.stat().st_mode & 0o666
    for file in [folder, *folder.rglob("*")]:
        if not file.is_symlink() and file.is_file() and (mode := file.stat().st_mode) & access != access:
            os.chmod(file, mode | access)
        sync(file)


def inside(
    folder: str | os.PathLike, name: Any, source: str | os.PathLike | None = None, as_link: bool = False
) -> Path:
    """The path in `folder` of a name that was read from a file, which may come from anyone.

    Links may lead elsewhere within the folder, and from a snapshot of the Hub's cache to its blobs.

    Args:
        folder (path): the folder that the name has to stay in.
        name: the name, with `/` between its parts.
        source (path, *optional*, defaults to the folder): the file that has the name, for the message.
        as_link (`bool`, *optional*, defaults to `False`): whether the last part may be a link to anywhere, because it
            is moved or deleted and not followed.

    Raises:
        `InputError`: it is no name of something in the folder.
    """
    folder, where = Path(folder), folder if source is None else source
    if not isinstance(name, str) or _ODD.search(name) or not all(map(_is_plain, name.split("/"))):
        raise InputError(
            f"{where}: names {ascii(name)[:200]}, expected the name of something in {folder} (relative, with / "
            "between its parts, none of them ..); take the file again from where it was made"
        )
    path = folder / name
    real = os.path.join(os.path.realpath(path.parent), path.name) if as_link else os.path.realpath(path)
    if not Path(real).is_relative_to(_reach(folder)) or real == os.path.realpath(folder):
        raise InputError(
            f"{where}: names {name!r}, which is a link to {real}, not in {folder}; put what the link leads to in its "
            "place"
        )
    return path


def _is_plain(part: str) -> bool:
    return part not in ("", ".", "..") and len(part.encode()) <= 255


def _reach(folder: Path) -> Path:
    """Where links in a folder may lead: the folder, or the whole repository of a snapshot in the Hub's cache."""
    real = Path(os.path.realpath(folder))
    for parent in (real, *real.parents):
        if parent.parent.name == "snapshots" and (parent.parent.parent / "blobs").is_dir():
            return parent.parent.parent
    return real


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: str | os.PathLike) -> Any:
    """Read a JSON file; raise [`InputError`] that names the file if it is missing or malformed."""
    path = Path(path)
    with path_errors(path):
        if not path.exists():
            restored(path.parent)
    return parse_json(_content(path), path, as_file=True)


def _content(path: Path) -> bytes:
    """The bytes of a file; an error of one line if it is missing or cannot be read."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise path_error(path, error) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        `InputError`: there is no such file, or it is not UTF-8 text, not YAML or not a mapping; the message gives the
            byte or line.
    """
    import yaml

    try:
        with path_errors(path):
            text = path.read_text(encoding="utf-8-sig")
        content = parse_yaml(text)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not text in UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}, in line "
            f"{error.object.count(10, 0, error.start) + 1}; save the file with the encoding UTF-8"
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f":{mark.line + 1}"
        raise InputError(f"{path}{line}: not YAML ({getattr(error, 'problem', error)})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a mapping of settings, found {type(content).__name__}")
    return content


def write_yaml(path: Path, settings: dict[str, Any]) -> None:
    """Write settings as YAML, atomically. Those of a type derived from `str` are written as text."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    Dumper.add_multi_representer(str, lambda dumper, text: dumper.represent_str(str(text)))
    with atomic_file(path) as temporary:
        text = yaml.dump(settings, Dumper=Dumper, sort_keys=False, allow_unicode=True)
        temporary.write_text(text, encoding="utf-8")


def parse_yaml(text: str) -> Any:
    """What a YAML text says, which may come from anyone.

    Raises:
        `yaml.YAMLError`: it is not YAML, has a value that its type does not have, such as the date 2026-02-30, or a
            number of thousands of digits, is nested too deeply, or repeats parts of itself until they are too many.
    """
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        # A few lines of aliases of aliases stand for billions of values.
        if node is not None and _yaml_size(node, {}) > _MOST_YAML:
            raise yaml.YAMLError(f"more than {_MOST_YAML:,} values, by aliases of aliases")
        return None if node is None else loader.construct_document(node)
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        raise yaml.YAMLError(first_line(error)) from None
    finally:
        loader.dispose()


def _yaml_size(node: Any, known: dict[int, int]) -> int:
    """The number of values of a node if all aliases are written out."""
    if id(node) not in known:
        parts = node.value if isinstance(node.value, list) else []
        known[id(node)] = _MOST_YAML  # one that contains itself
        flat = [one for part in parts for one in (part if isinstance(part, tuple) else [part])]
        letters = 0 if parts else len(node.value) // 64
        known[id(node)] = 1 + letters + sum(_yaml_size(part, known) for part in flat)
    return known[id(node)]


def overwrite_json(path: Path, value: Any, width: int) -> None:
    """Overwrite a small JSON file in place, at a constant length in bytes, which needs no room on a full disk."""
    check_may_write()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | _BINARY, 0o666)
    try:
        os.write(handle, json.dumps(value, ensure_ascii=False).encode().ljust(width - 1) + b"\n")
    finally:
        os.close(handle)


def append_jsonl(path: str | os.PathLike, row: dict) -> None:
    """Append one row to a JSON Lines file in a single write, flushed to the operating system.

    If the write fails, the file is cut back to its length before. If an earlier process was killed in a write, what it
    has left of its line is ended first, so that it does not take this row with it.
    """
    check_may_write()
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(row, ensure_ascii=False) + "\n").encode()
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | _BINARY, 0o666)
    try:
        before = os.fstat(handle).st_size
        if before and os.lseek(handle, before - 1, os.SEEK_SET) >= 0 and os.read(handle, 1) != b"\n":
            line = b"\n" + line
        _write_whole(handle, line, before)
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise disk_full(path, format_bytes(len(line))) from error
    finally:
        os.close(handle)


def _write_whole(handle: int, content: bytes, before: int) -> None:
    """Append to a file of `before` bytes; after an error cut off what was written, unless others wrote since."""
    written = 0
    try:
        while written < len(content):
            written += os.write(handle, content[written:])
    except OSError:
        if written and os.fstat(handle).st_size == before + written:
            os.ftruncate(handle, before)
        raise


def write_jsonl(path: str | os.PathLike, rows: Iterable[dict]) -> None:
    """Write a whole JSON Lines file, atomically."""
    with atomic_file(path) as temporary:
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        temporary.write_text("".join(lines), encoding="utf-8")


def read_jsonl(path: str | os.PathLike) -> list[dict]:
    """Read a JSON Lines file that was written whole, with an object in each line.

    Raises:
        `InputError`: there is no such file, or a line is not an object; the message gives its number.
    """
    rows = []
    for number, row, problem in _numbered_rows(Path(path)):
        if row is None:
            raise InputError(f"{path}:{number}: {problem}")
        rows.append(row)
    return rows


def read_log(path: str | os.PathLike, problem_of: Callable[[dict], str | None] | None = None) -> list[dict]:
    """Read a JSON Lines file to which rows are appended while programs run.

    A last line without a newline is being written, or was left by a crash; it is ignored. Any other line that is not
    an object was torn by a write that failed; it is skipped, and named once in a warning.

    Args:
        path (path): the file.
        problem_of (callable, *optional*): what is wrong with a row that is skipped too; None for one that is read.

    Raises:
        `InputError`: there is no such file.
    """
    path, rows = Path(path), []
    for number, row, problem in _numbered_rows(path):
        reason = problem if row is None else problem_of(row) if problem_of is not None else None
        if row is not None and reason is None:
            rows.append(row)
        elif (path, number) not in _named:
            _named.add((path, number))
            why = "this line is skipped, a failed write has torn it" if row is None else "this line is skipped"
            _logger.warning("%s:%d: %s; %s", path, number, reason, why)
    return rows


def _numbered_rows(path: Path) -> Iterator[tuple[int, dict | None, str]]:
    """Number, row and problem of each line that ends; the row is None where there is a problem."""
    # Bytes, because a crash may cut a character in two, and because str.splitlines splits at characters that are
    # allowed in JSON strings.
    *lines, _torn = _content(path).split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            row = parse_json(line, f"{number}")
        except InputError as error:
            yield number, None, str(error).partition(": ")[2]
            continue
        is_row = isinstance(row, dict)
        yield number, row if is_row else None, "" if is_row else f"expected an object, found {type(row).__name__}"


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk, where its file system can do so.

    Windows opens no folder, and flushes only files that are open for writing.
    """
    if _IS_WINDOWS and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR | _BINARY if _IS_WINDOWS else os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(handle)


DIGESTS_NAME = "digests.json"
_REWRITTEN = ("README.md", DIGESTS_NAME)  # a card gets its metrics later
_THREADS = min(8, os.cpu_count() or 1)


def file_digest(path: str | os.PathLike) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_digests(
    folder: str | os.PathLike, names: Sequence[str] | None = None, *, into: str | os.PathLike | None = None
) -> None:
    """Write `digests.json` for files in a folder.

    Args:
        folder (path): the folder.
        names (sequence of `str`, *optional*): the files; by default all files, including those in subfolders, except
            hidden ones and the card.
        into (path, *optional*): a folder that the files and folders are going to be moved into. The digests of its
            other files are kept.
    """
    folder = Path(folder)
    if names is None:
        found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        names = [name for name in found if name not in _REWRITTEN and not name.rpartition("/")[2].startswith(".")]
    digests = dict(zip(names, _digests(folder, names), strict=True))
    if into is not None:
        replaced = {name.partition("/")[0] for name in names}
        kept = recorded_digests(into).items()
        digests = {name: digest for name, digest in kept if name.partition("/")[0] not in replaced} | digests
    write_json(folder / DIGESTS_NAME, {"sha256": digests})


def digest_problems(folder: str | os.PathLike, names: Collection[str] | None = None) -> list[str]:
    """The differences from `digests.json`, one message per file; empty if there are none or there is no such file.

    Args:
        folder (path): the folder.
        names (collection of `str`, *optional*): the files to be compared, if they are listed; by default all that are.

    Raises:
        `InputError`: `digests.json` cannot be read.
    """
    folder = Path(folder)
    expected = recorded_digests(folder)
    if names is not None:
        expected = {name: digest for name, digest in expected.items() if name in names}
    existing = [name for name in expected if (folder / name).is_file()]
    found = dict(zip(existing, _digests(folder, existing), strict=True))
    problems = []
    for name, digest in expected.items():
        if name not in found:
            problems.append(f"{name}: no such file, though {DIGESTS_NAME} lists it")
        elif found[name] != digest:
            problems.append(f"{name}: SHA-256 is {found[name]}, but {DIGESTS_NAME} says {digest}")
    return problems


def recorded_digests(folder: str | os.PathLike) -> dict[str, str]:
    """The digests in a folder's `digests.json`, by the names of files in it; none without it."""
    folder = Path(folder)
    if not (folder / DIGESTS_NAME).is_file():
        return {}
    content = read_json(folder / DIGESTS_NAME)
    expected = content.get("sha256") if isinstance(content, dict) else None
    if not isinstance(expected, dict) or not all(isinstance(digest, str) for digest in expected.values()):
        raise InputError(f"{folder / DIGESTS_NAME}: expected the SHA-256 of each file by name; copy the folder again")
    for name in expected:
        inside(folder, name, folder / DIGESTS_NAME)
    return expected


def check_digests(folder: str | os.PathLike, remedy: str | None = None, names: Collection[str] | None = None) -> None:
    """Raise [`InputError`] if a file has changed since it was written. Only the first rank of a machine checks.

    Args:
        folder (path): the folder; one without `digests.json` passes.
        remedy (`str`, *optional*): advice for the end of the message.
        names (collection of `str`, *optional*): the files to be checked; by default all that are listed.
    """
    remedy = remedy or f"copy the folder again, or delete its {DIGESTS_NAME} to read it as it is"
    problems = digest_problems(folder, names) if os.environ.get("LOCAL_RANK", "0") == "0" else []
    if problems:
        more = f" (and {len(problems) - 1} more files)" if len(problems) > 1 else ""
        raise InputError(f"{Path(folder) / problems[0]}{more}; {remedy}")


def _digests(folder: Path, names: Sequence[str]) -> list[str]:
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(file_digest, [folder / name for name in names]))


def weights_sha256(model: "PreTrainedModel") -> str:
    """A hash of a model's tensors (sorted names, types, shapes and bytes), independent of its files."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
