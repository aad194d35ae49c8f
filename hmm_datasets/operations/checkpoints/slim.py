"""Smaller checkpoints: without what only resuming needs, and without storage that no tensor uses.

`torch.save` of a view writes the whole storage that the view looks into, so a checkpoint may be ten times the size of
its tensors. Files of `torch.save` are read as data only (`weights_only`), mapped into memory, and written anew if
their tensors need less than the file has.
"""

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...compat.deepspeed import load_shard
from ...errors import InputError
from ...files import DIGESTS_NAME, atomic_file, digest_problems, read_json, size_of, write_digests, write_json
from ...runtime.run_identity import IDENTITY_NAME
from ...runtime.set_aside import SetAside, changing
from ...training.checkpoints.parts import MEGATRON, resuming_names, weight_names
from ...training.checkpoints.verifying import verify_checkpoint

_SAVED = ("*.pt", "*.pth", "*.bin")
_SMALL = 1_000_000  # smaller files are not looked at
_WORTHWHILE = 0.9  # a file is written anew if it becomes smaller than this share


@dataclass(frozen=True)
class SlimResult:
    """What slimming a checkpoint did.

    Attributes:
        before (`int`), after (`int`): its bytes.
        removed (`tuple[str, ...]`): what only resuming needs, no longer there.
        rewritten (`tuple[str, ...]`): files written anew without unused storage.
        unread (`tuple[str, ...]`): files that have more than data in them, left as they are.
        aside ([`SetAside`], *optional*): where the removed files and the originals of the rewritten ones are.
    """

    before: int
    after: int
    removed: tuple[str, ...]
    rewritten: tuple[str, ...]
    unread: tuple[str, ...]
    aside: SetAside | None


def slim(folder: str | os.PathLike, *, resumable: bool = False, into: SetAside | None = None) -> SlimResult:
    """Make a checkpoint smaller.

    Args:
        folder (path): `checkpoint-N`, or `global_step*` of Megatron-DeepSpeed.
        resumable (`bool`, *optional*, defaults to `False`): keep what resuming needs, and write bloated files anew
            only.
        into ([`SetAside`], *optional*): what was moved aside from others of the run, to which this is added.

    Raises:
        `InputError`: the checkpoint is not complete, its files have changed, or its weights are only in files that
            resuming needs.
    """
    folder = Path(folder) if Path(folder).name else Path(folder).resolve()  # "." has no name
    is_of_megatron = any(folder.glob(MEGATRON))
    problems = (() if is_of_megatron else verify_checkpoint(folder).problems) or digest_problems(folder)
    if problems:
        raise InputError(f"{folder}: {problems[0]}; a damaged checkpoint is not made smaller, prune it instead")
    removed = [] if resumable else resuming_names(folder)
    if removed and not weight_names(folder) and not is_of_megatron:
        raise InputError(
            f"{folder}: its weights are only in the shards that resuming needs; write them to a folder first: "
            f"hmm-datasets checkpoint convert {folder} {folder}-hf --to hf"
        )
    before = size_of(folder)
    bloated, unread = _bloated(folder, removed)
    if not removed and not bloated:
        return SlimResult(before, before, (), (), tuple(unread), None)
    records = [name for name in (IDENTITY_NAME, DIGESTS_NAME) if (folder / name).is_file()]
    rewritten = list(bloated)
    run, prefix = folder.parent, folder.name
    change = changing(
        run,
        [f"{prefix}/{name}" for name in (*removed, *rewritten)],
        "slimmed",
        rewritten=[f"{prefix}/{name}" for name in rewritten],
        copied=[f"{prefix}/{name}" for name in records],
        into=into,
    )
    with change as entry:
        for name, compact in bloated.items():
            with atomic_file(folder / name) as temporary:
                torch.save(compact(entry.folder / prefix / name), temporary)
        if removed:
            _mark(folder / IDENTITY_NAME)
        if DIGESTS_NAME in records:
            write_digests(folder)
    return SlimResult(before, size_of(folder), tuple(removed), tuple(rewritten), tuple(unread), entry)


def _mark(path: Path) -> None:
    """Say in the identity that the checkpoint has no files of ranks any more."""
    if path.is_file():
        identity = read_json(path)
        writer = identity.pop("written_by", None)
        write_json(path, identity if writer is None else identity | {"slimmed_from": writer})


def _bloated(folder: Path, removed: list[str]) -> tuple[dict[str, Callable[[Path], Any]], list[str]]:
    """Files whose tensors need less than they have, with a function that reads the tensors alone; and unread files."""
    bloated, unread = {}, []
    for path in sorted({path for pattern in _SAVED for path in folder.rglob(pattern)}):
        name = path.relative_to(folder).as_posix()
        if name.split("/")[0] in removed or path.stat().st_size < _SMALL:
            continue
        try:
            needed = _bytes_needed(load_shard(path))
        except (InputError, RuntimeError):
            unread.append(name)
            continue
        if needed < _WORTHWHILE * path.stat().st_size:
            bloated[name] = lambda original: _compact(load_shard(original), {})
    return bloated, unread


def _key(tensor: torch.Tensor) -> tuple:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _bytes_needed(content: Any) -> int:
    tensors: dict[tuple, int] = {}
    _visit(content, lambda tensor: tensors.setdefault(_key(tensor), tensor.nbytes))
    return sum(tensors.values())


def _visit(content: Any, look: Callable[[torch.Tensor], Any]) -> None:
    if torch.is_tensor(content):
        look(content)
    elif isinstance(content, dict):
        for value in content.values():
            _visit(value, look)
    elif isinstance(content, list | tuple):
        for value in content:
            _visit(value, look)


def _compact(content: Any, seen: dict[tuple, torch.Tensor]) -> Any:
    """The same content, with each tensor in a storage of its own; equal views stay one tensor."""
    if torch.is_tensor(content):
        return seen.setdefault(_key(content), content.clone(memory_format=torch.contiguous_format))
    if isinstance(content, dict):
        kept = copy.copy(content)  # of the same type, which may be ordered
        for key, value in content.items():
            kept[key] = _compact(value, seen)
        return kept
    if isinstance(content, list):
        return [_compact(value, seen) for value in content]
    if isinstance(content, tuple):
        return tuple(_compact(value, seen) for value in content)
    return content
