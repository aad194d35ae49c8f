"""The tables and figures of a sweep: what is there, and what is missing."""

import csv
import json

import numpy as np
import pandas
import pytest
import yaml

from hmm_datasets.cli import main
from hmm_datasets.errors import InputError
from hmm_datasets.files import read_yaml
from hmm_datasets.operations.sweeps.cells import FAILED, FINISHED, CellState, prepare
from hmm_datasets.operations.sweeps.file import read_sweep
from hmm_datasets.operations.sweeps.report import collect, show_results, write_results
from hmm_datasets.runtime.lock import exclusive_lock


@pytest.fixture
def sweep_of(tmp_path, stand_in):
    """A sweep whose cells are finished, with `value` 10 a + b + seed, but for those named."""

    def make(failed=(), **entries):
        path = tmp_path / "sweep.yaml"
        content = {"recipe": "stand-in", "output_dir": str(tmp_path / "sweep"), "table": {"values": ["value"]}}
        path.write_text(yaml.safe_dump({**content, **entries}))
        sweep = read_sweep(path, ("stand-in", "verify"))
        states = prepare(sweep)
        for cell in sweep.cells:
            state = states[cell.name]
            state.state, state.attempts = FAILED if cell.name in failed else FINISHED, 1
            state.errors = ["error: why"] if cell.name in failed else []
            state.write(cell.folder)
            cell.output_dir.mkdir(exist_ok=True)
            value = sum(weight * cell.varied.get(name, 0) for name, weight in (("a", 10), ("b", 1), ("seed", 1)))
            if state.state == FINISHED:
                (cell.output_dir / "summary.json").write_text(json.dumps({"value": value, "evaluation": {"loss": 2}}))
        return sweep

    return make


def test_the_table_has_every_cell_and_names_what_is_missing(sweep_of, capsys):
    sweep = sweep_of(grid={"a": [2, 1], "seed": [0, 1]}, failed={"a=1,seed=0"})
    show_results(sweep, collect(sweep))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:7]] == [
        ["cell", "state", "value"],
        ["----------", "--------", "-----"],
        ["a=2,seed=0", "finished", "20"],
        ["a=2,seed=1", "finished", "21"],
        ["a=1,seed=0", "failed", "-"],
        ["a=1,seed=1", "finished", "11"],
    ]
    assert lines[8:10] == ["3 of 4 cells are finished; 1 failed.", "failed: a=1,seed=0: error: why"]


def test_a_cell_without_a_result_is_an_empty_entry_of_the_csv(sweep_of, tmp_path):
    sweep = sweep_of(grid={"a": [1, 2]}, failed={"a=2"})
    write_results(sweep, collect(sweep))
    rows = list(csv.DictReader((tmp_path / "sweep" / "sweep.csv").open()))
    assert [(row["cell"], row["state"], row["value"]) for row in rows] == [
        ("a=1", "finished", "10"),
        ("a=2", "failed", ""),
    ]


def test_pandas_makes_the_means_of_a_paper_from_the_csv(sweep_of, tmp_path):
    """What a user does in place of the files that sweeps wrote for it before."""
    sweep = sweep_of(grid={"a": [1, 2], "seed": [0, 1, 4]}, failed={"a=2,seed=4"})
    results = collect(sweep)
    write_results(sweep, results)
    frame = pandas.read_csv(tmp_path / "sweep" / "sweep.csv")
    means = frame.groupby("a")["value"].agg(["mean", "std", "count"])
    for a, cells in ((1, results["cells"][:3]), (2, results["cells"][3:5])):
        values = [cell["values"]["value"] for cell in cells]
        assert means.loc[a].tolist() == pytest.approx([np.mean(values), np.std(values, ddof=1), len(values)])
    assert means.to_latex().startswith("\\begin{tabular}")


def test_a_value_that_no_cell_has_is_refused_with_those_that_it_may_mean(sweep_of):
    sweep = sweep_of(grid={"a": [1]}, table={"values": ["evaluation.los"]})
    with pytest.raises(
        InputError, match=r"no finished cell has a number at 'evaluation.los'; did you mean evaluation"
    ):
        show_results(sweep, collect(sweep))
    sweep = sweep_of(grid={"a": [1]}, table={"values": ["else"]})
    with pytest.raises(
        InputError, match=r"no finished cell has a number at 'else'; .*/run has value, evaluation.loss"
    ):
        show_results(sweep, collect(sweep))


def test_a_folder_of_something_else_is_not_taken_for_a_cell(sweep_of, tmp_path):
    (tmp_path / "sweep" / "a=1" / "run").mkdir(parents=True)
    with pytest.raises(InputError, match="a=1: already exists and was not made by this sweep"):
        sweep_of(grid={"a": [1]})


