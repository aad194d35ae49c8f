"""YAML files, which may come from anyone."""

import re
from pathlib import Path
from typing import Any

from ..errors import InputError, first_line, path_errors
from .atomic import atomic_file

_MOST_YAML = 1_000_000  # values in a file
_OTHER_BASE = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?|[-+]?0[0-7_]+")


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        `InputError`: there is no such file, or it is not UTF-8 text, not YAML or not a mapping; the message gives the
            byte or line.
    """
    import yaml

    try:
        with path_errors(path):
            text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not text in UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}, in line "
            f"{error.object.count(10, 0, error.start) + 1}; save the file with the encoding UTF-8"
        ) from None
    try:
        content = parse_yaml(text)
    except InputError as error:
        raise InputError(f"{path}:{error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f":{mark.line + 1}"
        raise InputError(f"{path}{line}: not YAML ({getattr(error, 'problem', error)})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a mapping of settings, found {type(content).__name__}")
    return content


def write_yaml(path: Path, settings: dict[str, Any]) -> None:
    """Write settings as YAML, atomically. Those of a type derived from `str` are written as text, and text that
    [`read_yaml`] would refuse as a number is quoted."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    Dumper.add_multi_representer(str, lambda dumper, text: dumper.represent_str(str(text)))
    # Text that would be read as another type is quoted; PyYAML itself quotes 3:55:00, but not 0:12:00.
    Dumper.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(rf"({_OTHER_BASE.pattern})$"), [*"-+0123456789"])
    with atomic_file(path) as temporary:
        text = yaml.dump(settings, Dumper=Dumper, sort_keys=False, allow_unicode=True)
        temporary.write_text(text, encoding="utf-8")


def parse_yaml(text: str) -> Any:
    """What a YAML text says, which may come from anyone.

    Raises:
        `yaml.YAMLError`: it is not YAML, has a value that its type does not have, such as the date 2026-02-30, or a
            number of thousands of digits, is nested too deeply, or repeats parts of itself until they are too many.
        `InputError`: a key is there twice, or an unquoted number is one of base 60 or 8; the message begins with the
            line.
    """
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        # A few lines of aliases of aliases stand for billions of values.
        if node is not None and _yaml_size(node, {}) > _MOST_YAML:
            raise yaml.YAMLError(f"more than {_MOST_YAML:,} values, by aliases of aliases")
        return None if node is None else loader.construct_document(node)
    except InputError:
        raise
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        raise yaml.YAMLError(first_line(error)) from None
    finally:
        loader.dispose()


def _check_node(node: Any) -> None:
    """Refuse what YAML takes for something that nobody means."""
    lines: dict[tuple[str, str], int] = {}
    for key, _ in node.value if node.id == "mapping" else ():
        line = key.start_mark.line + 1
        if key.id == "scalar" and (key.tag, key.value) in lines:
            first = lines[key.tag, key.value]
            raise InputError(f"{line}: {key.value} is there twice, first in line {first}; leave one of them out")
        lines[key.tag, str(key.value)] = line
    if node.id == "scalar" and node.style is None and _OTHER_BASE.fullmatch(node.value):
        line, base = node.start_mark.line + 1, 60 if ":" in node.value else 8
        raise InputError(f"{line}: {node.value} is a number of base {base} in YAML; quote it, as in '{node.value}'")


def _yaml_size(node: Any, known: dict[int, int]) -> int:
    """The number of values of a node if all aliases are written out."""
    if id(node) not in known:
        _check_node(node)
        parts = node.value if isinstance(node.value, list) else []
        known[id(node)] = _MOST_YAML  # one that contains itself
        flat = [item for part in parts for item in (part if isinstance(part, tuple) else [part])]
        letters = 0 if parts else len(node.value) // 64
        known[id(node)] = 1 + letters + sum(_yaml_size(part, known) for part in flat)
    return known[id(node)]
