"""The package's own records, such as `run.json`, read into the types that their readers expect.

A record is a file that this package wrote and that a killed process, a full disk, another version or a curious user
may have changed since. A dataclass, or a type such as `dict[str, int]`, says what its reader needs; fields that it
does not name may be there. msgspec compares, and its message becomes an error of one line that names the file and the
field.
"""

import os
import re
from typing import Annotated, Any, TypeVar

import msgspec

from .errors import InputError, printable
from .files import read_json, read_log

_LARGEST_FLOAT = 1.7976931348623157e308

Finite = Annotated[float, msgspec.Meta(ge=-_LARGEST_FLOAT, le=_LARGEST_FLOAT)]
"""A number that is neither NaN nor infinite."""

Positive = Annotated[float, msgspec.Meta(gt=0, le=_LARGEST_FLOAT)]
"""A number above 0 that is not infinite."""

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""A number of things, from 0 to what 64 bits hold."""

_REFUSALS = (msgspec.ValidationError, OverflowError, RecursionError, UnicodeError)
_REMEDY = "copy the file again from where it was written"
_MESSAGE = re.compile(r"(?P<problem>.*?)(?: - at `(?P<key>key in )?\$\.?(?P<field>.*)`)?", re.DOTALL)

Record = TypeVar("Record")


def is_record(value: Any, kind: Any) -> bool:
    """Whether a value from a JSON file is of a type; an integer is a float too, true and false are no numbers."""
    return _problem_of(value, kind) is None


def as_record(value: Any, kind: type[Record], where: str | os.PathLike, remedy: str = _REMEDY) -> Record:
    """A value from a JSON file, as an object of a type.

    Args:
        value: what was read.
        kind (`type`): a dataclass, or a type such as `dict[str, list[int]]`.
        where (`str` or path): the file, for the error.
        remedy (`str`, *optional*): advice for the end of the message.

    Raises:
        `InputError`: it is of another type, or a field is missing or of another type.
    """
    try:
        return msgspec.convert(value, kind)
    except _REFUSALS:
        raise InputError(f"{where}: {_problem_of(value, kind)}; {remedy}") from None


def _problem_of(value: Any, kind: Any) -> str | None:
    """What is not as in a type: the field, what was expected and what was found; None if all is."""
    try:
        msgspec.convert(value, kind)
    except _REFUSALS as error:
        match = _MESSAGE.fullmatch(str(error))
        problem, field = (match["problem"], match["field"]) if match else (str(error), None)
        problem = problem[:1].lower() + problem[1:].replace("`", "").replace(", got ", ", found ")
        return printable(f"{field[:200]}: {problem[:300]}" if field else problem[:300])
    return None


def read_record(path: str | os.PathLike, kind: type[Record], remedy: str = _REMEDY) -> Record:
    """A JSON file that this package wrote, as an object of a type.

    Args:
        path (path): the file.
        kind (`type`): a dataclass, or a type such as `dict[str, list[int]]`.
        remedy (`str`, *optional*): advice for the end of the message.

    Raises:
        `InputError`: there is no such file, it is not JSON, or its content is of another type.
    """
    return as_record(read_json(path), kind, path, remedy)


def read_rows(path: str | os.PathLike, kind: Any) -> list[dict[str, Any]]:
    """The rows of a log that this package wrote, see [`~hmm_datasets.files.read_log`], that are of a type.

    Others are skipped, and named once in a warning.

    Raises:
        `InputError`: there is no such file.
    """
    return read_log(path, lambda row: _problem_of(row, kind))
