"""Settings of commands and recipes: dataclasses whose fields are flags and arguments of a parser.

Flags are spelt with underscores, as in transformers and TRL; hyphens are understood. A parser reads only what a
command line contains: the dataclasses have the defaults. The module imports nothing slow.
"""

import argparse
import contextlib
import dataclasses
import importlib
import itertools
import math
import re
import shlex
import shutil
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

from ..errors import InputError, suggestion
from ..files import parse_yaml
from ..truth_values import truth_value
from .setting_rules import NumberRange, condition_of, defaults_of

_LINES = 48
"""Lines of a help with settings, of which the last are only named if they do not fit."""


def whole_number(text: str) -> int:
    """An integer as people write it: `1000`, `1_000` or `1e3`.

    Raises:
        `ValueError`: it is none.

    ```python
    >>> whole_number("1_000"), whole_number("2.5e9")
    (1000, 2500000000)

    ```
    """
    try:
        return int(text)
    except ValueError:
        number = Decimal(text) if re.fullmatch(r"[+-]?[\d_]+(\.\d+)?[eE]\+?\d{1,3}", text) else None
        if number is None or number != int(number):
            raise
        return int(number)


def underscored(word: str) -> str:
    """A flag spelt with underscores; other words stay as they are.

    ```python
    >>> underscored("--num_states=3-000"), underscored("my-file")
    ('--num_states=3-000', 'my-file')

    ```
    """
    flag, equals, value = word.partition("=")
    is_flag = word.startswith("--") and " " not in flag
    return "--" + flag[2:].replace("-", "_") + equals + value if is_flag else word


def argument(metavar: str, text: str, *, default: Any = dataclasses.MISSING, many: str | None = None) -> Any:
    """A field that is given by its position.

    Args:
        metavar (`str`): its name in the help.
        text (`str`): the help.
        default (*optional*): its value if it may be left out.
        many (`str`, *optional*): `"*"` or `"+"`, if it may be given more than once.
    """
    nargs = many or (None if default is dataclasses.MISSING else "?")
    return _field(default, {"help": text, "positional": True, "flag": {"metavar": metavar, "nargs": nargs}})


def option(
    default: Any,
    metavar: str | None,
    text: str,
    *,
    repeated: bool = False,
    **bounds: float,
) -> Any:
    """A field of a command's settings that is given by a flag; a flag without a value if it is True or False.

    Args:
        default: its value without the flag; `dataclasses.MISSING` if the flag must be given.
        metavar (`str`, *optional*): name of the value in the help.
        text (`str`): the help.
        repeated (`bool`, *optional*, defaults to `False`): whether each flag adds a value to a list.
        bounds (`float`, *optional*): see [`~hmm_datasets.runtime.setting_rules.NumberRange`].
    """
    flag = {"metavar": metavar, "action": "append" if repeated else None}
    return _field(default, {"help": text, "is_switch": True, "flag": flag, "bounds": NumberRange(**bounds)})


def rest(what: str) -> Any:
    """A field for what else was given: `"flags"` that the command does not know, all `"words"`, the words `"after"` a
    `--`, or the `"commands"`, by name."""
    return dataclasses.field(default_factory=list, metadata={"rest": what})


def setting(default: Any, text: str, **bounds: float) -> Any:
    """A field of the settings of a recipe or a trainer.

    Args:
        default: its value if nothing is given; `dataclasses.MISSING` if it must be given.
        text (`str`): the help.
        bounds (`float`, *optional*): see [`~hmm_datasets.runtime.setting_rules.NumberRange`].
    """
    return _field(default, {"help": text, "bounds": NumberRange(**bounds)})


def _field(default: Any, metadata: dict[str, Any]) -> Any:
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def takes_rest(kind: type, what: str) -> bool:
    """Whether a class of settings has a field for it."""
    return any(field.metadata.get("rest") == what for field in dataclasses.fields(kind))


