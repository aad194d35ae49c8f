"""Settings from a YAML file and flags that override it, read by TRL's parser into dataclasses."""

import argparse
import functools
import math
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from trl import TrlParser

from ..compat.accelerate import shard_on_cpu
from ..errors import InputError, suggestion
from ..files import read_yaml
from . import environment
from .credentials import refuse_masks, revealed
from .settings import whole_number
from .shipped import local_or_shipped

_DEEPSPEED_FILE = "ACCELERATE_DEEPSPEED_CONFIG_FILE"


def parse_settings(*kinds: type, arguments: Sequence[str] | None = None) -> tuple:
    """Read `--config FILE.yaml` and flags that override it into the dataclasses `kinds`.

    Raises:
        `InputError`: a missing or malformed file, an unknown key or flag, or a value of the wrong type; the message
            names the file and the key.
    """
    parser, arguments = _checked(kinds, sys.argv[1:] if arguments is None else arguments)
    _find_deepspeed_file()
    shard_on_cpu()
    try:
        settings = parser.parse_args_and_config(arguments)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"settings: {error}") from None
    os.environ.update(revealed(dict(os.environ)))  # `env` in the file may have secrets too
    return settings


def _find_deepspeed_file() -> None:
    """Make the DeepSpeed file of `accelerate launch` one that is there.

    accelerate passes its path as it is written in the launch configuration, so that it would be searched in the
    current folder, even that of a shipped configuration.

    Raises:
        `InputError`: there is no such file, here or shipped.
    """
    named = os.environ.get(_DEEPSPEED_FILE)
    if named is None or named.lstrip().startswith("{"):
        return
    path = local_or_shipped(named, "ds_configs")
    if not path.is_file():
        raise InputError(
            f"{named}: no such DeepSpeed file in {Path.cwd()}; write its whole path in the launch configuration, or "
            "launch with `hmm-datasets RECIPE --launch CONFIG`, which looks beside the configuration too"
        )
    os.environ[_DEEPSPEED_FILE] = str(path)


def parse_values(*kinds: type, arguments: Sequence[str]) -> dict[str, Any]:
    """The values of which [`parse_settings`] makes the dataclasses, which are not made here.

    So nothing is set up for a trainer, and `env` in the file is not set.

    Raises:
        `InputError`: as [`parse_settings`], but for what the dataclasses themselves check.
    """
    parser, arguments = _checked(kinds, arguments, silent=True)
    if "--config" in arguments:
        index = arguments.index("--config")
        parser.set_defaults_with_config(**{"env": None, **read_yaml(Path(arguments[index + 1]))})
        del arguments[index : index + 2]
    return vars(parser.parse_args(arguments))


def setting_names(kinds: Sequence[type]) -> set[str]:
    """The names of all settings of a recipe."""
    return {action.dest for action in _Parser(kinds).declared if action.dest != "help"}


def check_flags(arguments: Sequence[str], kinds: Sequence[type]) -> None:
    """Refuse flags that a recipe does not have; their values are not checked.

    Raises:
        `InputError`: an unknown flag.
    """
    _check_flags([part for argument in arguments for part in _split_config(argument)], _Parser(kinds))


def _checked(kinds: Sequence[type], arguments: Iterable[str], *, silent: bool = False) -> "tuple[_Parser, list[str]]":
    """A parser, and the arguments with the path of the settings file, whose names are known."""
    parser = _Parser(kinds)
    arguments = [part for argument in arguments for part in _split_config(argument)]
    _check_flags(arguments, parser)
    flags = (argument.partition("=")[0] for argument in arguments if argument.startswith("--"))
    parser.given = {flag.removeprefix("--").replace("-", "_") for flag in flags}
    if "--config" in arguments:
        _find_config(arguments, silent)
        _check_config(arguments[arguments.index("--config") + 1 :], parser, kinds)
    return parser, arguments