def test_cells_of_an_experiment_start_it_by_its_name(sweep_of, tmp_path):
    sweep = sweep_of(
        recipe="nonergodic", grid={"train_tokens": [10]}, then=["verify {output_dir}", "icll --plan H200"]
    )
    (cell,) = sweep.cells
    first, _, last = CellState.read(cell.folder).commands
    assert first == ["hmm-datasets", "experiment", "nonergodic", "--config", str(cell.folder / "settings.yaml")]
    assert last == ["hmm-datasets", "icll", "--plan", "H200"]


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"settings": {"steps": 9}}, "steps was 20 and is 9 now; delete the folder to run the cell anew"),
        ({"settings": {"steps": 20, "fails": 1}}, "fails was None and is 1 now"),
        ({"then": ["verify {output_dir}", "verify ."]}, "then was ['verify "),
        ({"then": ["verify ."]}, "and is ['verify .'] now"),
    ],
)
def test_a_cell_that_was_made_with_other_settings_is_refused_by_name(sweep_of, tmp_path, entries, said):
    entries = {"grid": {"a": [1]}, "settings": {"steps": 20}, "then": ["verify {output_dir}"], **entries}
    sweep_of(**{**entries, "settings": {"steps": 20}, "then": ["verify {output_dir}"]})
    with pytest.raises(InputError) as error:
        sweep_of(**entries)
    assert f"{tmp_path}/sweep/a=1: was made with other settings than {tmp_path}/sweep.yaml has now" in str(error.value)
    assert said in str(error.value)


def test_the_tables_can_be_written_without_starting_anything(sweep_of, tmp_path, capsys):
    sweep_of(grid={"a": [1, 2]}, failed={"a=2"})
    assert main(["sweep", str(tmp_path / "sweep.yaml"), "--table"]) == 1
    said = capsys.readouterr().out
    assert "1 of 2 cells are finished; 1 failed." in said
    assert "failed: a=2: error: why" in said


def test_a_second_sweep_of_the_same_folder_is_refused(sweep_of, tmp_path, capsys):
    sweep_of(grid={"a": [1]})
    with exclusive_lock(tmp_path / "sweep"), pytest.raises(SystemExit) as ended:
        main(["sweep", str(tmp_path / "sweep.yaml")])
    assert ended.value.code == 2
    assert "has been writing there" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--jobs", "0"], "--jobs is 0; expected 1 or more"),
        (["--num_processes", "2"], "--num_processes is 2, but has no effect without launch"),
        (["--launch", "nowhere"], "--launch nowhere: neither a YAML file nor one of"),
    ],
)
def test_flags_are_checked_first(sweep_of, tmp_path, capsys, flags, message):
    sweep_of(grid={"a": [1]})
    with pytest.raises(SystemExit) as ended:
        main(["sweep", str(tmp_path / "sweep.yaml"), *flags])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_cell_that_was_not_started_yet_takes_the_settings_that_the_file_has_now(sweep_of):
    for steps in (20, 9):
        sweep = sweep_of(grid={"a": [1]}, settings={"steps": steps})
        state = CellState.read(sweep.cells[0].folder)
        state.attempts = 0
        state.write(sweep.cells[0].folder)
    assert read_yaml(sweep.cells[0].folder / "settings.yaml")["steps"] == 9


def test_another_launch_configuration_starts_the_cells_that_are_left(sweep_of):
    sweep = sweep_of(grid={"a": [1]}, failed={"a=1"})
    prepare(sweep, ["--launch", "cpu2"])
    assert CellState.read(sweep.cells[0].folder).commands[0][-2:] == ["--launch", "cpu2"]


@pytest.mark.parametrize(
    "entries",
    [
        {"settings": {"hub_token": "mine-1"}},
        {"settings": {"env": {"MY_API_KEY": "mine-2"}}},
        {"settings": {"corpus": "https://me:mine-3@h/x"}},
        {"settings": {"run_name": "hf_" + "aBcDeFgHiJ" * 3}},
        {"grid": {"hub_token": ["mine-1", "mine-2"]}},
        {"cells": [{"b": 1, "hub_token": "mine-1"}]},
        {"then": "verify --token mine-1"},
    ],
)
def test_a_secret_that_the_files_of_a_sweep_would_show_is_refused(sweep_of, tmp_path, entries):
    with pytest.raises(
        InputError, match=r"secret, which .*(leave it out|instead).*HF_TOKEN|secret.*set HF_TOKEN"
    ) as refusal:
        sweep_of(**{"grid": {"a": [1]}, **entries})
    assert "mine" not in str(refusal.value)
    assert "aBcDeF" not in str(refusal.value)
    assert not (tmp_path / "sweep").exists()


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/hhurz/tableExport.jquery.plugin/issues/230",
    "cells such as `=cmd|' /C calc'!A0` in a CSV that a spreadsheet opens",
    "begin with an apostrophe in `sweep.csv`; negative numbers stay numbers",
)
def test_settings_that_look_like_formulas_are_text_in_the_csv(sweep_of, tmp_path):
    names = ["$x_{", "=cmd|' /C calc'!A0", "<script>$", "-1e-3", "+x\x1b[2J", "$\\bad{$"]
    sweep = sweep_of(grid={"name": names, "model": ["$_{", "@a"]}, table={"values": ["value"]})
    write_results(sweep, collect(sweep))
    with open(tmp_path / "sweep" / "sweep.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["name"] for row in rows} == {
        "$x_{",
        "'=cmd|' /C calc'!A0",
        "<script>$",
        "-0.001",
        "'+x\x1b[2J",
        "$\\bad{$",
    }
    assert {row["model"] for row in rows} == {"$_{", "'@a"}
