"""The size budget: `python tests/size_budget.py` prints it, `tests/test_size_budget.py` keeps figures from growing.

Code lines are those of `hmm_datasets` without docstrings, comments, blank lines and imports. The number of files and
the length of docstrings are no figures: a module is as long as its one subject.

A figure of `size_budget.json` may be lowered in the change that lowers it (`python tests/size_budget.py --record`),
and is raised only in a change that says why.
"""

import argparse
import ast
import functools
import json
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "hmm_datasets"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}
RECORD = Path(__file__).with_name("size_budget.json")
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
GROUND = {"files", "foreign"}
"""Folders that every other one may import."""
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
    from settings_count import count_settings  # slow, and not needed by those who read imports

    settings = count_settings()
    return {
        "code lines": sum(len(code_lines(sources[path], trees[path])) for path in sources),
        "public names": len(public_names()),
        "settings of recipes and experiments": sum(settings.values()),
        "settings of pretrain": settings["pretrain"],
        "commands in --help": commands(),
        "packages": len({*map(package_of, MODULES)} - {None}),
        "layers of packages on the longest path of imports": layers(),
        "modules in import cycles": len(in_cycles()),
        "modules with constants after definitions": sum(map(has_late_constants, trees.values())),
        "public class names with two meanings": len(names_with_two_meanings(trees, ast.ClassDef)),
        "public function names with two meanings": len(names_with_two_meanings(trees, FUNCTION) - SHARED_NAMES),
        "duplicate runs of six lines": duplicate_runs(trees, sources),
        "functions above 40 statements": sum(statements(node) > LONG for node in functions),
        "imports inside functions": sum(
            isinstance(inner, (ast.Import, ast.ImportFrom)) for node in functions for inner in own_nodes(node)
        ),
        "modules that serve one experiment": len(modules_of_one_experiment()),
        "words of docs without reference": words_of_docs(),
    }


def words_of_docs() -> int:
    """The words of README.md and of the pages in docs/ that are not in docs/reference/, code and tables included."""
    reference = ROOT / "docs" / "reference"
    pages = [page for page in (ROOT / "docs").rglob("*.md") if reference not in page.parents]
    return sum(len(page.read_text(encoding="utf-8").split()) for page in [ROOT / "README.md", *pages])


def public_names() -> list[str]:
    """The names that `import hmm_datasets` offers."""
    import hmm_datasets

    return hmm_datasets.__all__


def code_lines(text: str, tree: ast.Module) -> list[str]:
    """The lines of a module, stripped, without docstrings, comments, blank lines and imports."""
    left_out = set()
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, (ast.Import, ast.ImportFrom)):
            left_out |= set(range(node.lineno, node.end_lineno + 1))
    numbered = enumerate((line.strip() for line in text.splitlines()), start=1)
    return [line for number, line in numbered if number not in left_out and line and line[0] != "#"]


def has_late_constants(tree: ast.Module) -> bool:
    """Whether a module assigns a name after its first function or class: a sign of a second subject."""
    first = next((at for at, node in enumerate(tree.body) if isinstance(node, (ast.ClassDef, *FUNCTION))), None)
    return first is not None and any(isinstance(node, (ast.Assign, ast.AnnAssign)) for node in tree.body[first:])


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
        lines = [line for line in code_lines(text, trees[path]) if line.strip("()[]{},")]
        new, skip = set(), 0
        for begin in range(len(lines) - RUN + 1):
            window = tuple(lines[begin : begin + RUN])
            if (window in seen or window in new) and begin >= skip:
                found, skip = found + 1, begin + RUN
            new.add(window)
        seen |= new
    return found


