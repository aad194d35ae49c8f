"""Rows of local files: text, JSON Lines, JSON, CSV and Parquet.

One row is in memory at a time; of `.json`, all rows.
"""

import contextlib
import csv
import glob
import io
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import IO, Any

from ...errors import InputError, first_line, path_error
from ...foreign.json import parse_json
from ...foreign.sizes import check_expansion, most_bytes
from ...foreign.text_files import COMPRESSED, lines_of_text, opened_text, read_error, suffixes_of

SUFFIXES = (".txt", ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
"""Suffixes of what is read; all of them but Parquet, which is compressed within, also with one of [`COMPRESSED`]."""

_BESIDE = re.compile(
    r"(readme|licen[cs]e|copying|citation|changelog|contributing)(\..*)?"
    r"|(meta|metadata|dataset_infos?|dataset_dict|state)\.(json|jsonl|csv|tsv)"
    r"|(.*config|tokenizer|vocab|special_tokens_map|added_tokens|.*_state|.*index|process|family|digests)\.json",
    re.IGNORECASE,
)
"""Names of files about a data set, a model or a process, which are not rows."""

_BATCH_BYTES = 1 << 25

_UNREAD = "not read"  # stands for the values of a column that is not read
DOCUMENT_SEPARATOR = "<|endoftext|>"
"""Separator of the documents in a `.txt` file."""


def local_files(name: str) -> tuple[Path, ...]:
    """The files that a name means: one, those that match a pattern, or those that are read of a folder.

    They are sorted by name, and of a pattern those whose name begins with a dot, or is README.md, are not counted. Of
    any other name there are none.

    Raises:
        `InputError`: a folder has files of several kinds, see [`files_of_folder`].
    """
    try:
        if Path(name).is_file():
            return (Path(name),)
        if Path(name).is_dir():
            return files_of_folder(Path(name))[0]
        matching = sorted(glob.glob(name, recursive=True)) if glob.has_magic(name) else []
    except OSError as error:
        raise path_error(name, error) from None
    paths = [path for path in map(Path, matching) if path.is_file()]
    return tuple(path for path in paths if path.name != "README.md" and not _is_hidden(path))


def files_of_folder(folder: Path) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The files in a folder and its subfolders that are read, and those that are not, each sorted by name.

    Read are files with a suffix of [`SUFFIXES`], unless they are hidden, or about the data, as a README or a licence.

    Raises:
        `InputError`: those that would be read are of several kinds.
    """
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = [path for path in paths if has_rows(path.name) and not _BESIDE.fullmatch(path.name)]
    files = [path for path in files if not _is_hidden(path.relative_to(folder))]
    kinds = Counter(suffixes_of(path)[0].replace("ndjson", "jsonl") for path in files).most_common()
    if len(kinds) > 1:
        counts = " and ".join(f"{count:,} {suffix}" for suffix, count in kinds)
        raise InputError(
            f"{folder}: has files of several kinds, {counts}; expected one kind in a folder: name the files by a "
            f"pattern in quotes, as '{folder}/**/*{kinds[0][0]}*'"
        )
    return tuple(files), tuple(path for path in paths if path not in set(files))


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") and part not in (".", "..") for part in path.parts)


def has_rows(name: str) -> bool:
    """Whether a file of this name is one that [`read_rows`] reads, by its suffix."""
    suffix, compression = suffixes_of(Path(name))
    return suffix in SUFFIXES and not (suffix == ".parquet" and compression)


def read_rows(path: Path, wanted: Collection[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row of a file together with its location, for error messages.

    A row of JSON that is a list, not an object, is a conversation: the list becomes the column `messages`. Values of
    CSV are text. A byte order mark is left out; after that of UTF-16 text is read as such.

    Args:
        path (`Path`):
            A `.txt` (one document, or several separated by `<|endoftext|>`), `.jsonl`, `.ndjson`, `.json`, `.csv`,
            `.tsv` or `.parquet` file; all but the last also as `.gz` or `.zst`.
        wanted (collection of `str`, *optional*):
            Names of the columns of a Parquet file to read; by default all. The others have a value that stands for
            something, or None where all of a column is null.

    Returns:
        Iterator of `tuple[str, dict]`: `path:line` or `path: row number`, and the columns.

    Raises:
        `InputError`: the file has another suffix, or it cannot be read; the message gives the line of the failure.
    """
    suffix = suffixes_of(path)[0]
    if not has_rows(path.name):
        raise InputError(
            f"{path}: expected a file name that ends in {', '.join(SUFFIXES)}; all but the last also with "
            f"{' or '.join(COMPRESSED)}"
        )
    if suffix == ".parquet":
        try:
            yield from _read_parquet(path, wanted)
        except OSError as error:
            raise read_error(path, error) from None
        return
    with opened_text(path, newline="" if suffix in (".csv", ".tsv") else None) as file:
        readers = {".txt": _read_txt, ".json": _read_json, ".csv": _read_csv, ".tsv": _read_csv}
        yield from readers.get(suffix, _read_jsonl)(path, file)


def shorten(value: Any) -> str:
    """The representation of a value in at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


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
            return parse_json(value, "a column of JSON") if encoded and isinstance(value, str) else value
        if isinstance(value, Mapping):
            types = feature if isinstance(feature, Mapping) else {}
            return {key: cleaned(inner, types.get(key)) for key, inner in value.items() if inner is not None}
        if isinstance(value, list):
            inside = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
            return [cleaned(inner, inside) for inner in value]
        return value

    types = features or {}
    return {name: cleaned(value, types.get(name)) for name, value in row.items()}


def _read_txt(path: Path, file: IO[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    number, lines = 0, []
    for line in lines_of_text(path, file):
        *ended, rest = line.split(DOCUMENT_SEPARATOR)
        for piece in ended:
            lines.append(piece)
            yield f"{path}: document {number}", {"text": "".join(lines)}
            number, lines = number + 1, []
        lines.append(rest)
    if "".join(lines).strip():
        yield f"{path}: document {number}", {"text": "".join(lines)}


def _read_jsonl(path: Path, file: IO[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(file, start=1):
        if line.strip():
            where = f"{path}:{number}"
            yield _json_row(parse_json(line, where), where)


def _read_json(path: Path, file: IO[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    text = file.read()
    try:
        rows = parse_json(text, path, as_file=True)
    except InputError as error:
        first, _, rest = text.lstrip().partition("\n")
        if not (rest.strip() and first.rstrip().endswith("}")):
            raise InputError(f"{error}; name a file with one row per line .jsonl") from None
        yield from _read_jsonl(path, io.StringIO(text))  # many tools call JSON Lines .json
        return
    if not isinstance(rows, list):
        raise InputError(f"{path}: expected a list of rows, found {shorten(rows)}")
    for number, row in enumerate(rows):
        yield _json_row(row, f"{path}: row {number}")


def _read_csv(path: Path, text: IO[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of text; the first has the names. Fields are separated by commas, tabs or semicolons, as the names are."""
    names: list[str] | None = None
    file = lines_of_text(path, text)
    first = next(file, "")
    delimiter = max("\t,;" if ".tsv" in path.suffixes else ",\t;", key=first.count)
    csv.field_size_limit(1 << 30)  # a field may be as long as a document
    lines = csv.reader(chain([first], file), delimiter=delimiter, strict=True)
    number = 1
    try:
        for fields in lines:
            where, number = f"{path}:{number}", lines.line_num + 1
            if fields and names is None:
                names = fields
                if len(set(names)) < len(names) or not all(names):
                    raise InputError(f"{where}: expected names of columns, each once, found {shorten(names)}")
            elif fields and len(fields) != len(names or ()):
                raise InputError(
                    f"{where}: {len(fields)} fields, but the first line names {len(names or ())} columns "
                    f"({shorten(names)}); put text with separators or line ends in it in double quotes"
                )
            elif fields:
                yield where, dict(zip(names or (), fields, strict=True))
    except csv.Error as error:
        raise InputError(f"{path}:{number}: cannot be read as CSV ({error}); write it again, with quotes") from None


def _json_row(row: Any, where: str) -> tuple[str, dict[str, Any]]:
    if isinstance(row, list) and any(isinstance(turn, dict | list | str) for turn in row):
        return where, {"messages": row}
    if not isinstance(row, dict):
        numbers = "; a list of numbers is a sequence of symbols, which `hmm-datasets fit` reads" * isinstance(
            row, list
        )
        raise InputError(
            f"{where}: expected an object with named columns, or a list of turns, found {shorten(row)}{numbers}"
        )
    return where, row


def _read_parquet(path: Path, wanted: Collection[str] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    from datasets import Features
    from pyarrow import parquet

    number = 0
    try:
        file = parquet.ParquetFile(path, page_checksum_verification=True)
        names = file.schema_arrow.names
        read = [name for name in names if wanted is None or name in wanted]
        nulls = {name for name in names if str(file.schema_arrow.field(name).type) == "null"}
        others = {name: None if name in nulls else _UNREAD for name in names if name not in read}
        features = None
        for schema in (file.schema_arrow, file.schema_arrow.remove_metadata()):  # datasets writes its types into it
            with contextlib.suppress(Exception):  # of several types: damaged metadata, a type that datasets lacks
                features = features or Features.from_arrow_schema(schema)
        stored, size, rows = path.stat().st_size, 0, _rows_at_once(file, set(read), path)
        # Without columns Arrow does not yield rows in batches.
        batches = file.iter_batches(batch_size=rows, columns=read) if read else ()
        for batch in batches:
            size += sum(map(_expanded, batch.columns))
            check_expansion(path, stored, size)
            for row in batch.to_pylist():
                yield f"{path}: row {number}", others | without_fillers(row, features, encoded=True)
                number += 1
        if not read:
            yield from ((f"{path}: row {number}", dict(others)) for number in range(file.metadata.num_rows))
    except (InputError, OSError, GeneratorExit):
        raise
    except Exception as error:  # Arrow's own, and those of Python for dates, decimals and texts that it cannot have
        raise InputError(
            f"{path}: row {number}: not Parquet that can be read ({first_line(error)}); copy or download it again"
        ) from None


def _expanded(array: Any) -> int:
    """The bytes of an Arrow array, of which those of a dictionary count as often as they are used."""
    import numpy as np
    from pyarrow import types

    if types.is_dictionary(array.type):
        if not (types.is_large_string(array.type.value_type) or types.is_string(array.type.value_type)):
            return array.nbytes
        lengths = np.array([len(value or "") for value in array.dictionary.to_pylist()], np.int64)
        return array.indices.nbytes + int(lengths[array.indices.drop_null().to_numpy(zero_copy_only=False)].sum())
    if types.is_struct(array.type):
        return sum(map(_expanded, array.flatten()))
    return _expanded(array.flatten()) if types.is_list(array.type) or types.is_large_list(array.type) else array.nbytes


def _leaves(file: Any, group: int, names: Collection[str]) -> Iterator[Any]:
    """What the metadata of a Parquet file say of the parts of some columns, in one of its groups of rows."""
    chunks = file.metadata.row_group(group)
    for number in range(chunks.num_columns):
        chunk = chunks.column(number)
        if chunk.path_in_schema in names or any(chunk.path_in_schema.startswith(f"{name}.") for name in names):
            yield chunk


def _rows_at_once(file: Any, names: Collection[str], path: Path) -> int:
    """The number of rows to read together, of which each may be as large as all that its group of rows stores."""
    stored = path.stat().st_size
    groups = range(file.metadata.num_row_groups)
    largest = max((sum(chunk.total_uncompressed_size for chunk in _leaves(file, n, names)) for n in groups), default=0)
    check_expansion(path, stored, largest)
    return max(1, min(256, most_bytes(stored, _BATCH_BYTES) // max(largest, 1)))