class _Parser(TrlParser):
    """TRL's parser, except that it keeps the list of its flags and raises instead of printing its usage and exiting.

    A dataclass may have `alternatives`, groups of settings of which one is given: a flag then takes the place of all
    settings of its group in a file.

    Args:
        kinds (sequence of `type`): the dataclasses to read.

    Attributes:
        declared (`list[argparse.Action]`): what `add_argument` returned for every flag.
        whole (set of `str`): the settings that are integers.
        given (set of `str`): the settings that flags give.
    """

    def __init__(self, kinds: Sequence[type]):
        self.declared: list[argparse.Action] = []
        self.whole: set[str] = set()
        self.given: set[str] = set()
        self._alternatives = [set(group) for kind in kinds for group in getattr(kind, "alternatives", ())]
        # An abbreviated flag could come to mean another one when a setting is added.
        super().__init__(kinds, allow_abbrev=False)

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        convert = settings.get("type")
        if convert is not None:
            # TRL wraps the type of a setting that may be None, and gives the wrapper its name.
            is_int = getattr(convert, "__name__", None) == "int"
            settings["type"] = _whole(convert) if is_int else _finite(convert)
        action = super().add_argument(*names, **settings)
        self.declared.append(action)
        if convert is not None and is_int:
            self.whole.add(action.dest)
        return action

    def set_defaults_with_config(self, **config: Any) -> list[str]:
        """Take the settings of a file as defaults, but for those whose place a flag takes."""
        replaced = {name for group in self._alternatives if group & self.given for name in group - self.given}
        kept = {
            name: int(value) if name in self.whole and _is_whole(value) else value
            for name, value in config.items()
            if name not in replaced
        }
        return super().set_defaults_with_config(**revealed(kept))

    def error(self, message: str) -> NoReturn:
        raise InputError(message) from None


def _whole(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """Convert an integer, or what else `convert` takes, such as `none`; also one such as `1e9`."""

    @functools.wraps(convert)
    def converted(text: str) -> Any:
        try:
            return convert(text)
        except ValueError:
            return whole_number(text)

    converted.__name__ = "int"  # which errors of argparse name
    return converted


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _finite(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """Convert a flag or setting, and refuse a number that is NaN or infinite, which no setting can be."""

    @functools.wraps(convert)
    def checked(text: str) -> Any:
        value = convert(text)
        if isinstance(value, float) and not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"invalid value: {text!r}; expected a finite number")
        return value

    return checked


def _split_config(argument: str) -> list[str]:
    # TRL's parser does not know the form `--config=FILE`.
    return ["--config", argument.removeprefix("--config=")] if argument.startswith("--config=") else [argument]


def _find_config(arguments: list[str], silent: bool) -> None:
    """Replace the value of `--config` by a shipped file, if no local file has that name."""
    index = arguments.index("--config") + 1
    given = arguments[index : index + 1]
    for found in (str(local_or_shipped(name, "recipes")) for name in given):
        if found != str(Path(given[0])) and not silent and environment.rank() == 0:
            print(f"--config {given[0]}: no such file here; using the shipped {found}", file=sys.stderr, flush=True)
        arguments[index] = found


def _check_flags(arguments: list[str], parser: _Parser) -> None:
    known = {"--config", *(flag for action in parser.declared for flag in action.option_strings)}
    for argument in arguments:
        flag = argument.partition("=")[0]
        # A word with a space in it is a value, such as flags for another program; argparse takes it so.
        if flag.startswith("--") and " " not in flag and flag not in known:
            raise InputError(f"unknown flag {flag}{suggestion(flag, known)}")


def _check_config(values: list[str], parser: _Parser, kinds: Sequence[type]) -> None:
    if not values:
        raise InputError("--config needs a YAML file")
    path = Path(values[0])
    content = read_yaml(path)
    expected = {name: kind for one in kinds for name, kind in typing.get_type_hints(one).items()}
    converters = {action.dest: action.type for action in reversed(parser.declared) if action.dest != "help"}
    refuse_masks(revealed(content), str(path))
    for key, value in content.items():
        if key == "env":
            continue
        if key not in converters:
            raise InputError(f"{path}: unknown setting {key!r}{suggestion(str(key), converters)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{path}: {key} is {value}; expected a finite number")
        if not (key in parser.whole and _is_whole(value)) and not _fits(value, expected[key], converters[key]):
            kind = expected[key].__name__ if isinstance(expected[key], type) else expected[key]
            raise InputError(f"{path}: {key} is {value!r} ({type(value).__name__}); expected {kind}")


def _fits(value: Any, kind: Any, convert: Callable[[str], Any] | None) -> bool:
    """Whether a value of a YAML file has a field's type; argparse converts strings and checks nothing else."""
    members = set(typing.get_args(kind)) if typing.get_origin(kind) in (typing.Union, types.UnionType) else {kind}
    if isinstance(value, str) and str not in members and convert is not None:
        try:
            convert(value)
        except (ValueError, argparse.ArgumentTypeError):
            return False
        return True
    scalars = members & {bool, int, float, str, type(None)}
    if scalars != members and type(value) not in (bool, int, float, type(None)):
        return True  # lists, mappings, enumerations: their dataclass checks them
    return type(value) in scalars or (type(value) is int and float in scalars)
