"""The folder of a token stream that is being written: what an earlier run left there, and how it takes its place."""

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
"""What a shard's files are called, after their names, until they are whole."""

_OURS = re.compile(rf"\d{{5,}}\.ds(\.index)?({re.escape(PART_SUFFIX)})?|\.?{re.escape(INDEX_NAME)}(\..*)?")
_SETTINGS = ("corpus", "tokenizer_hash", "vocab_size", "eos_id", "dtype", "shard_tokens")


def check_replaceable(folder: str | os.PathLike, marker: str, overwrite: bool) -> None:
    """Raise [`InputError`] unless `folder` is new, empty, or to be overwritten and of our making (holds `marker`)."""
    folder = Path(folder)
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / marker).is_file():
        raise InputError(f"{folder}: is there and holds something else (no {marker}); choose another folder")
    if not overwrite:
        raise InputError(f"{folder}: is there already; pass overwrite=True to replace it, or choose another folder")


def finished_part(folder: Path, blank: TokenIndex) -> TokenIndex:
    """What an earlier run with the settings of `blank` finished in `folder`, where nothing else is left after this.

    Raises:
        `InputError`: for a run with other settings, damaged shards, or files that no run of ours left.
    """
    index = blank
    if (folder / INDEX_NAME).is_file():
        try:
            index = read_index(folder)
        except InputError as error:
            raise InputError(f"{error}; or delete {folder} to start afresh") from None
    before, now = ({"stream": {name: getattr(one, name) for name in _SETTINGS}} for one in (index, blank))
    remedy = "start that one again to finish it, or delete the folder to start afresh"
    check_identity(folder, before, now, accepted=None, remedy=remedy)
    remove_torn(folder, index)
    return index


def remove_torn(folder: Path, index: TokenIndex) -> None:
    """Delete what a writer left in `folder` beyond the shards of the index."""
    whole = {INDEX_NAME} | {name for shard in index.shards for name in (shard.name, shard.ends_name)}
    torn = [path for path in folder.iterdir() if path.name not in whole]
    for path in torn:
        if not _OURS.fullmatch(path.name):
            raise InputError(f"{path}: is no part of a token stream; move it away, or choose another folder")
    for path in torn:
        path.unlink()


def replace_folder(source: Path, target: Path) -> None:
    """Rename the folder `source` to `target`, in place of what is there."""
    prefix = f".{target.name}.old."
    if target.exists():
        os.replace(target, tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    os.replace(source, target)
    sync(target.parent)
    for path in target.parent.iterdir():
        if path.name.startswith(prefix):  # this one, and those of runs that were killed here
            shutil.rmtree(path)
