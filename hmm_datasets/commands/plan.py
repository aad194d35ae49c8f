"""The subcommands about what can be run, and what a run would consume."""

import json
import types
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..operations.experiments import gallery
from ..operations.launching import command_of, launch_config, recipe_commands
from ..report.plan_tables import fit_plan_text, forecast_text
from ..runtime.setting_rules import Void
from ..runtime.settings import argument, option, rest
from ..runtime.shipped import copy_shipped, list_shipped, local_or_shipped


@dataclass(frozen=True, kw_only=True)
class ConfigsCommand:
    """List the shipped settings and recipes, or copy them for editing."""


def configs_command(arguments: ConfigsCommand) -> int:
    """List the shipped recipes and settings."""
    print("Recipes, started by `hmm-datasets NAME`:")
    for name, recipe in recipe_commands().items():
        print(f"  {' '.join(command_of(name)):<28} {recipe.summary}")
    print("\nExperiments, started by `hmm-datasets experiment NAME`:")
    for entry in gallery():
        print(f"  {entry.name:<28} {entry.summary}")
    titles = {
        "recipes": "Settings for --config, and the recipes themselves:",
        "accelerate_configs": "Launch configurations, for --launch NAME:",
        "ds_configs": "DeepSpeed files, which launch configurations refer to:",
    }
    for folder, names in list_shipped().items():
        print(f"\n{titles[folder]}")
        for name in names:
            print(f"  {name.removesuffix('.yaml') if folder == 'accelerate_configs' else name}")
    print("\n`hmm-datasets configs copy NAME [DEST]` copies one, or a folder such as demo, for editing.")
    return 0


@dataclass(frozen=True, kw_only=True)
class ConfigsCopyCommand:
    """Copy a shipped file, or a folder of them, for editing."""

    name: str = argument("NAME", "demo, demo/pretrain_hmm.yaml, zero3, pretrain.py, ...")
    destination: Path | None = argument("DEST", "default NAME in the current folder", default=None)


def copy_config_command(arguments: ConfigsCopyCommand) -> int:
    """Copy a shipped file or folder."""
    print(copy_shipped(arguments.name, arguments.destination))
    return 0


@dataclass(frozen=True, kw_only=True)
class PlanCommand:
    """Tokens, memory and time of a recipe, before it runs.

    All other flags are those of the recipe and override the file; --assumed_rate H200, for example, gives the
    time on an H200. A pretrained model is known by its name or its config.json; its weights are not read.
    """

    settings: str = argument(
        "FILE.yaml",
        "settings of fit, pretrain, midtrain, sft or dpo; without a file, one of these names",
    )
    num_processes: int | None = option(None, "N", "ranks; default those of --launch, or 1", least=1)
    launch: str | None = option(None, "CONFIG", "a launch configuration: name of a shipped one, or a file")
    assumed_vocab_size: int | None = option(
        None,
        "V",
        "plan before the data exist, for this vocabulary; the model to midtrain may be a preset",
        least=1,
    )
    rank_stages: list[str] = option(
        [], "RANKS:DAYS", "when the run ends on a growing number of ranks, as in 16:7 64:14 128"
    )
    share_of_day: float = option(1.0, "SHARE", "of each day in which the run has the machines", above=0, most=1)
    json: bool = option(False, None, "JSON instead of tables")
    flags: list[str] = rest("flags")

    voids = (Void("num_processes launch rank_stages share_of_day assumed_vocab_size", "if settings is of a fit"),)
    void_facts: ClassVar = {"settings is of a fit": lambda get: _is_of_fit(get("settings"))}


def _is_of_fit(settings: str) -> bool:
    return _planning().planned(_file(settings)).name == "fit"


def _file(settings: str) -> str | Path:
    """The name of a recipe, or the file of its settings."""
    return settings if settings in _planning().PLANNED else local_or_shipped(settings, "recipes")


def _planning() -> types.ModuleType:
    from ..operations import planning  # slow

    return planning


def plan_command(arguments: PlanCommand) -> int:
    """Print the plan of a run as tables or JSON."""
    file = _file(arguments.settings)
    if _is_of_fit(arguments.settings):
        plan = _planning().plan_fit_recipe(file, arguments.flags, required=True)
        print(json.dumps(plan) if arguments.json else fit_plan_text(plan))
        return 0
    launch = None if arguments.launch is None else launch_config(arguments.launch)
    plan = _planning().plan_recipe(
        file,
        arguments.flags,
        num_processes=arguments.num_processes,
        launch_config=launch,
        assumed_vocab_size=arguments.assumed_vocab_size,
        rank_stages=arguments.rank_stages,
        share_of_day=arguments.share_of_day,
    )
    print(json.dumps(plan) if arguments.json else forecast_text(plan))
    return 0
