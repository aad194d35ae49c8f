"""The subcommands about what can be run, and what a run would consume."""

import json
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from ..operations.experiments import gallery
from ..operations.launching import command_of, launch_config
from ..report.plan_tables import plan_text
from ..runtime.progress import announce_imports
from ..runtime.recipe_commands import RECIPE_COMMANDS
from ..runtime.settings import argument, option, rest
from ..runtime.shipped import copy_shipped, list_shipped

_PLANNED = [name for name, recipe in RECIPE_COMMANDS.items() if recipe.has_plan]


@dataclass(frozen=True, kw_only=True)
class ConfigsCommand:
    """List the shipped settings and recipes, or copy them for editing."""


def configs_command(arguments: ConfigsCommand) -> int:
    """List the shipped recipes and settings."""
    print("Recipes, started by `hmm-datasets NAME`:")
    for name, recipe in RECIPE_COMMANDS.items():
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

    All other flags are those of the recipe, such as --config FILE.yaml; --assumed_rate H200, for example, gives the
    time on an H200. A pretrained model is known by its name or its config.json; its weights are not read.
    """

    recipe: str = argument("RECIPE", ", ".join(_PLANNED[:-1]) + f" or {_PLANNED[-1]}")
    num_processes: int | None = option(None, "N", "ranks; default those of --launch, or 1", least=1)
    launch: str | None = option(None, "CONFIG", "a launch configuration: name of a shipped one, or a file")
    assumed_vocab_size: int | None = option(
        None,
        "V",
        "plan before the data exist, for this vocabulary; the model to midtrain may be a preset",
        least=1,
    )
    law: Path | None = option(None, "FILE", "runs as law.json of the experiment scaling: the best size of the compute")
    json: bool = option(False, None, "JSON instead of tables")
    flags: list[str] = rest("flags")


def plan_command(arguments: PlanCommand) -> int:
    """Print the plan of a run as tables or JSON."""
    recipe, flags = arguments.recipe, arguments.flags
    if recipe not in _PLANNED:
        example = f", as in: hmm-datasets plan pretrain --config {recipe}" if recipe.endswith(".yaml") else ""
        raise InputError(f"plan {recipe}: no recipe that has a plan; expected one of {', '.join(_PLANNED)}{example}")
    announce_imports()
    from ..operations.planning import plan_recipe  # slow
    from ..training.plan.law import Runs, planned_by

    runs = None if arguments.law is None else Runs.read(arguments.law)
    launch = None if arguments.launch is None else launch_config(arguments.launch)
    processes, vocabulary = arguments.num_processes, arguments.assumed_vocab_size
    plan = plan_recipe(recipe, flags, num_processes=processes, launch_config=launch, assumed_vocab_size=vocabulary)
    if runs is not None:
        plan["law"] = planned_by(runs, plan["flops"])
    print(json.dumps(plan) if arguments.json else plan_text(plan))
    return 0
