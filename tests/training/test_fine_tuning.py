"""Fine-tuning reads conversations in a new random order in every epoch, and a stopped run continues in that order."""

import json
import os
import signal
import warnings

import pytest
import torch
from tiny_runs import CONVERSATIONS, conversations
from transformers import LlamaForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_jsonl
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.training.model_configs import model_config
from hmm_datasets.training.optimizers import matrix_names
from hmm_datasets.training.post_training.trainers import FineTuner
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import SFTSettings
from hmm_datasets.training.step.held_out_loss import row_losses
from hmm_datasets.training.step.scores import LogitScores

STEPS = 14  # five and a half steps per epoch


class Logged(FineTuner):
    """Records the rows of every step, and is stopped in one of them."""

    def __init__(self, *args, stop_in=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.trained = {}
        self.stop_in = stop_in

    def training_step(self, model, inputs, *rest):
        rows = [
            tuple(row[mask == 1].tolist())
            for row, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True)
        ]
        self.trained.setdefault(self.state.global_step, []).extend(rows)
        if self.state.global_step == self.stop_in:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().training_step(model, inputs, *rest)


@pytest.fixture(scope="module")
def tokenizer():
    texts = [message["content"] for row in conversations() for message in row["messages"]]
    return train_bpe(texts, 400, show_progress=False)


def settings(folder, **given) -> SFTSettings:
    defaults = {
        "max_steps": STEPS,
        "global_batch_size": 4,
        "per_device_train_batch_size": 2,
        "max_length": 48,
        "logging_steps": 1,
        "save_steps": 1000,
        "report_to": "none",
    }
    return SFTSettings(str(folder), **defaults | given)


def fine_tune(folder, tokenizer, stop_in=None):
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        model_config("1m", vocab_size=len(tokenizer), max_length=48, pad_token_id=tokenizer.pad_token_id)
    )
    trainer = Logged(
        model=model, args=settings(folder), train_dataset=conversations(), processing_class=tokenizer, stop_in=stop_in
    )
    summary = train_and_save(trainer, settings={}, data={"conversations": CONVERSATIONS})
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return trainer.trained, {row["step"]: row["loss"] for row in rows if "loss" in row}, summary


@pytest.mark.thorough
def test_fine_tuning_takes_the_optimizers_of_pretraining(tokenizer, tmp_path):
    chosen = {"optimizer": "muon", "learning_rate": 0.01}
    model = LlamaForCausalLM(model_config("d1", vocab_size=len(tokenizer), max_length=48))
    trainer = FineTuner(
        model=model,
        args=settings(tmp_path, **chosen),
        train_dataset=conversations().select([0]),
        processing_class=tokenizer,
    )
    groups = trainer.create_optimizer().param_groups
    by_muon = {id(weight) for group in groups if group["optimizer"] == "muon" for weight in group["params"]}
    assert by_muon == {id(weight) for name, weight in model.named_parameters() if name in matrix_names(model)}
    with pytest.raises(InputError, match="optimizer is 'sgd'"):
        settings(tmp_path, optimizer="sgd")


