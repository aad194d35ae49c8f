"""Rows of local files: text, JSON Lines, JSON and Parquet. One row is in memory at a time; of `.json`, all rows."""

import contextlib
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from ...errors import InputError

SUFFIXES = (".txt", ".jsonl", ".json", ".parquet")

DOCUMENT_SEPARATOR = "<|endoftext|>"
"""Separator of the documents in a `.txt` file."""


def read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row of a file together with its location, for error messages.

    A row of JSON that is a list, not an object, is a conversation: the list becomes the column `messages`.

    Args:
        path (`Path`):
            A `.txt` (one document, or several separated by `<|endoftext|>`), `.jsonl`, `.json` or `.parquet` file; the
            first three also as `.gz`.

    Returns:
        Iterator of `tuple[str, dict]`: `path:line` or `path: row number`, and the columns.

    Raises:
        `InputError`: the file has another suffix, or it cannot be read; the message gives the line of the failure.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compressed = suffixes[-1:] == [".gz"]
    suffix = (suffixes[:-1] if compressed else suffixes)[-1:]
    readers = {".txt": _read_txt, ".jsonl": _read_jsonl, ".json": _read_json}
    opened = gzip.open if compressed else open
    try:
        if suffix == [".parquet"] and not compressed:
            yield from _read_parquet(path)
        elif suffix and suffix[0] in readers:
            with opened(path, "rt", encoding="utf-8") as file:
                yield from readers[suffix[0]](path, file)
        else:
            raise InputError(
                f"{path}: expected a file name that ends in {', '.join(SUFFIXES)}; all but the last also with .gz"
            )
    except UnicodeDecodeError as error:
        byte = f"0x{error.object[error.start]:02x}, {error.reason}"
        location = f"{path}:{_breaking_line(opened, path)}"
        raise InputError(
            f"{location}: cannot be read as UTF-8 text ({byte}); convert the file, for example with iconv"
        ) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        location = f"{path}:{_breaking_line(opened, path)}"
        raise InputError(f"{location}: cannot be read as gzip ({error}); copy or download it again") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def shorten(value: Any) -> str:
    """The representation of a value in at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def normalize_text(text: Any, where: str = "text") -> str:
    """Return `text` without the white space around it; raise [`InputError`] if it is not a string.

    ```python
    >>> normalize_text(" Once upon a time. ")
    'Once upon a time.'

    ```
    """
    return check_text(text, where).strip()


def check_text(text: Any, where: str) -> str:
    """Return `text`; raise [`InputError`] unless it is a string that UTF-8 can encode."""
    if not isinstance(text, str):
        raise InputError(f"{where}: expected text, found {shorten(text)}; drop the row or name another column")
    try:
        # Python knows without scanning it whether a string is ASCII, and ASCII can be encoded.
        text.isascii() or text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: half a surrogate pair at character {error.start}, which is not valid text; drop the row"
        ) from None
    return text


def without_fillers(row: Mapping[str, Any], features: Any = None, *, encoded: bool = False) -> dict[str, Any]:
    """A row of an Arrow table without the nulls that Arrow writes for keys which only other rows have.

    In Arrow all objects in a column have the same keys, so which nulls an author wrote is known only of columns of
    JSON, which are kept as they are. A null in a list, and one that is a whole column, has been written.

    Args:
        row (mapping): the row.
        features (`datasets.Features`, *optional*): types of the columns, for those of JSON.
        encoded (`bool`, *optional*, defaults to `False`): whether values of type JSON are still text.
    """

    def cleaned(value: Any, feature: Any) -> Any:
        if getattr(feature, "_type", None) == "Json":
            return json.loads(value) if encoded and isinstance(value, str) else value
        if isinstance(value, Mapping):
            types = feature if isinstance(feature, Mapping) else {}
            return {key: cleaned(inner, types.get(key)) for key, inner in value.items() if inner is not None}
        if isinstance(value, list):
            inside = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
            return [cleaned(inner, inside) for inner in value]
        return value

    types = features or {}
    return {name: cleaned(value, types.get(name)) for name, value in row.items()}


def _breaking_line(opened, path: Path) -> int:
    """The line, counted from 1, at which a file cannot be decoded; it is read again to find out."""
    number = 1
    with contextlib.suppress(UnicodeDecodeError, EOFError, OSError, zlib.error), opened(path, "rb") as file:
        for line in file:
            line.decode("utf-8")
            number += 1
    return number


def _read_txt(path: Path, file: IO[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    number, lines = 0, []
    for line in file:
        *ended, rest = line.split(DOCUMENT_SEPARATOR)
        for piece in ended:
            lines.append(piece)
            yield f"{path}: document {number}", {"text": "".join(lines)}
            number, lines = number + 1, []
        lines.append(rest)
    if "".join(lines).strip():
        yield f"{path}: document {number}", {"text": "".join(lines)}


def _read_jsonl(path: Path, file: IO[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    name, decode = str(path), json.JSONDecoder().raw_decode
    for number, line in enumerate(file, start=1):
        try:
            row, end = decode(line)
            is_whole = line[end:] in ("\n", "")
        except json.JSONDecodeError:
            is_whole = False
        if not is_whole:  # blank, indented, or not JSON
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise InputError(f"{path}:{number}: not JSON ({error.msg})") from None
        yield _json_row(row, f"{name}:{number}")


def _read_json(path: Path, file: IO[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        rows = json.load(file)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}:{error.lineno}: not JSON ({error.msg}); name a file with one row per line .jsonl"
        ) from None
    if not isinstance(rows, list):
        raise InputError(f"{path}: expected a list of rows, found {shorten(rows)}")
    for number, row in enumerate(rows):
        yield _json_row(row, f"{path}: row {number}")


def _json_row(row: Any, where: str) -> tuple[str, dict[str, Any]]:
    if isinstance(row, list):
        return where, {"messages": row}
    if not isinstance(row, dict):
        raise InputError(
            f"{where}: expected an object with named columns, found {shorten(row)}; a list would be a conversation"
        )
    return where, row


def _read_parquet(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow
    from datasets import Features
    from pyarrow import parquet

    number = 0
    try:
        file = parquet.ParquetFile(path, page_checksum_verification=True)
        features = None
        for schema in (file.schema_arrow, file.schema_arrow.remove_metadata()):  # datasets writes its types into it
            with contextlib.suppress(Exception):  # of several types: damaged metadata, a type that datasets lacks
                features = features or Features.from_arrow_schema(schema)
        for batch in file.iter_batches(batch_size=256):
            for row in batch.to_pylist():
                yield f"{path}: row {number}", without_fillers(row, features, encoded=True)
                number += 1
    except pyarrow.ArrowException as error:
        raise InputError(f"{path}: row {number}: not Parquet ({error}); copy or download it again") from None
