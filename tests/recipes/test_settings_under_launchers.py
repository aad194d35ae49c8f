"""Every shipped setting of a trainer runs under every shipped launch configuration."""

import json
import re
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

ROOT = Path(__file__).parents[2]
CONFIGS = {path.stem: read_yaml(path) for path in sorted((ROOT / "accelerate_configs").glob("*.yaml"))}
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


def test_every_recipe_and_framework_is_here():
    assert set(SETTINGS.values()) == {"pretrain", "midtrain", "sft", "dpo", "grpo"}
    assert {one["distributed_type"] for one in CONFIGS.values()} == {"NO", "MULTI_GPU", "FSDP", "DEEPSPEED"}
    assert len(SETTINGS) > 20


@pytest.mark.thorough
@pytest.mark.parametrize("name", SETTINGS)
def test_no_setting_is_refused_under_any_launcher(name):
    assert [refusal(name, config) for config in CONFIGS] == [None] * len(CONFIGS)


@pytest.mark.outside(
    "https://github.com/deepspeedai/DeepSpeed/issues/8439",
    "Muon under ZeRO whose updates are not divided by their norm",
    "shipped settings with Muon do not clip; Muon with clipping is refused under ZeRO",
)
@pytest.mark.parametrize("recipe", ["demo/pretrain_hmm", "demo/sft"])
def test_muon_with_clipping_is_refused_under_zero_with_flags_that_mend_it_also_by_plan(recipe):
    clipped = ["--max_grad_norm", "1"]
    said = refusal(recipe, "zero3", *clipped)
    assert "add --optimizer adamw, or --max_grad_norm 0" in said
    for flags in (["--optimizer", "adamw"], ["--max_grad_norm", "0"]):
        assert refusal(recipe, "zero3", *clipped, *flags) is None
    launch, name = ROOT / "accelerate_configs/zero3.yaml", Path(recipe).stem.removesuffix("_hmm")
    with pytest.raises(InputError, match=re.escape(said)):
        plan_recipe(name, ["--config", f"{recipe}.yaml", *clipped], num_processes=2, launch_config=launch)


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
    given = dict.fromkeys(one[2:] for one in GIVEN_BY_PROGRAMS.get(name, []) if one.startswith("--"))
    shipped = given | read_yaml(ROOT / f"recipes/{name}.yaml")
    streams = [str(small / "tokens" / one) for one in ("text", "chat", "more")]
    inputs = {
        "hmm": str(hmm_folder),
        "model": str(small / ("llama.json" if SETTINGS[name] == "pretrain" else "base")),
        "tokens": streams[0],
        "tokenizer": str(small / "tokens" / "tokenizer"),
        "streams": streams[: len(shipped.get("weights", []))],
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
    kept = {
        key: value
        for key, value in shipped.items()
        if key not in {"max_steps", "num_train_epochs", "train_tokens", "train_budget"}
    }
    kept |= {key: value for key, value in inputs.items() if key in kept}
    # With warm-up steps the first update would be one of nothing.
    return kept | {"max_steps": 3, "logging_steps": 1, "warmup_steps": 0}


LOSSES: dict[str, list[float]] = {}
"""Those of each setting, under the first launcher that trained it. Ranks sum parts of bf16 products."""


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("config", ["cpu2", "fsdp2", "zero1", "zero2", "zero3"])
def test_every_setting_trains_under_a_launcher(config, small, hmm_folder, program, succeeded, tmp_path):
    """`multi_node` and `multi_node_zero2` are `ddp` and `zero2` of one machine, and `ddp` on a CPU is `cpu2`."""
    todo = []
    for number, name in enumerate(SETTINGS):
        settings = tmp_path / f"{number}.yaml"
        own = {"output_dir": str(tmp_path / str(number)), "report_to": "none"}
        settings.write_text(yaml.safe_dump(shrunk(name, small, hmm_folder) | own))
        todo.append((SETTINGS[name], ["--config", str(settings)]))
    (tmp_path / "todo.json").write_text(json.dumps(todo))
    succeeded(program.launch(config, "tests/recipes/many_settings.py", tmp_path / "todo.json", timeout=1800))
    for number, name in enumerate(SETTINGS):
        found = [row["loss"] for row in read_jsonl(tmp_path / str(number) / "history.jsonl") if "loss" in row]
        print(f"{name} under {config}: losses {found}")
        assert len(found) == 3
        assert found == pytest.approx(LOSSES.setdefault(name, found), rel=1e-3)
