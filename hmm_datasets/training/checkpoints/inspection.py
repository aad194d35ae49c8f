"""Checking whether a Trainer's checkpoint is whole, from file sizes and headers alone.

The header of a safetensors file says where its last tensor ends, so a truncated file is recognized by its length. The
files of `torch.save` are zip archives with a directory at the end, which a truncated file lacks. JSON must parse. No
tensor is read and no pickle is opened, so a checkpoint of any size costs a few reads per file, and a malicious one
runs no code.
"""

import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ...errors import InputError, path_errors
from ...files import inside, missing_files, read_json, restore_all
from ...foreign.tensors import tensor_names
from ...records import as_record
from ...runtime.run_identity import IDENTITY_NAME
from ...runtime.run_records import CheckpointState
from ...runtime.set_aside import mend
from .frameworks import FRAMEWORKS
from .parts import STATE_NAME, UNIVERSAL_NAME


@dataclass(frozen=True)
class Writer:
    """`written_by` of a checkpoint's identity, which that of another program does not have.

    Attributes:
        framework (`str`): what sharded the model, one of [`FRAMEWORKS`], with the stage of ZeRO.
        processes (`int`): number of processes.
    """

    framework: str = FRAMEWORKS["plain"]
    processes: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 1


@dataclass(frozen=True)
class WeightIndex:
    """`model.safetensors.index.json`: the file of each tensor, by its name."""

    weight_map: dict[str, str]


@dataclass(frozen=True)
class CheckpointReport:
    """What was found in a checkpoint.

    Attributes:
        folder (`Path`): `checkpoint-N`.
        step (`int`): `N`.
        problems (`tuple[str, ...]`): why it cannot be resumed from; empty if it can.
        tensor_bytes (`int`): sum over the tensors in safetensors files.
        total_bytes (`int`): sum over all files.
    """

    folder: Path
    step: int
    problems: tuple[str, ...]
    tensor_bytes: int
    total_bytes: int

    @property
    def ok(self) -> bool:
        """Whether nothing is truncated or missing."""
        return not self.problems


@dataclass(frozen=True)
class ZeroShards:
    """How a DeepSpeed checkpoint is divided into shards.

    Attributes:
        folder (`Path`): where the shards are.
        ranks (`int`): number of shards of the optimizer's state.
    """

    folder: Path
    ranks: int


def verify_checkpoint(folder: str | os.PathLike) -> CheckpointReport:
    """Check one `checkpoint-N` folder.

    Weights are looked for in safetensors files, in a DeepSpeed folder named by `latest`, and in FSDP's
    `pytorch_model_fsdp_*`. For DeepSpeed and FSDP it is only checked that the files exist and are not truncated.

    Args:
        folder (path): the folder.

    Returns:
        [`CheckpointReport`].

    Raises:
        `InputError`: no such folder, or its name is not `checkpoint-N`.
    """
    folder = Path(folder)
    step = _step(folder)
    if step is None:
        raise InputError(f"{folder}: not named checkpoint-N, as the Trainer names them")
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    problems, tensor_bytes, total_bytes = [], 0, 0
    tensors: dict[str, set[str]] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        total_bytes += path.stat().st_size
        try:
            if path.suffix == ".safetensors":
                names, num_bytes = tensor_names(path)
                tensors[name] = set(names)
                tensor_bytes += num_bytes
            elif path.suffix in (".pt", ".pth", ".bin"):
                _check_archive(path)
            elif path.suffix == ".json":
                read_json(path)
        except (InputError, ValueError, OSError) as error:
            message = str(error).removeprefix(f"{path}: ")
            problems.append(f"{name}: {message}")
    problems += _index_problems(folder, tensors) + _state_problems(folder, step)
    universal = shards = None
    missing: list[str] = []
    try:
        universal, shards = universal_folder(folder), zero_shards(folder)
        missing = missing_files(folder)
    except InputError as error:
        problems.append(str(error))
    problems += _rank_problems(folder, shards)
    if universal is not None and not (universal / "zero" / "optimizer_state.pt").is_file():
        problems.append(f"{UNIVERSAL_NAME}: names {universal.name}, which has no optimizer state")
    if not any(folder.rglob("*.safetensors")) and not _sharded_weights(folder, shards):
        problems.append("no weights: neither *.safetensors nor a DeepSpeed or FSDP folder of shards")
    problems += missing
    return CheckpointReport(folder, step, tuple(problems), tensor_bytes, total_bytes)


def list_checkpoints(output_dir: str | os.PathLike) -> list[CheckpointReport]:
    """Check every `checkpoint-N` in a folder, newest first.

    Raises:
        `InputError`: no such folder.
    """
    reports = []
    for path in _folders(output_dir):
        try:
            reports.append(verify_checkpoint(path))
        except (FileNotFoundError, InputError):
            if path.is_dir():
                raise
            # The run is running, and has just deleted it.
    return reports


def list_steps(output_dir: str | os.PathLike) -> list[int]:
    """The steps of all checkpoints in a folder, newest first, whether they are whole or not.

    Raises:
        `InputError`: no such folder.
    """
    return [_step(path) for path in _folders(output_dir)]


def good_checkpoints(output_dir: str | os.PathLike) -> Iterator[Path]:
    """The whole checkpoints in a folder, newest first; each is checked when the iterator reaches it.

    Raises:
        `InputError`: no such folder.
    """
    return (path for path in _folders(output_dir) if verify_checkpoint(path).ok)


