"""The file of a sweep: its cells, their names, and what is refused."""

import pytest
import yaml

from hmm_datasets.errors import InputError
from hmm_datasets.operations.sweeps.file import cell_name, read_sweep


@pytest.fixture
def sweep_of(tmp_path):
    """Write a file with these entries over a small one, and read it."""

    def read(**entries):
        content = {"recipe": "fit", "output_dir": str(tmp_path / "sweep"), "grid": {"num_states": [2, 4]}, **entries}
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump({key: value for key, value in content.items() if value is not None}))
        return read_sweep(path, ("fit", "evaluate", "push"))

    return read


def test_a_grid_has_every_combination_in_the_order_of_the_file(sweep_of):
    cells = sweep_of(grid={"num_states": [2, 4], "seed": [0, 1]}, settings={"length": 8}).cells
    assert [cell.name for cell in cells] == [f"num_states={n},seed={s}" for n in (2, 4) for s in (0, 1)]
    assert cells[1].settings == {"length": 8, "num_states": 2, "seed": 1, "output_dir": str(cells[1].output_dir)}
    assert cells[1].output_dir == cells[1].folder / "run"


def test_listed_cells_are_combined_with_the_grid(sweep_of):
    listed = [{"num_states": 2, "max_epochs": 9}, {"num_states": 4, "max_epochs": 3}]
    cells = sweep_of(cells=listed, grid={"seed": [0, 1]}).cells
    assert [dict(cell.varied) for cell in cells] == [{**one, "seed": seed} for one in listed for seed in (0, 1)]


def test_settings_of_a_config_are_overridden_and_its_output_dir_is_left_out(sweep_of):
    (cell,) = sweep_of(config="demo/fit_hmm.yaml", settings={"length": 16}, grid={"num_states": [2]}).cells
    assert (cell.settings["num_states"], cell.settings["length"], cell.settings["patience"]) == (2, 16, 5)
    assert cell.settings["output_dir"] == str(cell.output_dir)


def test_more_values_leave_the_names_of_the_cells_as_they_are(sweep_of):
    few = {cell.name for cell in sweep_of(grid={"num_states": [2], "seed": [0]}).cells}
    assert few < {cell.name for cell in sweep_of(grid={"num_states": [2, 4], "seed": [0, 1]}).cells}


def test_a_number_that_yaml_1_1_takes_for_text_is_a_number(sweep_of):
    sweep = sweep_of(grid={"pseudocount": ["1e-1", "1e-2", 0.5]})
    assert [cell.varied["pseudocount"] for cell in sweep.cells] == [0.1, 0.01, 0.5]
    assert sweep.cells[0].name == "pseudocount=0.1"


def test_names_are_safe_short_and_different():
    names = [
        cell_name({"hmm": f"outputs/a folder/{'long/' * 20}{end}", "rewards": [1, 2], "test": None}) for end in "ab"
    ]
    assert len(set(names)) == 2
    for name in names:
        assert len(name) < 120
        assert not set(name) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-=,")
    assert cell_name({"hmm": "a/b"}) != cell_name({"hmm": "a-b"})
    assert len(cell_name({f"setting_{number}": number for number in range(50)})) <= 180


def test_a_command_after_the_recipe_has_the_folder_and_the_settings_of_its_cell(sweep_of):
    (cell, _) = sweep_of(then=["evaluate {output_dir} --targets '{corpus} x'"], settings={"corpus": "a b"}).cells
    assert cell.then == (("evaluate", str(cell.output_dir), "--targets", "a b x"),)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"recipe": "fitt"}, "recipe is 'fitt'; expected one of fit, tokenize"),
        ({"recipe": None}, "missing required field recipe"),
        ({"output_dir": None}, "missing required field output_dir"),
        ({"gird": {}}, "unknown entry 'gird'; did you mean grid"),
        ({"grid": None}, "has neither grid nor cells"),
        ({"grid": {"seed": 3}}, "grid[...]: expected array, found int"),
        ({"grid": {"seed": []}}, "grid[...]: expected array of length >= 1"),
        (
            {"cells": [{"seed": 1}, {"length": 2}]},
            "entry 2 of cells and grid give length, num_states; expected seed, num_states",
        ),
        ({"cells": [{"num_states": 1}]}, "entry 1 of cells and grid give num_states, num_states; expected num_states"),
        ({"settings": {"num_states": 1}}, "num_states is both in settings and in grid"),
        ({"settings": {"output_dir": "x"}}, "output_dir cannot be a setting of the cells"),
        ({"grid": {"seed": [0, 1, 0]}}, "two cells have the same settings, seed=0"),
        ({"grid": {"pseudocount": [0.001, "1e-3"]}}, "two cells have the same settings, pseudocount=0.001"),
        ({"config": "demo/nowhere.yaml"}, "demo/nowhere.yaml: no such file"),
        ({"then": ["evalute {output_dir}"]}, "did you mean evaluate"),
        ({"then": ["evaluate {outptu_dir}"]}, "then: {outptu_dir} is neither output_dir nor a setting of the cells"),
        ({"then": ["sweep a.yaml"]}, "does not begin with a command of hmm-datasets"),
        ({"table": {"x": "num_states"}}, "table: unknown entry 'x'"),
        ({"table": {"value": "a"}}, "table: unknown entry 'value'; did you mean values"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_the_file(sweep_of, entries, message):
    with pytest.raises(InputError) as error:
        sweep_of(**entries)
    assert message in str(error.value)
    assert entries.get("config") or "sweep.yaml: " in str(error.value)
