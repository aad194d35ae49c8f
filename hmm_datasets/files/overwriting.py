"""Overwriting of small files in place, which needs no room on a full disk."""

import os
from pathlib import Path

from .check_write import check_may_write
from .syncing import BINARY


def overwrite(path: Path, content: bytes) -> None:
    """Overwrite a file in place, or make it. Its content has to be as long as before, or the end of that stays."""
    check_may_write()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | BINARY, 0o666)
    with os.fdopen(handle, "wb", buffering=0) as file:
        file.write(content)
