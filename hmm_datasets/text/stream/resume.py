"""The folder of a token stream that is being written: finding the shards of an earlier run, and the final rename."""

import os
import re
import shutil
import tempfile
from pathlib import Path

from ...errors import InputError
from ...files import sync
from ...identity import check_identity
from .index import INDEX_NAME, TokenIndex, read_index

PART_SUFFIX = ".part"
"""Suffix of the files of a shard until they are complete."""

_OURS = re.compile(rf"\d{{5,}}\.ds(\.index)?({re.escape(PART_SUFFIX)})?|\.?{re.escape(INDEX_NAME)}(\..*)?")
_SETTINGS = ("corpus", "tokenizer_hash", "vocab_size", "eos_id", "dtype", "shard_tokens")


def check_replaceable(folder: str | os.PathLike, marker: str, overwrite: bool) -> None:
    """Raise [`InputError`] unless `folder` is new or empty, or contains the file `marker` and may be overwritten."""
    folder = Path(folder)
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
    if (folder / INDEX_NAME).is_file():
        try:
            index = read_index(folder)
        except InputError as error:
            raise InputError(f"{error}; or delete {folder} to start over") from None
    before, now = ({"stream": {name: getattr(one, name) for name in _SETTINGS}} for one in (index, blank))
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
    prefix = f".{target.name}.old."
    if target.exists():
        os.replace(target, tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    os.replace(source, target)
    sync(target.parent)
    for path in target.parent.iterdir():
        if path.name.startswith(prefix):  # also the folders of runs that were killed at this point
            shutil.rmtree(path)
