"""The subcommands for the checkpoints of a run."""

import json
import sys
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import ClassVar, Literal

from ..display import format_bytes
from ..errors import InputError
from ..files import size_of
from ..report.tables import text_table
from ..runtime.lock import exclusive_lock
from ..runtime.set_aside import SetAside, delete_set_aside, list_set_aside, restore, set_aside
from ..runtime.setting_rules import Void
from ..runtime.settings import argument, option
from ..training.checkpoints.parts import MEGATRON, resuming_names
from ..training.checkpoints.verifying import LARGE_RATIO, good_checkpoints


@dataclass(frozen=True, kw_only=True)
class CheckpointListCommand:
    """List the checkpoints of a run: sizes, who wrote them, loss, whether they are complete."""

    path: Path = argument("RUN", "output folder of a run")
    json: bool = option(False, None, "JSON instead of a table")


def list_command(arguments: CheckpointListCommand) -> int:
    """Print the checkpoints of a run."""
    from ..operations.checkpoints.listing import HEADER, list_run

    infos = list_run(arguments.path)
    if arguments.json:
        print(json.dumps([info.to_dict() for info in infos], indent=2))
        return 0
    print(text_table(HEADER, [info.cells() for info in infos]))
    for info in (info for info in infos if info.set_aside is None):
        for problem in info.problems:
            print(f"{Path(info.folder).name}: {problem}")
        if info.ratio is not None and info.ratio > LARGE_RATIO:
            what = "large; if tensors are stored with more than they use, this writes it anew"
            print(f"{Path(info.folder).name}: {what}: hmm-datasets checkpoint slim {info.folder}")
    entries = list_set_aside(arguments.path)
    for entry in entries:
        print(f"set aside {entry.folder.name}: {_listed(entry.names)}: {format_bytes(entry.size())}, {entry.reason}")
    if entries:
        print(f"bring back: hmm-datasets checkpoint restore {arguments.path} DATE")
    return 0


@dataclass(frozen=True, kw_only=True)
class CheckpointConvertCommand:
    """Write a checkpoint for another framework, or as a model, on the CPU."""

    path: Path = argument(
        "CHECKPOINT", "checkpoint-N of a run; with hf also a GGUF file, or global_step* of Megatron-DeepSpeed"
    )
    destination: Path = argument("DEST", "folder of a new run; with hf, folder of the model")
    to: Literal["hf", "plain", "zero", "fsdp"] = option(
        MISSING,
        None,
        "hf: a model for from_pretrained; plain: one process or DDP; zero: DeepSpeed ZeRO of any stage; fsdp",
    )


def convert_command(arguments: CheckpointConvertCommand) -> int:
    """Write a checkpoint for another framework."""
    from ..operations.checkpoints.convert import convert

    written = convert(arguments.path, arguments.destination, arguments.to)
    print(f"{written}: {format_bytes(size_of(written))}")
    if arguments.to == "hf" and not (written / "tokenizer_config.json").is_file():
        print(f"{written}: has no tokenizer, since the checkpoint has none; copy one there if the model reads text")
    if arguments.to != "hf":
        print(f"continue with the settings of the run and --output_dir {written.parent}")
    return 0


@dataclass(frozen=True, kw_only=True)
class CheckpointSlimCommand:
    """Remove what only resuming needs, and storage that no tensor uses."""

    path: Path = argument(
        "RUN|CHECKPOINT", "output folder of a run, one checkpoint-N, or global_step* of Megatron-DeepSpeed"
    )
    keep_newest: int | None = option(None, "N", "leave the newest N resumable, default 1; 0 for none")

    voids = (Void("keep_newest", "if path is a checkpoint"),)
    void_facts: ClassVar = {"path is a checkpoint": lambda get: not _is_run(get("path"))}


def _is_run(path: Path) -> bool:
    return not path.resolve().name.startswith("checkpoint-") and not any(path.glob(MEGATRON))


def slim_command(arguments: CheckpointSlimCommand) -> int:
    """Make the checkpoints of a run, or one checkpoint, smaller."""
    from ..operations.checkpoints.slim import slim

    path = arguments.path
    is_run = _is_run(path)
    keep = 1 if arguments.keep_newest is None else arguments.keep_newest
    if not path.is_dir():
        raise InputError(f"{path}: no such folder")
    with exclusive_lock(path if is_run else path.resolve().parent):
        folders = list(good_checkpoints(path)) if is_run else [path]
        if not folders:
            raise InputError(
                f"{path}: has no complete checkpoint-N; hmm-datasets checkpoint list {path} prints what it has"
            )
        resumable = [folder for folder in folders if resuming_names(folder)][:keep] if is_run else []
        saved, kept = 0, None
        for folder in folders:
            done = slim(folder, resumable=folder in resumable, into=kept)
            saved += done.before - done.after
            kept = done.aside or kept
            parts = [
                *(f"without {name}" for name in done.removed),
                *(f"{name} written anew" for name in done.rewritten),
            ]
            print(
                f"{folder}: {done.before:,} bytes before, {done.after:,} after"
                + (f" ({', '.join(parts)})" if parts else " (as it was)")
            )
            for name in done.unread:
                print(f"{folder / name}: has more than data in it, so it is left as it is")
    print(f"{format_bytes(saved)} less" if saved else "nothing to remove")
    if kept is not None:
        _print_kept(kept)
    return 0


