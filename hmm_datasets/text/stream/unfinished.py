"""The folder of a token stream that is being written: finding the shards of an earlier run, and the final rename."""

import os
import re
from pathlib import Path

from ...errors import InputError
from ...files import discard, put_folder, restored
from ...runtime.run_identity import check_identity
from .index import INDEX_NAME, TokenIndex, read_index

PART_SUFFIX = ".part"
"""Suffix of the files of a shard until they are complete."""

_REPLACED = ".replaced"  # marks the stream that is being replaced, which a killed run may leave under the other name
_OURS = re.compile(rf"\d{{5,}}\.ds(\.index)?({re.escape(PART_SUFFIX)})?|\.?{re.escape(INDEX_NAME)}(\..*)?")
_SETTINGS = ("corpus", "tokenizer_hash", "vocab_size", "eos_id", "dtype", "shard_tokens")


def check_replaceable(folder: str | os.PathLike, marker: str, overwrite: bool) -> None:
    """Raise [`InputError`] unless `folder` is new or empty, or contains the file `marker` and may be overwritten."""
    folder = restored(folder)
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / marker).is_file():
        raise InputError(f"{folder}: exists and contains something else (no {marker}); choose another folder")
    if not overwrite:
        raise InputError(f"{folder}: exists already; pass overwrite=True to replace it, or choose another folder")


def finished_part(folder: Path, blank: TokenIndex) -> TokenIndex:
    """The index of the shards that an earlier run with the settings of `blank` finished in `folder`.

    Unfinished files of that run are deleted.

    Raises:
        `InputError`: the run had other settings, shards are damaged, or the folder has files of another kind.
    """
    index = blank
    if (folder / _REPLACED).exists():
        discard(folder)
        folder.mkdir()
    if (folder / INDEX_NAME).is_file():
        try:
            index = read_index(folder)
        except InputError as error:
            raise InputError(f"{error}; or delete {folder} to start over") from None
    before, now = ({"stream": {name: getattr(entry, name) for name in _SETTINGS}} for entry in (index, blank))
    remedy = "start that run again to finish it, or delete the folder to start over"
    check_identity(folder, before, now, accepted=None, remedy=remedy)
    remove_torn(folder, index)
    return index


def remove_torn(folder: Path, index: TokenIndex) -> None:
    """Delete files that a writer left in `folder` besides the shards of the index."""
    whole = {INDEX_NAME} | {name for shard in index.shards for name in (shard.name, shard.ends_name)}
    torn = [path for path in folder.iterdir() if path.name not in whole]
    for path in torn:
        if not _OURS.fullmatch(path.name):
            raise InputError(f"{path}: is not part of a token stream; move it away, or choose another folder")
    for path in torn:
        path.unlink()


def replace_folder(source: Path, target: Path) -> None:
    """Rename the folder `source` to `target`, replacing an existing folder."""
    if target.is_dir():
        (target / _REPLACED).touch()
    put_folder(source, target)
