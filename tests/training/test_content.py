"""A run that continues reads what it read before: rows and weights are compared by their content."""

import json
import shutil
import time
from datetime import datetime

import pytest
from datasets import Dataset, concatenate_datasets
from safetensors.torch import load_file, save_file
from tiny_trainers import rows_of, trainer_of
from transformers import AutoModelForCausalLM, AutoTokenizer

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json, write_json
from hmm_datasets.training.content import CACHE_NAME, rows_digest, weights_digest
from hmm_datasets.training.run import train_and_save


def start(name, folder, base, steps=2, **given):
    """Train the model up to a step, or from there to a later one."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    chosen = {"max_steps": steps, "save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "constant"}
    trainer = trainer_of(name, folder, model, tokenizer, **chosen, **given)
    return train_and_save(trainer, settings={}, data={"rows": "c.jsonl", "count": 90}, base=str(base))


@pytest.fixture
def copied(base, tmp_path):
    """A copy of the tiny chat model that may be changed."""
    return shutil.copytree(base, tmp_path / "model")


def exchange_weights(folder):
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] += 1.0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["sft", "dpo", "grpo"])
def test_a_run_whose_rows_were_exchanged_does_not_continue(name, base, tmp_path):
    start(name, tmp_path, base)
    before = read_json(tmp_path / "run.json")["content"]
    assert before["rows"] == rows_digest(rows_of(name))
    with pytest.raises(InputError, match=r"content\.rows has changed \(SHA-256 "):
        start(name, tmp_path, base, steps=4, swapped=True)
    assert read_json(tmp_path / "run.json")["content"] == before
    accepted = ["content.rows", "content.tokens"]
    assert start(name, tmp_path, base, steps=4, swapped=True, allow_changed=accepted)["resumed_from"] == "checkpoint-2"


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "given"), [("sft", {"use_peft": True}), ("dpo", {}), ("midtrain", {})])
def test_a_run_whose_base_was_exchanged_does_not_continue(name, given, copied, tmp_path):
    pytest.importorskip("peft")
    start(name, tmp_path / "run", copied, **given)
    exchange_weights(copied)
    with pytest.raises(InputError, match=r"identity.json: of another run: content\.weights has changed \(SHA-256 "):
        start(name, tmp_path / "run", copied, steps=4, **given)


@pytest.mark.thorough
def test_another_tokenization_of_the_same_rows_is_seen(copied, tmp_path):
    start("sft", tmp_path / "run", copied)
    tokenizer = AutoTokenizer.from_pretrained(copied)
    tokenizer.chat_template = tokenizer.chat_template.replace("<|user|>", "<|user|> ")
    tokenizer.save_pretrained(copied)
    with pytest.raises(InputError, match=r"of another run: content\.tokens has changed \([^;]*; choose another"):
        start("sft", tmp_path / "run", copied, steps=4)


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/oobabooga/textgen/pull/6692",
    "chat templates of Llama 3.1 and Granite, which write the date of today",
    "a run writes the date of its first start, which `run.json` records, and continues on any other day",
)
@pytest.mark.parametrize("name", ["sft", "dpo", "grpo"])
@pytest.mark.parametrize("clock", ["strftime_now('%d %b %Y %H:%M:%S')", "date_string"])
def test_a_template_that_writes_the_time_writes_that_of_the_first_start(name, clock, copied, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(copied)
    date = "{% if date_string is not defined %}{% set date_string = strftime_now('%H:%M:%S') %}{% endif %}"
    tokenizer.chat_template = f"{date}{{{{ {clock} }}}}{tokenizer.chat_template}"
    tokenizer.save_pretrained(copied)
    start(name, tmp_path / "run", copied)
    record = read_json(tmp_path / "run" / "run.json")
    time.sleep(1.1)  # another day, of which a second is enough for this template
    if name != "grpo":  # its tokens are drawn in the run
        start(name, tmp_path / "other", copied)
        other = read_json(tmp_path / "other" / "run.json")
        assert other["content"]["tokens"] != record["content"]["tokens"]
        assert other["template_time"] > record["template_time"]
    assert start(name, tmp_path / "run", copied, steps=4)["resumed_from"] == "checkpoint-2"
    again = read_json(tmp_path / "run" / "run.json")
    assert (again["content"], again["template_time"]) == (record["content"], record["template_time"])
    written = tokenizer.apply_chat_template([{"role": "user", "content": "one"}], tokenize=False)
    assert datetime.fromisoformat(record["template_time"]).strftime("%H:%M:%S") in written


@pytest.mark.thorough
def test_a_run_of_a_version_that_recorded_no_time_continues_and_a_damaged_time_is_refused(base, tmp_path):
    start("sft", tmp_path, base)
    record = read_json(tmp_path / "run.json")
    write_json(tmp_path / "run.json", record | {"template_time": "yesterday"})
    with pytest.raises(InputError, match=r"run.json: template_time is 'yesterday'; expected a time such as 20"):
        start("sft", tmp_path, base, steps=4)
    del record["template_time"]
    write_json(tmp_path / "run.json", record)
    assert start("sft", tmp_path, base, steps=4)["resumed_from"] == "checkpoint-2"
    assert "template_time" not in read_json(tmp_path / "run.json")


@pytest.mark.thorough
def test_a_checkpoint_without_digests_continues(base, tmp_path):
    start("sft", tmp_path, base)
    for folder in (tmp_path, tmp_path / "checkpoint-2"):
        identity = read_json(folder / "identity.json")
        del identity["content"]
        write_json(folder / "identity.json", identity)
    (tmp_path / "checkpoint-2" / "digests.json").unlink()
    assert start("sft", tmp_path, base, steps=4)["resumed_from"] == "checkpoint-2"
    assert {*read_json(tmp_path / "checkpoint-4" / "identity.json")["content"]} == {"rows", "tokens", "weights"}


def test_a_digest_of_rows_is_that_of_their_content_alone(tmp_path):
    rows = rows_of("dpo")
    expected = rows_digest(rows)
    rows.to_parquet(tmp_path / "rows.parquet")
    rows.save_to_disk(tmp_path / "rows")
    parts = [rows.select(range(7)), rows.select(range(7, len(rows)))]
    for same in (
        Dataset.from_parquet(str(tmp_path / "rows.parquet"), cache_dir=str(tmp_path / "cache")),
        Dataset.load_from_disk(str(tmp_path / "rows")),
        concatenate_datasets(parts),
        rows.select(range(len(rows) - 1, -1, -1)).select(range(len(rows) - 1, -1, -1)),
    ):
        assert rows_digest(same) == expected
    others = [rows.select(range(1, len(rows))), rows.select([1, 0, *range(2, len(rows))]), rows.select([0])]
    others.append(rows.rename_columns({"chosen": "rejected", "rejected": "chosen"}))
    assert len({expected, *map(rows_digest, others)}) == 5


def test_weights_are_hashed_once_and_again_only_if_their_file_changed(copied, tmp_path):
    cache = tmp_path / CACHE_NAME
    first = weights_digest(str(copied), cache)
    assert weights_digest(str(copied)) == weights_digest(str(copied), cache) == first
    known = json.loads(cache.read_text())
    known[str(copied / "model.safetensors")]["sha256"] = "0" * 64
    cache.write_text(json.dumps(known))
    assert weights_digest(str(copied), cache) != first  # it is not read
    shutil.copyfile(copied / "model.safetensors", copied / "model.new")
    (copied / "model.new").replace(copied / "model.safetensors")
    assert weights_digest(str(copied), cache) == first  # another file with the same content
    exchange_weights(copied)
    assert weights_digest(str(copied), cache) != first


@pytest.mark.thorough
def test_the_weights_of_an_adapter_are_those_of_its_base_too(copied, tmp_path):
    pytest.importorskip("peft")
    start("sft", tmp_path / "run", copied, use_peft=True)
    before = weights_digest(str(tmp_path / "run"))
    exchange_weights(copied)
    assert weights_digest(str(tmp_path / "run")) != before
