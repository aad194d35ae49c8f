"""Stopping and saving by a file, a signal or a time limit, in one process; for several see tests/recipes."""

import os
import signal
import time
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaForCausalLM, TrainerCallback

from hmm_datasets.data.sequences import HMMSequences
from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.runtime.environment import FIRST_START, host
from hmm_datasets.runtime.stop_requests import parse_time
from hmm_datasets.training.model_configs import model_config
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import PretrainSettings
from hmm_datasets.training.trainer import Pretrainer


class At(TrainerCallback):
    """Does something at the beginning of a step."""

    def __init__(self, step, act):
        self.step, self.act = step, act

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.act()


def train(folder, act=lambda: None, max_steps=8, **settings):
    """A tiny run in which `act` is called in the fourth step."""
    rows = HMMSequences(processes.mess3(0.15, 0.6), 7)
    settings = {"save_steps": 1000, "logging_steps": 100, "report_to": "none"} | settings
    args = PretrainSettings(
        str(folder), max_steps=max_steps, global_batch_size=4, per_device_train_batch_size=4, **settings
    )
    model = LlamaForCausalLM(model_config("1m", vocab_size=rows.vocab_size, max_length=8))
    trainer = Pretrainer(model=model, args=args, train_dataset=rows)
    trainer.add_callback(At(3, act))
    return train_and_save(trainer, settings={}, data={})


def checkpoints(folder):
    return sorted(path.name for path in folder.glob("checkpoint-*"))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGHUP"])
def test_a_signal_saves_the_step_under_way_and_stops(name, tmp_path):
    before = signal.signal(getattr(signal, name), signal.SIG_DFL)  # nohup may have started the tests
    found = train(tmp_path, lambda: os.kill(os.getpid(), getattr(signal, name)))
    assert found == {"steps": 4, "interrupted": name}
    assert checkpoints(tmp_path) == ["checkpoint-4"]
    assert not (tmp_path / "model.safetensors").exists()
    assert not (tmp_path / "summary.json").exists()
    assert signal.signal(getattr(signal, name), before) == signal.SIG_DFL
    assert train(tmp_path)["resumed_from"] == "checkpoint-4"


@pytest.mark.thorough
def test_a_hangup_that_nohup_has_ignored_stays_ignored(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        found = train(tmp_path, lambda: os.kill(os.getpid(), signal.SIGHUP))
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert found["steps"] == 8


@pytest.mark.thorough
def test_a_stop_file_saves_stops_and_is_removed(tmp_path):
    found = train(tmp_path, (tmp_path / "stop").touch, max_steps=2000)
    assert 4 <= found["steps"] < 2000
    assert checkpoints(tmp_path) == [f"checkpoint-{found['steps']}"]
    assert not (tmp_path / "stop").exists()


@pytest.mark.thorough
def test_a_save_file_saves_and_the_run_continues(tmp_path):
    # Files are checked once per second, for the first time at the first step.
    (tmp_path / "save").touch()
    found = train(tmp_path)
    assert found["steps"] == 8
    assert "checkpoint-1" in checkpoints(tmp_path)
    assert not (tmp_path / "save").exists()


@pytest.mark.thorough
def test_near_the_time_limit_a_run_saves_and_stops(tmp_path):
    """A minute is kept free, so a limit of one second is near from the beginning."""
    found = train(tmp_path, time_limit="0:01")
    assert found == {"steps": 1, "interrupted": "the time limit is near"}
    assert checkpoints(tmp_path) == ["checkpoint-1"]
    assert train(tmp_path, time_limit="1:00:00")["steps"] == 8


@pytest.mark.thorough
def test_the_time_limit_counts_from_the_first_start_of_a_command_that_started_itself_again(tmp_path, monkeypatch):
    monkeypatch.setenv(FIRST_START, f"{host()} {os.getpid()} {time.monotonic() - 3590}")
    assert train(tmp_path, time_limit="1:00:00") == {"steps": 1, "interrupted": "the time limit is near"}
    # DeepSpeed writes variables into a file, from which another run on another machine reads them.
    monkeypatch.setenv(FIRST_START, f"{host()} {2**22 + 1} {time.monotonic() - 3590}")
    assert train(tmp_path, time_limit="1:00:00")["steps"] == 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", timedelta(minutes=90)),
        ("5:30", timedelta(minutes=5, seconds=30)),
        ("3:55:00", timedelta(hours=3, minutes=55)),
        ("2-00", timedelta(days=2)),
        ("1-12:30", timedelta(days=1, hours=12, minutes=30)),
        ("1-12:30:15", timedelta(days=1, hours=12, minutes=30, seconds=15)),
        pytest.param(
            "UNLIMITED",
            None,
            marks=[
                pytest.mark.outside(
                    "https://github.com/facebookincubator/submitit/issues/1633",
                    "how to set TimeLimit=UNLIMITED",
                    "UNLIMITED of `--time_limit` is no limit",
                ),
                pytest.mark.outside(
                    "https://github.com/aws/aws-parallelcluster/issues/6760",
                    "jobs whose TimeLimit Slurm shows as UNLIMITED",
                    "`squeue %L` of such a job, in every batch file here, is no limit",
                ),
            ],
        ),
        ("unlimited", None),
        ("NOT_SET", None),
    ],
)
def test_times_are_read_as_slurm_writes_them(text, expected):
    assert parse_time(text) == expected


@given(st.timedeltas(timedelta(seconds=1), timedelta(days=99)))
def test_whole_seconds_come_back(limit):
    seconds = int(limit.total_seconds())
    days, rest = divmod(seconds, 86400)
    text = f"{days}-{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    assert parse_time(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "1:2:3:4", "-5", "0", "1-2-3", "1:-2"])
def test_malformed_times_are_refused(text):
    with pytest.raises(InputError, match="time_limit is"):
        parse_time(text)
