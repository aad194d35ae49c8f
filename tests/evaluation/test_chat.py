"""A chat model on held-out conversations: its loss by hand, and answers that are right, endless, or not its own."""

import json
import shutil

import pytest
import torch
from accelerate import Accelerator
from tiny_chat import WORDS, message, save_tiny_chat
from transformers import AutoModelForCausalLM, AutoTokenizer

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.chat.measures import conversation_losses, measure_chat, share
from hmm_datasets.evaluation.comparison import compare_reports
from hmm_datasets.evaluation.evaluation import evaluate_model
from hmm_datasets.evaluation.settings import EvaluationSettings
from hmm_datasets.text.tokenizers.chat_templates import end_of_turn


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat")
    save_tiny_chat(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


def rows():
    asked = [message("user", f"Say {word}.") + message("assistant", word) for word in WORDS]
    more = [*asked[0], *message("user", "Say two."), *message("assistant", "two three")]
    return [{"messages": messages} for messages in [*asked, more]]


class Says:
    """Answers to the questions, by what a model would have to generate; its logits are those of a real one."""

    def __init__(self, model, tokenizer, answers):
        self.model, self.answers, self.tokenizer = model, answers, tokenizer
        self.config, self.generation_config, self.device = model.config, model.generation_config, model.device
        self.training = False

    def eval(self):
        return self

    def train(self, mode=True):
        return self

    def get_input_embeddings(self):
        return self.model.get_input_embeddings()

    def __call__(self, **inputs):
        return self.model(**inputs)

    def generate(self, input_ids, **_):
        asked = [
            self.tokenizer.decode(row, skip_special_tokens=True).split("Say ")[1].split(".")[0] for row in input_ids
        ]
        said = [self.answers[word] for word in asked]
        length = max(map(len, said))
        padded = [row + [self.tokenizer.pad_token_id or 0] * (length - len(row)) for row in said]
        return torch.cat([input_ids, torch.tensor(padded)], dim=1)


def test_the_loss_is_that_of_the_assistants_tokens_of_every_turn(folder, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    sums, counts = conversation_losses(model, tokenizer, rows(), batch_size=3)
    for row, total, count in zip(rows(), sums, counts, strict=True):
        found = tokenizer.apply_chat_template(row["messages"], return_dict=True, return_assistant_tokens_mask=True)
        ids, said = torch.tensor([found["input_ids"]]), torch.tensor(found["assistant_masks"][1:], dtype=torch.bool)
        with torch.no_grad():
            log_probs = model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None]).squeeze(1)
        assert count == said.sum() > 0
        assert total == pytest.approx(-log_probs[said].sum().item(), rel=1e-5)


def test_answers_are_judged(folder, tokenizer):
    end, user = end_of_turn(tokenizer), tokenizer.convert_tokens_to_ids("<|user|>")

    def ids(text):
        return tokenizer.encode(text, add_special_tokens=False)

    answers = {word: [*ids(word), end] for word in WORDS}
    answers["two"] = ids(" ".join(WORDS * 2))  # does not end
    answers["three"] = [*ids("three"), user, *ids("Say one."), end]
    answers["four"] = [*ids("four\nUser: five"), end]
    answers["five"] = [*ids("six seven") * 3, end]
    answers["six"] = [end]
    model = Says(AutoModelForCausalLM.from_pretrained(folder).eval(), tokenizer, answers)
    found = measure_chat(model, tokenizer, rows()[:10], Accelerator(cpu=True), max_new_tokens=10)
    judged = {item["expected"]: {name for name in found["shares"] if item[name]} for item in found["items"]}
    assert judged == {
        **{word: {"right", "ended"} for word in ("one", "seven", "eight", "nine", "ten")},
        "two": set(),
        "three": {"ended", "spoke_for_others"},
        "four": {"ended", "spoke_for_others"},
        "five": {"ended", "repeated"},
        "six": {"ended", "empty"},
    }
    assert found["shares"]["right"] == share(5, 10)
    assert found["loss_low"] < found["loss"] < found["loss_high"]


def test_a_conversation_without_a_question_has_a_loss_and_no_answer(folder, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    first = {"messages": message("assistant", "one") + message("user", "Say two.")}
    found = measure_chat(model, tokenizer, [first, *rows()[:2]], Accelerator(cpu=True), max_new_tokens=1)
    assert (found["conversations"], found["questions"], len(found["items"])) == (3, 2, 3)
    assert found["items"][0]["answer"] is None
    assert found["items"][0]["nats"] > 0
    assert {tuple(item) for item in found["items"]} == {tuple(found["items"][0])}, "columns of one table"


def test_an_evaluation_of_a_folder_has_the_task(folder, tmp_path, capsys):
    corpus = tmp_path / "chats.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows() * 4))
    settings = EvaluationSettings(
        str(folder), tasks=["chat"], chat_data=str(corpus), chat_max_new_tokens=4, output_dir=str(tmp_path / "report")
    )
    report = evaluate_model(settings)
    assert report["chat"]["questions"] > 0
    assert set(report["chat"]["shares"]) == {"right", "ended", "spoke_for_others", "repeated", "empty"}
    items = [json.loads(line) for line in (tmp_path / "report" / "items" / "chat.jsonl").open()]
    assert len(items) == report["chat"]["questions"]
    nats, tokens = (sum(item[name] for item in items) for name in ("nats", "tokens"))
    assert (tokens, nats / tokens) == (report["chat"]["tokens"], pytest.approx(report["chat"]["loss"]))
    said = capsys.readouterr().out
    assert "Greedy answers to held-out questions" in said
    assert "end their turn" in said


@pytest.mark.thorough
def test_evaluations_of_the_same_conversations_are_compared_in_pairs(folder, tmp_path, capsys):
    corpus = tmp_path / "chats.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows() * 4))
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.lm_head.weight *= 0.5
    model.save_pretrained(tmp_path / "flatter")
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "flatter")
    chosen = {"tasks": ["chat"], "chat_data": str(corpus), "chat_max_new_tokens": 1}
    reports = [
        evaluate_model(EvaluationSettings(str(name), **chosen, output_dir=str(tmp_path / output), **more))["chat"]
        for name, output, more in (
            (folder, "a", {}),
            (tmp_path / "flatter", "b", {}),
            (folder, "c", {"test_fraction": 0.9}),
        )
    ]
    comparison = compare_reports([tmp_path / "a", tmp_path / "b", tmp_path / "c"])["tasks"]["chat"]
    assert comparison["measure"] == "loss of the assistant's words, nats per token"
    first, second, third = comparison["rows"]
    assert [row["value"] for row in (first, second, third)] == [report["loss"] for report in reports]
    change = second["difference"]
    assert change["value"] == pytest.approx(reports[1]["loss"] - reports[0]["loss"])
    assert change["low"] <= change["value"] <= change["high"]
    assert third["unpaired"].startswith("measured on other items: conversations is ")
    (tmp_path / "a" / "digests.json").unlink()
    (tmp_path / "a" / "report.json").write_text(json.dumps({"model": {}}))
    shutil.copytree(tmp_path / "a", tmp_path / "d")
    with pytest.raises(InputError, match="a and d: nothing to compare; expected evaluations with one of the tasks"):
        compare_reports([tmp_path / "a", tmp_path / "d"])
