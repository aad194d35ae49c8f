"""Settings of commands and recipes: dataclasses whose fields are arguments and flags. It imports nothing slow.

A field whose type is a `Literal` has one of its values. Flags may be spelt with hyphens or underscores: parsers of
this package have hyphens, those of recipes underscores.
"""

import argparse
import dataclasses
import re
import types
import typing
from collections.abc import Sequence
from decimal import Decimal
from typing import Any


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


whole_number.__name__ = "int"  # which errors of argparse name


def argument(metavar: str, text: str, *, default: Any = dataclasses.MISSING, many: str | None = None) -> Any:
    """A field that is given by its position.

    Args:
        metavar (`str`): its name in the help.
        text (`str`): the help.
        default (*optional*): its value if it may be left out.
        many (`str`, *optional*): `"*"` or `"+"`, if it may be given more than once.
    """
    return _field("argument", default, {"metavar": metavar, "help": text, "nargs": many})


def option(
    default: Any,
    metavar: str | None,
    text: str,
    *,
    many: int | str | None = None,
    repeated: bool = False,
) -> Any:
    """A field that is given by a flag.

    Args:
        default: its value without the flag; `dataclasses.MISSING` if the flag must be given.
        metavar (`str`, *optional*): name of the value in the help.
        text (`str`): the help.
        many (`int` or `str`, *optional*): number of values; a list's is `"+"` by default.
        repeated (`bool`, *optional*, defaults to `False`): whether each flag adds a value to a list.
    """
    given = {"metavar": metavar, "help": text, "nargs": many}
    return _field("option", default, given | ({"action": "append"} if repeated else {}))


def rest(what: str) -> Any:
    """A field for what else was given: `"flags"` that the command does not know, all `"words"`, the words `"after"` a
    `--`, or the `"commands"`, by name."""
    return dataclasses.field(default_factory=list, metadata={"kind": "rest", "what": what})


def setting(default: Any, text: str) -> Any:
    """A field of the settings of a recipe or a trainer, which TRL's parser reads.

    Args:
        default: its value if nothing is given; `dataclasses.MISSING` if it must be given.
        text (`str`): the help.
    """
    return _with_metadata(default, {"help": text})


def _field(kind: str, default: Any, given: dict[str, Any]) -> Any:
    given = {name: value for name, value in given.items() if value is not None}
    return _with_metadata(default, {"kind": kind, "given": given})


def _with_metadata(default: Any, metadata: dict[str, Any]) -> Any:
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def takes_rest(kind: type, what: str) -> bool:
    """Whether a class of settings has a field for it."""
    return any(one.metadata.get("what") == what for one in dataclasses.fields(kind))


def add_settings(parser: argparse.ArgumentParser, kind: type) -> None:
    """Add the fields of a class of settings to a parser, as arguments and flags."""
    hints = typing.get_type_hints(kind)
    for one in dataclasses.fields(kind):
        if one.metadata["kind"] == "rest":
            continue
        given = dict(one.metadata["given"])
        members = _members(hints[one.name])
        value, is_optional = next(kind for kind in members if kind is not type(None)), type(None) in members
        if typing.get_origin(value) is list:
            given = {"nargs": "+"} | given if "action" not in given else given
            value = typing.get_args(value)[0]
        if typing.get_origin(value) is typing.Literal:
            given["choices"], value = typing.get_args(value), str
        value = whole_number if value is int else value
        default = one.default if one.default is not dataclasses.MISSING else None
        default = one.default_factory() if one.default_factory is not dataclasses.MISSING else default
        is_required = one.default is one.default_factory  # both are missing
        if one.metadata["kind"] == "argument":
            parser.add_argument(
                one.name, **{"nargs": "?"} | given if not is_required else given, default=default, type=value
            )
            continue
        if value is bool:
            given["action"] = argparse.BooleanOptionalAction if is_optional else "store_true"
        else:
            given |= {"type": value, "required": is_required}
        parser.add_argument(f"--{one.name.replace('_', '-')}", **given, default=default)


def _members(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def settings_from(kind: type, arguments: argparse.Namespace, **further: Any) -> Any:
    """The settings that a parser has read, with what else was given."""
    values = {
        one.name: further[one.metadata["what"]] if one.metadata["kind"] == "rest" else getattr(arguments, one.name)
        for one in dataclasses.fields(kind)
    }
    return kind(**values)


def parse_known(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The arguments that a parser knows in either spelling, and the other words as they were written."""
    spelt = {hyphenated(word): word for word in words}
    arguments, others = parser.parse_known_args(list(map(hyphenated, words)))
    return arguments, [spelt.get(word, word) for word in others]


def hyphenated(word: str) -> str:
    """A flag spelt with hyphens, and as in Britain; other words stay as they are.

    ```python
    >>> hyphenated("--num_states=3_000"), hyphenated("my_file"), hyphenated("--license")
    ('--num-states=3_000', 'my_file', '--licence')

    ```
    """
    flag, equals, value = word.partition("=")
    flag = "--licence" if flag == "--license" else flag
    return flag.replace("_", "-") + equals + value if word.startswith("--") else word
