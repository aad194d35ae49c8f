import io
import sys

import pytest
import tiny_runs
from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hmm_datasets.files import read_jsonl
from hmm_datasets.operations.progress import read_status, status_rows, two_columns
from hmm_datasets.training.callbacks.progress_line import ProgressLine
from hmm_datasets.training.run import train_and_save


@pytest.fixture
def told(tmp_path, monkeypatch):
    """What is written of a log after 640 tokens."""

    def told(logs: dict) -> str:
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stdout", stream)
        line, args = ProgressLine(), TrainingArguments(str(tmp_path))
        state = TrainerState(max_steps=10, is_world_process_zero=True, num_input_tokens_seen=640, global_step=4)
        line.on_train_begin(args, state, TrainerControl())
        line.on_log(args, state, TrainerControl(), logs=logs)
        line.on_train_end(args, state, TrainerControl())
        return stream.getvalue()

    return told


def test_a_line_says_how_much_of_the_plan_is_done_and_when_it_ends(told, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.0)
    monkeypatch.setattr("time.localtime", lambda moment: __import__("time").gmtime(moment))
    logs = {"loss": 2.5, "fraction": 0.125, "seconds_left": 3 * 86400.0, "tokens_per_second": 1e6}
    expected = "640 tokens  loss 2.5000  1,000,000 tokens/s  12.5% done  ends Fri 17 Nov 22:13"
    assert expected in told(logs)


def test_a_line_of_reinforcement_learning_tells_the_rewards_and_not_the_held_out_loss(told):
    rewards = {"rewards/gsm8k/mean": 0.25, "rewards/gsm8k/std": 0.5, "rewards/format/mean": 1.0}
    line = told({"loss": -0.5, "reward": 1.25, **rewards})
    assert "640 tokens  loss -0.5000  reward 1.2500  gsm8k 0.2500  format 1.0000\n" in line
    held_out = {f"eval_{name}": value for name, value in {"loss": 0.0, "reward": 1.25, **rewards}.items()}
    assert "640 tokens  held out: reward 1.2500  gsm8k 0.2500  format 1.0000\n" in told(held_out)
    assert "640 tokens  held out: reward 1.0000\n" in told(
        {"eval_loss": 0.0, "eval_reward": 1.0, "eval_rewards/exact/mean": 1.0}
    )
    pairs = {"loss": 0.5, "rewards/chosen": 0.1, "rewards/rejected": 0.2}  # of DPO
    assert "640 tokens  loss 0.5000\n" in told(pairs)


def test_a_finished_run_says_that_all_of_its_plan_is_done(tmp_path):
    """Even if its last step is not a multiple of `logging_steps`."""
    train_and_save(tiny_runs.trainer(tmp_path, max_steps=5, logging_steps=3), settings={}, data={})
    rows = [row for row in read_jsonl(tmp_path / "history.jsonl") if "loss" in row]
    assert [(row["step"], row["fraction"]) for row in rows] == [(3, 0.6), (5, 1.0)]
    assert "5 of 5 (100.0%)" in two_columns(status_rows(read_status(tmp_path)))


def test_the_progress_bar_for_notebooks_is_replaced_by_ours(tmp_path):
    class NotebookProgressCallback(TrainerCallback):
        """Has the name of the callback of transformers, which needs IPython."""

    run = tiny_runs.trainer(tmp_path, max_steps=1)
    run.remove_callback(ProgressCallback)
    run.add_callback(NotebookProgressCallback)
    train_and_save(run, settings={}, data={})
    names = [type(callback).__name__ for callback in run.callback_handler.callbacks]
    assert "ProgressLine" in names
    assert "NotebookProgressCallback" not in names
