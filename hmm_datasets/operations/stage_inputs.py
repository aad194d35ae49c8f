"""What stages read and how they are launched, checked before the first of them begins.

A stage that fails for a missing folder after hours of earlier ones has cost those hours. Each command is read as its
recipe reads it, but no model and no trainer is made: flags and settings file, the processes of its launcher, and every
setting that names files. What such a setting names must be there already, or be below what an earlier stage writes.
"""

import itertools
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import read_yaml, write_yaml
from ..runtime.command_line import parse_values, setting_names
from ..runtime.progress import progress_bar
from ..runtime.settings import settings_from, underscored
from ..training.model_configs import model_config
from ..training.plan.budget import accumulation_steps
from ..training.pretrained import load_pretrained
from .launching import launch_config, launch_of, recipe_settings, split_command
from .sweeps.cells import commands_of
from .sweeps.file import Sweep, read_sweep


def check_stages(stages: Iterable[tuple[str, Sequence[str]]], made: Sequence[str | os.PathLike] = ()) -> None:
    """Check what every stage reads, in the current folder, before the first begins.

    Args:
        stages (iterable of titles and commands, the latter as lists of words): the stages in the order of running.
        made (sequence of paths): what the program itself writes between the stages.

    Raises:
        `InputError`: a stage would refuse its flags or its launcher's processes, or would not find what it reads; the
            message names the stage.
    """
    written = [Path(os.path.abspath(path)) for path in made]
    for number, (title, words) in enumerate(stages, start=1):
        try:
            written += map(Path, map(os.path.abspath, _check(words, written)))
        except InputError as error:
            raise InputError(f"stage {number} ({title}), before the first began: {error}") from None


def check_cells(sweep: Sweep, launch: Sequence[str] = (), written: Sequence[Path] = ()) -> None:
    """Check the commands of every cell of a sweep as those of stages, before the first begins.

    Args:
        sweep ([`~hmm_datasets.operations.sweeps.file.Sweep`]): the sweep.
        launch (sequence of `str`, *optional*): flags of the launcher.
        written (sequence of `Path`, *optional*): what stages before the sweep write.

    Raises:
        `InputError`: names the file of the sweep and the cell.
    """
    if "output_dir" not in setting_names(recipe_settings(sweep.file.recipe)):
        raise InputError(f"{sweep.path}: recipe is {sweep.file.recipe!r}, which has no output_dir; a sweep needs one")
    with tempfile.TemporaryDirectory() as folder, progress_bar(len(sweep.cells), " cells", desc="checking") as bar:
        path = Path(folder) / "settings.yaml"
        for cell in sweep.cells:
            write_yaml(path, cell.settings)
            try:
                for words in commands_of(sweep, cell, path, launch):
                    _check(words, [*written, cell.output_dir.absolute()])
            except InputError as error:
                problem = str(error).removeprefix(f"{path}: ")
                raise InputError(f"{sweep.path}: cell {cell.name}: {problem}") from None
            bar.update()


def _check(words: Sequence[str], written: Sequence[Path]) -> list[str]:
    """Check one command; return the folders and files that it writes."""
    program, name, *arguments = *words, ""
    recipe = split_command(words[1:]) if program == "hmm-datasets" else None
    if program == "hmm-datasets" and name == "sweep":
        sweep = read_sweep(arguments[0])
        check_cells(sweep, (), written)
        return [sweep.file.output_dir]
    if recipe is not None:
        return _check_recipe(*recipe, written)
    if program == "python" and name.endswith(".py") and not Path(name).is_file():
        raise InputError(f"{name}: no such file")
    return [value for flag, value in itertools.pairwise(words) if underscored(flag) in ("--output", "--output_dir")]


def _check_recipe(name: str, arguments: list[str], written: Sequence[Path]) -> list[str]:
    values = read_command(name, arguments)
    for setting, check in _checks().items():
        value = values.get(setting)
        for item in value if isinstance(value, list) else [value]:
            if item is None or any(Path(os.path.abspath(item)).is_relative_to(folder) for folder in written):
                continue
            try:
                check(item, name)
            except InputError as error:
                raise InputError(f"{setting}: {error}") from None
    return [] if values.get("output_dir") is None else [values["output_dir"]]


def read_command(name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """The values of all settings of a recipe's command line.

    Raises:
        `InputError`: the recipe would refuse flags, file, values, or the number of its processes.
    """
    launch, others = launch_of(name, arguments)
    kinds = recipe_settings(name)
    values = parse_values(*kinds, arguments=others) if kinds else {}
    for kind in kinds:
        # Those of trainers look for devices.
        if not hasattr(kind, "plan") and (not hasattr(kind, "reads_model") or Path(values["model"]).exists()):
            settings_from(kind, values)
    if "per_device_train_batch_size" in values:
        _check_processes(values, launch)
    return values


def _check_processes(values: dict[str, Any], launch: tuple[str, int | None] | None) -> None:
    from ..training.optimizers import check_sharding

    size = 1
    if launch is not None:
        config = read_yaml(launch_config(launch[0]))
        size = launch[1] or int(config.get("num_processes") or 1)
        is_deepspeed = config.get("distributed_type") == "DEEPSPEED"
        check_sharding(values["optimizer"], values["max_grad_norm"], is_deepspeed)
    accumulation_steps(values["global_batch_size"], size, values["per_device_train_batch_size"])


def _exists(name: str, recipe: str) -> None:
    if not Path(name).exists():
        raise InputError(f"{name}: no such file or folder, and no earlier stage writes it")


def _process(name: str, recipe: str) -> None:
    from ..hmm.loading import load_source

    load_source(name)


def _model(name: str, recipe: str) -> None:
    from transformers import AutoConfig

    if recipe == "pretrain":
        model_config(name, vocab_size=2, max_length=2)
    else:
        load_pretrained(AutoConfig, name)


def _tokenizer(name: str, recipe: str) -> None:
    from transformers import AutoTokenizer

    load_pretrained(AutoTokenizer, name)


def _target(name: str, recipe: str) -> None:
    from ..evaluation.targets import open_target

    open_target(name, max_documents=1)


def _corpus(kind: str) -> Callable[[str, str], None]:
    def check(name: str, recipe: str) -> None:
        from ..text.corpora.loading import load_corpus

        if name.endswith(".npy"):
            _exists(name, recipe)
        elif name != "none":
            next(iter(load_corpus(name, kind=kind)))

    return check


def _checks() -> dict[str, Callable[[str, str], None]]:
    """How to open what a setting names; called with its value and the recipe, before anything begins."""
    return {
        **dict.fromkeys(("test", "tokens", "streams", "optimizer_from", "core_data"), _exists),
        **dict.fromkeys(("conversations", "prompts", "chat_data"), _corpus("conversations")),
        "corpus": _corpus("text"),
        "preferences": _corpus("preferences"),
        "tokenizer": _tokenizer,
        "hmm": _process,
        "model": _model,
        "targets": _target,
    }
