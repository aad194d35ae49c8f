"""What leaves a run is moved to `set_aside/DATE/` in its folder, and can be brought back.

Everything keeps its name there, and `set_aside.json` has the reason. The folder is on the disk of the run, so
moving takes neither time nor space; it also frees none, which only deleting does. What was moved later has a larger
number in `set_aside.json`, whatever the clock showed.

A change is recorded in `set_aside.json` before it begins. If the process is killed in between, the next one that takes
the lock of the folder, or that only reads it once the killed process is known to have ended, moves everything back
([`mend`]). So a checkpoint is never left half changed.
"""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..errors import InputError, path_errors
from ..files import atomic_file, check_may_write, inside, size_of, sync, tidy, write_json
from ..records import Count, read_record
from .process_identity import ProcessIdentity, this_process

SET_ASIDE_NAME = "set_aside"
_RECORD_NAME = "set_aside.json"


@dataclass(frozen=True)
class SetAside:
    """What was moved aside at one time; the record of it, but for `folder`, is `set_aside.json`.

    Attributes:
        reason (`str`): why, in a few words.
        names (`tuple[str, ...]`): what is there, by its name relative to the folder that it came from.
        replaced (`tuple[str, ...]`): those of `names` that have been written anew since, so that bringing them back
            replaces files.
        spare (`tuple[str, ...]`): those of `names` that are brought back only if there are no others at their place.
        number (`int`): larger for what was moved later.
        unfinished (`tuple[str, ...]`), process ([`ProcessIdentity`], *optional*): what that process has begun to move.
        folder (`Path`): `set_aside/DATE`.
    """

    reason: str
    names: tuple[str, ...]
    replaced: tuple[str, ...]
    spare: tuple[str, ...]
    number: Count = 0
    unfinished: tuple[str, ...] = ()
    process: ProcessIdentity | None = None
    folder: Path = Path()

    @property
    def owner(self) -> Path:
        """The folder that everything came from."""
        return self.folder.parent.parent

    def size(self) -> int:
        """Bytes of what is there."""
        return sum(size_of(self.folder / name) for name in self.names)


def set_aside(owner: Path, names: Sequence[str], reason: str, *, spare: Sequence[str] = ()) -> SetAside:
    """Move files and folders aside.

    Args:
        owner (`Path`), names (sequence of `str`), reason (`str`), spare (sequence of `str`, *optional*): see
            [`changing`].

    Raises:
        `InputError`: it cannot be moved, for example from another disk; nothing is moved then.
    """
    with changing(owner, names, reason, spare=spare) as entry:
        return entry


