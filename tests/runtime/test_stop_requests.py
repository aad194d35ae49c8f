"""Which signals ask what runs to stop, in processes whose launcher ignores some of them."""

import os
import signal
import time
from datetime import timedelta

import pytest

from hmm_datasets.runtime.environment import FIRST_START, begun, host
from hmm_datasets.runtime.stop_requests import NOTHING, STOP, StopRequests


@pytest.mark.parametrize(
    ("number", "wanted"), [(signal.SIGUSR1, STOP), (signal.SIGTERM, STOP), (signal.SIGHUP, NOTHING)]
)
def test_a_signal_that_the_launcher_ignores_is_heard_unless_it_is_that_of_nohup(number, wanted, tmp_path):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with StopRequests(tmp_path) as requests:
            os.kill(os.getpid(), number)
            assert requests.look() == wanted
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)


@pytest.mark.outside(
    "https://github.com/NVIDIA-NeMo/RL/issues/3596",
    "checkpoint_must_save_by counts from when setup has ended, 20 to 30 minutes after the job's start",
    "`--time_limit` counts from the start of the command, or of its launcher or supervisor",
)
@pytest.mark.outside(
    "https://github.com/huggingface/accelerate/issues/3763",
    "variables of one launch that `.deepspeed_env` hands to the next",
    "the start of another command, also on another machine, is not taken for that of this one",
)
def test_a_time_limit_counts_from_the_start_of_the_command_not_from_when_its_work_begins(tmp_path, monkeypatch):
    limit, began = timedelta(hours=1), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for noted, wanted in (
        (None, STOP),
        (f"{host()} {os.getpid()} {began - 1}", STOP),  # it started itself again
        (f"{host()} {os.getppid()} {began - 1}", STOP),  # a launcher or a supervisor
        (f"{host()} {2**22 + 1} {began - 3590}", NOTHING),  # of another command, which DeepSpeed writes into a file
        (f"elsewhere {os.getppid()} {began - 3590}", NOTHING),  # of another machine, in a container too
    ):
        now = began + (1 if wanted == NOTHING else 0)
        if noted is not None:
            monkeypatch.setenv(FIRST_START, noted)
        with begun() as variables:
            now += 3590 if wanted == STOP else 0
            assert StopRequests(tmp_path, limit).look() == wanted
            assert FIRST_START not in os.environ, "what it starts is another command"
            assert variables[FIRST_START].startswith(f"{host()} {os.getpid()} ")
    assert StopRequests(tmp_path, limit).look() == NOTHING, "outside of a command it counts from now"
