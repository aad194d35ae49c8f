"""The experiment with characters: its stages, its plan, and, slowly, all of it."""

import json
import re
import shlex

import pytest
from experiments import load

from hmm_datasets.errors import InputError
from hmm_datasets.operations.planning import plan_recipe
from hmm_datasets.operations.stage_inputs import read_command


def test_its_stages_train_the_same_model_under_each_strategy():
    program = vars(load("wordplay"))
    settings = program["WordplaySettings"](text="a b.txt", strategies=["ddp", "zero3"])
    commands = [command for _, command in program["stages"](settings)]
    assert [command.split()[1] for command in commands[:5]] == ["tokenize", "pretrain", "evaluate", *["pretrain"] * 2]
    assert "--vocabulary characters --corpus 'a b.txt'" in commands[0]
    first, second = (
        command.partition("--num_processes 2")[2].rpartition(" --output_dir")[0] for command in commands[3:5]
    )
    assert first == second != ""
    assert "--launch zero3 --num_processes 2" in commands[4]


def test_every_training_has_the_flags_of_pretraining():
    program = vars(load("wordplay"))
    flags = "--learning_rate=1e-3 --batch_ramp 8:10 16:10 --sample_prompts 'To be' --logging_steps 10"
    settings = program["WordplaySettings"](text="a.txt", strategies=["ddp", "zero3"], pretrain=flags)
    expected = {"learning_rate": 1e-3, "batch_ramp": ["8:10", "16:10"], "sample_prompts": ["To be"]}
    expected |= {"logging_steps": 10, "global_batch_size": 32, "per_device_train_batch_size": 16, "adam_beta2": 0.99}
    trainings = [
        read_command("pretrain", shlex.split(command)[2:])
        for _, command in program["stages"](settings)
        if command.startswith("hmm-datasets pretrain")
    ]
    assert len(trainings) == 3
    for values in trainings:
        assert {name: values[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--learning_rates 1e-3", "unknown flag --learning_rates; did you mean --learning_rate?"),
        ("--learning_rate 1e-3 2e-3", "2e-3: not the value of any flag"),
        ("--max_steps 3", "--max_steps is decided by the experiment itself; leave it out"),
        ("--output_dir here", "--output_dir is decided by the experiment itself; leave it out"),
    ],
)
def test_a_flag_of_pretraining_that_cannot_be_followed_is_refused(flags, message):
    program = vars(load("wordplay"))
    with pytest.raises(InputError, match=re.escape(f"pretrain: {message}")):
        program["stages"](program["WordplaySettings"](text="a.txt", pretrain=flags))


@pytest.mark.thorough
def test_the_full_plan_is_that_of_nanogpts_character_model():
    flags = ["--config", "wordplay/pretrain.yaml", "--assumed_rate", "A100"]
    found = plan_recipe("pretrain", flags, assumed_vocab_size=68)
    assert found["parameters_without_embeddings"] == pytest.approx(10.65e6, rel=0.01)
    assert found["steps"] == 5005
    assert found["tokens"] == 5005 * 64 * 256
    assert found["memory"]["ddp"]["total"] > 16 * found["parameters"]
    assert found["time"]["seconds"] < 3600


@pytest.mark.thorough
@pytest.mark.slow
def test_strategies_train_alike_and_are_shown_side_by_side(program, succeeded, tmp_path):
    (tmp_path / "plays.txt").write_text("To be, or not to be, that is the question.\n" * 300)
    settings = ("--text", tmp_path / "plays.txt", "--output_dir", tmp_path / "out", "--train_tokens", 16_000)
    compared = ("--strategies", "ddp", "zero2", "fsdp2", "--length", 32)
    said = succeeded(program.run("recipes/experiments/wordplay/run.py", *settings, *compared, timeout=900)).stdout
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    first, *others = report["strategies"]
    assert [one["strategy"] for one in report["strategies"]] == ["ddp", "zero2", "fsdp2"]
    for one in others:
        assert one["losses"] == pytest.approx(first["losses"], abs=1e-4)  # sums in another order, for 40 steps
        assert one["tokens_per_second"] > 0
        assert one["planned_memory"] > 0
    assert len(report["texts"]) == 3
    assert "samples/s" in said
    assert (tmp_path / "out" / "strategies.png").stat().st_size > 5_000
