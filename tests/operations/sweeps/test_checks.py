"""The plan of a sweep: wrong settings are refused before anything starts, and totals are those of the plans."""

import pytest
import yaml

from hmm_datasets.errors import InputError
from hmm_datasets.files import write_yaml
from hmm_datasets.hmm import processes
from hmm_datasets.operations.planning import plan_recipe
from hmm_datasets.operations.sweeps.cells import read_states
from hmm_datasets.operations.sweeps.checks import check_and_plan, plan_text
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
        ({"grid": {"num_state": [2]}}, "grid or cells: unknown setting 'num_state' of the recipe fit; did you mean"),
        (
            {"grid": {"num_states": [2]}, "settings": {"lenght": 3}},
            "settings: unknown setting 'lenght' of the recipe fit; did you mean length",
        ),
        ({"grid": {"num_states": [2]}, "config": "demo/sft.yaml"}, "demo/sft.yaml: unknown setting 'model'"),
        ({"grid": {"num_states": [2, -1]}}, "cell num_states=-1: num_states is -1"),
        ({"grid": {"num_states": [2, "two"]}}, "cell num_states=two: num_states is 'two' (str); expected list"),
        ({"grid": {"seed": [0]}}, "cell seed=0: the following arguments are required: --num_states"),
        (
            {"grid": {"num_states": [2]}, "then": ["evaluate {output_dir} --taks optimum"]},
            "then: evaluate: unknown flag --taks; did you mean --tasks",
        ),
        (
            {"grid": {"num_states": [2]}, "then": ["experiment icll --output_dirr {output_dir}"]},
            "then: icll: unknown flag --output_dirr; did you mean --output_dir",
        ),
        (
            {"grid": {"num_states": [2]}, "then": ["icll --output_dirr {output_dir}"]},  # its old command
            "then: icll: unknown flag --output_dirr; did you mean --output_dir",
        ),
        ({"recipe": "demo", "grid": {"seed": [0]}}, "recipe is 'demo', which has no settings"),
    ],
)
def test_what_the_recipe_would_refuse_is_refused_first(sweep_of, entries, message):
    with pytest.raises(InputError) as error:
        check_and_plan(sweep_of(**entries))
    assert "sweep.yaml: " in str(error.value)
    assert message in str(error.value)


def test_totals_are_those_of_the_plans_of_the_cells(sweep_of, tmp_path):
    processes.mess3(0.15, 0.6).save_pretrained(tmp_path / "mess3")
    settings = {"hmm": str(tmp_path / "mess3"), "length": 15, "train_tokens": 10_000, "global_batch_size": 8}
    settings |= {"per_device_train_batch_size": 8, "assumed_rate": 100, "price_per_hour": 2.0}
    grid = {"model": ["1m", "3m"], "seed": [0, 1]}
    sweep = sweep_of(recipe="pretrain", settings=settings, grid=grid)
    found = check_and_plan(sweep)
    plans = []
    for number, cell in enumerate(sweep.cells):
        write_yaml(tmp_path / f"{number}.yaml", cell.run_settings)
        plans.append(plan_recipe(tmp_path / f"{number}.yaml"))
    assert found.total("flops") == sum(plan["flops"] for plan in plans)
    assert found.device_hours == pytest.approx(sum(plan["time"]["device_hours"] for plan in plans))
    text = plan_text(sweep, found, read_states(sweep))
    assert f"4 cells of pretrain, in {sweep.output_dir}; together {sum(p['tokens'] for p in plans):,} tokens" in text
    header, _, row = text.splitlines()[:3]
    assert header.split() == ["cell", "state", "parameters", "tokens", "FLOPs", "hours"]
    assert row.split()[5] == f"{plans[0]['time']['device_hours']:.3g}"


def test_fits_are_planned_if_their_tokens_are_assumed(sweep_of):
    settings = {"assumed_tokens": 1_000, "max_epochs": 10, "vocabulary_size": 5}
    sweep = sweep_of(settings=settings, grid={"num_states": [2, 4]})
    found = check_and_plan(sweep)
    assert [plan["flops"] for plan in found.cells.values()] == [6 * 10_000 * states**2 for states in (2, 4)]
    assert found.device_hours is None
    assert plan_text(sweep, found, read_states(sweep)).splitlines()[-1].endswith("FLOPs"), "no hours without a rate"


@pytest.mark.parametrize("path", sorted(shipped("recipes/sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_sweep_has_twelve_cells_that_its_recipe_takes(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = read_sweep(path)
    for name in {cell.settings.get("hmm") for cell in sweep.cells} - {None}:
        processes.mess3(0.15, 0.6).save_pretrained(name)  # what another command makes first
    assert len(sweep.cells) == 12
    check_and_plan(sweep)
