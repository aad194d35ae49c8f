"""Recipes as subcommands: `hmm-datasets pretrain --config FILE [--launch zero3 --num_processes 8] [flags]`.

Without `--launch` a recipe runs in this process, as with `python recipes/NAME.py`. With it, this process becomes
accelerate's launcher, as with `accelerate launch`: it takes the flags of accelerate, and passes all others to the
recipe. The exit code is that of the rank that failed first. The path of a script in place of the name of a recipe,
yours or a shipped one such as `recipes/pretrain.py`, is started in the same way; batch files do so. Experiments are
found in their folders (see `experiments`) and run in this process.
"""

import importlib.metadata
import importlib.util
import os
import runpy
import subprocess
import sys
import types
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ..compat.accelerate import read_launcher_flags
from ..errors import InputError, needing_extra
from ..files import read_yaml
from ..runtime.children import SignalHandler, exit_code, send_to_children, signals
from ..runtime.command_line import deepspeed_file
from ..runtime.environment import check_posix, with_start
from ..runtime.parent_watch import end_with_launcher
from ..runtime.program import declared_settings
from ..runtime.progress import announce_imports
from ..runtime.recipe_command import RecipeCommand
from ..runtime.recipe_commands import RECIPE_COMMANDS
from ..runtime.settings import SettingsParser, complete, settings_help, underscored
from ..runtime.shipped import EXPERIMENTS, local_or_shipped, shipped
from .experiments import experiment_names, experiment_script, name_of, read_experiment

if TYPE_CHECKING:
    import argparse


_USAGE = """\
usage: hmm-datasets {name} {launched}[--config FILE.yaml] [flags]

{summary}.

{launching}  --config FILE     YAML file of settings, your own or one listed by `hmm-datasets configs`
  --help_all        all settings, also those of TrainingArguments; importing them takes seconds

Settings, with their defaults:
"""
_LAUNCHING = """\
  --launch CONFIG   start several processes with accelerate: {configs},
                    or a YAML file of `accelerate config`
  launcher's flags  those of `accelerate launch`, such as --num_processes
"""

# Flags of accelerate that are left to the recipe: settings of recipes have these names, or it is given them here,
# or they would start something other than the recipe.
_RECIPE_FLAGS = {"--debug", "--gradient_accumulation_steps", "--help", "--config_file", "--module", "--no_python"}
# Flags of the launcher that most clearly show that --launch was forgotten.
_ONLY_LAUNCHED = {"--num_processes", "--num_machines", "--machine_rank", "--main_process_ip", "--main_process_port"}
_ONLY_LAUNCHED |= {"--mixed_precision"}


def recipe_names() -> list[str]:
    """The names of all recipes and experiments, which share one set of names."""
    return [*RECIPE_COMMANDS, *experiment_names()]


def recipe_command(name: str) -> RecipeCommand:
    """The recipe or the experiment of a name.

    Raises:
        `InputError`: there is neither.
    """
    if name in RECIPE_COMMANDS:
        return RECIPE_COMMANDS[name]
    script = experiment_script(name)
    settings = [field.name for kind in declared_kinds(script) for field in fields(kind)]
    return RecipeCommand(
        str(script.relative_to(shipped("recipes"))),
        sentence=read_experiment(script.with_name("README.md")).summary,
        first=f"--{settings[0]}",
        launches=False,
    )


@cache
def recipe_settings(name: str) -> tuple[type, ...]:
    """The dataclasses that a recipe passes to `run`; none if it reads its arguments itself.

    Args:
        name (`str`): name of a recipe or an experiment.
    """
    return tuple(map(complete, declared_kinds(recipe_command(name).path)))


def declared_kinds(script: Path) -> list[type]:
    """The classes of settings that a shipped script declares, without fields of slow libraries."""
    main = getattr(_module(script), "main", None)
    return [] if main is None else declared_settings(main)


def _module(path: Path) -> types.ModuleType:
    name = f"_recipe_{path.parent.name}_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def command_of(name: str) -> list[str]:
    """The words after `hmm-datasets` that start a recipe or an experiment."""
    if name == "tokenize --executor":
        return ["tokenize", "--executor", "local"]
    return [name] if name in RECIPE_COMMANDS else ["experiment", name]


