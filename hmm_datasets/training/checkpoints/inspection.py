"""Whether a Trainer's checkpoint is whole, told from sizes and headers alone.

A safetensors file says in its header where its last tensor ends, so a file that was cut is known by its length. The
files of `torch.save` are zip archives, whose directory stands at the end: one that was cut has none. JSON parses or
does not. No tensor is read and no pickle is opened, so a checkpoint of any size costs a few reads a file, and a
hostile one runs no code.
"""

import json
import os
import re
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError
from ...identity import IDENTITY_NAME

STATE_NAME = "trainer_state.json"
LARGE_RATIO = 10.0
"""Above this many bytes a byte of weights something is stored too often; float32 masters and Adam's two moments beside
bfloat16 weights are 7."""

_LONGEST_HEADER = 100_000_000  # the format's own limit


@dataclass(frozen=True)
class CheckpointReport:
    """What was found in a checkpoint.

    Attributes:
        folder (`Path`): `checkpoint-N`.
        step (`int`): `N`.
        problems (`tuple[str, ...]`): why it cannot be resumed from; empty where it can.
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
        """Whether nothing is torn or missing."""
        return not self.problems

    @property
    def size_ratio(self) -> float | None:
        """Bytes on disk a byte of weights; `None` where no weights are in safetensors. See [`LARGE_RATIO`]."""
        return self.total_bytes / self.tensor_bytes if self.tensor_bytes > 0 else None


@dataclass(frozen=True)
class ZeroShards:
    """How a checkpoint of DeepSpeed's is cut.

    Attributes:
        folder (`Path`): where the shards are.
        ranks (`int`): how many there are of the optimizer's state.
    """

    folder: Path
    ranks: int


def verify_checkpoint(folder: str | os.PathLike) -> CheckpointReport:
    """Check one `checkpoint-N` folder.

    Weights are looked for in safetensors files, in a DeepSpeed folder named by `latest`, and in FSDP's
    `pytorch_model_fsdp_*`; of the latter two only that their files are there and not cut.

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
                sizes = read_safetensors_sizes(path)
                tensors[name] = set(sizes)
                tensor_bytes += sum(sizes.values())
            elif path.suffix in (".pt", ".pth", ".bin"):
                _check_archive(path)
            elif path.suffix == ".json":
                json.loads(path.read_text(encoding="utf-8"))
        except (InputError, ValueError, OSError) as error:
            message = str(error).removeprefix(f"{path}: ")
            problems.append(f"{name}: {message}")
    problems += _index_problems(folder, tensors) + _state_problems(folder, step) + _rank_problems(folder)
    if not any(folder.rglob("*.safetensors")) and not _sharded_weights(folder):
        problems.append("no weights: neither *.safetensors nor a DeepSpeed or FSDP folder of shards")
    return CheckpointReport(folder, step, tuple(problems), tensor_bytes, total_bytes)


def list_checkpoints(output_dir: str | os.PathLike) -> list[CheckpointReport]:
    """Check every `checkpoint-N` in a folder, the newest first.

    Raises:
        `InputError`: no such folder.
    """
    return [verify_checkpoint(path) for path in _folders(output_dir)]


def list_steps(output_dir: str | os.PathLike) -> list[int]:
    """The steps of the checkpoints in a folder, the newest first, whole or not.

    Raises:
        `InputError`: no such folder.
    """
    return [_step(path) for path in _folders(output_dir)]


def good_checkpoints(output_dir: str | os.PathLike) -> Iterator[Path]:
    """The whole checkpoints in a folder, the newest first, each read when it is asked for.

    Raises:
        `InputError`: no such folder.
    """
    return (path for path in _folders(output_dir) if verify_checkpoint(path).ok)


