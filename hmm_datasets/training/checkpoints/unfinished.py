"""The hidden folder in which the files of a run are written before they are moved to where they belong."""

from pathlib import Path

from ...files import check_may_write, remove
from ...runtime.lock import writer_id

_UNFINISHED = ".unfinished"


def unfinished_folder(folder: Path) -> Path:
    """Where what goes into a folder is written; of no other writer, who may have taken over its lock."""
    return folder / ".".join(filter(None, (_UNFINISHED, writer_id(folder))))


def remove_unfinished(folder: Path) -> None:
    """Delete what this process, or one that was killed, was writing into a folder whose lock this process holds."""
    check_may_write()
    for left in folder.glob(f"{_UNFINISHED}*"):
        remove(left)
