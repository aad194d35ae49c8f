"""The package does not grow in what `size_budget.py` counts."""

import json

import mutants
import pytest
import size_budget


@pytest.fixture(scope="module")
def figures():
    return size_budget.figures()


def test_no_figure_is_above_what_is_recorded(figures):
    recorded = json.loads(size_budget.RECORD.read_text())
    assert recorded.keys() == figures.keys()
    grown = {name: (recorded[name], value) for name, value in figures.items() if value > recorded[name]}
    assert not grown, f"(recorded, now): {grown}; see tests/size_budget.py"


def test_lines_that_stand_twice_are_counted(tmp_path):
    import ast

    lines = [f"value_{number} = {number}" for number in range(7)]
    texts = {tmp_path / "a.py": "\n".join(lines), tmp_path / "b.py": "\n".join(["other = 1", "", *lines])}
    assert size_budget.duplicate_runs({path: ast.parse(text) for path, text in texts.items()}, texts) == 1
    texts[tmp_path / "b.py"] = "\n".join(lines[1:6])
    assert size_budget.duplicate_runs({path: ast.parse(text) for path, text in texts.items()}, texts) == 0


def test_the_parts_of_the_core_that_mutants_change_exist():
    assert not [name for names in mutants.CORE.values() for name in names if not (size_budget.PACKAGE / name).exists()]
