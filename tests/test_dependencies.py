"""Imported packages are declared, with bounds that include the tested versions."""

import ast
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hmm_datasets.compat.versions import LIBRARIES

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
NEEDED = [Requirement(text) for text in PROJECT["dependencies"]]
ALL = [*NEEDED, *(Requirement(text) for listed in EXTRAS.values() for text in listed)]
OTHERS = [requirement for requirement in ALL if requirement.name != "hmm-datasets"]
LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
PINNED = {canonicalize_name(name): version for name, version in (line.split("==") for line in LINES)}


def imported(folder: str) -> set[str]:
    """Packages outside the standard library and this project that modules of a folder import anywhere."""
    # A program's folder is on its path, so that its neighbours are imported by their bare names.
    programs = () if folder == "hmm_datasets" else (ROOT / folder).rglob("*.py")
    own = {"hmm_datasets", *(path.stem for path in programs)}
    names = set()
    for path in (ROOT / folder).rglob("*.py"):
        names |= packages_of(ast.parse(path.read_text()))
    return names - set(sys.stdlib_module_names) - own


def packages_of(tree: ast.Module) -> set[str]:
    """Packages that a module imports anywhere."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


BY_HAND = {"torchtitan", "torchtune"}
"""What a few users install beside the package, by commands of the guides and of recipes/torchtitan/README.md."""


@pytest.mark.thorough
@pytest.mark.parametrize("folder", ["hmm_datasets", "recipes", "benchmarks"])
def test_what_is_imported_is_declared(folder):
    declared = {canonicalize_name(requirement.name) for requirement in ALL}
    providers = metadata.packages_distributions()
    missing = {
        name
        for name in imported(folder)
        if not declared & {canonicalize_name(found) for found in providers.get(name, [name])}
    }
    assert missing <= BY_HAND


@pytest.mark.parametrize("requirement", OTHERS, ids=str)
def test_a_dependency_has_bounds_that_let_in_the_version_that_is_tested(requirement):
    assert any(bound.operator in ("<", "==") for bound in requirement.specifier)
    version = PINNED.get(canonicalize_name(requirement.name))
    assert version is None or requirement.specifier.contains(version)


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_bounds_are_those_of_the_readme_and_the_next_major_release(name):
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    ((tried, oldest),) = re.findall(rf"{name} ([\d.]+(?: and [\d.]+)?) \(from ([\d.]+)\)", text)
    assert tuple(tried.split(" and ")) == LIBRARIES[name]
    newest = LIBRARIES[name][-1]
    assert PINNED[canonicalize_name(name)].startswith(f"{newest}.")
    bounds = {f">={oldest}", f"<{int(newest.split('.')[0]) + 1}"}
    assert {frozenset(map(str, item.specifier)) for item in ALL if item.name == name} == {frozenset(bounds)}


def test_make_tries_the_newest_of_the_same_libraries():
    (listed,) = re.findall(r"^LIBRARIES := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert listed.split() == list(LIBRARIES)


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.py")), ids=lambda path: path.name)
def test_the_header_of_a_recipe_lists_what_it_needs(path):
    """Inline script metadata (PEP 723), from which uv makes the environment of a recipe."""
    text = path.read_text(encoding="utf-8")
    (block,) = re.findall(r"^# /// script\n((?:#(?: .*)?\n)+?)# ///$", text, flags=re.MULTILINE)
    header = tomllib.loads(re.sub(r"^# ?", "", block, flags=re.MULTILINE))
    assert header["requires-python"] == PROJECT["requires-python"]
    (found,) = map(Requirement, header["dependencies"])
    assert found.name == PROJECT["name"]
    assert found.extras <= EXTRAS.keys()
    given = NEEDED + [Requirement(text) for extra in found.extras for text in EXTRAS[extra]]
    shared = {path.stem for path in (ROOT / "recipes" / "common").glob("*.py")}  # shipped with the package
    modules = packages_of(ast.parse(text)) - set(sys.stdlib_module_names) - {"hmm_datasets"} - shared
    assert modules <= {requirement.name.replace("-", "_") for requirement in given}