def split_command(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """The recipe or experiment that words after `hmm-datasets` start, and its arguments; None for other commands."""
    names, words = (experiment_names(), words[1:]) if "experiment" in words[:1] else (recipe_names(), words)
    name = recipe_of(words[0], words[1:]) if words else None
    return (name, list(words[1:])) if name in names else None


def recipe_of(name: str, arguments: Sequence[str]) -> str:
    """The recipe that a command starts: `tokenize` on a cluster starts its own."""
    is_on_cluster = name == "tokenize" and "--executor" in map(flag_of, arguments)
    return "tokenize --executor" if is_on_cluster else name


def start(name: str, arguments: Sequence[str]) -> int:
    """Run a recipe in this process or launch it, and return the exit code.

    Args:
        name (`str`): name of a recipe or an experiment, or the path of a script.
        arguments (sequence of `str`): the command line after the name.

    Raises:
        `InputError`: there is no such script or launch configuration, or a flag cannot be combined with it.
    """
    command = _recipe(name)
    if command.trains and not arguments:
        raise InputError(f"{name}: no settings; give --config FILE or flags. `hmm-datasets {name} --help` lists them")
    script = command.path
    launch, arguments = _split(name, list(arguments))
    if not {"-h", "--help", "--help_all"}.isdisjoint(map(underscored, arguments)):
        is_known = script.resolve().is_relative_to(shipped("recipes").resolve())
        if "--help_all" not in map(underscored, arguments) and is_known and declared_kinds(script):
            print(help_of(name))
            return 0
        launch = None  # the program describes its settings itself
    announce_imports()
    return _run_here(script, arguments) if launch is None else _launch(str(script), launch, arguments, command.trains)


def help_of(name: str) -> str:
    """The help of a recipe or an experiment, in at most 60 lines, without importing its settings."""
    command = _recipe(name)
    text = _USAGE.format(
        name=" ".join(command_of(name)) if name in recipe_names() else name,
        launched="[--launch CONFIG [launcher's flags]] " if command.launches else "",
        summary=command.summary[:1].upper() + command.summary[1:],
        launching=_LAUNCHING.format(configs=", ".join(launch_configs())) if command.launches else "",
    )
    return text + settings_help(declared_kinds(command.path))


def launch_of(name: str, arguments: Sequence[str]) -> tuple[tuple[str, int | None] | None, list[str]]:
    """How the command line of a recipe is launched, and the flags of the recipe itself.

    Returns:
        `tuple`: the launch configuration and the number of processes, if a flag gives it; None for one process. Then
        the arguments that the recipe gets.

    Raises:
        `InputError`: there is no such launch configuration, or a flag cannot be combined with it.
    """
    launch, arguments = _split(name, list(arguments))
    if launch is None:
        return None, arguments
    flags = _read_launch(launch, arguments, name, _recipe(name).trains)
    return (launch, flags.num_processes), flags.training_script_args


def _recipe(name: str) -> RecipeCommand:
    """The recipe of a name or of a script."""
    if name in recipe_names():
        return recipe_command(name)
    path = local_or_shipped(name, "recipes").resolve()
    if not path.is_file():
        raise InputError(f"{name}: no such script; `hmm-datasets configs` lists the shipped ones")
    if path.parents[1] == shipped(EXPERIMENTS) and path.name == "run.py":
        return recipe_command(name_of(path))
    known = (command for command in RECIPE_COMMANDS.values() if command.path.resolve() == path)
    return next(known, RecipeCommand(str(path)))


def _split(name: str, arguments: list[str]) -> tuple[str | None, list[str]]:
    """The launch configuration if one is named, and the other arguments; the first has a flag too.

    Without a configuration flags of the launcher are refused, except where they are settings, as of some experiments.
    """
    command = _recipe(name)
    launch, arguments = _take_launch(arguments)
    if command.first is not None and arguments[:1] and not arguments[0].startswith("-"):
        arguments = [command.first, *arguments]
    if launch and not command.launches:
        raise InputError(f"--launch {launch}: {name} runs in one process and starts others itself; leave it out")
    stray = next((word for word in arguments if flag_of(word) in _ONLY_LAUNCHED), None)
    if stray is not None and not launch and command.launches:
        configs = ", ".join(launch_configs())
        raise InputError(f"{stray} is a flag of the launcher; add --launch with a YAML file or one of {configs}")
    return launch or None, arguments


def launch_module(module: str, arguments: Sequence[str]) -> int:
    """Launch `python -m MODULE` on all ranks of the configuration that `--launch` names, and return the exit code.

    Args:
        module (`str`): name of the module.
        arguments (sequence of `str`): `--launch CONFIG`, flags of the launcher, and arguments of the module.

    Raises:
        `InputError`: there is no such launch configuration, or a flag cannot be combined with it.
    """
    launch, arguments = _take_launch(list(arguments))
    return _launch(module, launch, arguments, is_module=True)


def launch_configs() -> list[str]:
    """Names of the shipped launch configurations."""
    return sorted(path.stem for path in shipped("accelerate_configs").glob("*.yaml"))


def launch_config(name: str) -> Path:
    """The file of a launch configuration: a file of the user, or a shipped one by name.

    Raises:
        `InputError`: there is neither.
    """
    path = local_or_shipped(name, "accelerate_configs")
    if not path.is_file():  # nothing, or a folder of that name
        path = shipped(f"accelerate_configs/{name}.yaml")
    if not path.is_file():
        raise InputError(f"--launch {name}: neither a YAML file nor one of {', '.join(launch_configs())}")
    return path


def _take_launch(arguments: list[str]) -> tuple[str | None, list[str]]:
    """The value of `--launch`, and the other arguments."""
    parser = SettingsParser(add_help=False)
    parser.add_argument("--launch")
    known, others = parser.parse_known_args(arguments)
    return known.launch, others


def flag_of(word: str) -> str:
    """The name of a flag, spelt with underscores."""
    return underscored(word).partition("=")[0]


def _run_here(script: Path, arguments: list[str]) -> int:
    """Run a script as `python SCRIPT` does: what lies beside it can be imported."""
    argv, path = sys.argv[:], sys.path[:]
    sys.argv[:] = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv[:], sys.path[:] = argv, path
    return 0


def _launch(program: str, name: str, arguments: list[str], trains: bool = False, *, is_module: bool = False) -> int:
    """Run accelerate's launcher with a recipe or a module until its end, and return the exit code."""
    from accelerate.commands.launch import launch_command
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    check_posix("--launch (without it a recipe runs in one process)")
    end_with_launcher()
    flags = _read_launch(name, arguments, program, trains)
    flags.module = is_module
    # The processes that are started count their time limit from now, not from when they have imported everything.
    os.environ |= with_start(os.environ)
    try:
        with SignalHandler(signals("SIGTERM", "SIGUSR1", "SIGHUP"), send_to_children):
            launch_command(flags)
    except ChildFailedError as error:
        print(error, file=sys.stderr, flush=True)
        return exit_code(error.get_first_failure()[1].exitcode)
    except subprocess.CalledProcessError as error:  # raised for a single process, which has printed its error
        return exit_code(error.returncode)
    except SignalException as error:
        return 128 + error.sigval
    except ValueError as error:  # accelerate raises it for flags and configurations that it cannot launch
        raise InputError(f"--launch {name}: {error}") from None
    return 0


def _read_launch(name: str, arguments: list[str], program: str, trains: bool = False) -> "argparse.Namespace":
    """The flags of the launcher for a program, and as `training_script_args` those of the program itself.

    Raises:
        `InputError`: an unknown configuration or flag, or a package that the configuration needs is missing.
    """

    def refuse(message: str) -> NoReturn:
        raise InputError(f"--launch {name}: {message}")

    path = launch_config(name)
    config = read_yaml(path)
    kind = config.get("distributed_type")
    if kind == "DEEPSPEED":
        with needing_extra("deepspeed", f"--launch {name}"):
            importlib.metadata.version("deepspeed")  # importing it takes seconds
    launched, recipe = read_launcher_flags(arguments, _RECIPE_FLAGS, refuse)
    named = (config.get("deepspeed_config") or {}).get("deepspeed_config_file")
    if named is not None and launched.deepspeed_config_file is None:
        folder = path.absolute().parent
        launched.deepspeed_config_file = str(deepspeed_file(named, path, folder, folder.parent))
    if trains and launched.mixed_precision == "no" and {"--bf16", "--fp16"}.isdisjoint(map(flag_of, recipe)):
        recipe += ["--bf16", "false"]  # processes cannot distinguish it from a precision that is not set
    launched.config_file, launched.training_script, launched.training_script_args = str(path), program, recipe
    return launched
