"""JSON that anyone may have written: settings, rows of data, headers and records from other machines.

Python's own parser raises three unrelated errors, of which only one names JSON: `JSONDecodeError`, `ValueError` at an
integer of more than 4,300 digits, and `RecursionError` at a thousand brackets. What is nested less deeply than that
passes, and ends in a `RecursionError` wherever it is walked later, so that the depth is bounded here.
"""

import json
import os
from typing import Any

from ..errors import InputError

MOST_NESTED = 200
"""Lists and objects within one another that are read; the schema of a large tool has some twenty."""


def parse_json(text: str | bytes, where: str | os.PathLike, *, as_file: bool = False) -> Any:
    """The value of a JSON text.

    Args:
        text (`str` or `bytes`): the text, with or without a byte order mark.
        where (`str` or path): what it is and where it is from, for the error.
        as_file (`bool`, *optional*, defaults to `False`): `where` is the file that it is the whole content of, so
            that the error gives the line.

    Raises:
        `InputError`: it is not UTF-8, not JSON, has a key twice or an integer of more than 4,300 digits, or is nested
            more than 200 deep.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):
            twice = next(key for number, (key, _) in enumerate(pairs) if key in dict(pairs[:number]))
            raise InputError(f"{where}: an object has the key {twice!r} twice; expected each once")
        return value

    try:
        value = json.loads(text.removeprefix("\ufeff") if isinstance(text, str) else text, object_pairs_hook=once)
    except InputError:
        raise
    except json.JSONDecodeError as error:
        line = f":{error.lineno}" if as_file else ""
        raise InputError(f"{where}{line}: not JSON ({error.msg.removesuffix(' at')})") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except RecursionError:
        raise _nested(where) from None
    except ValueError:  # the only other one: the limit of `sys.get_int_max_str_digits`
        raise InputError(f"{where}: an integer of more than 4,300 digits; write such a number as text") from None
    marks = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    if sum(map(text.count, marks)) > MOST_NESTED and _depth(value) > MOST_NESTED:  # ty: ignore[invalid-argument-type]
        raise _nested(where)
    return value


def _nested(where: str | os.PathLike) -> InputError:
    return InputError(f"{where}: JSON that is nested more than {MOST_NESTED} deep; expected data of fewer levels")


def _depth(value: Any) -> int:
    """The number of lists and objects within one another, counted up to one more than what is read."""
    depth, level = 0, [value]
    while depth <= MOST_NESTED and (level := [part for part in level if isinstance(part, list | dict) and part]):
        level = [part for whole in level for part in (whole.values() if isinstance(whole, dict) else whole)]
        depth += 1
    return depth
