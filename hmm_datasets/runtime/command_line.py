"""A command line of a recipe: its flags, and the YAML file of settings that they override. It is read once."""

import os
import sys
import typing
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from ..compat.accelerate import shard_on_cpu
from ..errors import InputError
from ..files import read_yaml
from . import environment
from .credentials import refuse_masks, remember
from .setting_rules import checked, defaults_of
from .settings import SettingsParser, check_required, file_value, hint_at, settings_from, underscored
from .shipped import local_or_shipped

_DEEPSPEED_FILE = "ACCELERATE_DEEPSPEED_CONFIG_FILE"


@dataclass(frozen=True)
class CommandLine:
    """The words of a command line without `--config FILE.yaml`, and that file.

    A class of settings may have `alternatives`, groups of settings of which one is given: a flag then takes the place
    of all settings of its group in the file.

    Attributes:
        words (`tuple` of `str`): the other words, flags spelt with underscores.
        file (`Path`, *optional*): the file, of the user or a shipped one.
        named (`str`, *optional*): the file as it is named.
    """

    words: tuple[str, ...]
    file: Path | None = None
    named: str | None = None

    @classmethod
    def read(cls, words: Sequence[str]) -> "CommandLine":
        """Take the file out of the words.

        Raises:
            `InputError`: the flag has no value, or is there twice.
        """
        parser = SettingsParser(add_help=False)
        parser.add_argument("--config", action="append")
        known, others = parser.parse_known_args(list(map(underscored, words)))
        names = known.config or [None]
        if len(names) > 1:
            raise InputError(f"--config is given twice ({' and '.join(names)}); join them in one file")
        if names[0] == "":
            raise InputError("--config needs a YAML file")
        return cls(tuple(others), None if names[0] is None else local_or_shipped(names[0], "recipes"), names[0])

    @cached_property
    def content(self) -> dict[str, Any]:
        """The settings in the file.

        Raises:
            `InputError`: the file cannot be read.
        """
        content = {} if self.file is None else read_yaml(self.file)
        remember(content)
        return content

    def value(self, name: str) -> Any:
        """A setting as a flag or else the file gives it, as it is written there; None if neither does."""
        parser = SettingsParser(add_help=False)
        parser.add_argument(f"--{name}", dest="value", nargs="?")
        value = parser.parse_known_args(self.words)[0].value
        return self.content.get(name) if value is None else value

    def values(self, *kinds: type) -> dict[str, Any]:
        """All settings that flags or file give, by name, as the types that the classes `kinds` declare.

        Raises:
            `InputError`: a missing or malformed file, an unknown key or flag, a value of the wrong type or range, a
                setting that has no effect beside others, or one that must be given and is not; the message names
                the file and the key.
        """
        parser = settings_parser(kinds)
        parser.check_flags(self.words)
        arguments, strays = parser.parse(self.words)
        if strays:
            raise InputError(f"{strays[0]}: not the value of any flag")
        flags = vars(arguments)
        replaced = {
            name for kind in kinds for group in getattr(kind, "alternatives", ()) if flags.keys() & set(group)
            for name in group
        }  # fmt: skip
        values = {name: value for name, value in self._file_values(kinds).items() if name not in replaced} | flags
        check_required(_fields(kinds), values)
        return checked(kinds, values, flags, self.file)

    def _file_values(self, kinds: Sequence[type]) -> dict[str, Any]:
        hints = {
            field.name: hint
            for kind in kinds
            for hints in [typing.get_type_hints(kind)]
            for field in fields(kind)
            for hint in [hints[field.name]]
        }
        refuse_masks(self.content, str(self.file))
        return dict(self._checked(name, value, hints, kinds) for name, value in self.content.items())

    def _checked(self, name: Any, value: Any, hints: dict[str, Any], kinds: Sequence[type]) -> tuple[str, Any]:
        if name not in hints:
            raise InputError(f"{self.file}: unknown setting {name!r}{hint_at(str(name), hints, kinds)}")
        try:
            return name, file_value(value, hints[name])
        except ValueError as error:
            if isinstance(value, float) and str(error) == "a finite number":
                raise InputError(f"{self.file}: {name} is {value}; expected a finite number") from None
            hint = hints[name]
            expected = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else hint
            quoted = ", and text such as no, on, 12 or 2026-01-31 in quotes" if "str" in str(hint) else ""
            raise InputError(
                f"{self.file}: {name} is {value!r} ({type(value).__name__}); expected {expected}{quoted}"
            ) from None

    def settings(self, *kinds: type) -> tuple:
        """The settings as objects of the classes `kinds`.

        Raises:
            `InputError`: as [`values`], and for what the classes refuse.
        """
        if self.file is not None and str(self.file) != str(Path(self.named or "")) and environment.rank() == 0:
            print(
                f"--config {self.named}: no such file here; using the shipped {self.file}", file=sys.stderr, flush=True
            )
        values = self.values(*kinds)
        _find_deepspeed_file()
        shard_on_cpu()
        try:
            return tuple(settings_from(kind, values) for kind in kinds)
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"settings: {error}") from None


def settings_parser(kinds: Sequence[type]) -> SettingsParser:
    """A parser of the flags of some classes of settings."""
    parser = SettingsParser(add_help=False)
    for kind in kinds:
        parser.add_settings(kind)
    return parser


def parse_settings(*kinds: type, arguments: Sequence[str]) -> tuple:
    """The settings that a command line gives; see [`CommandLine.settings`]."""
    return CommandLine.read(arguments).settings(*kinds)


def parse_values(*kinds: type, arguments: Sequence[str]) -> dict[str, Any]:
    """The values of which [`parse_settings`] makes objects, with the defaults; no objects are made.

    So nothing is set up for a trainer.
    """
    return defaults_of(_fields(kinds)) | CommandLine.read(arguments).values(*kinds)


def setting_names(kinds: Sequence[type]) -> set[str]:
    """The names of all settings of a recipe."""
    return {field.name for field in _fields(kinds)}


def _fields(kinds: Sequence[type]) -> list[Field]:
    return [field for kind in kinds for field in fields(kind) if field.init]


def named_setting(words: Sequence[str], name: str) -> Any:
    """A setting that any command names in its flags or its YAML file; None if it is nowhere or cannot be read."""
    try:
        return CommandLine.read(words).value(name)
    except InputError:
        return None


def deepspeed_file(named: str, config: Path | None = None, *folders: Path) -> Path:
    """The DeepSpeed file of a launch configuration: in the current folder, in one of `folders`, or shipped.

    Raises:
        `InputError`: there is none.
    """
    places = [Path(named), *(folder / named for folder in folders), local_or_shipped(named, "ds_configs")]
    path = next((path for path in places if path.is_file()), None)
    if path is None:
        raise InputError(
            f"{config or 'the launch configuration'}: deepspeed_config_file: {named}: no such file in "
            f"{', '.join(map(str, [Path.cwd(), *folders]))}; write its whole path"
        )
    return path.absolute()


def _find_deepspeed_file() -> None:
    """Make the DeepSpeed file of `accelerate launch`, which passes its path as it is written, one that is there."""
    named = os.environ.get(_DEEPSPEED_FILE)
    if named is not None and not named.lstrip().startswith("{"):
        os.environ[_DEEPSPEED_FILE] = str(deepspeed_file(named))