class SettingsParser(argparse.ArgumentParser):
    """A parser of settings. Its errors are raised as `InputError`, and flags cannot be abbreviated."""

    def __init__(self, **settings: Any):
        super().__init__(allow_abbrev=False, **settings)
        self.flags: set[str] = set()
        self.text_flags: set[str] = set()
        self.kinds: list[type] = []

    def add_settings(self, kind: type) -> None:
        """Add the fields of a class of settings, as flags and arguments."""
        self.kinds.append(kind)
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            if field.init and "rest" not in field.metadata and f"--{field.name}" not in self.flags:
                self._add_setting(field, hints[field.name], _help(kind, field))

    def _add_setting(self, field: dataclasses.Field, hint: Any, text: str) -> None:
        options = {name: value for name, value in field.metadata.get("flag", {}).items() if value is not None}
        options |= {"help": text, "default": argparse.SUPPRESS}
        types_ = members(hint)
        if bool in types_ and type(None) not in types_ and field.metadata.get("is_switch"):
            options["action"] = "store_true"
        else:
            options["type"] = converter(hint)
            if typing.get_origin(types_[0]) is typing.Literal:
                options["choices"] = typing.get_args(types_[0])
            if bool in types_ and (type(None) not in types_ or field.metadata.get("is_switch")):
                options |= {"nargs": "?", "const": True}
            elif _element(hint) is not None and "action" not in options:
                options.setdefault("nargs", "+")
        if field.metadata.get("positional"):  # argparse would convert a suppressed default
            self.add_argument(field.name, **options | {"default": defaults_of([field]).get(field.name)})
        else:
            self.flags.add(f"--{field.name}")
            self.text_flags |= {f"--{field.name}"} if str in types_ else set()
            self.add_argument(f"--{field.name}", **options)

    def parse(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """The settings that words give, and the words of unknown flags as they were written."""
        spelt = {underscored(word): word for word in words}
        arguments, others = self.parse_known_args(list(map(underscored, words)))
        return arguments, [spelt.get(word, word) for word in others]

    def check_flags(self, words: Sequence[str]) -> None:
        """Refuse flags that are unknown; a word with a space in it is a value, such as flags of another program.

        Raises:
            `InputError`: an unknown flag.
        """
        for before, word in itertools.pairwise(["", *words]):
            flag = underscored(word).partition("=")[0]
            if flag.startswith("--") and " " not in flag and flag not in self.flags:
                if underscored(before) in self.text_flags:
                    meant = f"{before}={shlex.quote(word)}"
                    raise InputError(f"unknown flag {flag}; if it is the value of {before}, write {meant}")
                raise InputError(f"unknown flag {flag}{hint_at(flag, {*self.flags, '--config'} - {flag}, self.kinds)}")

    def error(self, message: str) -> NoReturn:
        raise InputError(message) from None


def hint_at(name: str, known: Collection[str], kinds: Sequence[type]) -> str:
    """The end of an error about an unknown setting: that other recipes have it, the nearest of the known names, or
    where they are listed."""
    is_fixed = any(name.removeprefix("--") in vars(kind)["__dataclass_fields__"] for kind in kinds)
    return ", which other recipes have" if is_fixed else suggestion(name, known) or "; --help lists all"


def members(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _element(hint: Any) -> Any:
    """The type of the elements of a list; None for what is no list, or may be a string."""
    lists = [kind for kind in members(hint) if typing.get_origin(kind) is list]
    return typing.get_args(lists[0])[0] if lists and str not in members(hint) else None


def converter(hint: Any) -> Callable[[str], Any]:
    """The function that reads a word of a command line as a type; of a list, as one of its elements."""
    kinds = members(hint if _element(hint) is None else _element(hint))

    def read(text: str) -> Any:
        if type(None) in kinds and str not in kinds and text.lower() in ("none", "null"):
            return None
        if bool in kinds and (answer := truth_value(text)) is not None:
            return answer
        for kind, convert in ((int, whole_number), (float, _finite)):
            if kind in kinds:
                with contextlib.suppress(ValueError):
                    return convert(text)
        if Path in kinds and text.strip():
            return Path(text)
        if text.startswith("{") and any(dict in (kind, typing.get_origin(kind)) for kind in kinds):
            try:
                return with_numbers(parse_yaml(text))
            except Exception:  # of the reader of YAML, which is not imported here
                raise ValueError(text) from None
        if not any(kind is str or typing.get_origin(kind) is typing.Literal for kind in kinds):
            raise ValueError(text)
        return text

    name = next((kind for kind in kinds if kind is not type(None)), str)
    read.__name__ = getattr(name, "__name__", str(name))  # which errors of argparse name
    return read


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"invalid value: {text!r}; expected a finite number")
    return value


def with_numbers(value: Any) -> Any:
    """A mapping in which numbers such as `1e-4`, which are text in YAML 1.1, are numbers."""
    if isinstance(value, dict):
        return {name: with_numbers(part) for name, part in value.items()}
    is_number = isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d{1,3}", value)
    return float(value) if is_number else value


def file_value(value: Any, hint: Any) -> Any:
    """The value of a setting that a YAML file gives, of which strings are read as in a command line.

    Raises:
        `ValueError`: it is of another type, or a number that is not finite.
    """
    kinds, element = members(hint), _element(hint)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a finite number")
    if element is not None and value is not None:
        return [file_value(entry, element) for entry in (value if isinstance(value, list) else [value])]
    if isinstance(value, str):
        try:
            return value if str in kinds and not value.startswith("{") else converter(hint)(value)
        except argparse.ArgumentTypeError:
            raise ValueError(value) from None
    if isinstance(value, float) and value.is_integer() and int in kinds and float not in kinds:
        return int(value)
    if isinstance(value, (list, dict)) and any(kind not in (bool, int, float, str, type(None)) for kind in kinds):
        return with_numbers(value)  # its dataclass checks it
    if type(value) not in kinds and not (type(value) is int and float in kinds):
        raise ValueError(value)
    return value


def settings_from(kind: type, values: Mapping[str, Any], **further: Any) -> Any:
    """Settings of given values, by their names, and of what else was given (see [`rest`]).

    Raises:
        `InputError`: a value that must be given is not.
    """
    fields = [field for field in dataclasses.fields(kind) if field.init]
    check_required(fields, values)
    chosen = {field.name: values[field.name] for field in fields if field.name in values}
    chosen |= {
        field.name: further[field.metadata["rest"]] for field in fields if field.metadata.get("rest") in further
    }
    return kind(**chosen)


def check_required(fields: Sequence[dataclasses.Field], values: Mapping[str, Any]) -> None:
    """Raise an error that names the fields without a default of which there is no value."""
    missing = [
        f"--{field.name}" for field in fields if field.default is field.default_factory and field.name not in values
    ]
    if missing:
        raise InputError(f"the following arguments are required: {', '.join(missing)}")


def complete(kind: type) -> type:
    """The class that adds another library's settings to a declared one, `MODULE:CLASS` of its `completed_by`, if any.

    Its module is imported only here, because the other library takes seconds.
    """
    module, _, name = getattr(kind, "completed_by", "").partition(":")
    return getattr(importlib.import_module(module), name) if module else kind


def settings_help(kinds: Sequence[type], lines: int = _LINES) -> str:
    """The flags of settings with their defaults and descriptions. Those that do not fit the lines are only named."""
    fields = {field.name: (kind, field) for kind in kinds for field in dataclasses.fields(kind) if field.init}
    width, shown = min(shutil.get_terminal_size((119, 24)).columns, 119), list(fields.values())
    blocks = [_described(kind, field, width) for kind, field in shown]
    for described in range(len(shown), -1, -1):
        text = [line for block in blocks[:described] for line in block]
        if shown[described:]:
            names = ", ".join(f"--{field.name}" for _, field in shown[described:])
            text += textwrap.wrap(f"Further settings: {names}.", width, break_on_hyphens=False)
        if len(text) <= lines:
            break
    return "\n".join(text)


def _help(kind: type, field: dataclasses.Field, text: str | None = None) -> str:
    """The help of a setting of a class, and beside what it has no effect."""
    text, condition = field.metadata.get("help") or "" if text is None else text, condition_of(kind, field.name)
    return f"{text} (no effect {condition})" if condition else text


def _described(kind: type, field: dataclasses.Field, width: int) -> list[str]:
    """The lines of a setting: its flag, its default, and the first sentence of its help."""
    is_made = field.default_factory is not dataclasses.MISSING and _element(field.type) is not None
    default = field.default_factory() if is_made else field.default  # others that are made may need slow libraries
    default = getattr(default, "value", default)
    parts = default if isinstance(default, list) else [default]
    typed = " ".join(shlex.quote(str(part)) for part in parts if part not in (None, "", dataclasses.MISSING))
    head = f"  --{field.name}" + (f" [{typed}]" if typed else "")
    text = " ".join((field.metadata.get("help") or "").split())
    text = _help(kind, field, text.partition(". ")[0].removesuffix("."))
    lines = textwrap.wrap(text, max(width - 34, 20))
    if not lines or len(head) > 32:
        return [head, *(" " * 34 + line for line in lines)]
    return [f"{head:34}{lines[0]}", *(" " * 34 + line for line in lines[1:])]
