"""What is pushed of a folder: which files, and what they may not hold.

Hidden files, checkpoints and caches stay at home, and so do two kinds of file whatever is asked for: the Trainer's
pickled arguments, and TensorBoard's events, whose very name is that of the host. A file that holds something shaped
like a token stops the push. Of records that name the machine a copy without its places is pushed; see [`.places`]. The
digests beside them are those of the copies, so that what is pulled can be verified.
"""

import contextlib
import os
import tempfile
from collections.abc import Generator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from ..credentials import SHORTEST_SECRET, holds_secret, known_secrets
from ..digests import DIGESTS_NAME, file_digest
from ..errors import InputError
from ..files import read_json, write_json
from .redaction import Redaction

# Hidden files are marks and leftovers of tools; checkpoints hold optimizer states of many times the model's size.
DEFAULT_IGNORE = (".*", "*/.*", "__pycache__/*", "*/__pycache__/*", "checkpoint-*/*", "*/checkpoint-*/*")

_NEVER = (".git", ".cache", "training_args.bin", "events.out.tfevents.*")


def files_in(folder: Path, ignore: Sequence[str] = ()) -> dict[str, Path]:
    """The files of a folder by their paths in it, but for those that `ignore` matches; there may be none.

    A file that goes meanwhile is left out. Links to folders are not followed.
    """
    from huggingface_hub.utils import filter_repo_objects

    found = sorted(Path(place, name) for place, _, names in os.walk(folder) for name in names)
    files = {path.relative_to(folder).as_posix(): path for path in found if path.is_file()}
    ignore = [ignore] if isinstance(ignore, str) else list(ignore)
    kept = filter_repo_objects(files, ignore_patterns=ignore)
    return {path: files[path] for path in kept if not _stays_at_home(path)}


def files_to_push(folder: str | os.PathLike, ignore: Sequence[str]) -> dict[str, Path]:
    """The files of a folder by their paths in it, but for those that `ignore` matches.

    Raises:
        `InputError`: no such folder, or no files in it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing"
        raise InputError(f"{folder}: expected a folder to push, found {found}")
    chosen = files_in(folder, ignore)
    if not chosen:
        count = sum(path.is_file() for path in folder.rglob("*"))
        raise InputError(
            f"{folder}: no files to push ({count} found, all left out by ignore={ignore})"
            if count
            else f"{folder}: no files to push, the folder is empty"
        )
    return chosen


@contextlib.contextmanager
def pushable(files: Mapping[str, Path], folder: str | os.PathLike, token: str) -> Generator[dict[str, Path]]:
    """The files as they may be pushed: with copies in place of those that name this machine, for as long as needed.

    Args:
        files (mapping from `str` to `Path`): paths in the repository, and the files.
        folder (path): where they are from; what its records say of hosts counts for all of them.
        token (`str`): of the push, which must not be in them.

    Raises:
        `InputError`: a file holds something shaped like a token, or a value of the environment's that is one.
    """
    secrets = [*known_secrets(), *([token] if len(token) >= SHORTEST_SECRET else [])]
    for name, path in files.items():
        if holds_secret(path, secrets):
            raise InputError(
                f"{path}: holds something shaped like an access token or key, so nothing was pushed; take it out of "
                f"{name}, or move the file out of the folder, and withdraw the token if others could read it"
            )
    places = Redaction(Path(folder))
    with tempfile.TemporaryDirectory(prefix="hmm-datasets-push-") as scratch:
        found = dict(files)
        for number, (name, path) in enumerate(files.items()):
            text = places.cleaned(path)
            if text is not None:
                found[name] = Path(scratch, f"{number}{path.suffix}")
                found[name].write_text(text, encoding="utf-8")
        for name, path in files.items():
            if path.name == DIGESTS_NAME:
                found[name] = _digests_of_copies(name, path, files, found, Path(scratch))
        yield found


def _digests_of_copies(
    name: str, path: Path, files: Mapping[str, Path], found: Mapping[str, Path], scratch: Path
) -> Path:
    """`digests.json` with the digests of the copies that are pushed in place of files."""
    digests = dict(read_json(path)["sha256"])
    folder = name.rpartition("/")[0]
    for entry in digests:
        place = f"{folder}/{entry}" if folder else entry
        if place in found and found[place] != files[place]:
            digests[entry] = file_digest(found[place])
    copy = scratch / f"digests-{len(list(scratch.iterdir()))}.json"
    write_json(copy, {"sha256": digests})
    return copy


def _stays_at_home(path: str) -> bool:
    return any(fnmatch(part, pattern) for part in path.split("/") for pattern in _NEVER)
