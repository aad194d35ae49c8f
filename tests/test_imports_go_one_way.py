"""Imports between the modules of the package go one way; imports inside functions count too."""

import ast
import functools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from size_budget import FUNCTION, MODULES, PACKAGE, ROOT, below, imports, in_cycles, own_nodes, package_imports

PICTURE = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
FACADE = {f"hmm_datasets.hmm.{name}" for name in ("model", "process", "convert", "analysis.entropy")}
"""`HMM` and `Process` offer as methods what these modules, which need it, compute."""


@pytest.mark.thorough
def test_the_facade_of_hmm_is_the_only_cycle():
    assert in_cycles() == FACADE


@pytest.mark.thorough
def test_the_picture_of_folders_is_the_one_that_the_sources_draw():
    """The picture leaves out imports that follow from others; what is above imports what is below."""
    drawn = set(re.findall(r"^    (\w+) --> (\w+)$", PICTURE, flags=re.MULTILINE))
    found = package_imports()
    assert drawn <= found
    lower = below(drawn)
    assert {(package, other) for package, others in lower.items() for other in others} >= found
    assert not [package for package, others in lower.items() if package in others], "no folder imports itself"


def test_nothing_imports_the_command_line():
    assert not [module for module, imported in imports().items() if "hmm_datasets.cli" in imported]


def imported_by(path: Path, nodes: Iterable[ast.AST]) -> list[tuple[ast.stmt, set[str]]]:
    """The import statements among nodes, each with the modules and libraries that it imports."""
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found.append((node, {alias.name for alias in node.names}))
        elif isinstance(node, ast.ImportFrom):
            folder = path.parents[node.level - 1].relative_to(ROOT).parts if node.level else ()
            origin = ".".join([*folder, *filter(None, [node.module])])
            names = {f"{origin}.{alias.name}" for alias in node.names}
            found.append((node, {name if name in MODULES else origin for name in names}))
    return found


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """What of a module runs when it is imported."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.If) and ast.unparse(inner.test) == "TYPE_CHECKING":
            yield from inner.orelse
        elif not isinstance(inner, FUNCTION):
            yield inner
            yield from at_import(inner)


@functools.cache
def trees() -> dict[str, ast.Module]:
    return {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in MODULES.items()}


@functools.cache
def loaded_first() -> dict[str, set[str]]:
    """For each module the modules and libraries that its import imports, its folder's `__init__` among them."""
    return {
        module: {name for _, names in imported_by(path, at_import(trees()[module])) for name in names}
        | ({module.rpartition(".")[0]} - {""})
        for module, path in MODULES.items()
    }


def loads(names: Iterable[str]) -> set[str]:
    """All modules and libraries that are loaded when some are imported."""
    found, todo = set(), list(names)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += loaded_first().get(name, ())
    return found


def libraries(names: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names


@pytest.mark.thorough
def test_an_import_in_a_function_spares_its_module_a_library_or_a_cycle():
    """So that a command starts fast, and what a library would add is only installed by those who use it."""
    needless = [
        f"{path.relative_to(ROOT)}:{statement.lineno}: {ast.unparse(statement)}"
        for module, path in MODULES.items()
        for function in ast.walk(trees()[module])
        if isinstance(function, FUNCTION)
        for statement, names in imported_by(path, own_nodes(function))
        if module not in loads(names) and libraries(loads(names)) <= libraries(loads([module]))
    ]
    assert not needless, "these belong to the top of their modules"
