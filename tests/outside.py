"""What people outside tried or asked for, and what happens here: `python tests/outside.py` prints a table.

A test with the marker `outside(source, wish, outcome)` is a row: the address of a public report, question or file,
what its author wanted in a few words, and what happens here. Where it is not supported, the outcome is the sentence
that a user gets. `--record` writes the table to `docs/reference/tried_from_outside.md`, with which
`tests/test_outside.py` compares it.
"""

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "reference" / "tried_from_outside.md"
BEGINNING = """# Public reports that were tried

Each row is a public bug report, question, test or file that was tried on this package, and a test that does so again.
`python tests/outside.py` prints the table.

| source | wish | what happens here | test |
|---|---|---|---|
"""


class Case(NamedTuple):
    """A row: where it comes from, what was wanted, what happens, and the test that shows it."""

    source: str
    wish: str
    outcome: str
    test: str


def cases() -> list[Case]:
    """All rows, sorted by source; a marker whose arguments are not three strings raises ValueError."""
    return sorted(case for path in sorted(TESTS.rglob("test_*.py")) for case in _cases_of(path))


def page() -> str:
    """The table as a page of the documentation."""
    return BEGINNING + "".join(_row(case) + "\n" for case in cases())


def _cases_of(path: Path) -> Iterator[Case]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.outside":
            values = [getattr(argument, "value", None) for argument in node.args]
            if node.keywords or len(values) != 3 or not all(isinstance(value, str) and value for value in values):
                raise ValueError(f"{path}:{node.lineno}: expected outside(source, wish, outcome), three strings")
            yield Case(*values, test=path.relative_to(TESTS.parent).as_posix())


def _row(case: Case) -> str:
    # https://github.com/OWNER/NAME/issues/1 is shown as OWNER/NAME 1.
    name = case.source.split("://")[-1].removeprefix("github.com/")
    for word in ("/issues/", "/pull/", "/discussions/"):
        name = name.replace(word, " ")
    cells = (f"[{name}]({case.source})", case.wish, case.outcome, f"`{case.test}`")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the page")
    if parser.parse_args().record:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")
