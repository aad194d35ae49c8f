"""Which numbers a setting may be, and beside which others it has no effect: the table of help, parsers and tests.

A number is finite and 0 or more, and an integer less than 2**63, unless its field declares otherwise
(`setting(..., least=1)`) or, for the fields of another library, the `number_ranges` of a class of settings, by name.
What has no effect beside others is in the `voids` of a class. Both are inherited. The module imports nothing slow.
"""

import dataclasses
import fnmatch
import math
import numbers
import re
import sys
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError
from . import environment

VOID_HEADER = ("command", "setting", "has no effect")
"""What the cells of [`void_rows`] are."""

Get = Callable[[str], Any]
"""The value of a setting by its name: as it was typed, or its default."""


class NumberRange(typing.NamedTuple):
    """The numbers that a setting may be: `least` and `most` may be reached, `above` and `below` may not."""

    least: float = 0
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def allow(self, number: float) -> bool:
        """Whether the number is within them, and finite."""
        below = 1 << 63 if self.below == math.inf and isinstance(number, int) else self.below
        return self.least <= number <= self.most and self.above < number < below

    def __str__(self) -> str:
        lowest = f"more than {_word(self.above)}" if self.above >= self.least else f"{_word(self.least)} or more"
        highest = f"at most {_word(self.most)}" if self.most < math.inf else f"less than {_word(self.below)}"
        parts = [lowest] * (max(self.least, self.above) > -math.inf)
        return ", and ".join(parts + [highest] * (min(self.most, self.below) < math.inf)) or "a number below 2**63"


@dataclasses.dataclass(frozen=True)
class Void:
    """Settings that have no effect beside others.

    Attributes:
        names (`str`): the settings, between spaces; with `*` all whose names begin so.
        condition (`str`): `with NAME` or `without NAME`, of names joined by ` or `; `if NAME is VALUE` or `unless NAME
            is VALUE`, of values joined by ` or `; or after `if` or `unless` one of the `void_facts` of the class of
            settings, by which it maps sentences to functions of [`Get`].
        why (`str`, *optional*): the reason.
    """

    names: str
    condition: str
    why: str = ""

    def covers(self, name: str) -> bool:
        """Whether a setting is one of them."""
        return any(fnmatch.fnmatchcase(name, part) for part in self.names.split())

    def holds(self, get: Get, facts: Mapping[str, Callable[[Get], bool]]) -> bool:
        """Whether the settings have no effect.

        Args:
            get (callable): gives the value of a setting.
            facts (mapping): the facts that conditions may name.
        """
        word, _, what = self.condition.partition(" ")
        if word in ("with", "without"):
            is_so = any(get(name) for name in what.split(" or "))
        elif what in facts:
            is_so = facts[what](get)
        else:
            name, _, choices = what.partition(" is ")
            value = get(name)
            words = {_word(part) for part in (value if isinstance(value, list) else [value])}
            is_so = not words.isdisjoint(choices.split(" or "))
        return is_so == (word in ("with", "if"))

    @property
    def remedy(self) -> str:
        """What to do about it."""
        needed = re.fullmatch(r"without (.+)|unless (\w+) is (\w+(?: or \w+)*)", self.condition)
        further = "" if needed is None else f", or give {' '.join(filter(None, needed.groups()))}"
        return "leave one of them out" if self.condition.startswith("with ") else f"leave it out{further}"


def _word(value: Any) -> str:
    """A value as messages and conditions write it."""
    if type(value) is int and value >= 1 << 31:
        text = str(value)
        return f"2**{value.bit_length() - 1}" if value.bit_count() == 1 else text[:20] + "..." * (len(text) > 20)
    return f"{value:g}" if isinstance(value, float) else str(getattr(value, "value", value))


def _asks(value: Any, default: Any) -> bool:
    """Whether a value asks for anything: not if it is empty, zero or false, but for zero in the place of None."""
    return bool(value) or (default is None and value is not None and value is not False)


def defaults_of(fields: Sequence[dataclasses.Field]) -> dict[str, Any]:
    """The defaults of the fields that have one, by name; of fields of one name, that of the first."""
    values = {}
    for field in reversed(fields):
        if field.default_factory is not dataclasses.MISSING:
            values[field.name] = field.default_factory()
        elif field.default is not dataclasses.MISSING:
            values[field.name] = field.default
    return values


def fields_of(kinds: Sequence[type]) -> dict[str, dataclasses.Field]:
    """The settings of some classes, by name; of fields of one name, the first."""
    return {field.name: field for kind in reversed(kinds) for field in dataclasses.fields(kind) if field.init}


