"""The `hmm-datasets` command: which subcommands there are, and how they are grouped. `commands/` has their settings.

Commands import slow libraries in their functions, so that `--help` is fast. Bad input ends with an error of one line
and exit code 2. A check that finds something wrong ends with exit code 1.
"""

import argparse
import importlib
import os
import sys
import typing
from collections.abc import Callable, Sequence

from . import __version__
from .errors import InputError, suggestion
from .operations.experiments import experiment_names, experiment_script, name_of
from .operations.launching import (
    command_of,
    declared_kinds,
    recipe_of,
    start,
)
from .runtime import environment
from .runtime.command_line import settings_parser
from .runtime.credentials import remember_words
from .runtime.once import one_command
from .runtime.one_line_errors import one_line_errors
from .runtime.plain_output import plain_output
from .runtime.recipe_commands import RECIPE_COMMANDS
from .runtime.setting_rules import checked
from .runtime.settings import SettingsParser, settings_from, takes_rest, underscored

COMMANDS = {
    "describe": ("data", "process:describe_command"),
    "sample": ("data", "process:sample_command"),
    "configs": ("train", "plan:configs_command"),
    "configs copy": ("train", "plan:copy_config_command"),
    "plan": ("train", "plan:plan_command"),
    "benchmark": ("measure", "benchmark:benchmark_command"),
    "compare": ("measure", "compare:compare_command"),
    "experiment": ("measure", "experiment:experiment_command"),
    "push": ("share", "push:push_command"),
    "chat": ("share", "chat:chat_command"),
    "preflight": ("operate", "preflight:preflight_command"),
    "sweep": ("operate", "sweep:sweep_command"),
    "watch": ("operate", "watch:watch_command"),
    "supervise": ("operate", "supervise:supervise_command"),
    "checkpoint list": ("operate", "checkpoint:list_command"),
    "checkpoint convert": ("operate", "checkpoint:convert_command"),
    "checkpoint slim": ("operate", "checkpoint:slim_command"),
    "checkpoint restore": ("operate", "checkpoint:restore_command"),
    "verify": ("operate", "verify:verify_command"),
}
"""Heading of every command that is no recipe, and its function in a module of `commands/`, whose parameter says what
its settings are."""

GROUPS = {"checkpoint": "List, convert and slim checkpoints."}
"""Commands that only have actions."""

HEADINGS = {
    heading: (
        *(name for name, recipe in RECIPE_COMMANDS.items() if recipe.heading == heading),
        *dict.fromkeys(
            name.partition(" ")[0] for name, (its_heading, _) in COMMANDS.items() if its_heading == heading
        ),
    )
    for heading in ("data", "train", "measure", "share", "operate")
}
"""The commands that `--help` lists."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        with plain_output(), one_line_errors(), one_command():
            remember_words(argv)
            environment.check_ranks()
            name, rest = argv[:1], argv[1:]
            if name == ["experiment"] and rest and not rest[0].startswith("-"):
                return start(name_of(experiment_script(rest[0])), rest[1:])
            recipe = recipe_of(name[0], rest) if name else ""
            if recipe.endswith(".py") or recipe in RECIPE_COMMANDS:
                return start(recipe, rest)
            return _run(argv)
    except BrokenPipeError:
        # The reader (head, less) has closed the pipe. Flushing the rest of the buffer at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130


def _run(argv: list[str]) -> int:
    """Parse the settings of a command of this package and call it."""
    words, after = split(argv)
    parser, parsers = build_parsers()
    if words and words[0] not in ("-h", "--help", "--version"):
        _check_name(words[0])
    try:
        arguments, flags = parser.parse(words)
    except InputError:
        _check_flags(words)  # what is missing may only be so because of an unknown flag
        raise
    run, kind, used = arguments.chosen
    if flags and not takes_rest(kind, "flags"):
        unknown = next((word for word in flags if word.startswith("-")), flags[0])
        near = suggestion(underscored(unknown).partition("=")[0], used.flags) or ";"
        command = used.prog.removeprefix(f"{parser.prog} ")
        raise InputError(f"{command}: unknown argument {unknown}{near} `{command} --help` lists all")
    further = {"flags": flags, "words": words[1:], "after": after, "commands": list(parsers)}
    return run(settings_from(kind, checked([kind], vars(arguments), vars(arguments)), **further))


def _check_flags(words: Sequence[str]) -> None:
    """Raise an error that names a flag that a command of this package does not have."""
    name = next((name for name in (" ".join(words[:2]), *words[:1]) if name in COMMANDS), None)
    if name is not None:
        _, kind = function_of(COMMANDS[name][1])
        if not takes_rest(kind, "flags"):
            settings_parser([kind]).check_flags(words)


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments before `--` and the command after it; of other subcommands, all arguments and no command."""
    if argv[:1] != ["supervise"] or "--" not in argv:
        return list(argv), []
    at = argv.index("--")
    return list(argv[:at]), list(argv[at + 1 :])


