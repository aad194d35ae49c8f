"""The help of a recipe, read from the sources of its settings, since importing them takes seconds."""

import ast
import contextlib
import shlex
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_LINES = 48
"""Lines of the settings, of which the last are only named if they do not fit."""


@dataclass(frozen=True)
class Setting:
    """A field of a dataclass of settings: its name, its default as typed, if it has one, and its help."""

    name: str
    default: str | None
    help: str


def recipe_help(script: Path) -> str:
    """The settings of a recipe, our own and not those of TrainingArguments, in at most 48 lines."""
    width, settings = min(shutil.get_terminal_size((119, 24)).columns, 119), own_settings(script)
    for described in range(len(settings), -1, -1):
        lines = [line for one in settings[:described] for line in _described(one, width)]
        if settings[described:]:
            names = ", ".join(f"--{one.name}" for one in settings[described:])
            lines += textwrap.wrap(f"Further settings: {names}.", width, break_on_hyphens=False)
        if len(lines) <= _LINES:
            break
    return "\n".join(lines)


def own_settings(script: Path) -> list[Setting]:
    """The fields of the dataclasses that a recipe passes to `run`, and of their bases in this package."""
    found: dict[str, Setting] = {}
    for name, of_training in declared_kinds(script):
        file = _PACKAGE / "training" / "settings.py" if of_training else script
        found |= {one.name: one for one in _fields(file, name)}
    return list(found.values())


def declared_kinds(script: Path) -> list[tuple[str, bool]]:
    """The dataclasses that a recipe passes to `run`, by name, and whether they are those of `training.settings`."""
    calls = [node for node in ast.walk(_tree(script)) if isinstance(node, ast.Call)]
    runs = (call for call in calls if getattr(call.func, "id", "") == "run" and len(call.args) > 1)
    kinds = next((call.args[1:] for call in runs), [])
    return [(str(kind.value), True) if isinstance(kind, ast.Constant) else (kind.id, False) for kind in kinds]


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _fields(path: Path, name: str) -> Iterator[Setting]:
    """The fields of a class of a file, then those of its bases, as far as they are in the package."""
    tree = _tree(path)
    kind = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    if kind is None:
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and any(name == (one.asname or one.name) for one in node.names):
                origin = _file_of(path, node)
                if origin is not None:
                    yield from _fields(origin, name)
        return
    for node in kind.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield _setting(path, node.target.id, node.value)
    for base in kind.bases:
        if isinstance(base, ast.Name):
            yield from _fields(path, base.id)


def _file_of(path: Path, node: ast.ImportFrom) -> Path | None:
    """The file of the package that an import names."""
    names = (node.module or "").split(".")
    if node.level:
        folder = path.parents[node.level - 1]
    elif names[0] == _PACKAGE.name:
        folder, names = _PACKAGE, names[1:]
    else:
        return None
    found = folder.joinpath(*names).with_suffix(".py")
    return found if found.is_file() else None


def _setting(path: Path, name: str, value: ast.expr | None) -> Setting:
    if not isinstance(value, ast.Call):
        return Setting(name, _typed(value), "")
    given = {keyword.arg: keyword.value for keyword in value.keywords}
    default, text = given.get("default"), ""
    if len(value.args) == 2:  # a function that makes a field of a default and a help
        default, text = value.args[0], _text(path, value.args[1])
    elif isinstance(metadata := given.get("metadata"), ast.Dict):
        keys = {key.value: one for key, one in zip(metadata.keys, metadata.values, strict=True) if _is_text(key)}
        text = _text(path, keys.get("help"))
    return Setting(name, _typed(default), text)


def _typed(default: ast.expr | None) -> str | None:
    """A default as it is typed on a command line; None for none, nothing, and one that is computed."""
    try:
        value = None if default is None else ast.literal_eval(default)
    except ValueError:
        return None
    parts = value if isinstance(value, list) else [] if value in (None, "") else [value]
    return " ".join(shlex.quote(str(part)) for part in parts) or None


def _is_text(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _text(path: Path, node: ast.expr | None) -> str:
    """A string; what it is formatted with is computed from the constants of its file, or stands as `...`."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(path, part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        names = {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
        values = {name: _constant(path, name) for name in names}
        code = compile(ast.fix_missing_locations(ast.Expression(ast.JoinedStr([node]))), str(path), "eval")
        return "..." if None in values.values() else eval(code, {"__builtins__": {}}, values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _constant(path: Path, name: str) -> object:
    """The value of a name that a file, or the file of the package that it imports it from, gives as a literal.

    Of a dictionary of other values it is the keys.
    """
    for node in _tree(path).body:
        if isinstance(node, ast.Assign) and name in [getattr(one, "id", None) for one in node.targets]:
            with contextlib.suppress(ValueError):
                return ast.literal_eval(node.value)
            return list(map(ast.literal_eval, node.value.keys)) if isinstance(node.value, ast.Dict) else None
        if isinstance(node, ast.ImportFrom) and any(name == (one.asname or one.name) for one in node.names):
            origin = _file_of(path, node)
            return None if origin is None else _constant(origin, name)
    return None


def _described(setting: Setting, width: int) -> list[str]:
    """The lines of a setting: its flag, its default, and the first sentence of its help."""
    default = "" if setting.default is None else f" [{setting.default}]"
    head = f"  --{setting.name}{default}"
    lines = textwrap.wrap(setting.help.partition(". ")[0].removesuffix("."), max(width - 34, 20))
    if not lines or len(head) > 32:
        return [head, *(" " * 34 + line for line in lines)]
    return [f"{head:34}{lines[0]}", *(" " * 34 + line for line in lines[1:])]
