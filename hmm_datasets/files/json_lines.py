"""JSON Lines files: written whole, or appended to while programs run."""

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ..display import format_bytes
from ..errors import InputError, disk_full, is_disk_full
from ..foreign.json import parse_json
from .atomic import atomic_file
from .check_write import check_may_write
from .json_files import read_bytes
from .syncing import BINARY

_logger = logging.getLogger(__name__)
_named: set[tuple[Path, int]] = set()  # torn lines that were reported


def append_jsonl(path: str | os.PathLike, row: dict) -> None:
    """Append one row to a JSON Lines file in a single write, flushed to the operating system.

    If the write fails, the file is cut back to its length before. If an earlier process was killed in a write, what it
    has left of its line is ended first, so that it does not take this row with it.
    """
    check_may_write()
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(row, ensure_ascii=False) + "\n").encode()
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | BINARY, 0o666)
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
    *lines, _torn = read_bytes(path).split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            row = parse_json(line, f"{number}")
        except InputError as error:
            yield number, None, str(error).partition(": ")[2]
            continue
        is_row = isinstance(row, dict)
        yield number, row if is_row else None, "" if is_row else f"expected an object, found {type(row).__name__}"
