"""Every shipped setting of a trainer under every launch configuration: it runs, or flags that mend it are named."""

import json
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import yaml
from tiny_chat import WORDS, save_tiny_chat
from transformers import AutoTokenizer

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_jsonl, read_yaml
from hmm_datasets.operations.planning import plan_recipe
from hmm_datasets.operations.stage_inputs import read_command
from hmm_datasets.text.stream import tokenizer_hash, write_tokens
from hmm_datasets.training.plan.budget import Budget

ROOT = Path(__file__).parents[2]
CONFIGS = {path.stem: read_yaml(path) for path in sorted((ROOT / "accelerate_configs").glob("*.yaml"))}
del CONFIGS["tpu"]  # without torch_xla every command refuses it
RECIPES = {
    **{name: name for name in ("midtrain", "sft", "dpo", "grpo")},
    **{"lima": "sft", "pretrained_sft": "sft", "pretrained_dpo": "dpo"},
}
SETTINGS = {
    str(path.relative_to(ROOT / "recipes").with_suffix("")): RECIPES.get(path.stem, "pretrain")
    for path in sorted((ROOT / "recipes").rglob("*.yaml"))
    if "logging_steps" in read_yaml(path)
}
GIVEN_BY_PROGRAMS = {
    "experiments/chat_ladder/dpo": ["--model", "model", "--preferences", "pairs"],
    "experiments/chat_ladder/grpo": ["--model", "model", "--prompts", "questions"],
    "experiments/chat_ladder/pretrained_sft": ["--model", "model"],
    "experiments/chat_ladder/pretrained_dpo": ["--model", "model", "--preferences", "pairs"],
    "experiments/after_pretraining/midtrain": ["--model", "model", "--streams", "a", "b"],
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
    is_muon = read_yaml(ROOT / f"recipes/{name}.yaml").get("optimizer") == "muon"
    for config, launch in CONFIGS.items():
        found = [flag for way in ways(name, config) for flag in way]
        refused = launch["distributed_type"] == "DEEPSPEED" and is_muon
        assert ("adamw" in found, "--max_grad_norm" in found) == (refused, refused), config


@pytest.mark.parametrize("name", [name for name, recipe in SETTINGS.items() if recipe != "grpo"])
def test_a_pair_that_its_launcher_would_refuse_is_refused_by_plan_in_the_same_words(name):
    """GRPO has no plan."""
    for config, launch in CONFIGS.items():
        said = refusal(name, config)
        if launch["distributed_type"] == "DEEPSPEED" and said is not None and "optimizer" in said:
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


@pytest.mark.slow
@pytest.mark.launch
def test_the_settings_of_the_demo_are_refused_under_zero_before_any_work(program):
    result = program.launch("zero3", "recipes/pretrain.py", "--config", "recipes/demo/pretrain_hmm.yaml")
    assert result.returncode != 0
    (line,) = {line for line in result.stderr.splitlines() if line.startswith("error: optimizer")}
    assert remedies(line) == [["--optimizer", "adamw"], ["--max_grad_norm", "0"]]


@pytest.fixture(scope="module")
def small(program, succeeded, hmm_folder, tmp_path_factory) -> Path:
    """What the settings read, small: a model, streams of tokens, conversations, preferences, questions."""
    root = tmp_path_factory.mktemp("small")
    save_tiny_chat(root / "base")
    (root / "llama.json").write_text((root / "base" / "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(root / "base")
    identity = {"vocab_size": len(tokenizer), "eos_id": tokenizer.eos_token_id}
    identity["tokenizer_hash"] = tokenizer_hash(tokenizer)
    draw = np.random.default_rng(0)
    for name in ("text", "chat", "more"):
        for split, count in (("train", 2_000), ("test", 100)):
            documents = [draw.integers(4, len(tokenizer), draw.integers(8, 24)) for _ in range(count)]
            write_tokens(documents, root / "tokens" / name / split, corpus=name, **identity)
    tokenizer.save_pretrained(root / "tokens" / "tokenizer")
    rows = [{"prompt": f"Say {WORDS[n % 10]} and {WORDS[n // 10 % 10]}.", "answer": WORDS[n % 10]} for n in range(90)]
    users = [{"role": "user", "content": row["prompt"]} for row in rows]
    turns = [[user, {"role": "assistant", "content": row["answer"]}] for user, row in zip(users, rows, strict=True)]
    files = {
        "conversations": [{"messages": one} for one in turns],
        "pairs": [{"prompt": row["prompt"], "chosen": row["answer"], "rejected": row["answer"] * 2} for row in rows],
        "questions": [{"prompt": row["prompt"], "completion": row["answer"]} for row in rows],
    }
    for name, lines in files.items():
        (root / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root


def shrunk(name: str, small: Path, hmm_folder: Path) -> dict:
    """The settings of a file with small inputs, short rows and three steps; the rest is as shipped."""
    given = dict.fromkeys(one.removeprefix("--") for one in GIVEN_BY_PROGRAMS.get(name, [])[::2])
    shipped = given | read_yaml(ROOT / f"recipes/{name}.yaml")
    streams = [str(small / "tokens" / one) for one in ("text", "chat", "more")]
    inputs = {
        "hmm": str(hmm_folder),
        "model": str(small / ("llama.json" if SETTINGS[name] == "pretrain" else "base")),
        "tokens": streams[0],
        "tokenizer": str(small / "tokens" / "tokenizer"),
        "streams": streams[: len(shipped.get("streams", []))],
        "packed_streams": streams[1:],
        "optimizer_from": None,
        "conversations": str(small / "conversations.jsonl"),
        "preferences": str(small / "pairs.jsonl"),
        "prompts": str(small / "questions.jsonl"),
        "length": 32,
        "max_length": 48,
        "max_completion_length": 8,
        "num_test_sequences": 16,
        "num_questions": 16,
    }
    kept = {key: value for key, value in shipped.items() if key not in {one.name for one in fields(Budget)}}
    kept |= {key: value for key, value in inputs.items() if key in kept}
    # With warm-up steps the first update would be one of nothing.
    return kept | {"max_steps": 3, "logging_steps": 1, "warmup_steps": 0}


LOSSES: dict[tuple[str, ...], list[float]] = {}
"""Those of each setting and its flags, under the first launcher that trained it. Ranks sum parts of bf16 products."""


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize("config", ["cpu2", "fsdp2", "zero1", "zero2", "zero3"])
def test_every_setting_trains_under_a_launcher_in_every_way_that_it_may(
    config, small, hmm_folder, program, succeeded, tmp_path
):
    """`multi_node` and `multi_node_zero2` are `ddp` and `zero2` of one machine, and `ddp` on a CPU is `cpu2`."""
    given = [(name, flags) for name in SETTINGS for flags in ways(name, config)]
    todo = []
    for number, (name, flags) in enumerate(given):
        settings = tmp_path / f"{number}.yaml"
        own = {"output_dir": str(tmp_path / str(number)), "report_to": "none"}
        settings.write_text(yaml.safe_dump(shrunk(name, small, hmm_folder) | own))
        todo.append((SETTINGS[name], ["--config", str(settings), *flags]))
    (tmp_path / "todo.json").write_text(json.dumps(todo))
    succeeded(program.launch(config, "tests/recipes/many_settings.py", tmp_path / "todo.json", timeout=1800))
    for number, (name, flags) in enumerate(given):
        found = [row["loss"] for row in read_jsonl(tmp_path / str(number) / "history.jsonl") if "loss" in row]
        print(f"{name} under {config} {' '.join(flags)}: losses {found}")
        assert len(found) == 3
        assert found == pytest.approx(LOSSES.setdefault((name, *flags), found), rel=1e-3)
