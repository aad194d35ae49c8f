import shutil

import pytest
import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, default_data_collator

from hmm_datasets.data.sequences import HMMSequences
from hmm_datasets.errors import InputError
from hmm_datasets.files import read_jsonl
from hmm_datasets.hmm import processes
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.training.callbacks.samples import read_sample_prompts
from hmm_datasets.training.post_training.trainers import FineTuner
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import PretrainSettings, SFTSettings
from hmm_datasets.training.trainer import Pretrainer

TEXTS = ["Once upon a time there was a cat.", "The dog ran to the big red house."] * 8
PROMPTS = ["Once upon", "The dog"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe(TEXTS, 300, show_progress=False)


def model(tokenizer, dropout: float = 0.1) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        attention_dropout=dropout,  # so that a step uses random numbers
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def pretrain(folder, tokenizer, dropout=0.1, do_sample=False, **changes) -> Pretrainer:
    ids = tokenizer(TEXTS)["input_ids"]
    rows = [{"input_ids": row[:8], "labels": row[:8]} for row in ids] * 8
    settings = {
        "max_steps": 6,
        "global_batch_size": 8,
        "per_device_train_batch_size": 8,
        "logging_steps": 1,
        "save_steps": 100,
        "eval_strategy": "steps",
        "eval_steps": 2,
        **changes,
    }
    chosen = model(tokenizer, dropout)
    chosen.generation_config.update(do_sample=do_sample)
    trainer = Pretrainer(
        model=chosen,
        args=PretrainSettings(str(folder), **settings),
        train_dataset=rows,
        eval_dataset=rows[:4],
        processing_class=tokenizer,
    )
    train_and_save(trainer, settings={}, data={})
    return trainer


def losses(folder) -> list[float]:
    return [row["loss"] for row in read_jsonl(folder / "history.jsonl") if "loss" in row]


def evaluations(folder) -> list[tuple[int, float]]:
    return [(row["step"], row["eval_loss"]) for row in read_jsonl(folder / "history.jsonl") if "eval_loss" in row]


@pytest.mark.thorough
@pytest.mark.parametrize("do_sample", [False, True])
def test_samples_are_written_at_every_evaluation_and_leave_the_training_as_it_was(
    tmp_path, tokenizer, do_sample, capsys
):
    pretrain(tmp_path / "without", tokenizer, eval_on_start=True)
    settings = {"eval_on_start": True, "sample_prompts": PROMPTS}
    trainer = pretrain(tmp_path / "with", tokenizer, do_sample=do_sample, **settings)
    assert losses(tmp_path / "with") == losses(tmp_path / "without")
    rows = read_jsonl(tmp_path / "with" / "samples.jsonl")
    assert [(row["step"], row["prompt"]) for row in rows] == [(n, p) for n in (0, 2, 4, 6) for p in PROMPTS]
    assert [row["tokens"] for row in rows[::2]] == [0, 2 * 64, 4 * 64, 6 * 64]
    assert f"{PROMPTS[1]!r} -> {rows[-1]['text']!r}" in capsys.readouterr().out
    assert not (tmp_path / "without" / "samples.jsonl").exists()
    if not do_sample:
        inputs = tokenizer(PROMPTS[0], return_tensors="pt")
        output = trainer.model.eval().generate(**inputs, max_new_tokens=48)
        expected = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        assert rows[-2]["text"] == expected


@pytest.mark.thorough
def test_a_resumed_run_writes_the_samples_and_evaluates_at_the_steps_of_an_undisturbed_one(tmp_path, tokenizer):
    """Drawn at temperature 1; what the first start wrote after the checkpoint is replaced."""
    settings = {
        "sample_prompts": PROMPTS,
        "do_sample": True,
        "evaluations_per_doubling": 1,
        "eval_steps": 3,
        "save_steps": 2,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "max_steps": 10,
    }
    pretrain(tmp_path / "whole", tokenizer, **settings)
    pretrain(tmp_path / "halves", tokenizer, **settings | {"max_steps": 5})
    shutil.rmtree(tmp_path / "halves" / "checkpoint-5")
    pretrain(tmp_path / "halves", tokenizer, **settings)
    whole, halves = (
        [(row["step"], row["tokens"], row["text"]) for row in read_jsonl(tmp_path / name / "samples.jsonl")]
        for name in ("whole", "halves")
    )
    assert halves == whole
    assert [row[0] for row in whole[::2]] == [1, 2, 3, 4, 6, 8, 9, 10]
    assert evaluations(tmp_path / "halves") == evaluations(tmp_path / "whole")
    assert losses(tmp_path / "halves") == losses(tmp_path / "whole"), "with dropout, whose random numbers go on too"


@pytest.mark.thorough
def test_conversations_are_sampled_as_conversations(tmp_path, tokenizer):
    turns = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "A cat."}]
    rows = Dataset.from_list([{"messages": turns}] * 8)
    settings = SFTSettings(
        str(tmp_path), max_steps=1, global_batch_size=4, per_device_train_batch_size=4, sample_prompts=["Who?"]
    )
    trainer = FineTuner(
        model=model(tokenizer), args=settings, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer
    )
    asked = []
    generate = trainer.model.generate
    trainer.model.generate = lambda **inputs: asked.append(inputs["input_ids"]) or generate(**inputs)
    train_and_save(trainer, settings={}, data={})
    assert tokenizer.decode(asked[0][0]) == tokenizer.apply_chat_template(
        turns[:1], add_generation_prompt=True, tokenize=False
    )
    assert [row["step"] for row in read_jsonl(tmp_path / "samples.jsonl")] == [1]


