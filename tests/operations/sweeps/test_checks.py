"""What the recipe of a cell would refuse is refused before anything starts."""

import pytest
import yaml

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.operations.stage_inputs import check_cells
from hmm_datasets.operations.sweeps.file import read_sweep
from hmm_datasets.runtime.shipped import shipped


@pytest.fixture
def sweep_of(tmp_path):
    def read(**entries):
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump({"recipe": "fit", "output_dir": str(tmp_path / "sweep"), **entries}))
        return read_sweep(path, ("fit", "pretrain", "evaluate"))

    return read


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"grid": {"num_state": [2]}}, "cell num_state=2: unknown setting 'num_state'; did you mean num_states"),
        (
            {"grid": {"num_states": [2]}, "settings": {"lenght": 3}},
            "cell num_states=2: unknown setting 'lenght'; did you mean length",
        ),
        ({"grid": {"num_states": [2]}, "config": "demo/sft.yaml"}, "cell num_states=2: unknown setting 'model'"),
        ({"grid": {"num_states": [2]}, "settings": {"corpus": "no.jsonl"}}, "num_states=2: corpus: no.jsonl: no such"),
        ({"grid": {"num_states": [2, -1]}}, "cell num_states=-1: num_states is -1"),
        ({"grid": {"num_states": [2, "two"]}}, "cell num_states=two: num_states is 'two' (str); expected list"),
        ({"grid": {"seed": [0]}}, "cell seed=0: the following arguments are required: --num_states"),
        (
            {"grid": {"num_states": [2]}, "then": ["evaluate {output_dir} --taks optimum"]},
            "cell num_states=2: unknown flag --taks; did you mean --tasks",
        ),
        (
            {"grid": {"num_states": [2]}, "then": ["experiment icll --output_dirr {output_dir}"]},
            "cell num_states=2: unknown flag --output_dirr; did you mean --output_dir",
        ),
        (
            {"grid": {"num_states": [2]}, "then": ["icll --output_dirr {output_dir}"]},  # its old command
            "cell num_states=2: unknown flag --output_dirr; did you mean --output_dir",
        ),
        ({"recipe": "demo", "grid": {"seed": [0]}}, "recipe is 'demo', which has no output_dir"),
    ],
)
def test_what_the_recipe_would_refuse_is_refused_first(sweep_of, entries, message):
    with pytest.raises(InputError) as error:
        check_cells(sweep_of(**entries))
    assert "sweep.yaml: " in str(error.value)
    assert message in str(error.value)


@pytest.mark.thorough
@pytest.mark.parametrize("path", sorted(shipped("recipes/sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_sweep_has_twelve_cells_that_its_recipe_takes(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = read_sweep(path)
    for name in {cell.settings.get("hmm") for cell in sweep.cells} - {None}:
        processes.mess3(0.15, 0.6).save_pretrained(name)  # what another command makes first
    assert len(sweep.cells) == 12
    check_cells(sweep)
