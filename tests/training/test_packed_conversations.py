"""Conversations packed into rows give the loss, gradient and counts of the same conversations one by one."""

import os
import signal

import numpy as np
import pytest
import torch
from tiny_runs import CONVERSATIONS, conversations
from transformers import LlamaForCausalLM

from hmm_datasets.files import read_json, read_jsonl
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.text.tokenizers.named_templates import NAMES, set_chat_template
from hmm_datasets.training.model_configs import model_config
from hmm_datasets.training.post_training.trainers import FineTuner
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import SFTSettings

LENGTH = 256
PACKED = 5  # rows of this length that the conversations fit into


@pytest.fixture(scope="module")
def tokenizer():
    texts = [message["content"] for row in conversations() for message in row["messages"]]
    return train_bpe(texts, 400, show_progress=False)


def fine_tuner(tokenizer, folder, rows, micro_batch=None, kind=FineTuner, **given) -> FineTuner:
    """A trainer whose step takes all rows."""
    torch.manual_seed(0)
    config = model_config("d1", vocab_size=len(tokenizer), max_length=LENGTH, pad_token_id=tokenizer.pad_token_id)
    config.initializer_range = 0.3  # so that a token that leaks changes the loss
    settings = {
        "max_steps": 1,
        "global_batch_size": rows,
        "per_device_train_batch_size": micro_batch or rows,
        "max_length": LENGTH,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
    }
    return kind(
        model=LlamaForCausalLM(config),
        args=SFTSettings(str(folder), **settings | given),
        train_dataset=conversations(),
        eval_dataset=conversations().select(range(9)),
        processing_class=tokenizer,
    )


def measured(trainer: FineTuner, folder) -> dict[str, float]:
    summary = train_and_save(trainer, settings={}, data={})
    (row,) = [row for row in read_jsonl(folder / "history.jsonl") if "loss" in row]
    return {
        "loss": row["loss"],
        "gradient": row["grad_norm"],
        "held out": summary["evaluation"]["loss"],
        "tokens": summary["tokens"],
        "planned": summary["planned_tokens"],
    }


@pytest.fixture(scope="module")
def one_by_one(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked")
    return measured(fine_tuner(tokenizer, folder, CONVERSATIONS), folder)


@pytest.mark.thorough
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("given", [{"micro_batch": 1}, {"micro_batch": PACKED, "activation_checkpointing": False}],
                         ids=["row by row", "flattened"])  # fmt: skip
def test_packing_changes_neither_losses_nor_gradients_nor_counts(tokenizer, tmp_path, one_by_one, given, attention):
    trainer = fine_tuner(tokenizer, tmp_path, PACKED, packing=True, **given)
    trainer.model.set_attn_implementation(attention)
    assert len(trainer.plan.data._rows) == PACKED
    found = measured(trainer, tmp_path)
    assert found["tokens"] == found["planned"] == one_by_one["tokens"]
    assert found == pytest.approx(one_by_one, rel=2e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("given", [{}, {"packing": True}, {"use_peft": True}], ids=["padded", "packed", "adapter"])
def test_a_run_consumes_fewer_flops_than_planned_by_the_positions_that_tokens_attend_over(tokenizer, tmp_path, given):
    if "use_peft" in given:
        pytest.importorskip("peft")
    trainer = fine_tuner(tokenizer, tmp_path, PACKED if "packing" in given else CONVERSATIONS, **given)
    rows = trainer.plan.data._rows
    lengths = np.concatenate(rows["seq_lengths"]) if "packing" in given else np.array([*map(len, rows["input_ids"])])
    summary = train_and_save(trainer, settings={}, data={})
    attended = (lengths**2).sum() / lengths.sum()
    assert summary["flops"] < trainer.plan.flops
    plan = read_json(tmp_path / "plan.json")
    expected = plan["flops_per_token"] - (plan["row_length"] - attended) * plan["flops_per_pair"]
    assert summary["flops"] / summary["tokens"] == pytest.approx(expected, rel=1e-6)


EVERY = [(name, 1) for name in NAMES] + [
    pytest.param(name, size, marks=() if name == "chatml" else pytest.mark.slow) for name in NAMES for size in (2, 4)
]


@pytest.mark.thorough
@pytest.mark.parametrize(("template", "micro_batch"), EVERY)
def test_what_is_counted_is_what_was_planned_with_every_template(template, micro_batch, tmp_path):
    texts = [message["content"] for row in conversations() for message in row["messages"]]
    tokenizer = train_bpe(texts, 400, show_progress=False)
    set_chat_template(tokenizer, template)
    given = {"packing": True, "global_batch_size": 4, "max_length": 128, "max_steps": 4}

    def run():
        trainer = fine_tuner(tokenizer, tmp_path, 4, micro_batch, Stopped, **given)
        return trainer.plan, train_and_save(trainer, settings={}, data={})

    Stopped.after = 2
    plan, stopped = run()
    assert stopped["steps"] == 2
    Stopped.after = None
    _, summary = run()
    assert summary["resumed_from"] == "checkpoint-2"
    assert summary["tokens"] == summary["planned_tokens"] == plan.tokens_at(4)
    counts = [row["tokens"] for row in read_jsonl(tmp_path / "history.jsonl") if "loss" in row]
    assert counts == [plan.tokens_at(step) for step in range(1, 5)]
    print(f"{template}, micro-batch {micro_batch}: {counts[-1]} tokens counted, {plan.tokens_at(4)} planned")


class Stopped(FineTuner):
    """Is stopped after a step."""

    after = None

    def training_step(self, *args, **kwargs):
        if self.after is not None and self.state.global_step == self.after - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().training_step(*args, **kwargs)


class Leaking(FineTuner):
    """Forgets where conversations begin."""

    def training_step(self, model, inputs, *rest):
        positions = torch.arange(inputs["input_ids"].shape[1])[None]
        inputs = {"input_ids": inputs["input_ids"], "labels": inputs["labels"], "position_ids": positions}
        return super().training_step(model, inputs, *rest)


@pytest.mark.thorough
def test_attention_across_conversations_would_be_noticed(tokenizer, tmp_path, one_by_one):
    found = measured(fine_tuner(tokenizer, tmp_path, PACKED, 1, Leaking, packing=True), tmp_path)
    assert abs(found["loss"] - one_by_one["loss"]) > 0.01
