"""The road from text to a chat model of half a billion parameters: its stages, its plans, and, slowly, a small one."""

import shlex

import pytest
from experiments import load

from hmm_datasets.files import read_json, read_yaml
from hmm_datasets.operations.planning import plan_recipe
from hmm_datasets.operations.stage_inputs import read_command
from hmm_datasets.runtime.shipped import shipped


@pytest.fixture
def recipe():
    return vars(load("zac_gpt"))


@pytest.mark.thorough
def test_the_full_plans_are_10_and_5_billion_tokens_with_muon():
    launch = shipped("accelerate_configs/ddp.yaml")
    for name, tokens, flags in (("pretrain", 10e9, ()), ("midtrain", 5e9, ("--model", "500m"))):
        flags = ["--config", f"zac_gpt/{name}.yaml", *flags]
        found = plan_recipe(name, flags, launch_config=launch, assumed_vocab_size=32_768)
        assert found["parameters"] == 556_791_040
        assert tokens <= found["tokens"] < tokens + found["tokens_per_step"]
        assert found["memory"]["ddp"]["total"] < 80 * 2**30
        assert found["memory"]["ddp"]["optimizer"] < 6 * found["parameters"], "Muon keeps one moment of matrices"
        assert found["time"]["cost"] == pytest.approx(found["time"]["device_hours"] * 2.5)
        told = f"{found['tokens']:,} | {found['flops']:.3e} | {found['memory']['ddp']['total'] / 2**30:.1f} GiB |"
        assert told in shipped("recipes/experiments/zac_gpt/README.md").read_text(encoding="utf-8")


def test_every_stage_is_trained_on_the_one_before_and_measured(recipe, tmp_path):
    settings = recipe["ZacSettings"](output_dir=str(tmp_path), core_data="core")
    commands = [command for _, command in recipe["stages"](settings)]
    names = [command.split()[1] for command in commands[:-2]]
    assert names == ["tokenize"] * 2 + ["pretrain", "evaluate", "midtrain", "evaluate", *["sft", "evaluate"] * 2]
    for stage, before in (("midtrain", "pretrain"), ("sft", "midtrain"), ("lima", "sft")):
        (command,) = (one for one in commands if f"--config zac_gpt/{stage}.yaml" in one)
        assert f"--model {tmp_path}/{before}" in command
    (tmp_path / "evaluation" / "sft").mkdir(parents=True)
    (tmp_path / "evaluation" / "sft" / "report.json").write_text("{}")
    again = [command for _, command in recipe["stages"](settings)]
    assert [one for one in commands if one not in again] == [commands[7]], "a finished evaluation is not repeated"


@pytest.mark.parametrize("name", ["small", "hour", "full"])
def test_the_checkpoints_of_pretraining_are_evaluated_with_flags_that_have_an_effect(recipe, name, tmp_path):
    given = read_yaml(shipped(f"recipes/experiments/zac_gpt/{name}.yaml"))
    settings = recipe["ZacSettings"](**given | {"output_dir": str(tmp_path)})
    (command,) = (command for _, command in recipe["stages"](settings) if "along.py" in command)
    words = shlex.split(command)
    flags = shlex.split(words[words.index("--flags") + 1]) if "--flags" in words else []
    read_command("evaluate", ["checkpoint-60", "--targets", "tokens/test", "--tasks", "text", "completions", *flags])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"midtrain": "--weights 0.3 0.7"}, "3 streams and 2 weights; expected one per stream"),
        ({"conversations": ["story-questions"]}, "2 streams and 3 weights; expected one per stream"),
    ],
)
def test_every_corpus_needs_a_weight_before_the_first_stage(recipe, given, message, tmp_path, capsys):
    small = read_yaml(shipped("recipes/experiments/zac_gpt/small.yaml")) | {"output_dir": str(tmp_path)}
    with pytest.raises(SystemExit, match="2"):
        recipe["main"](recipe["ZacSettings"](**small | given))
    assert f"before the first began: {message}" in capsys.readouterr().err


def test_the_tokenizer_has_not_seen_what_is_held_out(recipe, tmp_path):
    flags = {"tokenizer": "--vocab_size 512", "tokenize": "--test_fraction 0.2 --max_documents 9"}
    stages = recipe["stages"](recipe["ZacSettings"](output_dir=str(tmp_path), **flags))
    sample, tokens = (read_command("tokenize", shlex.split(command)[2:]) for _, command in stages[:2])
    assert [sample[name] for name in ("vocab_size", "max_documents", "test_fraction")] == [512, 500_000, 0.2]
    assert [tokens[name] for name in ("max_documents", "test_fraction")] == [9, 0.2]


@pytest.mark.thorough
@pytest.mark.slow
def test_the_small_road_ends_in_a_table_and_curves(program, succeeded, tmp_path):
    config = (
        "recipes/experiments/zac_gpt/run.py",
        "--config",
        "recipes/experiments/zac_gpt/small.yaml",
        "--output_dir",
        tmp_path / "out",
    )
    given = read_yaml(shipped("recipes/experiments/zac_gpt/small.yaml"))
    shorter = given["pretrain"].replace("600_000", "150_000")
    shorter += " --save_steps 15 --keep_every 15"
    fewer = given["tokenize"].replace("3000", "600")
    succeeded(program.run(*config, "--pretrain", shorter, "--tokenize", fewer, timeout=2000))
    stages = (tmp_path / "out" / "stages.md").read_text()
    for name in ("pretrain", "midtrain", "sft", "lima"):
        assert f"| {name} |" in stages
    found = read_json(tmp_path / "out" / "along.json")["checkpoints"]
    assert len(found) >= 2
    assert found[-1]["bits_per_byte"] < found[0]["bits_per_byte"]
    assert (tmp_path / "out" / "along.png").stat().st_size > 5_000