def voids_of(kinds: Sequence[type]) -> list[Void]:
    """What has no effect beside others, of some classes of settings."""
    return [void for kind in kinds for base in kind.__mro__ for void in vars(base).get("voids", ())]


def ranges_of(kinds: Sequence[type]) -> dict[str, NumberRange]:
    """The numbers that each setting of some classes may be."""
    bounds = {name: field.metadata.get("bounds", NumberRange()) for name, field in fields_of(kinds).items()}
    return bounds | {name: value for names, value in _merged(kinds, "number_ranges").items() for name in names.split()}


def _merged(kinds: Sequence[type], name: str) -> dict[str, Any]:
    parts = [vars(base).get(name, {}) for kind in kinds for base in reversed(kind.__mro__)]
    return {key: value for part in parts for key, value in part.items()}


def void_rows(commands: Mapping[str, Sequence[type]]) -> list[tuple[str, str, str]]:
    """What has no effect beside others: rows of a table, for commands and the classes of their settings."""
    return [
        (command, name, void.condition + f" ({void.why})" * bool(void.why))
        for command, kinds in commands.items()
        for void in voids_of(kinds)
        for name in void.names.split()
    ]


def condition_of(kind: type, name: str) -> str:
    """Beside what a setting of a class has no effect, for its help; empty if nothing is known to do so."""
    return " or ".join(void.condition for void in voids_of([kind]) if void.covers(name))


def check_object(settings: Any) -> None:
    """Check the settings of an object as [`checked`] does; those that differ from their defaults count as typed.

    Raises:
        `InputError`: a number out of range, or a setting that has no effect.
    """
    fields = fields_of([type(settings)])
    defaults = defaults_of([*fields.values()])
    values = {name: getattr(settings, name) for name in fields}
    checked([type(settings)], {name: value for name, value in values.items() if value != defaults.get(name)})


def check_output_dir(place: str, folder: Any) -> None:
    """Refuse an output folder that nobody means.

    Args:
        place (`str`): the setting as it was typed.
        folder (path): the folder; None for none.

    Raises:
        `InputError`: it is empty, is not text, or is the root of the file system.
    """
    text = "." if folder is None else str(folder)
    is_root = bool(text.strip()) and Path(text).resolve().parent == Path(text).resolve()
    if is_root or not text.strip() or text != text.encode(errors="replace").decode():
        raise InputError(f"{place} is {text!a}; expected the name of a folder in UTF-8, and not the root of the disk")


def checked(
    kinds: Sequence[type], values: Mapping[str, Any], flags: Collection[str] = (), file: Any = None
) -> dict[str, Any]:
    """Values without those of a file that a flag leaves without effect, which are named on stderr.

    Args:
        kinds (sequence of classes): the classes of settings.
        values (mapping): what was typed, by name.
        flags (collection of `str`, *optional*): names of those that are flags of the command line.
        file (path, *optional*): the file that has the others.

    Raises:
        `InputError`: a number out of range, or a setting that has no effect beside others; the message names it as it
            was typed.
    """
    fields, bounds, facts = fields_of(kinds), ranges_of(kinds), _merged(kinds, "void_facts")
    defaults = defaults_of([*fields.values()])
    places = {name: f"--{name}" if name in flags else name if file is None else f"{file}: {name}" for name in values}
    check_output_dir(places.get("output_dir", ""), values.get("output_dir"))
    for name, value in values.items():
        for number in value if isinstance(value, list) else [value]:
            is_number = isinstance(number, numbers.Real) and not isinstance(number, bool)
            if is_number and name in bounds and not bounds[name].allow(number):
                raise InputError(f"{places[name]} is {_word(number)}; expected {bounds[name]}")
    left = dict(values)

    def get(name: str) -> Any:
        return values[name] if name in values else defaults.get(name)

    for void in voids_of(kinds):
        names = [name for name in left.keys() & fields if void.covers(name)]
        # A file may list all settings, as a run records them; what it has as the default is not meant to change.
        names = [name for name in names if name in flags or left[name] != defaults.get(name)]
        names = sorted(name for name in names if _asks(left[name], defaults.get(name)))
        for name in names if names and void.holds(get, facts) else ():
            why = f" ({void.why})" * bool(void.why)
            value = "set" if left[name] is True else _word(left[name])
            line = f"{places[name]} is {value}, but has no effect {void.condition}{why}"
            if name in flags or set(re.findall(r"\w+", void.condition)).isdisjoint(flags):
                raise InputError(f"{line}; {void.remedy}")
            del left[name]
            if environment.rank() == 0:
                print(f"{line}, which a flag asks for", file=sys.stderr, flush=True)
    return left
