"""The fine-tuning recipe, called in this process: what it evaluates on, and where its model stops."""

import importlib
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, GenerationConfig, LlamaForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.training.model_configs import model_config
from hmm_datasets.training.settings import SFTSettings

RECIPES = Path(__file__).parents[2] / "recipes"
TEXTS = ["Who is number 7? It is number 12 of them all."] * 8
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture
def recipe(monkeypatch):
    monkeypatch.syspath_prepend(RECIPES)
    return importlib.import_module("sft")


def save_model(folder, tokenizer):
    torch.manual_seed(0)
    config = model_config("1m", vocab_size=len(tokenizer), max_length=48, eos_token_id=tokenizer.eos_token_id)
    config.num_hidden_layers = 1
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    tokenizer = train_bpe(TEXTS, 280, show_progress=False)
    return save_model(tmp_path_factory.mktemp("model"), tokenizer)


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def answered(number):
    return {"messages": [user(f"Who is number {number}?"), assistant(f"It is {number}.")]}


def asked(number):
    return {"messages": [user(f"Who is number {number}?")]}


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A folder with its own splits, like data sets on the Hub."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")

    def corpus(train, test):
        folder = tmp_path / "corpus"
        folder.mkdir()
        for name, rows in (("train", train), ("test", test)):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(folder)

    return corpus


@pytest.fixture
def fine_tune(recipe, tmp_path):
    def fine_tune(model, conversations, chat=None, **settings):
        arguments = SFTSettings(
            str(tmp_path / "run"),
            **{
                "max_steps": 1,
                "global_batch_size": 4,
                "per_device_train_batch_size": 4,
                "max_length": 48,
                "logging_steps": 1,
                "save_strategy": "no",
                "report_to": "none",
            }
            | settings,
        )
        chosen = recipe.ConversationSettings(model, conversations, max_new_tokens=2, **(chat or {}))
        recipe.main(chosen, arguments)
        return json.loads((tmp_path / "run" / "summary.json").read_text())

    return fine_tune


def held_out_rows(monkeypatch):
    """The sizes of the test sets that trainers were given."""
    from hmm_datasets.training.post_training import trainers

    sizes, begin = [], trainers.FineTuner.__init__

    def noted(self, *args, **kwargs):
        rows = kwargs["eval_dataset"]
        sizes.append(None if rows is None else len(rows))
        begin(self, *args, **kwargs)

    monkeypatch.setattr(trainers.FineTuner, "__init__", noted)
    return sizes


@pytest.mark.thorough
def test_evaluation_uses_the_rows_that_have_answers(fine_tune, model, corpus, capfd, monkeypatch):
    sizes = held_out_rows(monkeypatch)
    test = [answered(0), asked(1), answered(2), asked(3), answered(4)]
    folder = corpus([*map(answered, range(20)), asked(20)], test)
    summary = fine_tune(model, folder, {"num_test_sequences": 2})
    assert sizes == [2]
    assert summary["evaluation"]["loss"] > 0
    said = capfd.readouterr().out
    assert f"{folder}: 1 of 21 conversations in split 'train' have no turn of the assistant and are left out" in said
    assert f"{folder}: 2 of 5 conversations in split 'test' have no turn of the assistant and are left out" in said


@pytest.mark.thorough
def test_a_test_split_without_answers_is_reported_and_training_continues(fine_tune, model, corpus, capfd):
    folder = corpus(list(map(answered, range(20))), list(map(asked, range(5))))
    summary = fine_tune(model, folder, eval_strategy="steps", eval_steps=1, evaluations_per_doubling=2)
    assert summary["steps"] == 1
    assert summary["evaluation"] == {}
    said = capfd.readouterr().out
    assert f"{folder}: none of the 5 conversations in split 'test' has a turn of the assistant" in said
    assert "continues without a held-out loss" in said


