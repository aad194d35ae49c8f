"""How large the package is: `python tests/house.py` prints the figures, `tests/test_house.py` keeps them from growing.

A figure of `house.json` may be lowered in the change that lowers it (`python tests/house.py --record`), and is raised
only in a change that says why.
"""

import argparse
import ast
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "hmm_datasets"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}
RECORD = Path(__file__).with_name("house.json")
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
RUN = 6
"""Lines in a row that are duplicate if they stand in two places."""
LONG = 40
"""Statements of a function that is too long."""
SHARED_NAMES = {"main", "load", "save", "run", "check", "of", "read", "write"}
"""Names of functions that are as general as their modules' names make them precise."""


def figures() -> dict[str, int]:
    """The figures by name; fewer is better for all of them."""
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in sources.items()}
    functions = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, FUNCTION)]
    return {
        "lines of hmm_datasets": sum(text.count("\n") for text in sources.values()),
        "files of hmm_datasets": len(sources),
        "modules at its root": len(list(PACKAGE.glob("*.py"))) - 1,
        "commands in --help": commands(),
        "public class names with two meanings": len(names_with_two_meanings(trees, ast.ClassDef)),
        "public function names with two meanings": len(names_with_two_meanings(trees, FUNCTION) - SHARED_NAMES),
        "duplicate runs of six lines": duplicate_runs(trees, sources),
        "functions above 40 statements": sum(statements(node) > LONG for node in functions),
        "imports inside functions": sum(
            isinstance(inner, (ast.Import, ast.ImportFrom)) for node in functions for inner in own_nodes(node)
        ),
        "modules that serve one experiment": len(modules_of_one_experiment()),
    }


def commands() -> int:
    """The commands that `hmm-datasets --help` lists."""
    from hmm_datasets.cli import HEADINGS

    return sum(map(len, HEADINGS.values()))


def names_with_two_meanings(trees: dict[Path, ast.Module], kind: type | tuple[type, ...]) -> set[str]:
    """Public names that modules define at their top more than once."""
    places = defaultdict(set)
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, kind) and not node.name.startswith("_"):
                places[node.name].add(path)
    return {name for name, found in places.items() if len(found) > 1}


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """What a function holds, without what functions in it hold."""
    for node in ast.iter_child_nodes(function):
        yield node
        if not isinstance(node, FUNCTION):
            yield from own_nodes(node)


def statements(function: ast.AST) -> int:
    """The statements of a function, without its docstring."""
    found = sum(isinstance(node, ast.stmt) for node in own_nodes(function))
    return found - (ast.get_docstring(function) is not None)


def duplicate_runs(trees: dict[Path, ast.Module], sources: dict[Path, str]) -> int:
    """Places at which six lines of code begin that stand somewhere before; those that overlap count once.

    Blank lines, comments, docstrings and imports are left out, and lines that only close brackets.
    """
    seen, found = set(), 0
    for path, text in sources.items():
        left_out = set()
        for node in ast.walk(trees[path]):
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if is_text or isinstance(node, (ast.Import, ast.ImportFrom)):
                left_out |= set(range(node.lineno, node.end_lineno + 1))
        numbered = enumerate((line.strip() for line in text.splitlines()), start=1)
        lines = [line for at, line in numbered if at not in left_out and line.strip("()[]{},") and line[0] != "#"]
        new, skip = set(), 0
        for begin in range(len(lines) - RUN + 1):
            window = tuple(lines[begin : begin + RUN])
            if (window in seen or window in new) and begin >= skip:
                found, skip = found + 1, begin + RUN
            new.add(window)
        seen |= new
    return found


def imports_of(path: Path, *, for_types: bool = False) -> set[str]:
    """The modules of the package that a file imports, in functions too; those for a type checker alone if asked."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    apart = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or (id(node) in apart and not for_types):
            continue
        folder = path.parents[node.level - 1].relative_to(ROOT).parts if node.level else ()
        origin = ".".join([*folder, *filter(None, [node.module])])
        for name in (f"{origin}.{alias.name}" for alias in node.names):
            found |= {name} if name in MODULES else {origin} & MODULES.keys()
    return found


def modules_of_one_experiment() -> set[str]:
    """Modules that nothing imports but one experiment, and what it imports for that alone."""
    users = defaultdict(set, {"hmm_datasets.cli": {"pyproject.toml"}})
    for name, path in MODULES.items():
        for imported in imports_of(path, for_types=True):  # such as the public names, which are loaded when used
            users[imported].add(name)
    for path in [*(ROOT / "recipes").rglob("*.py"), *(ROOT / "docs").rglob("*.py")]:
        for imported in imports_of(path):
            users[imported].add(f"recipes/{path.parent.name}")
    shown = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md"))
    only: dict[str, str] = {}
    for _ in range(4):  # a module of an experiment's module is the experiment's too
        for module in MODULES.keys() - only.keys():
            by = {only.get(user, user) for user in users[module]}
            if len(by) == 1 and (one := next(iter(by))).startswith("recipes/") and one != "recipes/recipes":
                only[module] = one
    return {module for module in only if f"::: {module}" not in shown}


def main() -> None:
    """Print the figures, and what is recorded beside them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--record", action="store_true", help="write them to house.json")
    now, recorded = figures(), json.loads(RECORD.read_text()) if RECORD.exists() else {}
    width = max(map(len, now))
    print(f"{'':{width}} {'recorded':>9} {'now':>9}")
    for name, value in now.items():
        print(f"{name:{width}} {recorded.get(name, ''):>9} {value:>9}")
    if parser.parse_args().record:
        now["lines of hmm_datasets"] += -now["lines of hmm_datasets"] % 250  # room for what mends a fault
        RECORD.write_text(json.dumps(now, indent=2) + "\n")


if __name__ == "__main__":
    main()
