"""A shipped recipe is started by the command that finds it wherever the package is installed."""

import pytest

from hmm_datasets.operations.experiments import experiment_names, experiment_script
from hmm_datasets.operations.launching import recipe_of, split_command
from hmm_datasets.runtime.recipe_commands import RECIPE_COMMANDS, command_of_script
from hmm_datasets.runtime.shipped import shipped


@pytest.mark.parametrize("name", RECIPE_COMMANDS)
def test_the_command_of_a_recipe_starts_it(name):
    words = command_of_script(RECIPE_COMMANDS[name].path)
    flags = ["--executor", "local"] if name == "tokenize --executor" else []
    assert words[0] == "hmm-datasets"
    assert recipe_of(words[1], flags) == name


def test_the_command_of_an_experiment_starts_it():
    for name in experiment_names():
        words = command_of_script(experiment_script(name))
        assert split_command(words[1:])[0] == name


def test_other_scripts_have_none(tmp_path):
    assert command_of_script(tmp_path / "pretrain.py") is None
    assert command_of_script(shipped("recipes") / "experiments" / "excess" / "plot.py") is None