@pytest.mark.outside(
    "https://github.com/huggingface/tokenizers/issues/351",
    "to train on words without an unknown token, where any other word is `Missing [UNK] token`",
    "prompts with a word that is no symbol are refused before the run, by name",
)
@pytest.mark.thorough
def test_prompts_of_words_that_are_no_symbols_are_refused_before_the_first_step(tmp_path):
    sequences = HMMSequences(processes.mess3(), 8, num_sequences=64)
    for prompts, message in (
        (["0 1", "2 3"], "^sample_prompts: prompt 2: '3' is not a symbol of this model; expected some of 0, 1, 2$"),
        (["Once upon"], "^sample_prompts: prompt 1: 'Once' is not a symbol"),
    ):
        with pytest.raises(InputError, match=message):
            train_and_save(of_symbols(tmp_path / "run", sequences, prompts), settings={}, data={})
    train_and_save(of_symbols(tmp_path / "run", sequences, ["0 1"]), settings={}, data={})
    assert {row["prompt"] for row in read_jsonl(tmp_path / "run" / "samples.jsonl")} == {"0 1"}


def of_symbols(folder, sequences, prompts) -> Pretrainer:
    settings = {"max_steps": 2, "global_batch_size": 8, "per_device_train_batch_size": 8, "eval_strategy": "steps"}
    return Pretrainer(
        model=LlamaForCausalLM(LlamaConfig(vocab_size=4, hidden_size=32, intermediate_size=32, num_hidden_layers=1)),
        args=PretrainSettings(str(folder), **settings, eval_steps=2, sample_prompts=prompts, report_to="none"),
        train_dataset=sequences,
        eval_dataset=sequences,
        processing_class=sequences.tokenizer,
        data_collator=default_data_collator,
    )


def test_sample_prompts_need_a_tokenizer(tmp_path):
    rows = HMMSequences(processes.mess3(0.15, 0.6), 7)
    settings = PretrainSettings(
        str(tmp_path), max_steps=1, global_batch_size=4, per_device_train_batch_size=4, sample_prompts=["Once"]
    )
    config = LlamaConfig(
        vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    trainer = Pretrainer(model=LlamaForCausalLM(config), args=settings, train_dataset=rows)
    with pytest.raises(InputError, match=r"^sample_prompts is set, but there is no tokenizer to read them; leave it "):
        train_and_save(trainer, settings={}, data={})
    assert not (tmp_path / "history.jsonl").exists()


def test_an_empty_prompt_is_refused():
    with pytest.raises(InputError, match=r"^sample_prompts: prompt 2 is empty; write some words there$"):
        read_sample_prompts(["a", ""])


def test_prompts_are_read_from_a_file(tmp_path):
    lines, rows, empty = tmp_path / "prompts.txt", tmp_path / "prompts.jsonl", tmp_path / "empty.txt"
    lines.write_text("Why did the chicken\n\n  A pun about bees: \n")
    rows.write_text('{"prompt": "Why did the chicken"}\n')
    empty.write_text("\n")
    assert read_sample_prompts([str(lines)]) == ["Why did the chicken", "  A pun about bees: "]
    assert read_sample_prompts([str(rows)]) == ["Why did the chicken"]
    assert read_sample_prompts(["no such file.txt"]) == ["no such file.txt"]
    assert read_sample_prompts(["x" * 5000]) == ["x" * 5000]
    with pytest.raises(InputError, match="expected a prompt on each line, or rows with prompt"):
        read_sample_prompts([str(empty)])
    args = PretrainSettings(str(tmp_path / "run"), max_steps=1, sample_prompts=[str(lines)], report_to="none")
    assert args.sample_prompts[0] == "Why did the chicken"
