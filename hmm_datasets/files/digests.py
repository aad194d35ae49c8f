"""SHA-256 of the files of a folder, in `digests.json` beside them, with which changed files are found later.

Hashing reads every file once, at 0.5 to 2 GB/s per thread (more on processors with SHA instructions), on up to eight
threads. Right after writing, the files are still in memory.
"""

import contextlib
import hashlib
import os
from collections.abc import Collection, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..errors import InputError, refuse_pipes
from .atomic import written_together
from .containment import inside
from .json_files import read_json, write_json

DIGESTS_NAME = "digests.json"
_REWRITTEN = ("README.md", DIGESTS_NAME)  # a card gets its metrics later
_THREADS = min(8, os.cpu_count() or 1)


def file_digest(path: str | os.PathLike) -> str:
    """SHA-256 of a file, in hexadecimal."""
    refuse_pipes(path)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_digests(
    folder: str | os.PathLike, names: Sequence[str] | None = None, *, into: str | os.PathLike | None = None
) -> None:
    """Write `digests.json` for files in a folder.

    Args:
        folder (path): the folder.
        names (sequence of `str`, *optional*): the files; by default all files, including those in subfolders, except
            hidden ones and the card.
        into (path, *optional*): a folder that the files and folders are going to be moved into. The digests of its
            other files are kept.
    """
    folder = Path(folder)
    arriving = os.listdir(folder) if names is None else names
    if names is None:
        paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        names = [name for name in paths if name not in _REWRITTEN and not name.rpartition("/")[2].startswith(".")]
    digests = dict(zip(names, _digests(folder, names), strict=True))
    if into is not None:
        replaced = {name.partition("/")[0] for name in arriving}
        kept = recorded_digests(into).items()
        digests = {name: digest for name, digest in kept if name.partition("/")[0] not in replaced} | digests
    write_json(folder / DIGESTS_NAME, {"sha256": digests})


@contextlib.contextmanager
def written_with_digests(folder: str | os.PathLike) -> Generator[Path]:
    """As [`~hmm_datasets.files.atomic.written_together`], with the digests of what is written.

    Results and their pictures are two such contexts, in this order, so that a picture that fails costs no result.
    """
    with written_together(folder) as temporary:
        yield temporary
        write_digests(temporary, into=folder)


def digest_problems(folder: str | os.PathLike, names: Collection[str] | None = None) -> list[str]:
    """The differences from `digests.json`, one message per file; empty if there are none or there is no such file.

    Args:
        folder (path): the folder.
        names (collection of `str`, *optional*): the files to be compared, if they are listed; by default all that are.

    Raises:
        `InputError`: `digests.json` cannot be read.
    """
    folder = Path(folder)
    expected = recorded_digests(folder)
    if names is not None:
        expected = {name: digest for name, digest in expected.items() if name in names}
    existing = [name for name in expected if (folder / name).is_file()]
    actual = dict(zip(existing, _digests(folder, existing), strict=True))
    changed = {
        name: f"{name}: SHA-256 is {digest}, but {DIGESTS_NAME} says {expected[name]}"
        for name, digest in actual.items()
        if digest != expected[name]
    }
    return [line for name in expected if (line := changed.get(name) or _missing(folder, name))]


def missing_files(folder: str | os.PathLike) -> list[str]:
    """The files that `digests.json` lists and that are not there, one message per file; nothing is hashed.

    Raises:
        `InputError`: `digests.json` cannot be read.
    """
    return [line for name in recorded_digests(folder) if (line := _missing(Path(folder), name))]


def _missing(folder: Path, name: str) -> str:
    return "" if (folder / name).is_file() else f"{name}: no such file, though {DIGESTS_NAME} lists it"


def recorded_digests(folder: str | os.PathLike) -> dict[str, str]:
    """The digests in a folder's `digests.json`, by the names of files in it; none without it."""
    folder = Path(folder)
    if not (folder / DIGESTS_NAME).is_file():
        return {}
    content = read_json(folder / DIGESTS_NAME)
    expected = content.get("sha256") if isinstance(content, dict) else None
    if not isinstance(expected, dict) or not all(isinstance(digest, str) for digest in expected.values()):
        raise InputError(f"{folder / DIGESTS_NAME}: expected the SHA-256 of each file by name; copy the folder again")
    for name in expected:
        inside(folder, name, folder / DIGESTS_NAME)
    return expected


def check_digests(folder: str | os.PathLike, remedy: str | None = None, names: Collection[str] | None = None) -> None:
    """Raise [`InputError`] if a file has changed since it was written. Only the first rank of a machine checks.

    Args:
        folder (path): the folder; one without `digests.json` passes.
        remedy (`str`, *optional*): advice for the end of the message.
        names (collection of `str`, *optional*): the files to be checked; by default all that are listed.
    """
    remedy = remedy or f"copy the folder again, or delete its {DIGESTS_NAME} to read it as it is"
    problems = digest_problems(folder, names) if os.environ.get("LOCAL_RANK", "0") == "0" else []
    if problems:
        more = f" (and {len(problems) - 1} more files)" if len(problems) > 1 else ""
        raise InputError(f"{Path(folder) / problems[0]}{more}; {remedy}")


def _digests(folder: Path, names: Sequence[str]) -> list[str]:
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(file_digest, [folder / name for name in names]))
