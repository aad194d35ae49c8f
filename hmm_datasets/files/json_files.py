"""JSON files."""

import json
import os
from pathlib import Path
from typing import Any

from ..errors import InputError, path_error, path_errors, refuse_pipes
from ..foreign.json import parse_json
from .atomic import atomic_file
from .replacing import restored


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
    return parse_json(read_bytes(path), path, as_file=True)


def read_bytes(path: Path) -> bytes:
    """The bytes of a file; an error of one line if it is missing or cannot be read."""
    refuse_pipes(path)
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise path_error(path, error) from None
