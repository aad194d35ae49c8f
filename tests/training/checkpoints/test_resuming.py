"""Resuming with another global batch, at the last step, or after a full disk: what is accepted and what refused."""

import os
import signal

import pytest
import tiny_runs
from tiny_runs import conversations
from transformers import LlamaForCausalLM, TrainerCallback, default_data_collator

from hmm_datasets.data.sequences import HMMSequences
from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json, read_jsonl
from hmm_datasets.hmm import processes
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.training.model_configs import ModelSettings, model_config
from hmm_datasets.training.post_training.trainers import FineTuner
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import PretrainSettings, SFTSettings
from hmm_datasets.training.sources import DataSettings
from hmm_datasets.training.trainer import Pretrainer

LENGTH = 7  # symbols; a row has 8 tokens, since it begins with a beginning token


@pytest.fixture(scope="module")
def hmm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hmm")
    processes.mess3(0.15, 0.6).save_pretrained(folder)
    return str(folder)


class StopAfter(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def pretrain(folder, hmm, stop=None, length=LENGTH, size="d1", **settings):
    """Train as recipes/pretrain.py does, in one process; interrupt after step `stop`."""
    given = {
        **{"global_batch_size": 4, "per_device_train_batch_size": 4, "train_tokens": 30 * 8, "save_steps": 100},
        **{"logging_steps": 1, "log_indices": True, "report_to": "none"},
    }
    settings = PretrainSettings(str(folder), **given | settings)
    data = DataSettings(hmm=hmm, length=length).load()
    model = LlamaForCausalLM(ModelSettings(size).config(data))
    plan = settings.plan(data, model)
    trainer = Pretrainer(model=model, args=settings, plan=plan, data_collator=default_data_collator)
    if stop is not None:
        trainer.add_callback(StopAfter(stop))
    return train_and_save(trainer, settings={}, data=data.identity)


def trained_rows(folder):
    """The rows of each step."""
    return [row["indices"] for row in read_jsonl(folder / "indices-0.jsonl")]


@pytest.mark.thorough
def test_a_changed_global_batch_is_refused_or_accepted_from_the_row_reached(hmm, tmp_path):
    assert pretrain(tmp_path, hmm, stop=4)["steps"] == 4
    with pytest.raises(InputError) as caught:
        pretrain(tmp_path, hmm, global_batch_size=8, per_device_train_batch_size=8)
    told = str(caught.value)
    assert "settings.global_batch_size was 4 and is 8" in told
    assert told.endswith("--allow_changed settings.global_batch_size"), "the only name, and the whole remedy"

    asked = []
    view = HMMSequences.__getitems__
    HMMSequences.__getitems__ = lambda self, indices: asked.append(list(indices)) or view(self, indices)
    try:
        summary = pretrain(
            *(tmp_path, hmm),
            **{"global_batch_size": 8, "per_device_train_batch_size": 8},
            allow_changed=["settings.global_batch_size"],
        )
    finally:
        HMMSequences.__getitems__ = view
    # Four steps of 4 rows; then 8 at a time until 30 rows are reached.
    assert asked[:2] == [list(range(16, 24)), list(range(24, 32))]
    assert (summary["steps"], summary["tokens"], summary["planned_tokens"]) == (6, 32 * 8, 32 * 8)
    assert read_json(tmp_path / "plan.json")["rows"] == 32
    assert (tmp_path / "model.safetensors").exists()
    # Again with the first global batch: the rows consumed count, not the number of steps.
    again = pretrain(tmp_path, hmm, train_tokens=40 * 8, allow_changed=["settings.global_batch_size"])
    assert (again["steps"], again["tokens"]) == (8, 40 * 8)


@pytest.mark.thorough
def test_a_micro_batch_need_not_divide_the_global_batches_of_past_stages(hmm, tmp_path):
    settings = {"batch_ramp": ["2:2", "4:2"], "global_batch_size": 8, "train_tokens": 44 * 8}
    pretrain(tmp_path, hmm, stop=5, per_device_train_batch_size=2, **settings)
    summary = pretrain(tmp_path, hmm, per_device_train_batch_size=8, **settings)
    assert summary["resumed_from"] == "checkpoint-5"
    assert summary["tokens"] == summary["planned_tokens"] == 44 * 8


def test_a_micro_batch_must_divide_the_global_batches_of_remaining_stages(hmm, tmp_path):
    settings = {"batch_ramp": ["2:1", "4:4"], "global_batch_size": 8, "train_tokens": 44 * 8}
    pretrain(tmp_path, hmm, stop=3, per_device_train_batch_size=2, **settings)
    with pytest.raises(
        InputError, match="batch_ramp: 4:4 is not a multiple of world size x per_device_train_batch_siz"
    ):
        pretrain(tmp_path, hmm, per_device_train_batch_size=8, **settings)


def test_rows_that_differ_from_those_of_the_checkpoint_are_refused_before_the_first_step(hmm, tmp_path):
    pretrain(tmp_path, hmm, stop=4)
    path = tmp_path / "checkpoint-4" / "trainer_state.json"
    path.write_text(path.read_text().replace('"num_input_tokens_seen": 128', '"num_input_tokens_seen": 136'))
    (tmp_path / "checkpoint-4" / "digests.json").unlink()
    with pytest.raises(InputError, match="checkpoint-4: consumed 136 tokens, but the 16 rows before it now have 128;"):
        pretrain(tmp_path, hmm)


@pytest.mark.thorough
def test_an_accepted_change_of_the_data_trains_to_the_end_and_counts_its_tokens(hmm, tmp_path):
    pretrain(tmp_path, hmm, stop=4)
    summary = pretrain(
        tmp_path, hmm, length=LENGTH - 2, allow_changed=["data.length", "model.max_position_embeddings"]
    )
    assert summary["tokens"] == summary["planned_tokens"] == 16 * 8 + (summary["steps"] - 4) * 4 * 6


@pytest.mark.thorough
def test_killed_after_its_last_checkpoint_a_run_saves_and_evaluates_without_another_step(hmm, tmp_path):
    before = pretrain(tmp_path, hmm)
    for name in ("summary.json", "model.safetensors"):
        (tmp_path / name).unlink()
    after = pretrain(tmp_path, hmm)
    assert after["resumed_from"] == "checkpoint-8"
    assert (after["steps"], after["tokens"]) == (before["steps"], before["tokens"])
    assert trained_rows(tmp_path) == [list(range(4 * step, 4 * step + 4)) for step in range(8)]
    saved = [(folder / "model.safetensors").read_bytes() for folder in (tmp_path, tmp_path / "checkpoint-8")]
    assert saved[0] == saved[1]


@pytest.mark.outside(
    "https://github.com/huggingface/transformers/pull/40691",
    "resume in the second epoch with the order of an undisturbed run",
    "the order of every epoch is that of the undisturbed run",
)
@pytest.mark.outside(
    "https://github.com/huggingface/datasets/issues/7901",
    "resume a shuffled data set from the middle",
    "shuffled rows continue at the next one",
)
@pytest.mark.thorough
@pytest.mark.parametrize("rows", [12, 14])
@pytest.mark.parametrize("length", [{"max_steps": 7}, {"max_steps": -1, "num_train_epochs": 2}], ids=str)
def test_rows_that_are_read_several_times_come_in_the_same_order_after_resuming(tmp_path, rows, length):
    def run(name, stop=None):
        given = {"global_batch_size": 4, "log_indices": True, "save_strategy": "steps", "save_steps": 100, **length}
        trainer = tiny_runs.trainer(tmp_path / name, rows=tiny_runs.random_rows(rows), **given)
        if stop is not None:
            trainer.add_callback(StopAfter(stop))
        train_and_save(trainer, settings={}, data={"rows": rows})

    run("whole")
    run("stopped", stop=2)
    run("stopped", stop=5)
    run("stopped")
    (tmp_path / "stopped" / "summary.json").unlink()  # as if killed after the last checkpoint
    run("stopped")
    assert trained_rows(tmp_path / "stopped") == trained_rows(tmp_path / "whole")
    assert trained_rows(tmp_path / "whole")[-1][-1] < rows - 1 or "num_train_epochs" in length


@pytest.mark.thorough
def test_shuffled_rows_cannot_continue_with_another_global_batch_whatever_is_accepted(tmp_path):
    tokenizer = train_bpe([message["content"] for row in conversations() for message in row["messages"]], 400)

    def fine_tune(global_batch_size, stop=None, accept=()):
        settings = SFTSettings(
            str(tmp_path),
            **{"max_steps": 6, "global_batch_size": global_batch_size, "per_device_train_batch_size": 2},
            **{"max_length": 48, "save_steps": 100, "report_to": "none", "allow_changed": list(accept)},
            activation_checkpointing=False,
            train_sampling_strategy="random",
        )
        model = LlamaForCausalLM(model_config("1m", vocab_size=len(tokenizer), max_length=48))
        trainer = FineTuner(model=model, args=settings, train_dataset=conversations(), processing_class=tokenizer)
        if stop is not None:
            trainer.add_callback(StopAfter(stop))
        return train_and_save(trainer, settings={}, data={})

    fine_tune(4, stop=2)
    with pytest.raises(InputError) as caught:
        fine_tune(8, accept=["settings.global_batch_size"])
    told = str(caught.value)
    assert "settings.global_batch_size was 4 and is 8; this cannot be accepted, set it back" in told
    assert "allow_changed" not in told


@pytest.mark.thorough
def test_a_full_disk_gives_an_error_of_one_line_and_the_run_resumes_from_the_checkpoint_it_names(
    hmm, tmp_path, small_disk
):
    """Each checkpoint of a model with 0.8 million parameters takes 9.6 MB, and the disk has room for one."""
    output = small_disk("14m") / "run"
    given = {"size": "1m", "save_steps": 2}
    with pytest.raises(InputError) as caught:
        pretrain(output, hmm, **given)
    told = str(caught.value)
    assert f"{output}/checkpoint-4: no room left on the disk: it needs about 9.7 MB, " in told
    assert " MB are free; make room and continue from checkpoint-2 with the same command" in told
    assert sorted(path.name for path in output.glob("checkpoint-*")) == ["checkpoint-2"]
    small_disk("100m")
    summary = pretrain(output, hmm, **given)
    assert summary["resumed_from"] == "checkpoint-2"
    assert trained_rows(output) == [list(range(4 * step, 4 * step + 4)) for step in range(8)]


@pytest.mark.thorough
def test_a_disk_without_room_for_the_final_model_keeps_the_checkpoint(hmm, tmp_path, small_disk):
    output = small_disk("14m") / "run"
    filler = output.with_name("filler")
    filler.write_bytes(bytes(2_500_000))
    with pytest.raises(InputError, match="continue from checkpoint-8 with the same command"):
        pretrain(output, hmm, size="1m")
    assert not (output / "model.safetensors").exists()
    assert not (output / ".unfinished").exists()
    filler.unlink()
    assert pretrain(output, hmm, size="1m")["resumed_from"] == "checkpoint-8"
    assert (output / "model.safetensors").exists()
