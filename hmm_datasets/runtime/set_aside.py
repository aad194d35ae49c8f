"""What leaves a run is moved to `set_aside/DATE/` in its folder, and can be brought back.

Everything keeps its name there, and `set_aside.json` has the reason. The folder is on the disk of the run, so
moving takes neither time nor space; it also frees none, which only deleting does. What was moved later has a larger
number in `set_aside.json`, whatever the clock showed.

A change is recorded in `set_aside.json` before it begins. If the process is killed in between, the next one that takes
the lock of the folder, or that only reads it once the killed process is known to have ended, undoes it, or deletes the
rest of what was being deleted ([`mend`]). So a checkpoint is never left half changed.
"""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..errors import InputError
from ..files import atomic_file, check_may_write, inside, name_to_delete, size_of, sync, tidy, write_json
from ..records import Count, read_record
from .process_identity import ProcessIdentity, this_process

SET_ASIDE_NAME = "set_aside"
_RECORD_NAME = "set_aside.json"


@dataclass(frozen=True)
class SetAside:
    """What was moved aside at one time.

    Attributes:
        folder (`Path`): `set_aside/DATE`.
        reason (`str`): why, in a few words.
        names (`tuple[str, ...]`): what is there, by its name relative to the folder that it came from.
        replaced (`tuple[str, ...]`): those of `names` that have been written anew since, so that bringing them back
            replaces files.
        spare (`tuple[str, ...]`): those of `names` that are brought back only if there are no others at their place.
        number (`int`): larger for what was moved later.
    """

    folder: Path
    reason: str
    names: tuple[str, ...]
    replaced: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    number: int = 0

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
        pass
    return entry


@contextlib.contextmanager
def changing(
    owner: Path,
    names: Sequence[str],
    reason: str,
    *,
    rewritten: Sequence[str] = (),
    copied: Sequence[str] = (),
    spare: Sequence[str] = (),
    into: SetAside | None = None,
) -> Iterator[SetAside]:
    """A context before which files and folders are moved aside, and in which others are written in their place.

    If it ends with an error, or the process is killed in it, everything is moved back.

    Args:
        owner (`Path`): the folder of a run.
        names (sequence of `str`): what to move, relative to `owner`.
        reason (`str`): why, in a few words.
        rewritten (sequence of `str`, *optional*): those of `names` that will be written anew.
        copied (sequence of `str`, *optional*): small files to copy, which will be written anew too.
        spare (sequence of `str`, *optional*): small files to copy, which continue to be written.
        into ([`SetAside`], *optional*): what was moved aside just before, to which this is added.

    Raises:
        `InputError`: it cannot be moved, for example from another disk; nothing is moved then.
    """
    before = into or _new_entry(owner, reason)
    new = (*names, *copied, *spare)
    entry = replace(
        before,
        names=(*before.names, *new),
        replaced=(*before.replaced, *rewritten, *copied),
        spare=(*before.spare, *spare),
    )
    _write(entry, unfinished=new)
    try:
        for name in new:
            _move_aside(entry, name, is_copied=name in copied or name in spare)
        sync(entry.folder)
        yield entry
    except BaseException:
        _undo(entry, new)
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
        entry = _read(path).entry(path)
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
    _write(entry, unfinished=names)
    _undo(entry, names)
    return names


def delete_set_aside(entry: SetAside) -> None:
    """Delete what was moved aside, which frees its space."""
    _write(entry, deleting=entry.names)
    _delete(entry, entry.names)


def _remove(path: Path) -> None:
    """Delete a file or a folder; it disappears at once, so that a killed process leaves no half of it.

    What a killed process has left of it is deleted by the next one that writes beside it.

    Raises:
        `InputError`: it cannot be deleted.
    """
    hidden = name_to_delete(path)
    check_may_write()
    try:
        os.replace(path, hidden)
        if hidden.is_dir() and not hidden.is_symlink():
            shutil.rmtree(hidden)
        else:
            hidden.unlink()
    except OSError as error:
        raise InputError(f"{path}: cannot be deleted ({error.strerror}); make its folder writable") from None


def mend(owner: Path, *, locked: bool = False) -> None:
    """Undo or finish what processes that were killed were changing in a folder.

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
    for folder in places[:1:-1]:
        path = folder / _RECORD_NAME
        try:
            record = _read(path)
            entry, process = record.entry(path), record.process
        except (InputError, OSError):
            continue  # which `list_set_aside` reports
        if process is not None and (locked or (process.is_here and not process.is_alive_here)):
            if record.unfinished:
                _undo(entry, record.unfinished)
            else:
                _delete(entry, record.deleting)
            tops = ", ".join(sorted({name.split("/")[0] for name in (*record.unfinished, *record.deleting)}))
            what = "moved back" if record.unfinished else "deleted"
            line = f"{owner}: process {process.process} was killed while it changed {tops}: {what}"
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
    with contextlib.suppress(FileNotFoundError):
        sync(entry.owner)
        _forget(entry, names)


def _delete(entry: SetAside, names: Collection[str]) -> None:
    for name in names:
        if os.path.lexists(entry.folder / name):
            _remove(entry.folder / name)
    with contextlib.suppress(FileNotFoundError):
        _forget(entry, names)


def _forget(entry: SetAside, names: Collection[str]) -> None:
    """Write the record without some names, or delete what has none left."""
    left = tuple(name for name in entry.names if name not in names and os.path.lexists(entry.folder / name))
    if left:
        _write(replace(entry, names=left))
        return
    _remove(entry.folder)
    with contextlib.suppress(OSError):
        entry.folder.parent.rmdir()


@dataclass(frozen=True)
class _Record:
    """`set_aside.json`: the values of a [`SetAside`], and what `process` has begun to move back or to delete."""

    reason: str
    names: tuple[str, ...]
    replaced: tuple[str, ...]
    spare: tuple[str, ...]
    number: Count = 0
    unfinished: tuple[str, ...] = ()
    deleting: tuple[str, ...] = ()
    process: ProcessIdentity | None = None

    def entry(self, path: Path) -> SetAside:
        """What it describes; `path` is its own.

        Raises:
            `InputError`: a name is not of something beside it.
        """
        for name in {*self.names, *self.unfinished, *self.deleting}:
            inside(path.parent, name, path, as_link=True)
        return SetAside(path.parent, self.reason, self.names, self.replaced, self.spare, self.number)


def _read(path: Path) -> _Record:
    return read_record(path, _Record, "what is beside it can be moved back by hand")


def _write(entry: SetAside, *, unfinished: Collection[str] = (), deleting: Collection[str] = ()) -> None:
    """Write the record; before files are moved, so that a process that is killed leaves nothing without a name."""
    values = (entry.reason, entry.names, entry.replaced, entry.spare, entry.number)
    process = this_process() if unfinished or deleting else None
    record = _Record(*values, unfinished=tuple(unfinished), deleting=tuple(deleting), process=process)
    write_json(entry.folder / _RECORD_NAME, {"time": time.time(), **asdict(record)})


def _new_entry(owner: Path, reason: str) -> SetAside:
    number = 1 + max((entry.number for entry in list_set_aside(owner)), default=0)
    date = time.strftime("%Y-%m-%d_%H-%M-%S")
    for suffix in ("", *(f".{number}" for number in range(2, 1000))):
        folder = owner / SET_ASIDE_NAME / (date + suffix)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise InputError(f"{folder}: cannot be made ({error.strerror}); make {owner} writable") from None
        return SetAside(folder, reason, (), number=number)
    raise InputError(f"{owner / SET_ASIDE_NAME}: has a thousand folders of this second; try again")
