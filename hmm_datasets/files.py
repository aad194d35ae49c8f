"""Atomic files and folders: written under a temporary name, synced, then renamed. Full disks are reported.

A process keeps track of its unfinished files, so that it can delete them when it has to end at once
([`discard_unfinished`]).
"""

import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

from .errors import (
    InputError,
    disk_full,
    is_disk_full,
)
from .quantities import format_bytes

_unfinished: set[Path] = set()
_MOST_YAML = 1_000_000  # values in a file
_ODD = re.compile(r"[\\\x00-\x1f\x7f\ud800-\udfff]")  # backslashes, control characters, halves of characters


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
        `InputError`: the disk is full, whatever the error of the library that noticed it.
    """
    with unfinished(temporary):
        try:
            yield
        except Exception as error:
            if not is_disk_full(error):
                raise
            needed = f"more than {format_bytes(size_of(temporary))}"
            remove(temporary)
            raise disk_full(path, needed) from error


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
    """Delete a file or a folder, if it exists."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def size_of(path: Path) -> int:
    """Size in bytes of a file, or of all files in a folder; 0 if it does not exist."""
    files = [path, *path.rglob("*")]
    return sum(file.stat().st_size for file in files if file.is_file())


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike) -> Generator[Path]:
    """A context that gives a temporary path in the same folder, renamed to `path` on success, deleted on any error.

    Raises:
        `InputError`: the disk is full.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    with _becoming(path, temporary):
        yield temporary
        sync(temporary)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
        sync(path.parent)


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike) -> Generator[Path]:
    """A context that gives an empty temporary folder, which replaces `path` on success and is deleted on any error.

    Raises:
        `InputError`: the disk is full.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    with _becoming(path, temporary):
        yield temporary
        os.chmod(temporary, 0o777 & ~_umask())
        sync_tree(temporary)
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
            os.replace(path, old)
            os.replace(temporary, path)
            shutil.rmtree(old)
        else:
            os.replace(temporary, path)
        sync(path.parent)


@contextlib.contextmanager
def written_together(folder: str | os.PathLike) -> Generator[Path]:
    """A context that gives an empty temporary folder; its content is moved to `folder` on success, else deleted.

    Raises:
        `InputError`: the disk is full.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".unfinished.", dir=folder))
    with _becoming(folder, temporary):
        yield temporary
        move_into(temporary, folder)


def move_into(source: Path, target: Path) -> None:
    """Sync the content of a folder and move it to another one, replacing files and folders of the same names.

    Both folders must be on the same disk, so that each file is moved atomically.
    """
    sync_tree(source)
    for path in sorted(source.iterdir()):
        if path.is_dir() and (target / path.name).is_dir():
            os.replace(target / path.name, source / f".{path.name}.old")
        os.replace(path, target / path.name)
    sync(target)


def sync_tree(folder: Path) -> None:
    """Flush a folder and all files in it to the disk."""
    for file in [folder, *folder.rglob("*")]:
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
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not JSON ({error.msg})") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or a thousand brackets
        raise InputError(f"{path}: not JSON that can be read ({error})") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        `InputError`: there is no such file, or it is not UTF-8 text, not YAML or not a mapping; the message gives the
            byte or line.
    """
    import yaml

    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
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
        raise yaml.YAMLError(str(error).splitlines()[0] if str(error) else type(error).__name__) from None
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
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        os.pwrite(handle, json.dumps(value, ensure_ascii=False).encode().ljust(width - 1) + b"\n", 0)
    finally:
        os.close(handle)


def append_jsonl(path: str | os.PathLike, row: dict) -> None:
    """Append one row to a JSON Lines file in a single write, flushed to the operating system."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(row, ensure_ascii=False) + "\n"
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise disk_full(path, format_bytes(len(line.encode()))) from error


def write_jsonl(path: str | os.PathLike, rows: Iterable[dict]) -> None:
    """Write a whole JSON Lines file, atomically."""
    with atomic_file(path) as temporary:
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        temporary.write_text("".join(lines), encoding="utf-8")


def read_jsonl(path: str | os.PathLike) -> list[dict]:
    """Read a JSON Lines file. A last line without a newline was left by a crash and is ignored."""
    path = Path(path)
    try:
        # Bytes, because a crash may cut a character in two, and because str.splitlines splits at characters that are
        # allowed in JSON strings.
        *lines, _torn = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise InputError(f"{path}:{number}: not JSON ({getattr(error, 'msg', error)})") from None
    return rows


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
