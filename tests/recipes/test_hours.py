"""The sizes of experiments that take two cores an hour: their settings and flags exist."""

import shlex

import pytest
from experiments import load

from hmm_datasets.operations.launching import recipe_settings
from hmm_datasets.runtime.command_line import check_flags, parse_settings
from hmm_datasets.runtime.shipped import EXPERIMENTS, shipped

HOURS = sorted(path.parent.name for path in shipped(EXPERIMENTS).glob("*/hour.yaml"))


def test_five_experiments_have_an_hour():
    assert HOURS == ["leaky_tokenizer", "tinystories_hmm", "tr1", "wordplay", "zac_gpt"]


@pytest.mark.parametrize("name", HOURS)
def test_the_commands_of_an_hour_have_flags_that_exist(name, tmp_path):
    recipe, (kind,) = load(name), recipe_settings(name.replace("_", "-"))
    flags = ["--config", str(shipped(EXPERIMENTS) / name / "hour.yaml"), "--output_dir", str(tmp_path)]
    flags += ["--text", "input.txt"] * (name == "wordplay")
    (settings,) = parse_settings(kind, arguments=flags)
    stages = recipe.on_the_best(settings, tmp_path) if name == "tinystories_hmm" else recipe.stages(settings)
    checked = []
    for program, command, *words in (shlex.split(text) for _, text in stages):
        if program == "hmm-datasets" and command in ("tokenize", "pretrain", "midtrain", "sft", "evaluate"):
            check_flags(_without_launcher(words), recipe_settings(command))
            checked.append(command)
    assert checked, name
    assert "pretrain" in checked or "sweep" in stages[-2][1]


def _without_launcher(words):
    """The words of the recipe; those of the launcher are a name and a number."""
    while flag := next((flag for flag in ("--launch", "--num_processes") if flag in words), None):
        place = words.index(flag)
        words = [*words[:place], *words[place + 2 :]]
    return words