@dataclass(frozen=True, kw_only=True)
class CheckpointPruneCommand:
    """Move old checkpoints of a run aside, and with --delete, delete what has been moved aside."""

    path: Path = argument("RUN", "output folder of a run")
    keep: int | None = option(None, "N", "keep the newest N complete checkpoints", least=1)
    every: int | None = option(None, "STEPS", "keep those whose step is a multiple of this, too", least=1)
    delete: bool = option(False, None, "delete what is in set_aside/, which frees space")
    yes: bool = option(False, None, "do not ask")

    voids = (
        Void("every", "without keep"),
        Void("yes", "without delete"),
    )


def prune_command(arguments: CheckpointPruneCommand) -> int:
    """Move checkpoints aside, or delete what has been moved aside."""
    from ..operations.checkpoints.prune import checkpoints_to_prune

    run = arguments.path
    if not run.is_dir():
        raise InputError(f"{run}: no such folder")
    if arguments.keep is None and not arguments.delete:
        raise InputError("prune: give --keep N, the number of newest checkpoints to keep")
    with exclusive_lock(run):
        if arguments.keep is not None:
            pruned = checkpoints_to_prune(run, arguments.keep, arguments.every)
            names = [Path(info.folder).name for info in pruned]
            if names:
                entry = set_aside(run, names, "pruned")
                print(f"{run}: moved {_listed(names)} to {entry.folder}")
                _print_kept(entry)
            else:
                print(f"{run}: nothing to prune")
        if arguments.delete:
            _delete_set_aside(run, arguments.yes)
    return 0


def _delete_set_aside(run: Path, yes: bool) -> None:
    """Print what is set aside, ask, and delete it.

    Raises:
        `InputError`: nothing is, nobody can be asked, or the answer is not yes.
    """
    entries = list_set_aside(run)
    if not entries:
        raise InputError(f"{run}: nothing is set aside; with --keep N, old checkpoints are pruned")
    size = sum(entry.size() for entry in entries)
    lines = [f"  {entry.folder}: {_listed(entry.names)}" for entry in entries]
    print("\n".join(["delete:", *lines, f"  {size:,} bytes"]), flush=True)
    if not yes and not sys.stdin.isatty():
        raise InputError("nothing is deleted: there is no terminal to ask at; add --yes")
    if not yes and input("delete this for ever? [yes/no] ").strip().lower() not in ("y", "yes"):
        raise InputError("nothing is deleted")
    for entry in entries:
        delete_set_aside(entry)
    print(f"{run}: {format_bytes(size)} freed")


@dataclass(frozen=True, kw_only=True)
class CheckpointRestoreCommand:
    """Bring back what has been moved aside from a run."""

    path: Path = argument("RUN", "output folder of the run")
    date: str | None = argument("DATE", "name of a folder in set_aside/, default the newest", default=None)


def restore_command(arguments: CheckpointRestoreCommand) -> int:
    """Bring back what has been moved aside."""
    run = arguments.path
    if not run.is_dir():
        raise InputError(f"{run}: no such folder")
    with exclusive_lock(run):
        entries = list_set_aside(run)
        if not entries:
            raise InputError(f"{run}: nothing is set aside from it, so nothing can be brought back")
        chosen = [entry for entry in entries if arguments.date in (None, entry.folder.name)]
        if not chosen:
            dates = ", ".join(entry.folder.name for entry in entries)
            raise InputError(f"{arguments.date}: nothing was set aside then; give one of {dates}")
        moved = restore(chosen[0])
        print(f"{run}: brought back {_listed(moved) or 'nothing'} from {chosen[0].folder}")
    return 0


def _print_kept(entry: SetAside) -> None:
    run = entry.owner
    print(
        f"{format_bytes(entry.size())} are set aside and stay on the disk; bring back: hmm-datasets checkpoint "
        f"restore {run} {entry.folder.name}; free the space: hmm-datasets checkpoint prune {run} --delete"
    )


def _listed(names: Sequence[str]) -> str:
    names = sorted({name.split("/")[0] for name in names})
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
