"""Every shipped setting of a trainer under every launch configuration: it runs, or flags that mend it are named."""

import re
from pathlib import Path

import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_yaml
from hmm_datasets.stage_inputs import read_command
from hmm_datasets.training.plan.recipe_plan import plan_recipe

ROOT = Path(__file__).parents[2]
CONFIGS = {path.stem: read_yaml(path) for path in sorted((ROOT / "accelerate_configs").glob("*.yaml"))}
del CONFIGS["tpu"]  # without torch_xla every command refuses it
RECIPES = {"midtrain": "midtrain", "sft": "sft", "lima": "sft", "dpo": "dpo", "grpo": "grpo"}
SETTINGS = {
    str(path.relative_to(ROOT / "recipes").with_suffix("")): RECIPES.get(path.stem, "pretrain")
    for path in sorted((ROOT / "recipes").glob("*/*.yaml"))
    if "logging_steps" in read_yaml(path)
}
GIVEN_BY_PROGRAMS = {
    "chat_ladder/dpo": ["--model", "model", "--preferences", "pairs"],
    "chat_ladder/grpo": ["--model", "model", "--prompts", "questions"],
    "lima/sft": ["--model", "model"],
}
"""Settings that the program of an experiment adds to a file."""


def command(name: str, config: str) -> tuple[str, list[str]]:
    """The recipe, and its arguments on two processes, or on one where a configuration is for one."""
    processes = 1 if CONFIGS[config]["num_processes"] == 1 else 2
    launch = ["--launch", config, "--num_processes", str(processes)]
    return SETTINGS[name], [*launch, "--config", str(ROOT / f"recipes/{name}.yaml"), *GIVEN_BY_PROGRAMS.get(name, [])]


def refusal(name: str, config: str, *flags: str) -> str | None:
    """Why the pair is refused before work, if it is."""
    recipe, arguments = command(name, config)
    try:
        read_command(recipe, [*arguments, *flags])
    except InputError as error:
        return str(error)
    return None


def remedies(said: str) -> list[list[str]]:
    """The flags that an error says to add, each with its value."""
    return [found.split() for found in re.findall(r"--\w+ [\w.]+", said)]


def ways(name: str, config: str, *flags: str) -> list[list[str]]:
    """The flags with which the pair runs, each way as its errors say it; `[[]]` if it runs as it is."""
    said = refusal(name, config, *flags)
    if said is None:
        return [list(flags)]
    new = [one for one in remedies(said) if one[0] not in flags]
    assert new, f"{name} under {config} with {flags}: no flag mends: {said}"
    return [way for one in new for way in ways(name, config, *flags, *one)]


def test_every_recipe_and_framework_is_here():
    assert set(SETTINGS.values()) == {"pretrain", "midtrain", "sft", "dpo", "grpo"}
    assert {one["distributed_type"] for one in CONFIGS.values()} == {"NO", "MULTI_GPU", "FSDP", "DEEPSPEED"}
    assert len(SETTINGS) > 20


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_runs_under_every_launcher_or_is_refused_with_flags_that_mend_it(name):
    is_muon = read_yaml(ROOT / f"recipes/{name}.yaml").get("matrix_optimizer") == "muon"
    for config, launch in CONFIGS.items():
        found = [flag for way in ways(name, config) for flag in way]
        refused = launch["distributed_type"] == "DEEPSPEED" and is_muon
        assert ("adamw" in found, "--max_grad_norm" in found) == (refused, refused), config


@pytest.mark.parametrize("name", [name for name, recipe in SETTINGS.items() if recipe != "grpo"])
def test_a_pair_that_its_launcher_would_refuse_is_refused_by_plan_in_the_same_words(name):
    """GRPO has no plan."""
    for config, launch in CONFIGS.items():
        said = refusal(name, config)
        if launch["distributed_type"] == "DEEPSPEED" and said is not None and "matrix_optimizer" in said:
            _, arguments = command(name, config)
            flags = arguments[arguments.index("--config") + 2 :]
            with pytest.raises(InputError) as caught:
                plan_recipe(
                    ROOT / f"recipes/{name}.yaml",
                    flags,
                    num_processes=2,
                    launch_config=ROOT / f"accelerate_configs/{config}.yaml",
                )
            assert str(caught.value) == said


@pytest.mark.launch
def test_the_settings_of_the_demo_are_refused_under_zero_before_any_work(program):
    result = program.launch("zero3", "recipes/pretrain.py", "--config", "recipes/demo/pretrain_hmm.yaml")
    assert result.returncode != 0
    (line,) = {line for line in result.stderr.splitlines() if line.startswith("error: matrix_optimizer")}
    assert remedies(line) == [["--matrix_optimizer", "adamw"], ["--max_grad_norm", "0"]]
