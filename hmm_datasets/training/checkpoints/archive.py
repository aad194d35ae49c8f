"""What leaves a run is moved to `set_aside/DATE/` in its folder, and can be brought back.

Everything keeps its name there, and `set_aside.json` says why it was moved. The folder is on the disk of the run, so
moving takes neither time nor space; it also frees none, which only deleting does. A whole run is moved to `set_aside/`
beside it.

The checkpoints that a start of a run leaves behind, moved aside before the first step.

A run continues from the newest whole checkpoint that its budget allows, or from none with `resume: false`. Those of
later steps are damaged, or belong to a course that the run now leaves. Left in place they would count as the newest
ones: `save_total_limit` would keep them and delete the new ones, and the next start would continue from them.
"""

import os
import secrets
import shutil
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError
from ...files import inside, read_json, size_of, sync, write_json
from ..callbacks import SAMPLES_NAME
from ..record import HISTORY_NAME, RECORD_NAME
from .resuming import Start
from .verifying import list_steps, verify_checkpoint

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
    """

    folder: Path
    reason: str
    names: tuple[str, ...]
    replaced: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()

    @property
    def owner(self) -> Path:
        """The folder that everything came from."""
        return self.folder.parent.parent

    def size(self, names: Iterable[str] | None = None) -> int:
        """Bytes of what is there, or of some of it."""
        return sum(size_of(self.folder / name) for name in (self.names if names is None else names))


def set_aside(
    owner: Path,
    names: Sequence[str],
    reason: str,
    *,
    rewritten: Sequence[str] = (),
    copied: Sequence[str] = (),
    spare: Sequence[str] = (),
    into: SetAside | None = None,
) -> SetAside:
    """Move files and folders aside.

    Args:
        owner (`Path`): the folder of a run, or the one that runs are in.
        names (sequence of `str`): what to move, relative to `owner`.
        reason (`str`): why, in a few words.
        rewritten (sequence of `str`, *optional*): those of `names` that will be written anew.
        copied (sequence of `str`, *optional*): small files to copy, which will be written anew too.
        spare (sequence of `str`, *optional*): small files to copy, which continue to be written.
        into ([`SetAside`], *optional*): what was moved aside just before, to which this is added.

    Raises:
        `InputError`: it cannot be moved, for example from another disk.
    """
    before = into or SetAside(_new_folder(owner), reason, ())
    folder, new = before.folder, (*names, *copied, *spare)
    entry = SetAside(
        folder,
        reason,
        (*before.names, *new),
        (*before.replaced, *rewritten, *copied),
        (*before.spare, *spare),
    )
    # Written first, so that a process that is killed in between leaves nothing without a name.
    record = {"reason": reason, "time": time.time(), "names": list(entry.names)}
    record |= {"replaced": list(entry.replaced), "spare": list(entry.spare)}
    write_json(folder / _RECORD_NAME, record)
    for name in new:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            if name in copied or name in spare:
                shutil.copy2(owner / name, target)
            else:
                os.replace(owner / name, target)
        except OSError as error:
            raise InputError(
                f"{owner / name}: cannot be moved to {folder} ({error.strerror}); make this folder writable and put "
                "it on the disk of the run, or move it away by hand"
            ) from None
    sync(folder)
    return entry


def list_set_aside(owner: str | os.PathLike) -> list[SetAside]:
    """What has been moved aside from a folder and is still there, newest first."""
    found = []
    for path in sorted(Path(owner).glob(f"{SET_ASIDE_NAME}/*/{_RECORD_NAME}"), reverse=True):
        record = read_json(path)
        try:
            names, *kinds = (tuple(record[kind]) for kind in ("names", "replaced", "spare"))
            names = tuple(name for name in names if os.path.lexists(inside(path.parent, name, path, as_link=True)))
            found.append(SetAside(path.parent, record["reason"], names, *kinds))
        except (KeyError, TypeError):
            raise InputError(f"{path}: has no names and reason; what is beside it can be moved back by hand") from None
    return found


def restore(entry: SetAside, names: Collection[str]) -> list[str]:
    """Move files and folders back to where they were, and return the names of those that were moved.

    Args:
        entry ([`SetAside`]): where they are.
        names (collection of `str`): some of `entry.names`.

    Raises:
        `InputError`: there is something else at the place of one of them; nothing is moved then.
    """
    names = [name for name in names if name not in entry.spare or not os.path.lexists(entry.owner / name)]
    for name in names:
        inside(entry.owner, name, entry.folder / _RECORD_NAME, as_link=True)
        if name not in entry.replaced and os.path.lexists(entry.owner / name):
            raise InputError(
                f"{entry.owner / name}: exists, so the one in {entry.folder} cannot be brought back; move the "
                "existing one away first"
            )
        if name in entry.replaced and not (entry.owner / name).parent.is_dir():
            raise InputError(f"{(entry.owner / name).parent}: no longer there, so its files cannot be brought back")
    for name in sorted(names, key=lambda name: name in entry.replaced):
        (entry.owner / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(entry.folder / name, entry.owner / name)
    sync(entry.owner)
    _remove_if_empty(entry)
    return names


def delete_set_aside(entry: SetAside, names: Collection[str]) -> None:
    """Delete some of what was moved aside, which frees its space."""
    for name in names:
        delete(entry.folder / name)
    _remove_if_empty(entry)


def delete(path: Path) -> None:
    """Delete a file or a folder; it disappears at once, so that a killed process leaves no half of it.

    Raises:
        `InputError`: it cannot be deleted.
    """
    hidden = path.with_name(f".deleted.{secrets.token_hex(4)}")
    try:
        os.replace(path, hidden)
        if hidden.is_dir() and not hidden.is_symlink():
            shutil.rmtree(hidden)
        else:
            hidden.unlink()
    except OSError as error:
        raise InputError(f"{path}: cannot be deleted ({error.strerror}); make its folder writable") from None


def _new_folder(owner: Path) -> Path:
    date = time.strftime("%Y-%m-%d_%H-%M-%S")
    for suffix in ("", *(f".{number}" for number in range(2, 1000))):
        folder = owner / SET_ASIDE_NAME / (date + suffix)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise InputError(f"{folder}: cannot be made ({error.strerror}); make {owner} writable") from None
        return folder
    raise InputError(f"{owner / SET_ASIDE_NAME}: has a thousand folders of this second; try again")


def _remove_if_empty(entry: SetAside) -> None:
    if any(os.path.lexists(entry.folder / name) for name in entry.names):
        return
    shutil.rmtree(entry.folder)
    if not any(entry.folder.parent.iterdir()):
        entry.folder.parent.rmdir()


# What tells of a run or is its result; other files in the folder may be its data.
_RUN_FILES = (
    *(RECORD_NAME, "identity.json", "plan.json", "summary.json", HISTORY_NAME, SAMPLES_NAME),
    *("digests.json", "*.safetensors", "*.safetensors.index.json", "plots"),
)


def set_later_aside(run: Path, start: Start | None) -> SetAside | None:
    """Move aside the checkpoints after the one that a run starts from; without one, all that the run before left.

    Args:
        run (`Path`): folder of the run.
        start ([`Start`], *optional*): the checkpoint that the run continues from.

    Returns:
        [`SetAside`], or None if there was nothing to move.
    """
    if not run.is_dir():
        return None
    later = [f"checkpoint-{step}" for step in list_steps(run) if start is None or step > start.step]
    own = None if start is None else run / start.folder.name
    if own is not None and own.is_dir() and own.resolve() != start.folder.resolve() and not verify_checkpoint(own).ok:
        later.append(own.name)  # its copy in the other place is whole
    spare = []
    if start is not None:
        # The run forgets the rows of later steps.
        spare = [name for name in (HISTORY_NAME, SAMPLES_NAME) if (run / name).is_file()]
        reason = f"not continued from, since the run continues from {start.folder.name}"
    else:
        reason = "of the run before, since this one starts anew"
        if later or (run / "summary.json").exists():
            later += sorted({path.name for pattern in _RUN_FILES for path in run.glob(pattern)})
    return set_aside(run, later, reason, spare=spare) if later else None
