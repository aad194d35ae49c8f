"""What people outside tried or asked for, and what happens here: `python tests/outside.py` prints a table.

A test with the marker `outside(source, wish, outcome)` is a row: the address of a public report, question or file,
what its author wanted in a few words, and what happens here. Where it is not supported, the outcome is the sentence
that a user gets. `--record` writes the table to `tests/tried_from_outside.tsv`, with which `tests/test_outside.py`
compares it. What was learnt from the rows is a page of the documentation.
"""

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent
TABLE = TESTS / "tried_from_outside.tsv"


class Case(NamedTuple):
    """A row: where it comes from, what was wanted, what happens, and the test that shows it."""

    source: str
    wish: str
    outcome: str
    test: str


def cases() -> list[Case]:
    """All rows, sorted by source; a marker whose arguments are not three strings raises ValueError."""
    return sorted(case for path in sorted(TESTS.rglob("test_*.py")) for case in _cases_of(path))


def table() -> str:
    """The rows as tab-separated values, below the names of the columns."""
    rows = (Case._fields, *cases())
    return "".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in rows)


def _cases_of(path: Path) -> Iterator[Case]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.outside":
            values = [getattr(argument, "value", None) for argument in node.args]
            if node.keywords or len(values) != 3 or not all(isinstance(value, str) and value for value in values):
                raise ValueError(f"{path}:{node.lineno}: expected outside(source, wish, outcome), three strings")
            yield Case(*values, test=path.relative_to(TESTS.parent).as_posix())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the table")
    if parser.parse_args().record:
        TABLE.write_text(table(), encoding="utf-8")
    else:
        print(table(), end="")
