"""The mean of the weights of several checkpoints, as a model.

Averaging the last checkpoints of a run often gives a lower loss than the last one has, because it averages out the
noise of the last steps (Izmailov et al., "Averaging weights leads to wider optima and better generalization", 2018,
arXiv 1803.05407). Sums are in float64, tensor by tensor.
"""

import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict

from ...errors import InputError
from ...files import atomic_folder, digest_problems, read_json, recorded_digests, write_digests, write_json
from ...training.checkpoints.parts import companion_names, not_deleted
from ...training.checkpoints.verifying import good_checkpoints
from .weights import read_weights

AVERAGE_NAME = "average.json"
_MAY_DIFFER = ("_name_or_path", "transformers_version", "use_cache")


def newest_checkpoints(run: str | os.PathLike, count: int) -> list[Path]:
    """The newest complete checkpoints of a run, oldest first.

    Raises:
        `InputError`: the run has fewer.
    """
    newest = []
    for folder in good_checkpoints(run):
        newest.append(folder)
        if len(newest) == count:
            return newest[::-1]
    raise InputError(f"--last {count}: {run} has {len(newest)} complete checkpoints; give a number up to that")


def average(
    folders: Sequence[str | os.PathLike], output: str | os.PathLike, weights: Sequence[float] | None = None
) -> None:
    """Write the mean of the weights of several models of the same architecture.

    Configuration and tokenizer are those of the last one.

    Args:
        folders (sequence of paths): checkpoints, or folders of models.
        output (path): folder to write; it must not exist.
        weights (sequence of `float`, *optional*): how much each counts; they are divided by their sum. By default all
            count the same.

    Raises:
        `InputError`: the models differ in more than their weights, a file is damaged, the weights do not fit, or
            `output` exists.
    """
    paths, output = [Path(folder) for folder in folders], Path(output)
    shares = _shares(paths, weights)
    if output.exists():
        raise InputError(f"{output}: exists; choose another folder for the average")
    for path in paths:
        if not path.is_dir():
            raise InputError(f"{path}: no such folder")
        problems = digest_problems(path)
        if problems:
            raise InputError(f"{path}: {problems[0]}; leave this checkpoint out")
    models = [read_weights(path) for path in paths]
    for path, model in zip(paths[:-1], models[:-1], strict=True):
        _check_same(paths[-1], models[-1], path, model)
    with not_deleted(*paths), atomic_folder(output, replace=False) as temporary:
        for name in companion_names(paths[-1]):
            shutil.copyfile(paths[-1] / name, temporary / name)
        means = {name: _mean(name, [model[name] for model in models], shares, paths) for name in models[-1]}
        save_torch_state_dict(means, temporary)
        write_json(temporary / AVERAGE_NAME, {"of": _record(paths, shares)})
        write_digests(temporary)


def _mean(name: str, values: Sequence[torch.Tensor], shares: Sequence[float], paths: Sequence[Path]) -> torch.Tensor:
    if values[-1].dtype.is_floating_point:
        total = torch.zeros(values[-1].shape, dtype=torch.float64)
        for value, share in zip(values, shares, strict=True):
            total.add_(value.double(), alpha=share)
        return total.to(values[-1].dtype)
    for value, path in zip(values, paths, strict=True):
        if not torch.equal(value, values[-1]):
            raise InputError(f"{path}: {name} has integers other than those of {paths[-1]}, which have no mean")
    return values[-1]


def _shares(paths: list[Path], weights: Sequence[float] | None) -> list[float]:
    if not paths:
        raise InputError("average: give at least one checkpoint")
    values = [1.0] * len(paths) if weights is None else list(weights)
    if len(values) != len(paths):
        raise InputError(f"--weights: {len(values)} values for {len(paths)} checkpoints; give one for each")
    total = math.fsum(values)
    if not all(math.isfinite(value) for value in values) or not total > 0:
        raise InputError(f"--weights {' '.join(map(str, values))}: expected numbers with a sum above 0")
    return [value / total for value in values]


def _check_same(folder: Path, weights: dict[str, torch.Tensor], other: Path, others: dict[str, torch.Tensor]) -> None:
    """Raise an error that names the first difference of another model from the one in a folder."""
    before, now = _configuration(other), _configuration(folder)
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            raise InputError(
                f"{other}: its {name} is {before.get(name)!r}, that of {folder} is {now.get(name)!r}; "
                "only models of one architecture can be averaged"
            )
    for name in sorted(weights.keys() | others.keys()):
        expected, actual = (_kind(model.get(name)) for model in (weights, others))
        if expected != actual:
            raise InputError(
                f"{other}: {name} is {actual}, in {folder} it is {expected}; only models of the same tensors can be "
                "averaged"
            )


def _kind(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "missing"
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}"


def _configuration(folder: Path) -> dict[str, Any]:
    content = read_json(folder / "config.json")
    if not isinstance(content, dict):
        raise InputError(f"{folder / 'config.json'}: expected the settings of a model; copy the folder again")
    return {name: value for name, value in content.items() if name not in _MAY_DIFFER}


def _record(paths: list[Path], shares: list[float]) -> list[dict[str, Any]]:
    def digests(path: Path) -> dict[str, str]:
        return {name: digest for name, digest in recorded_digests(path).items() if name.endswith(".safetensors")}

    sources = zip(paths, shares, strict=True)
    return [{"checkpoint": path.name, "weight": share, "sha256": digests(path)} for path, share in sources]
