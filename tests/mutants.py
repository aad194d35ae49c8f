"""Small faults put into the core one at a time, to see which of them the tests notice (mutation testing).

    python tests/mutants.py                      # 300 of them; hours on two cores
    python tests/mutants.py --count 20 --seed 3 --only hmm/kernels

A mutant is one change of one expression or statement: a comparison or an operator becomes its neighbour, a number one
more, a condition its opposite, a statement nothing. It is killed if a test fails or takes too long. The tests named
after the module are run first, then those of modules that import it and those beside it, then all quick tests that
name it, then those that start programs: four stages, of which `--stages` takes the first, since most mutants die early
and survivors take long.
Every mutant has its line in the table that is written, and a second run with the same table continues it.
"""

import argparse
import ast
import concurrent.futures
import contextlib
import functools
import hashlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
CORE = {
    "order": ("shuffle.py", "data", "text/stream", "training/step/logged_rows.py"),
    "counts": ("training/step/totals.py", "training/step/token_counts.py", "training/plan"),
    "processes": ("hmm",),
    "folders": ("files", "runtime/lock.py", "training/checkpoints"),
    "identity": ("runtime/run_identity.py", "training/record.py", "training/lineage.py"),
}
COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is",
               "in": "not in", "not in": "in"}  # fmt: skip
OPERATORS = {"+": "-", "-": "+", "*": "+", "/": "*", "//": "+", "%": "+", "<<": ">>", ">>": "<<", "&": "|", "|": "&",
             "^": "&", "**": "*", "@": "+"}  # fmt: skip
QUICK, LIMIT = "not slow and not thorough and not gpu", 400


class Mutant(NamedTuple):
    """One change: the file below the package, the line, what stood between two offsets of the text, and what does."""

    path: str
    line: int
    begin: int
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}  {' '.join(self.old.split())[:60]}  ->  {self.new}"


@functools.cache
def _source(path: str) -> str:
    return (ROOT / "hmm_datasets" / path).read_text()


