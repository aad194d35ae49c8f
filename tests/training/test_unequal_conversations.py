"""With rows of unequal lengths, micro-batches and ranks change neither losses nor counts nor skipped steps."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from hmm_datasets.files import read_json, read_jsonl

PROGRAM = Path(__file__).with_name("unequal_conversations.py")


@pytest.fixture(scope="module")
def program():
    spec = importlib.util.spec_from_file_location(PROGRAM.stem, PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def whole(program, tmp_path_factory):
    """A run in one process without accumulation, and its trainer."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, program.main(str(folder), 8)


def curve(folder, name: str) -> list[float]:
    return [row[name] for row in read_jsonl(folder / "history.jsonl") if "loss" in row]


@pytest.mark.thorough
def test_the_loss_of_a_step_is_the_mean_over_all_that_the_assistants_say(program, whole):
    folder, trainer = whole
    torch.manual_seed(0)
    model = LlamaForCausalLM(trainer.model.config)
    total, count = 0.0, 0
    for row in map(trainer.train_dataset.__getitem__, range(8)):
        labels = torch.tensor([labels_of(row)])
        logits = model(torch.tensor([row["input_ids"]])).logits
        total += torch.nn.functional.cross_entropy(logits[0, :-1], labels[0, 1:], reduction="sum").item()
        count += int((labels[0, 1:] != -100).sum())
    assert curve(folder, "loss")[0] == pytest.approx(total / count, rel=1e-5)


def labels_of(row) -> list[int]:
    if "labels" in row:
        return row["labels"]
    return [token if said else -100 for token, said in zip(row["input_ids"], row["assistant_masks"], strict=True)]


def samples(folder) -> list[tuple[int, str]]:
    return [(row["step"], row["text"]) for row in read_jsonl(folder / "samples.jsonl")]


def held_out(folder) -> list[float]:
    return [row["eval_loss"] for row in read_jsonl(folder / "history.jsonl") if "eval_loss" in row]


def test_the_held_out_loss_is_the_mean_over_all_that_the_assistants_say(whole):
    folder, trainer = whole
    total, count = 0.0, 0
    for row in trainer.eval_dataset:
        labels = torch.tensor([labels_of(row)])
        with torch.no_grad():
            logits = trainer.model.eval()(torch.tensor([row["input_ids"]])).logits
        total += torch.nn.functional.cross_entropy(logits[0, :-1], labels[0, 1:], reduction="sum").item()
        count += int((labels[0, 1:] != -100).sum())
    assert held_out(folder) == [pytest.approx(total / count, rel=1e-5)]


def agree(folder, whole) -> None:
    first = whole[0]
    for name in ("tokens", "flops", "skipped_steps"):
        assert curve(folder, name) == curve(first, name)
    assert curve(folder, "skipped_steps") == [0, 1, 1]
    assert curve(folder, "loss") == pytest.approx(curve(first, "loss"), rel=1e-5)
    assert held_out(folder) == pytest.approx(held_out(first), rel=1e-6), (
        "a mean over tokens, with no row counted twice"
    )
    assert samples(folder) == samples(first)
    assert [step for step, _ in samples(folder)] == [3]


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/24725",
    "accumulate gradients of rows of unequal lengths as one large batch would",
    "losses and weights are those of the large batch: every token counts alike",
)
@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/37766",
    "a loss that does not rise with `gradient_accumulation_steps`",
    "the loss is the mean over the tokens of the global batch for every micro-batch",
)
@pytest.mark.outside(
    "https://github.com/axolotl-ai-cloud/axolotl/issues/3196",
    "the same training loss for every batch size that makes the same global batch",
    "equal to rounding",
)
def test_micro_batches_change_nothing(program, whole, tmp_path):
    program.main(str(tmp_path), 2)
    agree(tmp_path, whole)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "config", ["cpu2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("zero2", "zero3", "fsdp2"))]
)
def test_two_processes_change_nothing(config, launch, whole, tmp_path):
    root = Path(__file__).parents[2]
    result = launch(
        "accelerate.commands.accelerate_cli",
        *("launch", "--config_file", root / "accelerate_configs" / f"{config}.yaml", PROGRAM, tmp_path, 2),
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert read_json(tmp_path / "summary.json")["world_size"] == 2
    agree(tmp_path, whole)


PACKED = {"packing": True, "max_length": 64}
ADAPTED = PACKED | {"use_peft": True, "lora_dropout": 0.0}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("config", "given"),
    [
        ("cpu2", PACKED),
        ("cpu2", ADAPTED),
        pytest.param("zero2", ADAPTED, marks=pytest.mark.slow),
        pytest.param("zero3", PACKED, marks=pytest.mark.slow),
        pytest.param("fsdp2", PACKED, marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else "lora" if "use_peft" in value else "packed",
)
def test_packed_rows_and_adapters_are_trained_the_same_on_two_processes(config, given, program, launch, tmp_path):
    if "use_peft" in given:
        pytest.importorskip("peft")
    one, two = tmp_path / "one", tmp_path / "two"
    program.main(str(one), 8, **given)
    root = Path(__file__).parents[2]
    result = launch(
        "accelerate.commands.accelerate_cli",
        *("launch", "--config_file", root / "accelerate_configs" / f"{config}.yaml", PROGRAM, two, 2),
        json.dumps(given),
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert read_json(two / "summary.json")["world_size"] == 2
    assert curve(two, "tokens") == curve(one, "tokens")
    assert curve(two, "loss") == pytest.approx(curve(one, "loss"), rel=1e-5)
    assert held_out(two) == pytest.approx(held_out(one), rel=1e-5)
    assert samples(two) == samples(one)
