"""The first rows that each rank would train on, read by the recipe's own trainer.

Settings, plan, data set, sampler and loader are those of training; only the model has no weights. Each rank takes its
first micro-batches and notes the indices of their rows. No index may be on two ranks. The data must be the same on
every host too, so each rank also reads the first rows of the run and hashes them.
"""

import hashlib
import itertools
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...data.row_reading import rows_at
from ...errors import InputError, first_line
from ...files import read_yaml
from ...runtime import environment
from ...runtime.shipped import local_or_shipped
from ...training.models import new_model
from .report import Check

_BATCHES = 2
_COMMON_ROWS = 4
_OTHER_RECIPES = ("conversations", "preferences", "prompts", "corpus")


def first_rows(config: str, flags: Sequence[str], world_size: int) -> tuple[Check, dict[str, Any]]:
    """Read the first rows of this rank; call it on all ranks.

    Args:
        config (`str`): settings file of `pretrain` or `midtrain`.
        flags (sequence of `str`): flags that override it.
        world_size (`int`): number of ranks.

    Returns:
        `tuple`: the check, and `rows`, indices of the rows of this rank; `own`, a hash of their content; `data`, a
        hash of what identifies the data, and of the first rows of the run. Empty for other recipes.
    """
    path = local_or_shipped(config, "recipes")
    other = [name for name in _OTHER_RECIPES if name in read_yaml(Path(path))]
    if other:
        detail = f"not read: {config} has {other[0]}, and only the rows of pretrain and midtrain are known beforehand"
        return Check("first rows", True, detail), {}
    with tempfile.TemporaryDirectory() as folder:
        trainer = _trainer(path, flags, world_size, folder)
        batches = list(itertools.islice(trainer.get_train_dataloader(), _BATCHES))
    from ...training.step.logged_rows import ROW_INDEX

    indices = [index for batch in batches for index in batch[ROW_INDEX].tolist()]
    common = rows_at(trainer.plan.train_rows(), range(_COMMON_ROWS))
    identity = json.dumps(trainer.plan.data.identity, sort_keys=True, default=str)
    found = {
        "rows": indices,
        "own": _digest(batch["input_ids"] for batch in batches),
        "data": _digest([row["input_ids"] for row in common], identity),
    }
    return Check("first rows", True, f"{len(indices)} rows of {len(batches)} micro-batches read"), found


def _trainer(path: Path, flags: Sequence[str], world_size: int, folder: str) -> Any:
    """The trainer of a recipe, with a model that has no weights and a folder that it may write into."""
    import torch
    from transformers import default_data_collator

    from ...training.trainer import Pretrainer
    from ..planning import read_recipe

    environment.expect_no_gpu_if_there_is_none()
    recipe, _ = read_recipe(path, flags, num_processes=world_size)
    settings = recipe.settings
    settings.output_dir = folder
    settings.log_indices = True  # the indices travel with the rows
    settings.dataloader_num_workers = 0
    settings.pad_vocabulary_to = 1
    settings.report_to = []
    settings.push_to_hub = False
    # The way that TrainingArguments documents for it: a model on the device `meta` cannot be moved.
    settings.__class__ = type("Settings", (type(settings),), {"place_model_on_device": False})
    with torch.device("meta"):
        model = new_model(recipe.config)
    trainer = Pretrainer(model=model, args=settings, plan=recipe.plan, data_collator=default_data_collator)
    trainer.begin(recipe.plan.data.identity)
    return trainer


def _digest(arrays, *more: str) -> str:
    import torch

    digest = hashlib.sha256("".join(more).encode())
    for array in arrays:
        digest.update(torch.as_tensor(array).cpu().to(torch.int64).contiguous().numpy())
    return digest.hexdigest()[:16]


def problem_of(error: Exception) -> str:
    """An error of a recipe's settings or data as the detail of a check."""
    line = first_line(error)
    return line if isinstance(error, InputError) else f"{type(error).__name__}: {line}"