@functools.cache
def import_nodes(path: Path) -> list[tuple[ast.ImportFrom, bool]]:
    """The imports of a file, and whether each is for a type checker alone."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    guards = (node for node in nodes if isinstance(node, ast.If) and isinstance(node.test, ast.Name))
    apart = {id(inner) for node in guards if node.test.id == "TYPE_CHECKING" for inner in ast.walk(node)}
    return [(node, id(node) in apart) for node in nodes if isinstance(node, ast.ImportFrom)]


def imports_of(path: Path, *, for_types: bool = False) -> set[str]:
    """The modules of the package that a file imports, in functions too; those for a type checker alone if asked."""
    found = set()
    for node, is_apart in import_nodes(path):
        if is_apart and not for_types:
            continue
        folder = path.parents[node.level - 1].relative_to(ROOT).parts if node.level else ()
        origin = ".".join([*folder, *filter(None, [node.module])])
        for name in (f"{origin}.{alias.name}" for alias in node.names):
            found |= {name} if name in MODULES else {origin} & MODULES.keys()
    return found


@functools.cache
def imports() -> dict[str, set[str]]:
    """What each module imports: read when asked for, since every process that collects tests imports this file."""
    return {module: imports_of(path) - {module} for module, path in MODULES.items()}


def reached_from(module: str) -> set[str]:
    reached, todo = set(), [module]
    while todo:
        new = imports()[todo.pop()] - reached
        reached |= new
        todo += new
    return reached


def in_cycles() -> set[str]:
    """Modules that import themselves by others."""
    return {module for module in MODULES if module in reached_from(module)}


def package_of(module: str) -> str | None:
    """The folder of a module, of which `hub/kinds` is one by itself; for the ground `ground`, but for `cli`."""
    _, *path = module.split(".")
    if path[:2] == ["hub", "kinds"]:
        return "kinds"
    if path and path[0] not in GROUND and (PACKAGE / path[0]).is_dir():
        return path[0]
    return None if not path else "cli" if path == ["cli"] else "ground"


def package_imports() -> set[tuple[str | None, str | None]]:
    """Which folder imports from which."""
    found = {
        (package_of(module), package_of(name))
        for module in MODULES
        for name in imports()[module]
        # `push_to_hub` is a method of processes; public names are loaded when used, old ones kept for a release.
        if (module, name) != ("hmm_datasets.hmm.process", "hmm_datasets.hub.push")
        and not {module, name} & {"hmm_datasets", "hmm_datasets.hub"}
    }
    return found - {(package, package) for package in {*map(package_of, MODULES)}}


def below(arrows: set[tuple[str, str]]) -> dict[str, set[str]]:
    """For each folder all that it reaches by arrows."""
    found = {package: {other for one, other in arrows if one == package} for package in {one for one, _ in arrows}}
    for _ in found:
        found = {
            package: others.union(*(found.get(other, ()) for other in others)) for package, others in found.items()
        }
    return found


def layers() -> int:
    """Folders on the longest way down by imports."""
    arrows = package_imports()

    @functools.cache
    def height(package: str | None) -> int:
        return 1 + max((height(other) for one, other in arrows if one == package), default=0)

    return max(height(package) for package, _ in arrows)


def modules_of_one_experiment() -> set[str]:
    """Modules that nothing imports but one experiment, and what it imports for that alone."""
    from hmm_datasets.hmm.process_table import TABLE

    users = defaultdict(set, {"hmm_datasets.cli": {"pyproject.toml"}})
    for name, path in MODULES.items():
        for imported in imports_of(path, for_types=True):  # such as the public names, which are loaded when used
            users[imported].add(name)
    for where, *_ in TABLE:  # which names modules that are imported when a process of theirs is used
        users[f"hmm_datasets.hmm.{where.partition(':')[0]}"].add("hmm_datasets.hmm.process_table")
    for path in [*(ROOT / "recipes").rglob("*.py"), *(ROOT / "docs").rglob("*.py")]:
        for imported in imports_of(path):
            users[imported].add(f"recipes/{path.parent.name}")
    for path in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        for module in set(re.findall(r"from (hmm_datasets[\w.]*) import", path.read_text(encoding="utf-8"))):
            users[module].add(f"notebooks/{path.stem}")
    shown = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md"))
    only: dict[str, str] = {}
    for _ in range(4):  # a module of an experiment's module is the experiment's too
        for module in MODULES.keys() - only.keys():
            by = {only.get(user, user) for user in users[module]}
            if len(by) == 1 and (one := next(iter(by))).startswith("recipes/") and one != "recipes/recipes":
                only[module] = one
    return {module for module in only if f"::: {module}" not in shown}


def slowest_help() -> tuple[float, str]:
    """Seconds of the slowest `--help` on this machine, and its command; each is run twice."""
    from hmm_datasets.cli import HEADINGS

    def seconds(name: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "hmm_datasets.cli", name, "--help"], check=True, capture_output=True)
        return time.perf_counter() - began

    return max((min(seconds(name), seconds(name)), name) for names in HEADINGS.values() for name in names)


def main() -> None:
    """Print the figures, and what is recorded beside them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--record", action="store_true", help="lower those in size_budget.json to them")
    parser.add_argument("--help-times", action="store_true", help="also the slowest --help, which takes half a minute")
    settings = parser.parse_args()
    now, recorded = figures(), json.loads(RECORD.read_text()) if RECORD.exists() else {}
    width = max(map(len, now))
    print(f"{'':{width}} {'recorded':>9} {'now':>9}")
    for name, value in now.items():
        print(f"{name:{width}} {recorded.get(name, ''):>9} {value:>9}")
    if settings.help_times:
        print("slowest --help: {:.2f} s, of {}".format(*slowest_help()))
    if settings.record:
        for name in ("code lines", "words of docs without reference"):
            now[name] += -now[name] % 100  # space for what mends a fault
        lowered = {name: min(value, recorded.get(name, value)) for name, value in now.items()}
        RECORD.write_text(json.dumps(lowered, indent=2) + "\n")


if __name__ == "__main__":
    main()
