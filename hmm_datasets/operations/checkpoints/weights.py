"""Weights in safetensors files, read and written one tensor at a time."""

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...errors import InputError, path_errors
from ...files import inside, write_json
from ...foreign.tensors import safetensors_header
from ...records import read_record
from ...training.checkpoints.verifying import WeightIndex

WEIGHTS_NAME = "model.safetensors"
_INDEX_NAME = "model.safetensors.index.json"
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_TYPES = {name: dtype for dtype, name in _NAMES.items()}


class TensorKind(NamedTuple):
    """Type and shape of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} of shape {list(self.shape)}"


class _Place(NamedTuple):
    file: str
    begin: int


class Weights:
    """The weights of a model folder, in one safetensors file or in several with an index.

    Args:
        folder (`Path`): the folder.

    Attributes:
        files (`dict` of `str` to `list` of `str`): names of the tensors in each file.
        kinds (`dict` of `str` to [`TensorKind`]): type and shape of each tensor.

    Raises:
        `InputError`: the folder has no such file, or a file is damaged.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.files: dict[str, list[str]] = {}
        self.kinds: dict[str, TensorKind] = {}
        self._places: dict[str, _Place] = {}
        with path_errors(folder):
            names = self._names()
        for name in names:
            kinds, begins = _header(folder / name)
            self.files[name] = list(kinds)
            self.kinds |= kinds
            self._places |= {tensor: _Place(name, begin) for tensor, begin in begins.items()}

    def _names(self) -> list[str]:
        if (self.folder / _INDEX_NAME).is_file():
            index = read_record(self.folder / _INDEX_NAME, WeightIndex, "copy the folder again")
            names = sorted(set(index.weight_map.values()))
            for name in names:
                inside(self.folder, name, self.folder / _INDEX_NAME)
            return names
        if (self.folder / WEIGHTS_NAME).is_file():
            return [WEIGHTS_NAME]
        if (self.folder / "adapter_model.safetensors").is_file():
            raise InputError(
                f"{self.folder}: has the adapter of a LoRA run, not a model; take merged/ in the folder of its run"
            )
        raise InputError(
            f"{self.folder}: has no {WEIGHTS_NAME}; name a checkpoint or a model with weights in safetensors files"
        )

    @contextmanager
    def reader(self) -> Iterator[Callable[[str], torch.Tensor]]:
        """A context that gives a function from the name of a tensor to the tensor.

        Tensors are read and not mapped, since the pages of a mapped file count as memory of the process.
        """
        with ExitStack() as stack:
            files = {name: stack.enter_context((self.folder / name).open("rb")) for name in self.files}

            def read(tensor: str) -> torch.Tensor:
                place, (dtype, shape) = self._places[tensor], self.kinds[tensor]
                content = bytearray(_bytes(self.kinds[tensor]))
                files[place.file].seek(place.begin)
                if files[place.file].readinto(content) != len(content):
                    raise InputError(f"{self.folder / place.file}: ends within {tensor}; take another checkpoint")
                return (
                    torch.frombuffer(content, dtype=dtype).reshape(shape)
                    if content
                    else torch.empty(shape, dtype=dtype)
                )

            yield read


def write_weights(
    folder: Path,
    files: Mapping[str, list[str]],
    kinds: Mapping[str, TensorKind],
    tensor: Callable[[str], torch.Tensor],
) -> None:
    """Write safetensors files, and an index if there are several.

    Args:
        folder (`Path`): where to.
        files (mapping of `str` to `list` of `str`): names of the tensors in each file.
        kinds (mapping of `str` to [`TensorKind`]): type and shape of each tensor.
        tensor (callable): from the name of a tensor to the tensor, of this type and shape; called once for each.
    """
    for name, tensors in files.items():
        _write_file(folder / name, {one: kinds[one] for one in tensors}, tensor)
    if len(files) > 1:
        weight_map = {one: name for name, tensors in files.items() for one in tensors}
        size = sum(_bytes(kinds[one]) for one in weight_map)
        write_json(folder / _INDEX_NAME, {"metadata": {"total_size": size}, "weight_map": weight_map})


def _write_file(path: Path, kinds: Mapping[str, TensorKind], tensor: Callable[[str], torch.Tensor]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    # Types of larger elements first, so that every tensor is aligned to its elements.
    order = sorted(kinds, key=lambda name: (-kinds[name].dtype.itemsize, name))
    end = 0
    for name in order:
        begin, end = end, end + _bytes(kinds[name])
        header[name] = {
            "dtype": _NAMES[kinds[name].dtype],
            "shape": list(kinds[name].shape),
            "data_offsets": [begin, end],
        }
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for name in order:
            value = tensor(name).to(kinds[name].dtype).contiguous()
            if tuple(value.shape) != kinds[name].shape:
                raise InputError(f"{path}: {name} has shape {list(value.shape)}, expected {list(kinds[name].shape)}")
            file.write(value.reshape(-1).view(torch.uint8).numpy().data)


def _bytes(kind: TensorKind) -> int:
    count = kind.dtype.itemsize
    for size in kind.shape:
        count *= size
    return count


def _header(path: Path) -> tuple[dict[str, TensorKind], dict[str, int]]:
    """Kinds of the tensors of a file, and where in the file each begins."""
    tensors = safetensors_header(path)
    try:
        kinds = {name: TensorKind(_TYPES[tensor.dtype], tensor.shape) for name, tensor in tensors.items()}
    except KeyError as error:
        raise InputError(f"{path}: has tensors of the type {error}, which is not supported") from None
    return kinds, {name: tensor.begin for name, tensor in tensors.items()}
