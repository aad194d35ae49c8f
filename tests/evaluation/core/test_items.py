"""CORE compared with its definition item by item, its invariances, and bad input."""

import json
import os
import random
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from core_by_the_page import answers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.core.measure import score_core
from hmm_datasets.evaluation.core.tasks import CORE_TASKS
from hmm_datasets.report.evaluation_tables import _cut_prompts
from hmm_datasets.text.tokenizers.bpe import train_bpe

DATA = os.environ.get("HMM_DATASETS_CORE_DATA")
SENTENCE = "red green blue one two three cat dog bird is was has the a of in old new sun moon sea hill"
WORDS = SENTENCE.split()
RANDOM = random.Random(0)


def words(count: int) -> str:
    return " ".join(RANDOM.choice(WORDS) for _ in range(count))


def choice_row(most: int = 4) -> dict:
    return {"query": words(6), "choices": [words(RANDOM.randint(1, 4)) for _ in range(most)], "gold": 1, "id": "x"}


def schema_row() -> dict:
    return {"context_options": [words(4), words(5)], "continuation": words(3), "gold": RANDOM.randint(0, 1)}


def text_row() -> dict:
    return {"context": f" {words(7)} ", "continuation": words(2)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A task of each type, with and without solved examples; some in a subfolder."""
    root = tmp_path_factory.mktemp("core")
    rows = {
        "world/arc_easy": [choice_row() for _ in range(14)],
        "copa": [choice_row(2) for _ in range(9)],
        "winograd_wsc": [schema_row() for _ in range(9)],
        "bigbench_operators": [text_row() for _ in range(13)],
        "lambada_openai": [text_row() for _ in range(7)],
    }
    rows["copa"][2] = {"query": "the sun", "choices": ["is", "is old", "is"], "gold": 0}
    rows["world/arc_easy"][3] = {"query": "the sun", "choices": ["old", "old"], "gold": 0}
    (root / "world").mkdir()
    for name, of in rows.items():
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in of))
    return root


@pytest.fixture(scope="module")
def tokenizer():
    # "1" and the punctuation of the delimiters are encoded as bytes.
    return train_bpe([" ".join(WORDS)] * 9, 300, min_frequency=1, show_progress=False)


@pytest.fixture(scope="module")
def model(tokenizer) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.5,
    )
    return LlamaForCausalLM(config).double().eval()


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    return Accelerator(cpu=True)


def compare(found: dict, model, tokenizer, folder: Path, tolerance: float, **settings) -> None:
    """Compare every item of `found` with the definition."""
    for label, task in found["tasks"].items():
        of = CORE_TASKS[label]
        expected = answers(
            *(model, tokenizer, next(Path(folder).rglob(of.file)), of.type, of.shots, of.delimiter), **settings
        )
        items = [item for item in found["items"] if item["task"] == label]
        assert [item["item"] for item in items] == list(range(len(expected)))
        for item, (correct, losses) in zip(items, expected, strict=True):
            assert item["losses"] == pytest.approx(losses, abs=tolerance), (label, item)
            assert item["correct"] == correct, (label, item)
        assert task["accuracy"] == sum(correct for correct, _ in expected) / len(expected)


@pytest.mark.thorough
def test_every_item_is_answered_as_the_definition_says(model, tokenizer, folder, accelerator):
    found = score_core(model, tokenizer, folder, accelerator, batch_size=5)
    assert sorted(found["tasks"]) == sorted(["arc_easy", "copa", "winograd", "bigbench_operators", "lambada_openai"])
    assert found["beginning"] == "BOS"
    compare(found, model, tokenizer, folder, 1e-9, beginning=[tokenizer.bos_token_id])
    assert len({item["correct"] for item in found["items"]}) == 2, "else the comparison proves little"


@pytest.mark.thorough
@pytest.mark.parametrize("limit", [11, 40])
def test_long_prompts_are_cut_on_the_left(model, tokenizer, folder, accelerator, monkeypatch, limit):
    monkeypatch.setattr(model.config, "max_position_embeddings", limit)
    found = score_core(model, tokenizer, folder, accelerator)
    compare(found, model, tokenizer, folder, 1e-9, beginning=[tokenizer.bos_token_id], limit=limit)


@pytest.mark.thorough
def test_the_default_limit_is_that_of_the_model(tokenizer, folder, accelerator):
    """GPT-2 has learned positions and none beyond them; short beginnings are padded to the length of long ones."""
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=16, n_layer=1, n_head=2))
    model = model.double().eval()
    found = score_core(model, tokenizer, folder, accelerator)
    assert found["max_length"] == 64
    compare(found, model, tokenizer, folder, 1e-9, beginning=[tokenizer.bos_token_id], limit=64)


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/EleutherAI/lm-evaluation-harness/issues/3115",
    "know when cutting a prompt on the left takes the question or its examples away",
    "prompts are cut on the left as by others; the report counts those that were, and the text names the longest",
)
@pytest.mark.outside(
    "https://github.com/EleutherAI/lm-evaluation-harness/pull/2585",
    "a warning when tokens are dropped because a sequence is longer than the context",
    "a sentence beside the score, with the number of prompts that were cut",
)
def test_prompts_that_are_cut_are_counted_and_reported(model, tokenizer, folder, accelerator, monkeypatch):
    whole = score_core(model, tokenizer, folder, accelerator)
    assert (whole["prompts_cut"], _cut_prompts(whole)) == (0, "")
    longest = whole["longest_prompt"]
    monkeypatch.setattr(model.config, "max_position_embeddings", longest)
    assert score_core(model, tokenizer, folder, accelerator)["prompts_cut"] == 0
    monkeypatch.setattr(model.config, "max_position_embeddings", longest - 1)
    short = score_core(model, tokenizer, folder, accelerator)
    assert 0 < short["prompts_cut"] < short["prompts"] == whole["prompts"]
    told = _cut_prompts(short)
    assert f"{short['prompts_cut']} of {short['prompts']} prompts were longer than the {longest - 1} tokens" in told
    assert f"(the longest has {longest})" in told


@pytest.mark.thorough
def test_a_cut_keeps_the_first_shuffled_items_and_draws_examples_from_them(model, tokenizer, folder, accelerator):
    found = score_core(model, tokenizer, folder, accelerator, max_per_task=11)
    assert found["tasks"]["arc_easy"]["items"] == 11
    assert found["name"] == "CORE subset (5 of 22 tasks), at most 11 items per task"
    compare(found, model, tokenizer, folder, 1e-9, beginning=[tokenizer.bos_token_id], cap=11)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["EOS", None])
def test_without_bos_eos_goes_before_a_prompt_and_without_either_nothing(model, tokenizer, folder, accelerator, kind):
    special = {} if kind is None else {"eos_token": "<|endoftext|>"}
    other = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **special)
    found = score_core(model, other, folder, accelerator, tasks=["arc_easy", "winograd", "copa"])
    assert found["beginning"] == kind
    beginning = [] if kind is None else [other.eos_token_id]
    compare(found, model, other, folder, 1e-9, beginning=beginning)


@pytest.mark.skipif(DATA is None, reason="HMM_DATASETS_CORE_DATA names no folder with CORE's questions")
def test_the_true_questions_are_answered_as_the_definition_says(accelerator):
    texts = [json.loads(line) for path in Path(DATA).rglob("*.jsonl") for line in path.open(encoding="utf-8")]
    tokenizer = train_bpe(map(json.dumps, texts[::9]), 1000, show_progress=False)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), initializer_range=0.1, max_position_embeddings=800, **shape)
    model = LlamaForCausalLM(config).eval()
    found = score_core(model, tokenizer, DATA, accelerator, max_per_task=15)
    compare(found, model, tokenizer, DATA, 1e-5, beginning=[tokenizer.bos_token_id], limit=800, cap=15)


@pytest.mark.skipif(DATA is None, reason="HMM_DATASETS_CORE_DATA names no folder with CORE's questions")
def test_the_table_of_tasks_is_dclms():
    told = {task["label"]: task for task in json.loads((Path(DATA) / "core_tasks.json").read_text())["tasks"]}
    assert list(told) == list(CORE_TASKS)
    rows = [line.split(",") for line in (Path(DATA) / "eval_meta_data_v1.csv").read_text().splitlines()]
    baselines = {row[0]: float(row[5]) for row in rows[1:] if row[0] in told}
    assert {label: task.baseline for label, task in CORE_TASKS.items()} == baselines
    for label, task in CORE_TASKS.items():
        row = told[label]
        assert (task.type, task.shots, task.delimiter) == (
            row["task_type"], row["num_fewshot"], row["continuation_delimiter"]
        )  # fmt: skip
        assert task.file == Path(row["dataset_uri"]).name


# Invariances


@pytest.mark.thorough
def test_items_do_not_depend_on_the_batch_size(model, tokenizer, folder, accelerator):
    one, many = (score_core(model, tokenizer, folder, accelerator, batch_size=size) for size in (1, 64))
    for first, second in zip(one["items"], many["items"], strict=True):
        assert first["losses"] == pytest.approx(second["losses"], abs=1e-9)
        assert first["correct"] == second["correct"]
    assert one["score"] == many["score"]


def test_equal_options_tie_and_the_first_one_counts(model, tokenizer, folder, accelerator):
    found = score_core(model, tokenizer, folder, accelerator, tasks=["arc_easy"])
    same = [item for item in found["items"] if len(item["losses"]) == 2]
    assert len(same) == 1
    assert same[0]["losses"][0] == same[0]["losses"][1]
    assert same[0]["predicted"] == 0


PROGRAM = """
import sys
from accelerate import Accelerator
from transformers import AutoTokenizer, LlamaForCausalLM
from hmm_datasets.files import write_json
from hmm_datasets.evaluation.core.measure import score_core
from hmm_datasets.evaluation.text import DocumentWindows, measure_text
saved, questions, to = sys.argv[1:]
model, tokenizer = LlamaForCausalLM.from_pretrained(saved), AutoTokenizer.from_pretrained(saved)
accelerator = Accelerator(cpu=True)
windows = DocumentWindows(["the red cat", "a dog is in the sea of old " * 9, "moon"], tokenizer, 9, 4)
found = [score_core(model, tokenizer, questions, accelerator, batch_size=5),
         measure_text(model, tokenizer, windows, accelerator, batch_size=2)]
if accelerator.is_main_process:
    write_json(to, found)
else:
    assert found == [{}, {}]
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_results_do_not_depend_on_the_number_of_processes(model, tokenizer, folder, tmp_path, launch):
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    (tmp_path / "program.py").write_text(PROGRAM)
    found = []
    for count in (1, 2, 3):
        to = tmp_path / f"{count}.json"
        done = launch(
            "torch.distributed.run", "--nproc_per_node", count, "--master_port", 29_617 + count,
            *(tmp_path / "program.py", tmp_path / "model", folder, to),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.append(json.loads(to.read_text()))
    assert found[0] == found[1] == found[2]


# What is refused


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_per_task": 10}, "arc_easy: 10 items after the cut to max_per_task=10, but 10 others precede each"),
        ({"max_per_task": 0}, "max_per_task=0: expected 1 or more"),
        ({"tasks": ["squad"]}, "squad: no squad.jsonl under "),
        ({"tasks": ["mmlu"]}, "task 'mmlu' is not in CORE; expected some of hellaswag_zeroshot, "),
    ],
)
def test_wrong_settings_are_refused(model, tokenizer, folder, accelerator, settings, said):
    with pytest.raises(InputError) as caught:
        score_core(model, tokenizer, folder, accelerator, **settings)
    assert said in str(caught.value)