def optimizer_checkpoint(path: str | os.PathLike) -> Path:
    """A checkpoint with an optimizer state: the folder itself, or the newest whole checkpoint of a run.

    Raises:
        `InputError`: there is none.
    """

    folder = Path(path)
    if folder.is_dir():
        checkpoint = next(filter(has_optimizer, [folder, *good_checkpoints(folder)]), None)
        if checkpoint is not None:
            return checkpoint
    raise InputError(f"{path}: has no checkpoint with an optimizer state; name a run with checkpoints, or one of them")


def has_optimizer(folder: str | os.PathLike) -> bool:
    """Whether a checkpoint has the state of an optimizer, in the files of any framework."""
    has_shards = zero_shards(folder) is not None or universal_folder(folder) is not None
    return has_shards or any(Path(folder).glob("optimizer*"))


def universal_folder(folder: str | os.PathLike) -> Path | None:
    """The part of a checkpoint that is in DeepSpeed's universal format; `None` if there is none."""
    latest = Path(folder) / UNIVERSAL_NAME
    return _named_in(latest) if latest.is_file() else None


def zero_shards(folder: str | os.PathLike) -> ZeroShards | None:
    """How a DeepSpeed checkpoint is divided, from the names of its files; `None` for any other checkpoint."""
    latest = Path(folder) / "latest"
    if not latest.is_file():
        return None
    shards = _named_in(latest)
    return ZeroShards(shards, ranks=len(list(shards.glob("*zero_pp_rank_*_optim_states.pt"))))


def _named_in(path: Path) -> Path:
    """The folder beside a file of one line, which has its name."""
    return inside(path.parent, path.read_bytes().decode("utf-8", "backslashreplace").strip(), path)


def _step(folder: Path) -> int | None:
    match = re.fullmatch(r"checkpoint-(\d+)", folder.resolve().name)
    return int(match[1]) if match else None


def _folders(output_dir: str | os.PathLike) -> list[Path]:
    output_dir = Path(output_dir)
    with path_errors(output_dir):
        is_there = output_dir.is_dir()
    if not is_there:
        raise InputError(f"{output_dir}: no such folder")
    restore_all(output_dir)
    mend(output_dir)
    folders = [path for path in output_dir.iterdir() if path.is_dir() and _step(path) is not None]
    return sorted(folders, key=_step, reverse=True)


def _check_archive(path: Path) -> None:
    with path.open("rb") as file:
        begins_as_zip = file.read(2) == b"PK"
    # Files written before torch 1.6 are bare pickles, which cannot be checked without opening them.
    try:
        is_whole = path.stat().st_size > 0 and (not begins_as_zip or zipfile.is_zipfile(path))
    except zipfile.BadZipFile as error:
        raise InputError(f"the directory at the end of the archive is damaged ({error})") from None
    if not is_whole:
        raise InputError("the archive has no directory at its end; the file is truncated")


def _index_problems(folder: Path, tensors: dict[str, set[str]]) -> list[str]:
    problems = []
    for path in sorted(folder.rglob("*.safetensors.index.json")):
        name = path.relative_to(folder).as_posix()
        try:
            weight_map = as_record(read_json(path), WeightIndex, name).weight_map
            shards = {shard: inside(path.parent, shard, name) for shard in sorted(set(weight_map.values()))}
        except InputError as error:
            problems.append(str(error).removeprefix(f"{folder}/"))
            continue
        for shard, shard_path in shards.items():
            shard_name = shard_path.relative_to(folder).as_posix()
            if not (folder / shard_name).is_file():
                problems.append(f"{shard_name}: missing, but {name} lists it")
            elif shard_name in tensors:
                lost = {key for key, value in weight_map.items() if value == shard} - tensors[shard_name]
                if lost:
                    problems.append(f"{shard_name}: has no {min(lost)}, which {name} lists")
    return problems


def _state_problems(folder: Path, step: int) -> list[str]:
    path = folder / STATE_NAME
    if not path.is_file():
        return [f"{STATE_NAME}: missing"]
    try:
        saved_step = as_record(read_json(path), CheckpointState, STATE_NAME).global_step
    except InputError as error:
        return [str(error)] if str(error).startswith(STATE_NAME) else []  # else already reported as no JSON
    return [] if saved_step == step else [f"{STATE_NAME}: global_step is {saved_step}, the folder's name says {step}"]


def _rank_problems(folder: Path, shards: ZeroShards | None) -> list[str]:
    """Files that the ranks should have written and that are missing."""
    try:
        identity = as_record(read_json(folder / IDENTITY_NAME), dict[str, dict[str, Any]], IDENTITY_NAME)
        if "written_by" not in identity:
            return []
        ranks = as_record(identity["written_by"], Writer, f"{IDENTITY_NAME}: written_by").processes
    except InputError as error:
        return [str(error)] if str(error).startswith(IDENTITY_NAME) else []  # none, or already reported as no JSON
    names = [f"rng_state_{rank}.pth" for rank in range(ranks)] if ranks > 1 else ["rng_state.pth"]
    problems = [f"{name}: missing, but {ranks} processes wrote it" for name in names if not (folder / name).exists()]
    if shards is not None and shards.ranks != ranks:
        problems.append(f"{shards.folder.name}: optimizer states of {shards.ranks} ranks, but {ranks} wrote it")
    return problems


def _sharded_weights(folder: Path, shards: ZeroShards | None) -> bool:
    if shards is not None:
        return any(shards.folder.glob("*_model_states.pt"))
    return any(path.stat().st_size > 0 for path in folder.glob("pytorch_model_fsdp_*/*.distcp"))
