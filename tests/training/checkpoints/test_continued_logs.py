"""A run that was stopped between two rows of its log has the history, counts and trackers of an undisturbed one."""

import os
import signal
import time

import pytest
from tiny_trainers import trainer_of
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from hmm_datasets.files import read_json, read_jsonl
from hmm_datasets.training.run import train_and_save

STEPS, EVERY, STOP = 10, 4, 6
TIMES = ("time", "second", "host", "flops", "fraction", "runtime", "shared_memory")


class Stop(TrainerCallback):
    """Asks the run to stop once a step is done."""

    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step + 1 == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def start(name, folder, base, stop=None, **given):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    chosen = {"max_steps": STEPS, "logging_steps": EVERY, "save_strategy": "steps", "save_steps": 1000}
    chosen |= {} if name == "dpo" else {"z_loss": 0.01}
    trainer = trainer_of(name, folder, model, tokenizer, **chosen | {"learning_rate": 1e-2} | given)
    if stop is not None:
        trainer.add_callback(Stop(stop))
    return train_and_save(trainer, settings={}, data={}, base=str(base))


def rows(folder):
    """The rows of a history, without times and the memory of the host, which other programs use too."""
    return [
        {key: value for key, value in row.items() if not any(part in key for part in TIMES)}
        for row in read_jsonl(folder / "history.jsonl")
    ]


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/transformers/pull/9818",
    "the right loss in the first row of the log after a resume",
    "the mean over all steps since the row before, also those before the stop",
)
@pytest.mark.outside(
    "https://github.com/NVIDIA-NeMo/RL/pull/803",
    "a count of tokens that continues after a resume",
    "`num_tokens` and `tokens` are those of an undisturbed run",
)
@pytest.mark.parametrize("name", ["midtrain", "sft", "dpo"])
def test_a_run_stopped_between_two_rows_has_the_history_of_an_undisturbed_one(name, base, tmp_path):
    whole = start(name, tmp_path / "whole", base)
    folder = tmp_path / "parts"
    assert start(name, folder, base, stop=STOP) == {"steps": STOP, "interrupted": "SIGTERM"}
    assert [row["step"] for row in rows(folder)] == [EVERY]
    parts = start(name, folder, base)
    assert parts["resumed_from"] == f"checkpoint-{STOP}"
    expected, found = rows(tmp_path / "whole"), rows(folder)
    assert [row["step"] for row in found] == [row["step"] for row in expected]
    for one, other in zip(expected, found, strict=True):
        assert other == pytest.approx(one, rel=1e-5)
    if name != "midtrain":
        assert found[-2]["num_tokens"] == parts["tokens"] == whole["tokens"]
    assert "train_loss" in found[-1]


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/pytorch/pytorch/issues/68940",
    "one curve in TensorBoard for a run that was trained in two parts",
    "all starts write to the same folder, without the steps that are repeated",
)
def test_tensorboard_has_one_run_without_gaps_or_repeated_steps(base, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    given = {"report_to": "tensorboard", "logging_steps": 1, "save_steps": 2}
    start("midtrain", tmp_path, base, stop=STOP + 1, **given)
    for path in (tmp_path / f"checkpoint-{STOP + 1}").iterdir():
        path.unlink()  # so that the run continues from an earlier one
    (tmp_path / f"checkpoint-{STOP + 1}").rmdir()
    assert start("midtrain", tmp_path, base, **given)["resumed_from"] == f"checkpoint-{STOP}"
    (folder,) = (tmp_path / "runs").iterdir()
    events = EventAccumulator(str(folder)).Reload().Scalars("train/loss")
    losses = {row["step"]: row["loss"] for row in rows(tmp_path) if "loss" in row}
    assert [event.step for event in events] == list(range(1, STEPS + 1))
    assert {event.step: event.value for event in events} == pytest.approx(losses, rel=1e-6)


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/transformers/pull/41407",
    "the rate of tokens after a resume, which counted the tokens of earlier starts in the time of the last",
    "tokens, time and rate are those of all starts together",
)
def test_a_start_with_nothing_left_has_the_time_rate_and_loss_of_the_run(base, tmp_path):
    first = start("midtrain", tmp_path, base, save_steps=STEPS)
    before = rows(tmp_path)[-1]
    (tmp_path / "summary.json").unlink()
    again = start("midtrain", tmp_path, base, save_steps=STEPS)
    assert again["resumed_from"] == f"checkpoint-{STEPS}"
    assert rows(tmp_path)[-1]["train_loss"] == pytest.approx(before["train_loss"], rel=1e-6)
    assert again["tokens"] == first["tokens"]
    assert 0.3 * first["tokens_per_second"] < again["tokens_per_second"] < 3 * first["tokens_per_second"]
    state = read_json(tmp_path / f"checkpoint-{STEPS}" / "trainer_state.json")
    assert state["stateful_callbacks"]["RunTotals"]["attributes"]["steps"] == STEPS


def test_a_clock_that_is_set_back_does_not_change_the_time_of_a_run(base, tmp_path, monkeypatch):
    class SetBack(Stop):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step + 1 == self.step:
                now = time.time
                monkeypatch.setattr(time, "time", lambda: now() - 3600)

    monkeypatch.setattr(f"{__name__}.Stop", SetBack)
    summary = start("midtrain", tmp_path, base, stop=STOP)
    assert 0 <= summary["seconds"] < 60
    assert summary["tokens_per_second"] > 0
