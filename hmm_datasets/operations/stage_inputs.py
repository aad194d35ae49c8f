"""What stages read and how they are launched, checked before the first of them begins.

A stage that fails for a missing folder after hours of earlier ones has cost those hours. Each command is read as its
recipe reads it, but no model and no trainer is made: flags and settings file, the processes of its launcher, and every
setting that names files. What such a setting names must be there already, or be written by an earlier stage; settings
with `writes` list exactly what their recipe writes below `output_dir`.
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

_OUTPUTS = ("--output", "--output_dir")


def check_stages(stages: Iterable[tuple[str, Sequence[str]]], made: Sequence[str | os.PathLike] = ()) -> None:
    """Check what every stage reads, in the current folder, before the first begins.

    Args:
        stages (iterable of titles and commands, the latter as lists of words): the stages in the order of running.
        made (sequence of paths): what the program itself writes between the stages.

    Raises:
        `InputError`: a stage would refuse its flags or its launcher's processes, or would not find what it reads; the
            message names the stage.
    """
    written = _Written(made)
    for number, (title, words) in enumerate(stages, start=1):
        try:
            _check(list(words), written, number)
        except InputError as error:
            raise InputError(f"stage {number} ({title}), before the first began: {error}") from None


class _Written:
    """What earlier stages write: for each folder or file who writes it, and the names in it; None means anything."""

    def __init__(self, made: Sequence[str | os.PathLike]):
        self._found: list[tuple[Path, str, Sequence[str] | None]] = [(_absolute(path), "", None) for path in made]

    def add(self, path: str | os.PathLike, number: int, names: Sequence[str] | None = None) -> None:
        self._found.append((_absolute(path), f"stage {number}", names))

    def has(self, name: str) -> bool:
        """Whether an earlier stage writes `name`.

        Raises:
            `InputError`: it would be in a folder where an earlier stage writes something else.
        """
        path, others = _absolute(name), []
        for folder, who, names in reversed(self._found):
            if not path.is_relative_to(folder):
                continue
            if names is None or any(path.is_relative_to(folder / file) for file in names):
                return True
            others.append(f"{who} writes {', '.join(names)} in {folder.name}/")
        if others and not path.exists():
            raise InputError(f"{name}: no earlier stage writes it; {'; '.join(others)}")
        return False


def _absolute(path: str | os.PathLike) -> Path:
    return Path(os.path.abspath(path))


def _check(words: list[str], written: _Written, number: int) -> None:
    """Check one command, and note what it writes."""
    program, name, arguments = words[0], *(words[1:2] or [""]), words[2:]
    if program == "hmm-datasets" and name == "sweep":
        sweep = read_sweep(arguments[0])
        check_cells(sweep, (), written, number)
        written.add(sweep.output_dir, number)
    elif program == "hmm-datasets" and (recipe := split_command(words[1:])) is not None:
        _check_recipe(*recipe, written, number)
    elif program == "python" and name.endswith(".py") and not Path(name).is_file():
        raise InputError(f"{name}: no such file")
    else:
        for flag, value in itertools.pairwise(words):
            if underscored(flag) in _OUTPUTS:
                written.add(value, number)


def read_command(name: str, arguments: Sequence[str]) -> tuple[dict[str, Any], list[Any]]:
    """The values of all settings of a recipe's command line, and its settings but for those of a trainer.

    Raises:
        `InputError`: the recipe would refuse flags, file, values, or the number of its processes.
    """
    launch, others = launch_of(name, arguments)
    kinds = recipe_settings(name)
    if not kinds:
        return {}, []
    values = parse_values(*kinds, arguments=others)
    # Those of trainers look for devices.
    chosen = [
        settings_from(kind, values)
        for kind in kinds
        if not hasattr(kind, "plan") and (not hasattr(kind, "reads_model") or Path(values["model"]).exists())
    ]
    if "per_device_train_batch_size" in values:
        _check_processes(values, launch)
    return values, chosen


def _check_recipe(name: str, arguments: list[str], written: _Written, number: int) -> None:
    values, chosen = read_command(name, arguments)
    for setting, check in _openers().items():
        value = values.get(setting)
        for item in value if isinstance(value, list) else [value]:
            try:
                if item is not None and not written.has(item):
                    check(item, name, values)
            except InputError as error:
                raise InputError(f"{setting}: {error}") from None
    names = next((settings.writes for settings in chosen if hasattr(settings, "writes")), None)
    if values.get("output_dir") is not None:
        written.add(values["output_dir"], number, names)


def _check_processes(values: dict[str, Any], launch: tuple[str, int | None] | None) -> None:
    from ..training.optimizers import check_sharding

    size = 1
    if launch is not None:
        config = read_yaml(launch_config(launch[0]))
        size = launch[1] or int(config.get("num_processes") or 1)
        is_deepspeed = config.get("distributed_type") == "DEEPSPEED"
        check_sharding(values["optimizer"], values["max_grad_norm"], is_deepspeed)
    accumulation_steps(values["global_batch_size"], size, values["per_device_train_batch_size"])


def check_cells(sweep: Sweep, launch: Sequence[str] = (), written: _Written | None = None, number: int = 1) -> None:
    """Check the commands of every cell of a sweep as those of stages, before the first begins.

    Args:
        sweep ([`~hmm_datasets.operations.sweeps.file.Sweep`]): the sweep.
        launch (sequence of `str`, *optional*): flags of the launcher.
        written (`_Written`, *optional*): what stages before the sweep write.
        number (`int`, *optional*): the number of the sweep among stages.

    Raises:
        `InputError`: names the file of the sweep and the cell.
    """
    written = _Written(()) if written is None else written
    if "output_dir" not in setting_names(recipe_settings(sweep.file.recipe)):
        raise InputError(f"{sweep.path}: recipe is {sweep.file.recipe!r}, which has no output_dir; a sweep needs one")
    with tempfile.TemporaryDirectory() as folder, progress_bar(len(sweep.cells), " cells", desc="checking") as bar:
        path = Path(folder) / "settings.yaml"
        for cell in sweep.cells:
            write_yaml(path, cell.settings)
            try:
                for words in commands_of(sweep, cell, path, launch):
                    _check(words, written, number)
            except InputError as error:
                problem = str(error).removeprefix(f"{path}: ")
                raise InputError(f"{sweep.path}: cell {cell.name}: {problem}") from None
            bar.update()


def _folder(name: str, recipe: str, values: dict[str, Any]) -> None:
    if not Path(name).is_dir():
        raise InputError(f"{name}: no such folder, and no earlier stage writes it")


def _streams(name: str, recipe: str, values: dict[str, Any]) -> None:
    for split in ("train", "test"):
        _folder(str(Path(name) / split), recipe, values)


def _array(name: str, recipe: str, values: dict[str, Any]) -> None:
    if not Path(name).is_file():
        raise InputError(f"{name}: no such file, and no earlier stage writes it")


def _process(name: str, recipe: str, values: dict[str, Any]) -> None:
    from ..hmm.loading import load_source

    load_source(name)


def _model(name: str, recipe: str, values: dict[str, Any]) -> None:
    from transformers import AutoConfig

    if recipe == "pretrain":
        model_config(name, vocab_size=2, max_length=2)
    else:
        load_pretrained(AutoConfig, name)


def _tokenizer(name: str, recipe: str, values: dict[str, Any]) -> None:
    from transformers import AutoTokenizer

    load_pretrained(AutoTokenizer, name)


def _target(name: str, recipe: str, values: dict[str, Any]) -> None:
    from ..evaluation.targets import open_target

    open_target(name, max_documents=1)


def _corpus(kind: str, split: str = "train") -> Callable[[str, str, dict[str, Any]], None]:
    def check(name: str, recipe: str, values: dict[str, Any]) -> None:
        from ..text.corpora.loading import check_splits, load_corpus

        if name == "none":
            return
        if name.endswith(".npy"):
            _array(name, recipe, values)
        elif recipe == "tokenize":
            chosen = {key: values[key] for key in ("test_fraction", "max_documents")}
            check_splits(name, kind=kind, **chosen)
        else:
            part = {"split": split, "test_fraction": values.get("test_fraction")}
            if part["test_fraction"] == 1:  # nothing of it was trained on
                part = {"split": "train", "test_fraction": 0.0}
            next(iter(load_corpus(name, kind=kind, **part)))

    return check


def _openers() -> dict[str, Callable[[str, str, dict[str, Any]], None]]:
    """How to open what a setting names; called with its value, the recipe and all values, before anything begins."""
    return {
        "corpus": _corpus("text"),
        "conversations": _corpus("conversations"),
        "preferences": _corpus("preferences"),
        "prompts": _corpus("conversations"),
        "chat_data": _corpus("conversations", "test"),
        "test": _array,
        "tokens": _streams,
        "streams": _streams,
        "tokenizer": _tokenizer,
        "hmm": _process,
        "model": _model,
        "optimizer_from": _folder,
        "targets": _target,
        "core_data": _folder,
    }
