"""DPO and GRPO as programs: two processes, sharded or not, train like one, and a stage starts from the one before."""

import json
from pathlib import Path

import pytest
import torch
from tiny_chat import WORDS, losses, save_tiny_chat

from hmm_datasets.files import read_json, read_jsonl

pytestmark = pytest.mark.thorough

SETTINGS = ("--learning_rate", 1e-2, "--lr_scheduler_type", "constant", "--logging_steps", 1, "--disable_tqdm", "true")
SHARDED = [pytest.param(name, marks=pytest.mark.slow) for name in ("zero1", "zero2")] + ["zero3", "fsdp2"]


def write_rows(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def question(number: int) -> str:
    return f"Say {WORDS[number % 10]} and {WORDS[number // 10]}."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("post-training")
    save_tiny_chat(folder / "base")
    sides = [(" ".join(WORDS[: 1 + n % 7]), " ".join(WORDS[3 : 5 + n % 5])) for n in range(60)]
    pairs = [{"prompt": question(n), "chosen": good, "rejected": bad} for n, (good, bad) in enumerate(sides)]
    write_rows(folder / "pairs.jsonl", pairs)
    answers = [{"prompt": question(n), "completion": WORDS[n % 10]} for n in range(60)]
    write_rows(folder / "questions.jsonl", answers)
    return folder


def dpo(program, succeeded, folder, config, output, steps=4):
    arguments = ("--model", folder / "base", "--preferences", folder / "pairs.jsonl", "--max_steps", steps)
    batch = ("--global_batch_size", 8, "--per_device_train_batch_size", 2, "--save_steps", 2)
    result = succeeded(program.launch(config, "recipes/dpo.py", *arguments, *batch, *SETTINGS, "--output_dir", output))
    assert "gradient_checkpointing" not in result.stderr, "what TRL's settings cause, a user cannot change"
    return read_json(output / "summary.json")


def grpo(program, succeeded, folder, config, output):
    arguments = ("--model", folder / "dpo", "--prompts", folder / "questions.jsonl", "--rewards", "exact", "length:10")
    batch = ("--global_batch_size", 16, "--per_device_train_batch_size", 4, "--num_generations", 4, "--max_steps", 3)
    limits = ("--max_completion_length", 8, "--num_test_sequences", 4, "--beta", 0.1)
    result = succeeded(
        program.launch(config, "recipes/grpo.py", *arguments, *batch, *limits, *SETTINGS, "--output_dir", output)
    )
    assert "gradient_checkpointing" not in result.stderr
    return read_json(output / "summary.json")


def logits(folder):
    from transformers import AutoModelForCausalLM

    with torch.inference_mode():
        return AutoModelForCausalLM.from_pretrained(folder).eval()(torch.arange(10).unsqueeze(0)).logits


@pytest.fixture(scope="module")
def preferred(program, succeeded, folder):
    """A model trained on preferences in two processes, and its summary."""
    return folder / "dpo", dpo(program, succeeded, folder, "cpu2", folder / "dpo")


@pytest.mark.parametrize("config", ["cpu1", *SHARDED])
def test_preferences_train_one_process_and_sharded_ones_alike(config, preferred, program, succeeded, folder, tmp_path):
    run, summary = preferred
    if config == "zero3":  # interrupted halfway
        dpo(program, succeeded, folder, config, tmp_path / "run", steps=2)
    found = dpo(program, succeeded, folder, config, tmp_path / "run")
    assert found["resumed_from"] == ("checkpoint-2" if config == "zero3" else None)
    assert found["tokens"] == found["planned_tokens"] == summary["tokens"]
    assert losses(tmp_path / "run") == pytest.approx(losses(run), rel=1e-4)
    assert losses(run)[1] == pytest.approx(0.6931472, abs=1e-6)
    torch.testing.assert_close(logits(tmp_path / "run"), logits(run), rtol=1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def rewarded(preferred, program, succeeded, folder):
    """That model trained on rewards in two processes, and its summary."""
    return folder / "grpo", grpo(program, succeeded, folder, "cpu2", folder / "grpo")


@pytest.mark.parametrize("config", SHARDED)
def test_sharded_processes_draw_and_reward_the_same_completions(
    config, rewarded, program, succeeded, folder, tmp_path
):
    run, summary = rewarded
    found = grpo(program, succeeded, folder, config, tmp_path / "run")
    assert found["tokens"] == summary["tokens"]
    assert found["evaluation"]["reward"] == pytest.approx(summary["evaluation"]["reward"], abs=1e-6)
    rows, expected = (
        [row for row in read_jsonl(one / "history.jsonl") if "loss" in row] for one in (tmp_path / "run", run)
    )
    for name in ("reward", "kl", "rewards/exact/mean", "rewards/length/mean"):
        assert [row[name] for row in rows] == pytest.approx([row[name] for row in expected], abs=1e-4)
    torch.testing.assert_close(logits(tmp_path / "run"), logits(run), rtol=1e-3, atol=1e-3)


def test_the_lineage_of_a_rewarded_model_has_every_stage(rewarded):
    run, _ = rewarded
    lineage = read_json(run / "run.json")["lineage"]
    assert lineage["stage"] == "reinforcement learning"
    assert [one["stage"] for one in lineage["before"]] == ["training of base", "preference optimization"]
    assert lineage["before"][1]["data"].endswith("pairs.jsonl")
    assert "reinforcement learning" in (run / "README.md").read_text()
