"""The sizes of experiments that take two cores an hour: their recipes accept all settings."""

import shlex

import pytest
from experiments import load

from hmm_datasets.operations.launching import recipe_settings
from hmm_datasets.operations.stage_inputs import read_command
from hmm_datasets.runtime.command_line import parse_settings
from hmm_datasets.runtime.shipped import EXPERIMENTS, shipped

HOURS = sorted(path.parent.name for path in shipped(EXPERIMENTS).glob("*/hour.yaml"))


def test_five_experiments_have_an_hour():
    assert HOURS == ["leaky_tokenizer", "tinystories_hmm", "tr1", "wordplay", "zac_gpt"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", HOURS)
def test_the_commands_of_an_hour_are_accepted_by_their_recipes(name, tmp_path):
    recipe, (kind,) = load(name), recipe_settings(name.replace("_", "-"))
    flags = ["--config", str(shipped(EXPERIMENTS) / name / "hour.yaml"), "--output_dir", str(tmp_path)]
    flags += ["--text", "input.txt"] * (name == "wordplay")
    (settings,) = parse_settings(kind, arguments=flags)
    stages = recipe.on_the_best(settings, tmp_path) if name == "tinystories_hmm" else recipe.stages(settings)
    checked = []
    for program, command, *words in (shlex.split(text) for _, text in stages):
        if program == "hmm-datasets" and command in ("tokenize", "pretrain", "midtrain", "sft", "evaluate"):
            read_command(command, words)
            checked.append(command)
    assert checked, name
    assert "pretrain" in checked or "sweep" in stages[-2][1]