@contextlib.contextmanager
def changing(
    owner: Path,
    names: Sequence[str],
    reason: str,
    *,
    rewritten: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> Iterator[SetAside]:
    """A context before which files and folders are moved aside, and in which others are written in their place.

    If it ends with an error, or the process is killed in it, everything is moved back.

    Args:
        owner (`Path`): the folder of a run.
        names (sequence of `str`): what to move, relative to `owner`.
        reason (`str`): why, in a few words.
        rewritten (sequence of `str`, *optional*): those of `names` that will be written anew.
        spare (sequence of `str`, *optional*): small files to copy, which continue to be written.

    Raises:
        `InputError`: it cannot be moved, for example from another disk; nothing is moved then.
    """
    entry = _new_entry(owner, reason, (*names, *spare), tuple(rewritten), tuple(spare))
    _write(entry, entry.names)
    try:
        for name in entry.names:
            _move_aside(entry, name, is_copied=name in spare)
        sync(entry.folder)
        yield entry
    except BaseException:
        _undo(entry, entry.names)
        raise
    _write(entry)


def _move_aside(entry: SetAside, name: str, *, is_copied: bool) -> None:
    source, target = entry.owner / name, entry.folder / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        check_may_write()
        if is_copied:
            with atomic_file(target) as temporary:  # half a copy would be brought back as the file
                shutil.copy2(source, temporary)
        else:
            os.replace(source, target)
    except OSError as error:
        raise InputError(
            f"{source}: cannot be moved to {entry.folder} ({error.strerror}); make this folder writable and put "
            "it on the disk of the run, or move it away by hand"
        ) from None


def list_set_aside(owner: str | os.PathLike) -> list[SetAside]:
    """What has been moved aside from a folder and is still there, newest first."""
    archives = []
    for path in Path(owner).glob(f"{SET_ASIDE_NAME}/*/{_RECORD_NAME}"):
        entry = _read(path)
        names = (name for name in entry.names if os.path.lexists(entry.folder / name))
        archives.append(replace(entry, names=tuple(names)))
    return sorted(archives, key=lambda entry: (entry.number, entry.folder.name), reverse=True)


def restore(entry: SetAside) -> list[str]:
    """Move files and folders back to where they were, and return the names of those that were moved.

    Args:
        entry ([`SetAside`]): where they are.

    Raises:
        `InputError`: there is something else at the place of one of them; nothing is moved then.
    """
    names = [name for name in entry.names if name not in entry.spare or not os.path.lexists(entry.owner / name)]
    for name in names:
        inside(entry.owner, name, entry.folder / _RECORD_NAME, as_link=True)
        if name not in entry.replaced and os.path.lexists(entry.owner / name):
            raise InputError(
                f"{entry.owner / name}: exists, so the one in {entry.folder} cannot be brought back; move the "
                "existing one away first"
            )
        if name in entry.replaced and not (entry.owner / name).parent.is_dir():
            raise InputError(f"{(entry.owner / name).parent}: no longer there, so its files cannot be brought back")
    _write(entry, names)
    _undo(entry, names)
    return names


def mend(owner: Path, *, locked: bool = False) -> None:
    """Undo what processes that were killed were changing in a folder.

    Args:
        owner (`Path`): the folder of a run.
        locked (`bool`, *optional*, defaults to `False`): whether this process holds the lock of the folder, so that
            nobody else is changing it. Without it, only what a process of this machine that has ended was changing is
            mended.
    """
    places = [owner, owner / SET_ASIDE_NAME, *owner.glob(f"{SET_ASIDE_NAME}/*")]
    for folder in places:
        with contextlib.suppress(OSError):
            tidy(folder)
    for path in owner.glob(f"{SET_ASIDE_NAME}/*/{_RECORD_NAME}"):
        try:
            entry = _read(path)
        except (InputError, OSError):
            continue  # which `list_set_aside` reports
        process = entry.process
        if entry.unfinished and process is not None and (locked or (process.is_here and not process.is_alive_here)):
            _undo(entry, entry.unfinished)
            tops = ", ".join(sorted({name.split("/")[0] for name in entry.unfinished}))
            line = f"{owner}: process {process.process} was killed while it changed {tops}: moved back"
            print(line, file=sys.stderr, flush=True)
    for folder in reversed(places[1:]):
        with contextlib.suppress(OSError):
            folder.rmdir()  # of a process that was killed before it wrote the record, or after it deleted it


def _undo(entry: SetAside, names: Collection[str]) -> None:
    """Move files back, and forget them; several processes may do so at once."""
    for name in sorted(names, key=lambda name: name in entry.replaced):
        source, target = entry.folder / name, entry.owner / name
        with contextlib.suppress(FileNotFoundError):
            if name in entry.spare and os.path.lexists(target):
                source.unlink()
            elif os.path.lexists(source):
                target.parent.mkdir(parents=True, exist_ok=True)
                check_may_write()
                os.replace(source, target)
    for name in names:
        with contextlib.suppress(OSError):
            tidy((entry.owner / name).parent)
            tidy((entry.folder / name).parent)
            (entry.folder / name).parent.rmdir()
    left = tuple(name for name in entry.names if name not in names and os.path.lexists(entry.folder / name))
    with contextlib.suppress(FileNotFoundError):
        sync(entry.owner)
        if left:
            _write(replace(entry, names=left))
        else:
            (entry.folder / _RECORD_NAME).unlink()
    for folder in (entry.folder, entry.folder.parent):
        with contextlib.suppress(OSError):
            folder.rmdir()  # left to `mend` if this process is killed before it


def _read(path: Path) -> SetAside:
    """The record of what is beside it.

    Raises:
        `InputError`: it is none, or names something that is not beside it.
    """
    entry = read_record(path, SetAside, "what is beside it can be moved back by hand")
    for name in {*entry.names, *entry.unfinished}:
        inside(path.parent, name, path, as_link=True)
    return replace(entry, folder=path.parent)


def _write(entry: SetAside, unfinished: Collection[str] = ()) -> None:
    """Write the record; before files are moved, so that a process that is killed leaves nothing without a name."""
    process = this_process() if unfinished else None
    values = asdict(replace(entry, unfinished=tuple(unfinished), process=process))
    del values["folder"]
    write_json(entry.folder / _RECORD_NAME, {"time": time.time(), **values})


def _new_entry(
    owner: Path, reason: str, names: tuple[str, ...], replaced: tuple[str, ...], spare: tuple[str, ...]
) -> SetAside:
    number = 1 + max((entry.number for entry in list_set_aside(owner)), default=0)
    folder = owner / SET_ASIDE_NAME / time.strftime("%Y-%m-%d_%H-%M-%S")
    folder = folder.with_name(f"{folder.name}.{number}") if folder.exists() else folder
    with path_errors(folder):
        folder.mkdir(parents=True)
    return SetAside(reason, names, replaced, spare, number, folder=folder)