def test_a_corpus_without_any_answer_is_refused_by_its_row(fine_tune, model, corpus, tmp_path):
    folder = corpus(list(map(asked, range(20))), list(map(asked, range(5))))
    with pytest.raises(InputError) as caught:
        fine_tune(model, folder)
    told = f"{folder}: row 0 of split 'train' has no turn of the assistant (user: 'Who is number 0?')"
    assert str(caught.value).startswith(told)
    assert "neither has any other of 20 rows" in str(caught.value)
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.thorough
def test_a_fine_tuned_model_stops_where_its_template_ends_a_turn(fine_tune, tmp_path, capfd):
    tokenizer = train_bpe(TEXTS, 280, show_progress=False)
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = CHATML
    rows = "".join(json.dumps(answered(number)) + "\n" for number in range(60))
    (tmp_path / "chats.jsonl").write_text(rows)
    fine_tune(save_model(tmp_path / "chatml", tokenizer), str(tmp_path / "chats.jsonl"))
    stops = GenerationConfig.from_pretrained(tmp_path / "run").eos_token_id
    assert stops == [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")]
    assert "ends turns" not in capfd.readouterr().out


@pytest.mark.thorough
def test_a_template_without_an_end_of_turn_is_reported(fine_tune, tmp_path, capfd):
    tokenizer = train_bpe(TEXTS, 280, show_progress=False)
    tokenizer.chat_template = CHATML.replace("<|im_start|>", "# ").replace("<|im_end|>", "")
    rows = "".join(json.dumps(answered(number)) + "\n" for number in range(60))
    (tmp_path / "chats.jsonl").write_text(rows)
    fine_tune(save_model(tmp_path / "plain", tokenizer), str(tmp_path / "chats.jsonl"))
    assert GenerationConfig.from_pretrained(tmp_path / "run").eos_token_id == [tokenizer.eos_token_id]
    said = capfd.readouterr().out
    assert (
        f"{tmp_path / 'plain'}: the chat template ends turns without a special token; generation stops at EOS" in said
    )


@pytest.mark.thorough
def test_a_named_template_brings_its_tokens_their_embeddings_and_where_generation_stops(fine_tune, model, tmp_path):
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(answered(number)) + "\n" for number in range(60)))
    fine_tune(model, str(tmp_path / "chats.jsonl"), {"chat_template": "llama3"}, learning_rate=0.0)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    stop = tokenizer.convert_tokens_to_ids("<|eot_id|>")
    assert GenerationConfig.from_pretrained(tmp_path / "run").eos_token_id == [tokenizer.eos_token_id, stop]
    tuned, base = (LlamaForCausalLM.from_pretrained(one) for one in (tmp_path / "run", model))
    assert tuned.config.vocab_size == len(tokenizer) == base.config.vocab_size + 3
    for one, other in zip(tuned.get_input_embeddings().weight[-3:], tuned.lm_head.weight[-3:], strict=True):
        torch.testing.assert_close(one, base.get_input_embeddings().weight.mean(0), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(other, base.lm_head.weight.mean(0), rtol=1e-4, atol=1e-6)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["data"]["chat_template"] == "llama3"


@pytest.mark.thorough
def test_an_adapter_is_merged_on_request_and_both_answer_in_the_chat(fine_tune, model, tmp_path, capsys):
    pytest.importorskip("peft")
    from hmm_datasets.evaluation.chat.chat_model import ChatModel
    from hmm_datasets.evaluation.chat.sampling import Sampling

    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(answered(number)) + "\n" for number in range(60)))
    fine_tune(model, str(tmp_path / "chats.jsonl"), use_peft=True, merge_adapter=True, learning_rate=0.1, max_steps=3)
    assert "run/merged: the model with the adapter merged" in capsys.readouterr().out
    asked = [user("Who is number 7?")]
    said = []
    for folder in (tmp_path / "run", tmp_path / "run" / "merged", model):
        loaded = ChatModel(str(folder), Sampling(temperature=0, max_new_tokens=8), mode="chat")
        said.append(loaded.answer(asked, lambda text: None).text)
    assert said[0] == said[1] != said[2]
    assert ChatModel(str(tmp_path / "run"), Sampling()).chats, "its generation config stops where a turn ends"


@pytest.mark.thorough
def test_the_licence_of_a_named_corpus_is_shown(fine_tune, model, capsys):
    fine_tune(model, "instructions-sample", {"max_conversations": 8})
    assert "instructions-sample: licence Apache-2.0" in capsys.readouterr().out
