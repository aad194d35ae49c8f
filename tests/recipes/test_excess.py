"""The excess over the optimum of one small model per process, from its command to its report."""

import shlex

import pytest
from experiments import load

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json
from hmm_datasets.operations.launching import recipe_settings
from hmm_datasets.runtime.command_line import parse_settings
from hmm_datasets.runtime.shipped import EXPERIMENTS, shipped

FOLDER = shipped(EXPERIMENTS) / "excess"
RECIPE = load("excess")


def settings_of(*arguments):
    given = ["--config", str(FOLDER / "small.yaml"), *arguments]
    return parse_settings(*recipe_settings("excess"), arguments=given)[0]


def test_every_model_has_its_own_seed_stream_and_folder(tmp_path):
    settings = settings_of("--seeds", "3", "4")
    title, command = RECIPE.training(settings, tmp_path, "even", 4)
    words = shlex.split(command)
    assert title == "even, seed 4"
    assert [words[words.index(name) + 1] for name in ("--seed", "--data_seed")] == ["4", "4"]
    assert words[words.index("--output_dir") + 1] == str(tmp_path / "seed-4" / "even")
    with pytest.raises(InputError, match="different seeds"):
        settings_of("--seeds", "3", "3")


@pytest.mark.thorough
@pytest.mark.slow
def test_the_experiment_runs_to_its_report(program, succeeded, tmp_path):
    small = ("--train_tokens", 20_000)
    chosen = ("--processes", "golden_mean", "even", "--seeds", 0)
    command = (
        "recipes/experiments/excess/run.py",
        "--config",
        "recipes/experiments/excess/small.yaml",
        *small,
        *chosen,
    )
    said = succeeded(program.run(*command, "--output_dir", tmp_path)).stdout
    result = read_json(tmp_path / "result.json")
    assert result["paper"]["arxiv"] == "2605.20824"
    (values,) = zip(*(result["excess"][name] for name in ("golden_mean", "even")), strict=True)
    # Hardly trained, but on the scale of nats: between the optimum and a few times what a uniform prediction loses.
    assert all(0 < value < 1 for value in values)
    assert result["findings"][0]["measured"] == pytest.approx(sum(values) / 2)
    assert result["tokens"] == 2 * 20_000
    assert "mean excess over 2 processes" in said