GOOD = {
    "copa": {"query": "a", "choices": ["b", "c"], "gold": 1},
    "winograd_wsc": {"context_options": ["a", "b"], "continuation": "c", "gold": 0},
    "lambada_openai": {"context": "a", "continuation": "b"},
}


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("copa", "{", "copa.jsonl:3: not JSON"),
        ("copa", "[1]", "copa.jsonl:3: expected an object, found a list"),
        ("copa", {"query": 3}, "copa.jsonl:3: query: expected text, found 3"),
        ("copa", {"choices": ["b"]}, "copa.jsonl:3: choices is ['b']; copa needs a list of two texts or more"),
        ("copa", {"choices": ["b", None]}, "copa.jsonl:3: choices: expected text, found None"),
        ("copa", {"gold": 2}, "copa.jsonl:3: gold is 2; expected the index of one of 2 choices"),
        ("copa", {"gold": True}, "copa.jsonl:3: gold is True"),
        ("winograd_wsc", {"context_options": "ab"}, "winograd_wsc.jsonl:3: context_options is 'ab'"),
        ("winograd_wsc", {"continuation": " "}, "winograd_wsc.jsonl:3: continuation is empty"),
        ("lambada_openai", {"context": None}, "lambada_openai.jsonl:3: context: expected text, found None"),
    ],
)
def test_a_bad_row_is_refused_by_file_and_line(model, tokenizer, tmp_path, accelerator, name, line, said):
    good = json.dumps(GOOD[name])
    bad = line if isinstance(line, str) else json.dumps(GOOD[name] | line)
    (tmp_path / f"{name}.jsonl").write_text(f"{good}\n\n{bad}\n")
    with pytest.raises(InputError) as caught:
        score_core(model, tokenizer, tmp_path, accelerator)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_duplicate_files_are_refused(model, tokenizer, folder, tmp_path, accelerator):
    with pytest.raises(InputError, match=r"nowhere: no such folder"):
        score_core(model, tokenizer, tmp_path / "nowhere", accelerator)
    with pytest.raises(InputError, match=r"has none of CORE's files, such as hellaswag\.jsonl"):
        score_core(model, tokenizer, tmp_path, accelerator)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "copa.jsonl").write_text(json.dumps(GOOD["copa"]) + "\n")
    with pytest.raises(InputError, match=r"copa: .*a/copa\.jsonl and .*b/copa\.jsonl; keep one"):
        score_core(model, tokenizer, tmp_path, accelerator)


def test_a_model_of_fewer_tokens_than_the_prompts_have_is_refused(tokenizer, folder, accelerator):
    small = LlamaConfig(vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    with pytest.raises(InputError, match="the model has 20 tokens"):
        score_core(LlamaForCausalLM(small), tokenizer, folder, accelerator)