@pytest.mark.thorough
def test_fine_tuning_has_the_plan_order_and_losses_of_pretraining(tokenizer, tmp_path):
    """Global batches 2, 2, 4: rows 0 to 7 of the shuffled conversations, each index once and in order."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        model_config("d1", vocab_size=len(tokenizer), max_length=48, pad_token_id=tokenizer.pad_token_id)
    )
    given = {"max_steps": 3, "batch_ramp": ["2:2"], "z_loss": 0.01, "log_indices": True}
    trainer = FineTuner(
        model=model, args=settings(tmp_path, **given), train_dataset=conversations(), processing_class=tokenizer
    )
    lengths = [len(trainer.plan.train_rows()[index]["input_ids"]) for index in range(8)]
    summary = train_and_save(trainer, settings={}, data={})
    assert summary["tokens"] == summary["planned_tokens"] == sum(lengths)
    logged = read_jsonl(tmp_path / "indices-0.jsonl")
    assert [(row["step"], row["indices"]) for row in logged] == [(1, [0, 1]), (2, [2, 3]), (3, [4, 5]), (3, [6, 7])]
    rows = [row for row in read_jsonl(tmp_path / "history.jsonl") if "loss" in row]
    assert all(0 < row["z_loss"] < 0.01 * 100 for row in rows)
    plain = FineTuner(
        model=LlamaForCausalLM.from_pretrained(tmp_path),
        args=settings(tmp_path / "plain", max_steps=1, learning_rate=0.0),
        train_dataset=conversations(),
        processing_class=tokenizer,
    )
    pulled = FineTuner(
        model=LlamaForCausalLM.from_pretrained(tmp_path),
        args=settings(tmp_path / "pulled", max_steps=1, learning_rate=0.0, z_loss=0.5),
        train_dataset=conversations(),
        processing_class=tokenizer,
    )
    for one in (plain, pulled):
        one.train()
    (without,), (with_z,) = ([row for row in one.state.log_history if "loss" in row] for one in (plain, pulled))
    assert with_z["loss"] == pytest.approx(without["loss"], rel=1e-5), "what is logged is the cross-entropy"
    assert with_z["grad_norm"] != pytest.approx(without["grad_norm"], rel=1e-3), "what is minimized is not"


@pytest.mark.thorough
@pytest.mark.parametrize(("max_length", "told"), [(48, True), (512, False)])
def test_cut_conversations_are_told(tokenizer, max_length, told, tmp_path, capsys):
    model = LlamaForCausalLM(model_config("1m", vocab_size=len(tokenizer), max_length=512))
    rows = conversations()
    FineTuner(
        model=model,
        args=settings(tmp_path, max_length=max_length),
        train_dataset=rows,
        processing_class=tokenizer,
    )
    lengths = [len(tokenizer.apply_chat_template(row["messages"], return_dict=False)) for row in rows]
    share = sum(length >= max_length for length in lengths) / len(rows)
    line = f"max_length {max_length}: {share:.0%} of the conversations are cut, or end just there"
    assert (line in capsys.readouterr().out) == told == (share > 0.05)


@pytest.fixture(scope="module")
def undisturbed(tokenizer, tmp_path_factory):
    return fine_tune(tmp_path_factory.mktemp("undisturbed"), tokenizer)


@pytest.mark.thorough
def test_an_epoch_reads_every_conversation_once_in_a_new_order(undisturbed):
    trained, _, _ = undisturbed
    rows = [row for step in range(STEPS) for row in trained[step]]
    first, second = rows[:CONVERSATIONS], rows[CONVERSATIONS : 2 * CONVERSATIONS]
    assert len(set(first)) == CONVERSATIONS
    assert set(first) == set(second)
    assert first != second


@pytest.mark.thorough
@pytest.mark.parametrize("step", [5, 8], ids=["at the end of an epoch", "in the second"])
def test_a_stopped_fine_tuning_continues_with_the_rows_and_losses_of_an_undisturbed_one(
    step, undisturbed, tokenizer, tmp_path
):
    trained, losses, _ = undisturbed
    before, _, stopped = fine_tune(tmp_path, tokenizer, stop_in=step)
    assert stopped == {"steps": step + 1, "interrupted": "SIGTERM"}
    after, found, summary = fine_tune(tmp_path, tokenizer)
    assert summary["resumed_from"] == f"checkpoint-{step + 1}"
    assert before | after == trained, "no row is repeated or missing"
    assert set(after) == set(range(step + 1, STEPS))
    assert found == losses


@pytest.mark.thorough
def test_the_held_out_loss_is_a_mean_over_tokens_and_no_library_warns(tokenizer, tmp_path):
    args = SFTSettings(
        str(tmp_path),
        max_steps=1,
        global_batch_size=4,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=3,
        max_length=48,
        save_strategy="no",
        report_to="none",
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        model_config("d1", vocab_size=len(tokenizer), max_length=48, pad_token_id=tokenizer.pad_token_id)
    )
    trainer = FineTuner(
        model=model,
        args=args,
        train_dataset=conversations(),
        eval_dataset=conversations().select(range(7)),
        processing_class=tokenizer,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        found = trainer.evaluate()
    total = count = 0.0
    for batch in trainer.get_eval_dataloader():
        with torch.no_grad():
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        labels = batch["labels"]
        losses = row_losses(LogitScores(logits.clone, labels).losses, labels).sum(0)
        total, count = total + losses[0].item(), count + losses[1].item()
    assert found["eval_loss"] == pytest.approx(total / count, rel=1e-6)
    assert 0 <= found["eval_mean_token_accuracy"] <= 1
