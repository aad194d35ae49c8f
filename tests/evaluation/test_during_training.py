"""Tasks during training change nothing, are those of the model of that step, and are drawn."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, default_data_collator

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation import during_training
from hmm_datasets.evaluation.completions import complete, read_facts
from hmm_datasets.evaluation.core.measure import score_core
from hmm_datasets.evaluation.during_training import add_task_evaluations
from hmm_datasets.files import read_jsonl
from hmm_datasets.hmm.tokenizer import hmm_tokenizer
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.training.model_configs import model_config
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import PretrainSettings
from hmm_datasets.training.trainer import Pretrainer

TEXTS = ["The capital of France is Paris. The cat sat, therefore it rested.", "The dog ran to the big red house."] * 8


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe(TEXTS, 310, show_progress=False)


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("core")
    rows = [
        {"query": f"The cat number {n} sat, therefore", "gold": n % 2, "choices": ["it ran.", "it rested."]}
        for n in range(8)
    ]
    (folder / "copa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def pretrain(folder, tokenizer, **given) -> Pretrainer:
    torch.manual_seed(0)
    config = model_config("d2", vocab_size=len(tokenizer), max_length=64, eos_token_id=tokenizer.eos_token_id)
    config.attention_dropout = 0.1  # so that a step uses random numbers
    rows = [{"input_ids": row[:12], "labels": row[:12]} for row in tokenizer(TEXTS)["input_ids"]] * 8
    settings = {"max_steps": 12, "global_batch_size": 8, "per_device_train_batch_size": 8, "logging_steps": 1}
    trainer = Pretrainer(
        model=LlamaForCausalLM(config),
        args=PretrainSettings(str(folder), **settings | {"report_to": "none", "learning_rate": 1e-2} | given),
        train_dataset=rows,
        processing_class=tokenizer,
    )
    add_task_evaluations(trainer)
    train_and_save(trainer, settings={}, data={})
    return trainer


@pytest.mark.thorough
def test_tasks_are_logged_with_their_step_drawn_and_change_nothing(tokenizer, questions, tmp_path, monkeypatch):
    monkeypatch.setattr(during_training, "QUESTIONS_PER_TASK", 6)
    facts = [("The capital of France is", "Paris"), ("The cat sat, therefore it", "rested")]
    (tmp_path / "facts.csv").write_text("prompt,answer\n" + "".join(f'"{prompt}",{word}\n' for prompt, word in facts))
    own = {"core_data": str(questions), "facts": str(tmp_path / "facts.csv")}
    pretrain(tmp_path / "run", tokenizer, task_steps=5, **own)
    pretrain(tmp_path / "plain", tokenizer)
    rows, plain = (read_jsonl(tmp_path / name / "history.jsonl") for name in ("run", "plain"))
    assert [row["loss"] for row in rows if "loss" in row] == [row["loss"] for row in plain if "loss" in row]
    tasks = [row for row in rows if "facts" in row]
    assert [row["step"] for row in tasks] == [5, 10, 12]
    assert not any("facts" in row for row in plain)
    model, reader = (kind.from_pretrained(tmp_path / "run") for kind in (AutoModelForCausalLM, AutoTokenizer))
    scores = complete(model.eval(), reader, facts=facts, open_prompts=(), samples=0)
    assert scores["facts"] == 2
    assert tasks[-1]["facts"] == scores["facts_correct"]
    from accelerate import Accelerator

    core = score_core(model, reader, questions, Accelerator(cpu=True), max_per_task=6)
    assert {name: tasks[-1][name] for name in ("core", "core_low", "core_high", "core/copa")} == {
        **{"core": core["score"], "core_low": core["low"], "core_high": core["high"]},
        "core/copa": core["tasks"]["copa"]["accuracy"],
    }
    drawn = {path.name for path in (tmp_path / "run" / "plots").iterdir()}
    assert {"core.png", "facts.png"} <= drawn


def test_a_trainer_that_cannot_read_tasks_is_refused(tokenizer, tmp_path):
    config = model_config("d2", vocab_size=len(tokenizer), max_length=64)
    settings = {"max_steps": 2, "global_batch_size": 8, "per_device_train_batch_size": 8, "task_steps": 1}
    trainer = Pretrainer(
        model=LlamaForCausalLM(config),
        args=PretrainSettings(str(tmp_path), **settings | {"report_to": "none"}),
        train_dataset=[{"input_ids": [1, 2], "labels": [1, 2]}] * 16,
    )
    with pytest.raises(InputError, match="task_steps is set, but there is no tokenizer"):
        add_task_evaluations(trainer)


@pytest.mark.outside(
    "https://github.com/huggingface/tokenizers/issues/351",
    "to train on words without an unknown token, where any other word is `Missing [UNK] token`",
    "tasks and prompts with a word that is no symbol are refused before the run, by name",
)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "^the facts of task_steps \\(name others: facts\\): '.*' is not a symbol of this model"),
        ({"facts": "rain then,snow"}, "facts.csv: 'then' is not a symbol of this model; expected some of sun, rain"),
        ({"facts": "rain sun,snow"}, "facts.csv: 'snow' is not a symbol of this model; expected some of sun, rain"),
        ({"core_data": "core"}, "^core_data: the model reads symbols of a process, not the text of CORE"),
        ({"facts": "rain sun,rain"}, None),
    ],
)
def test_tasks_of_words_that_are_no_symbols_are_refused_before_the_run(settings, message, tmp_path):
    tokenizer = hmm_tokenizer(["sun", "rain"], 2, bos=True)
    if "facts" in settings:
        (tmp_path / "facts.csv").write_text(f"prompt,answer\n{settings['facts']}\n")
        settings = {"facts": str(tmp_path / "facts.csv")}
    chosen = {"max_steps": 2, "global_batch_size": 8, "per_device_train_batch_size": 8, "task_steps": 1}
    trainer = Pretrainer(
        model=LlamaForCausalLM(model_config("d2", vocab_size=3, max_length=64)),
        args=PretrainSettings(str(tmp_path / "run"), **chosen | settings | {"report_to": "none"}),
        train_dataset=[{"input_ids": [0, 1], "labels": [0, 1]}] * 16,
        processing_class=tokenizer,
        data_collator=default_data_collator,
    )
    if message is None:
        add_task_evaluations(trainer)
        trainer.train()
        assert {row["facts"] for row in trainer.state.log_history if "facts" in row} <= {0.0, 1.0}
    else:
        with pytest.raises(InputError, match=message):
            add_task_evaluations(trainer)


def test_facts_without_a_prompt_or_an_answer_are_refused(tmp_path):
    path = tmp_path / "facts.jsonl"
    path.write_text('{"prompt": "Our cat is called", "answer": "Mina"}\n')
    assert read_facts(path) == [("Our cat is called", "Mina")]
    path.write_text('{"prompt": "Our cat is called", "answer": "Mina"}\n{"prompt": "Our dog is called"}\n')
    with pytest.raises(InputError, match=r"facts.jsonl:2: expected the columns prompt and answer, both with text"):
        read_facts(path)
    with pytest.raises(InputError, match="but has no effect without task_steps"):
        PretrainSettings(str(tmp_path), max_steps=1, facts=str(path), report_to="none")