def _check_name(name: str) -> None:
    """Raise an error that names the nearest command, if there is none of this name."""
    known = [command for commands in HEADINGS.values() for command in commands]
    if name.replace("_", "-") in experiment_names():
        raise InputError(f"{name}: no such command, but an experiment; run hmm-datasets experiment {name}")
    if name not in known:
        near = suggestion(name, known) or ";"
        raise InputError(f"{name}: no such command{near} `hmm-datasets --help` lists all")


def build_parsers() -> tuple[SettingsParser, dict[str, SettingsParser]]:
    """The parser of the command, and those of its subcommands. Arguments of recipes are parsed by the recipes."""
    parser = SettingsParser(
        prog="hmm-datasets",
        usage="hmm-datasets COMMAND ...",
        description="Hidden Markov models as data sets, and the runs trained on them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(prog="hmm-datasets", metavar="COMMAND", required=True, help=argparse.SUPPRESS)
    for name, recipe in RECIPE_COMMANDS.items():
        if " " not in name and name not in COMMANDS:  # with a space, a flag of another command chooses it
            commands.add_parser(name, description=f"{recipe.summary}.", add_help=False)
    actions = {}
    for name, (_, where) in COMMANDS.items():
        group, _, action = name.partition(" ")
        run, kind = function_of(where)
        if action and group not in actions:
            if group not in commands.choices:
                commands.add_parser(group, description=GROUPS[group])
            title = {"title": "actions", "metavar": "ACTION", "required": group in GROUPS}
            actions[group] = commands.choices[group].add_subparsers(**title)
        text, _, epilog = (kind.__doc__ or "").partition("\n")
        adding = actions[group] if action else commands
        further = {"help": _phrase(text)} if action else {}
        made = adding.add_parser(action or name, description=text, **further)
        made.epilog = " ".join(epilog.split()) or None
        made.set_defaults(chosen=(run, kind, made))
        made.add_settings(kind)
    parsers = dict(commands.choices)
    parsers["supervise"].usage = "hmm-datasets supervise [--requeue] [flags] -- COMMAND"
    parser.epilog = commands_text(parsers)
    return parser, parsers


def function_of(where: str) -> tuple[Callable[..., int], type]:
    """The function of a command, and the class of its settings."""
    module, _, name = where.partition(":")
    function = getattr(importlib.import_module(f".commands.{module}", __package__), name)
    return function, typing.get_type_hints(function)["arguments"]


def settings_of_commands() -> dict[str, Sequence[type]]:
    """The classes of settings of every command and every experiment, by its name."""
    scripts = {" ".join(command_of(name)): recipe.path for name, recipe in RECIPE_COMMANDS.items()}
    scripts |= {f"experiment {name}": experiment_script(name) for name in experiment_names()}
    own = {name: [function_of(where)[1]] for name, (_, where) in COMMANDS.items()}
    return own | {name: declared_kinds(script) for name, script in scripts.items()}


def commands_text(parsers: dict[str, SettingsParser]) -> str:
    """The commands by their headings, each with its sentence."""
    lines = []
    for heading, names in HEADINGS.items():
        lines += [f"{heading}:"]
        for name in names:
            lines += [f"  {name:12}{_phrase(parsers[name].description or '')}"]
    return "\n".join([*lines, "", "hmm-datasets COMMAND --help describes a command."])


def _phrase(sentence: str) -> str:
    """A sentence as an entry of a list."""
    return sentence[:1].lower() + sentence[1:].removesuffix(".")


if __name__ == "__main__":
    sys.exit(main())