def mutants_of(path: str) -> Iterator[Mutant]:
    """Every mutant of a file."""
    source = _source(path)
    starts = [0, *(found.end() for found in re.finditer("\n", source))]
    lines = source.splitlines()

    def at(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def change(first: tuple[int, int], last: tuple[int, int], new: str) -> Mutant:
        begin, end = at(*first), at(*last)
        return Mutant(path, first[0], begin, end, source[begin:end], new)

    def between(left: ast.expr, right: ast.expr, known: dict[str, str]) -> Iterator[Mutant]:
        # The operator stands between its operands, perhaps beside parentheses.
        begin, end = at(left.end_lineno or 0, left.end_col_offset or 0), at(right.lineno, right.col_offset)
        operator = source[begin:end].strip(" ()\n")
        if operator in known:
            offset = begin + source[begin:end].index(operator)
            yield Mutant(path, left.lineno, offset, offset + len(operator), operator, known[operator])

    def visit(node: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert):
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from between(node.left, node.comparators[0], COMPARISONS)
        elif isinstance(node, ast.BinOp):
            yield from between(node.left, node.right, OPERATORS)
        elif isinstance(node, ast.BoolOp):
            pairs = zip(node.values, node.values[1:], strict=False)
            yield from (m for pair in pairs for m in between(*pair, {"and": "or", "or": "and"}))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield change((node.lineno, node.col_offset), (node.operand.lineno, node.operand.col_offset), "")
        elif isinstance(node, ast.Constant) and type(node.value) in (int, bool):
            new = not node.value if isinstance(node.value, bool) else node.value + 1
            yield change((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0), str(new))
        elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            yield change((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0), "pass")
        for name, child in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            for one in child if isinstance(child, list) else [child]:
                if isinstance(one, ast.AST):
                    yield from visit(one)

    yield from (m for m in visit(ast.parse(source)) if _parses(source[: m.begin] + m.new + source[m.end :]))


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def core_files(only: str) -> list[str]:
    """The files of the core, relative to the package."""
    package = ROOT / "hmm_datasets"
    named = [package / name for names in CORE.values() for name in names]
    files = [file for path in named for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    return [str(file.relative_to(package)) for file in files if only in str(file)]


def tests_of(path: str, root: Path) -> list[list[str]]:
    """Arguments of pytest for the tests of a file in four stages, the likeliest to notice a mutant first."""
    stem, package = Path(path).stem, Path("hmm_datasets", path).with_suffix("")
    files = sorted((root / "tests").rglob("test_*.py"))
    named = [file for file in files if file.stem == f"test_{stem}"]
    named.append(root / "hmm_datasets" / path)  # its examples
    imports = re.compile(rf"^\s*(from|import) .*\b{stem}\b", re.MULTILINE)
    importing = {file.stem for file in (root / "hmm_datasets").rglob("*.py") if imports.search(file.read_text())}
    near = [file for file in files if file.stem.removeprefix("test_") in importing]
    near += [file for file in files if file.parent == root / "tests" / Path(path).parent]
    parents = {".".join(package.parts[:n]) for n in range(3, len(package.parts) + 1)} or {".".join(package.parts)}
    words = re.compile("|".join(rf"{re.escape(name)}\b" for name in sorted(parents)))
    users = [file for file in files if words.search(file.read_text())]
    if path.startswith("hmm/"):
        every = [file for file in files if file.is_relative_to(root / "tests" / "hmm")]
        users = [root / "tests" / "hmm" / "test_differential.py", *every, *users]
    stages, seen = [], set()
    for chosen, marks in ((named, QUICK), (near, QUICK), (users, QUICK), ([*named, *near, *users], "launch")):
        new = [str(file.relative_to(root)) for file in dict.fromkeys(chosen) if (file, marks) not in seen]
        seen |= {(file, marks) for file in chosen}
        stages.append(["-m", marks, *new])
    return stages


def fate(mutant: Mutant, copy: Path, stages: slice) -> tuple[str, float]:
    """What tests say of a mutant in a copy of the tree: the one that failed, or `survived`; and the seconds."""
    began, file = time.monotonic(), copy / "hmm_datasets" / mutant.path
    source = file.read_text()
    file.write_text(source[: mutant.begin] + mutant.new + source[mutant.end :])
    environment = {}
    if "numba" in source:  # which keeps what it compiled from other files as it was
        environment["NUMBA_CACHE_DIR"] = tempfile.mkdtemp(prefix="numba-", dir=copy)
    try:
        for stage in tests_of(mutant.path, copy)[stages]:
            failed = failures(copy, ["-x", *stage], environment) if len(stage) > 2 else []
            if failed:
                return f"killed: {failed[0]}", time.monotonic() - began
        return "survived", time.monotonic() - began
    finally:
        file.write_text(source)
        shutil.rmtree(environment.get("NUMBA_CACHE_DIR", copy / "none"), ignore_errors=True)


def failures(copy: Path, arguments: list[str], environment: dict[str, str], limit: float | None = LIMIT) -> list[str]:
    """The tests that failed in a copy of the tree."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", *arguments]
    variables = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=copy, env=variables | environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True,
    ) as tests:  # fmt: skip
        try:
            printed, _ = tests.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            return ["no end"]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(tests.pid, signal.SIGKILL)  # and what it may have left behind
    # 5: no test was chosen. Some of the libraries crash when a process that has imported all of them ends.
    has_passed = re.search(r"^(?!.*failed).*\b\d+ passed.* in \d.*s", printed, re.MULTILINE) is not None
    if tests.returncode in (0, 5) or (tests.returncode < 0 and has_passed):
        return []
    return re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", printed, re.MULTILINE) or [
        f"the tests end with code {tests.returncode}"
    ]


def _place(seed: int, mutant: Mutant) -> bytes:
    """A random number of what surrounds a mutant, so that other changes of the package leave most of a sample."""
    source = _source(mutant.path)
    around = source[max(0, mutant.begin - 80) : mutant.end + 80]
    return hashlib.sha256(f"{seed} {mutant.path} {around} {mutant.new}".encode()).digest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of the path of a file")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--stages", type=int, default=4, help="how far a mutant is followed, 1 to 4; default 4")
    parser.add_argument("--output", type=Path, default=Path("outputs/mutants.jsonl"))
    asked = parser.parse_args()
    everything = [mutant for path in core_files(asked.only) for mutant in mutants_of(path)]
    chosen = sorted(everything, key=lambda mutant: _place(asked.seed, mutant))[: asked.count]
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    lines = asked.output.read_text().splitlines() if asked.output.exists() else []
    rows = {row["mutant"]: row for row in map(json.loads, lines)}
    print(f"{len(chosen)} of {len(everything):,} mutants of {len(core_files(asked.only))} files", flush=True)
    with tempfile.TemporaryDirectory() as scratch, asked.output.open("a") as table:
        copies: queue.Queue[Path] = queue.Queue()
        for job in range(asked.jobs):
            copies.put(
                Path(shutil.copytree(ROOT, Path(scratch, str(job)), ignore=shutil.ignore_patterns(".*", "outputs")))
            )

        def done_stages(mutant: Mutant) -> int:
            row = rows.get(str(mutant), {"fate": "survived", "stages": 0})
            return row["stages"] if row["fate"] == "survived" else 4

        def run(mutant: Mutant) -> dict:
            copy = copies.get()
            try:
                result, seconds = fate(mutant, copy, slice(done_stages(mutant), asked.stages))
            finally:
                copies.put(copy)
            return {"mutant": str(mutant), "fate": result, "stages": asked.stages, "seconds": round(seconds, 1)}

        with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
            new = [pool.submit(run, mutant) for mutant in chosen if done_stages(mutant) < asked.stages]
            for number, done in enumerate(concurrent.futures.as_completed(new), start=1):
                row = done.result()
                rows[row["mutant"]] = row
                table.write(json.dumps(row) + "\n")
                table.flush()
                print(f"{number}/{len(new)}  {row['fate']:60.60}  {row['mutant']}", flush=True)
        found = [rows[str(mutant)] for mutant in chosen]
        killers = {row["fate"].removeprefix("killed: ") for row in found if ".py::" in row["fate"]}
        for name in failures(copies.get(), sorted(killers), {}, None) if killers else ():
            print(f"not a fault that was noticed, since it fails on the unchanged tree too: {name}")
    for area, names in CORE.items():
        own = [row["fate"] != "survived" for row in found if row["mutant"].startswith(names)]
        print(f"{area:10} {sum(own)} of {len(own)} killed")
    killed = sum(row["fate"] != "survived" for row in found)
    print(f"{'all':10} {killed} of {len(found)} killed ({killed / max(len(found), 1):.0%}); survivors:")
    print("\n".join(f"  {row['mutant']}" for row in found if row["fate"] == "survived"))


if __name__ == "__main__":
    main()
