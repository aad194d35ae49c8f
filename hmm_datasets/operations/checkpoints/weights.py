"""The weights of a model folder, in one safetensors file or in several with an index, by names of tensors."""

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from ...errors import InputError, path_errors
from ...files import inside
from ...foreign.tensors import tensor_names
from ...records import read_record
from ...training.checkpoints.inspection import WeightIndex

_NAME, _INDEX_NAME = "model.safetensors", "model.safetensors.index.json"


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The weights in a folder, mapped from its files, so that memory has only what is used.

    Raises:
        `InputError`: the folder has no such file, or a file is damaged.
    """
    weights: dict[str, Tensor] = {}
    for path in _files(folder):
        tensor_names(path)  # which names what is damaged
        weights |= load_file(path)
    return weights


def _files(folder: Path) -> list[Path]:
    with path_errors(folder):
        if (folder / _INDEX_NAME).is_file():
            index = read_record(folder / _INDEX_NAME, WeightIndex, "copy the folder again")
            return [inside(folder, name, folder / _INDEX_NAME) for name in sorted(set(index.weight_map.values()))]
        if (folder / _NAME).is_file():
            return [folder / _NAME]
        if (folder / "adapter_model.safetensors").is_file():
            raise InputError(
                f"{folder}: has the adapter of a LoRA run, not a model; take merged/ in the folder of its run"
            )
    raise InputError(f"{folder}: has no {_NAME}; name a checkpoint or a model with weights in safetensors files")