def read_safetensors_sizes(path: str | os.PathLike) -> dict[str, int]:
    """Bytes of every tensor in a safetensors file, from its header; the file's length is compared with it.

    Raises:
        `InputError`: the file is cut, too long, or no safetensors file.
    """
    path = Path(path)
    length = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        header_length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
        if not 0 < header_length <= min(length - 8, _LONGEST_HEADER):
            raise InputError(f"{path}: {length} bytes, too few for its header; the file is torn")
        try:
            header = json.loads(file.read(header_length))
            spans = {k: v["data_offsets"] for k, v in header.items() if k != "__metadata__"}
            sizes = {name: int(end) - int(begin) for name, (begin, end) in spans.items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            raise InputError(f"{path}: the header is not that of a safetensors file") from None
    expected = 8 + header_length + max((int(end) for _, end in spans.values()), default=0)
    if length != expected:
        raise InputError(f"{path}: {length} bytes, {expected} expected from its header; the file is torn")
    return sizes


def zero_shards(folder: str | os.PathLike) -> ZeroShards | None:
    """How a checkpoint of DeepSpeed's is cut, from its files' names; `None` of another."""
    latest = Path(folder) / "latest"
    if not latest.is_file():
        return None
    shards = Path(folder) / latest.read_text(encoding="utf-8").strip()
    return ZeroShards(shards, ranks=len(list(shards.glob("*zero_pp_rank_*_optim_states.pt"))))


def _step(folder: Path) -> int | None:
    match = re.fullmatch(r"checkpoint-(\d+)", folder.resolve().name)
    return int(match[1]) if match else None


def _folders(output_dir: str | os.PathLike) -> list[Path]:
    output_dir = Path(output_dir)
    if not output_dir.is_dir():
        raise InputError(f"{output_dir}: no such folder")
    found = [path for path in output_dir.iterdir() if path.is_dir() and _step(path) is not None]
    return sorted(found, key=_step, reverse=True)


def _check_archive(path: Path) -> None:
    with path.open("rb") as file:
        begins_as_zip = file.read(2) == b"PK"
    # Files of torch before 1.6 are bare pickles, of which nothing can be said without opening them.
    if path.stat().st_size == 0 or (begins_as_zip and not zipfile.is_zipfile(path)):
        raise InputError("the archive has no directory at its end; the file is torn")


def _index_problems(folder: Path, tensors: dict[str, set[str]]) -> list[str]:
    problems = []
    for path in sorted(folder.rglob("*.safetensors.index.json")):
        name = path.relative_to(folder).as_posix()
        try:
            weight_map = dict(json.loads(path.read_text(encoding="utf-8"))["weight_map"])
        except (ValueError, KeyError, TypeError):
            problems.append(f"{name}: no weight_map that can be read")
            continue
        for shard in sorted(set(weight_map.values())):
            place = (path.parent / shard).relative_to(folder).as_posix()
            if not (folder / place).is_file():
                problems.append(f"{place}: missing, though {name} names it")
            elif place in tensors:
                lost = {key for key, value in weight_map.items() if value == shard} - tensors[place]
                if lost:
                    problems.append(f"{place}: holds no {min(lost)}, though {name} says so")
    return problems


def _state_problems(folder: Path, step: int) -> list[str]:
    path = folder / STATE_NAME
    if not path.is_file():
        return [f"{STATE_NAME}: missing"]
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("global_step")
    except (ValueError, AttributeError):
        return []  # already told of as JSON that does not parse
    return [] if found == step else [f"{STATE_NAME}: global_step is {found}, the folder's name says {step}"]


def _rank_problems(folder: Path) -> list[str]:
    """What the ranks that wrote the checkpoint should have left and did not."""
    try:
        ranks = json.loads((folder / IDENTITY_NAME).read_text(encoding="utf-8"))["written_by"]["processes"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    names = [f"rng_state_{rank}.pth" for rank in range(ranks)] if ranks > 1 else ["rng_state.pth"]
    problems = [
        f"{name}: missing, though {ranks} processes wrote it" for name in names if not (folder / name).exists()
    ]
    shards = zero_shards(folder)
    if shards is not None and shards.ranks != ranks:
        problems.append(f"{shards.folder.name}: optimizer states of {shards.ranks} ranks, though {ranks} wrote it")
    return problems


def _sharded_weights(folder: Path) -> bool:
    shards = zero_shards(folder)
    if shards is not None:
        return any(shards.folder.glob("*_model_states.pt"))
    return any(path.stat().st_size > 0 for path in folder.glob("pytorch_model_fsdp_*/*.distcp"))
