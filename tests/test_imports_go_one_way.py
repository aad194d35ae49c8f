"""Imports between the modules of the package go one way; imports inside functions count too."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "hmm_datasets"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}
ORDER = ("hmm", "text", "data", "training", "evaluation", "metrics")
"""A folder may import from those before it; `hmm` and `text` are level."""

FACADE = {"hmm_datasets.hmm.model", "hmm_datasets.hmm.convert", "hmm_datasets.hmm.analysis.entropy"}
"""`HMM` offers as methods what these modules, which need it, compute."""


def imports_of(module: str) -> set[str]:
    """The modules of the package that a module imports, but for a type checker alone."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    apart = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or id(node) in apart:
            continue
        parts = package.split(".")
        origin = node.module or ""
        if node.level:
            origin = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])
        for name in (f"{origin}.{alias.name}" for alias in node.names):
            found |= {name} if name in MODULES else {origin} & MODULES.keys()
    return found - {module}


IMPORTS = {module: imports_of(module) for module in MODULES}


def reached_from(module: str) -> set[str]:
    reached, todo = set(), [module]
    while todo:
        new = IMPORTS[todo.pop()] - reached
        reached |= new
        todo += new
    return reached


def test_the_facade_of_hmm_is_the_only_circle():
    assert {module for module in MODULES if module in reached_from(module)} == FACADE


@pytest.mark.parametrize("folder", ORDER)
def test_a_folder_imports_only_from_those_before_it(folder):
    allowed = {"hmm": ("hmm",), "text": ("text",)}.get(folder, ORDER[: ORDER.index(folder) + 1])
    for module, imported in IMPORTS.items():
        if module.split(".")[1:2] == [folder]:
            folders = {name.split(".")[1] for name in imported if name.count(".") > 1}
            assert folders & set(ORDER) <= set(allowed), module


def test_nothing_imports_the_command_line():
    assert not [module for module, imported in IMPORTS.items() if "hmm_datasets.cli" in imported]
