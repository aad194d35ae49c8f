"""The subcommands for the checkpoints of a run."""

import json
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass
from pathlib import Path
from typing import Literal

from ..display import format_bytes
from ..errors import InputError
from ..files import size_of
from ..operations.checkpoints.slim import checkpoints_to_prune, slim
from ..report.tables import text_table
from ..runtime.lock import exclusive_lock
from ..runtime.set_aside import list_set_aside, restore
from ..runtime.setting_rules import Void
from ..runtime.settings import argument, option
from ..training.checkpoints.inspection import good_checkpoints
from ..training.checkpoints.parts import resuming_names


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
        print(json.dumps([asdict(info) for info in infos], indent=2))
        return 0
    print(text_table(HEADER, [info.cells() for info in infos]))
    for info in infos:
        for problem in info.problems:
            print(f"{Path(info.folder).name}: {problem}")
    entries = list_set_aside(arguments.path)
    for entry in entries:
        print(f"set aside {entry.folder.name}: {_listed(entry.names)}: {format_bytes(entry.size())}, {entry.reason}")
    if entries:
        print(f"bring back: hmm-datasets checkpoint restore {arguments.path}")
    return 0


@dataclass(frozen=True, kw_only=True)
class CheckpointConvertCommand:
    """Write a checkpoint for another framework, or as a model, on the CPU."""

    path: Path = argument("CHECKPOINT", "checkpoint-N of a run; with hf also global_step* of Megatron-DeepSpeed")
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
    """Remove what only resuming needs and, with --keep, old checkpoints."""

    path: Path = argument("RUN", "output folder of a run")
    keep: int | None = option(None, "N", "keep the newest N complete checkpoints, and no others", least=1)
    every: int | None = option(None, "STEPS", "keep those whose step is a multiple of this, too", least=1)
    keep_newest: int | None = option(None, "N", "leave the newest N resumable, default 1; 0 for none")

    voids = (Void("every", "without keep"),)


def slim_command(arguments: CheckpointSlimCommand) -> int:
    """Make the checkpoints of a run fewer and smaller."""
    path = arguments.path
    if not path.is_dir():
        raise InputError(f"{path}: no such folder")
    with exclusive_lock(path):
        pruned = [] if arguments.keep is None else checkpoints_to_prune(path, arguments.keep, arguments.every)
        folders = [each for each in good_checkpoints(path) if each not in pruned]
        if not folders:
            raise InputError(
                f"{path}: has no complete checkpoint-N; hmm-datasets checkpoint list {path} prints what it has"
            )
        count = 1 if arguments.keep_newest is None else arguments.keep_newest
        resumable = [each for each in folders if resuming_names(each)][:count]
        results, aside = slim(folders, resumable=resumable, pruned=pruned)
    for result in results:
        parts = [f"without {name}" for name in result.removed]
        print(
            f"{result.folder}: {result.before:,} bytes before, {result.after:,} after"
            + (f" ({', '.join(parts)})" if parts else " (as it was)")
        )
    for each in pruned:
        print(f"{each}: moved aside")
    if aside is None:
        print("nothing to remove")
    else:
        print(
            f"{format_bytes(aside.size())} are set aside and stay on the disk; bring back: hmm-datasets checkpoint "
            f"restore {aside.owner}; to free the space, delete {aside.folder}"
        )
    return 0


@dataclass(frozen=True, kw_only=True)
class CheckpointRestoreCommand:
    """Bring back what has been moved aside last from a run; each further call brings back what was moved before."""

    path: Path = argument("RUN", "output folder of the run")


def restore_command(arguments: CheckpointRestoreCommand) -> int:
    """Bring back what has been moved aside."""
    run = arguments.path
    if not run.is_dir():
        raise InputError(f"{run}: no such folder")
    with exclusive_lock(run):
        entries = list_set_aside(run)
        if not entries:
            raise InputError(f"{run}: nothing is set aside from it, so nothing can be brought back")
        moved = restore(entries[0])
        print(f"{run}: brought back {_listed(moved) or 'nothing'} from {entries[0].folder}")
    return 0


def _listed(names: Sequence[str]) -> str:
    names = sorted({name.split("/")[0] for name in names})
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
