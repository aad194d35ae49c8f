"""The package does not grow in what `house.py` counts."""

import json

import house
import mutants
import pytest


@pytest.fixture(scope="module")
def figures():
    return house.figures()


def test_no_figure_is_above_what_is_recorded(figures):
    recorded = json.loads(house.RECORD.read_text())
    assert recorded.keys() == figures.keys()
    grown = {name: (recorded[name], value) for name, value in figures.items() if value > recorded[name]}
    assert not grown, f"(recorded, now): {grown}; see tests/house.py"


def test_lines_that_stand_twice_are_counted(tmp_path):
    import ast

    lines = [f"value_{number} = {number}" for number in range(7)]
    texts = {tmp_path / "a.py": "\n".join(lines), tmp_path / "b.py": "\n".join(["other = 1", "", *lines])}
    assert house.duplicate_runs({path: ast.parse(text) for path, text in texts.items()}, texts) == 1
    texts[tmp_path / "b.py"] = "\n".join(lines[1:6])
    assert house.duplicate_runs({path: ast.parse(text) for path, text in texts.items()}, texts) == 0


def test_the_parts_of_the_core_that_mutants_change_exist():
    assert not [name for names in mutants.CORE.values() for name in names if not (house.PACKAGE / name).exists()]
