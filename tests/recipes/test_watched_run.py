"""A run of two processes, seen from outside while one of them is suspended, continued and killed."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from killed_run import GLOBAL_BATCH

from hmm_datasets.hmm.processes import mess3
from hmm_datasets.operations.run_state import RunObserver

pytestmark = pytest.mark.thorough


def test_a_suspended_and_a_killed_rank_are_named(program, tmp_path):
    mess3(0.15, 0.6).save_pretrained(tmp_path / "hmm")
    flags = {"output_dir": tmp_path / "run", "max_steps": 10_000, "global_batch_size": GLOBAL_BATCH}
    flags |= {"per_device_train_batch_size": 6, "logging_steps": 1, "report_to": "none", "save_strategy": "no"}
    words = [str(word) for name, value in flags.items() for word in (f"--{name}", value)]
    script = str(Path(__file__).with_name("killed_run.py"))
    launcher = [program.python, "-m", "accelerate.commands.accelerate_cli", "launch", "--config_file"]
    process = subprocess.Popen(
        [*launcher, "accelerate_configs/cpu2.yaml", script, *words],
        cwd=program.root,
        env=program.environment | {"STEP_SECONDS": "0.1"},
        stdout=(tmp_path / "log").open("w"),
        stderr=subprocess.STDOUT,
    )

    def until(condition, seconds):
        began = time.monotonic()
        while not condition(state := RunObserver(tmp_path / "run").look() if (tmp_path / "run").exists() else None):
            assert time.monotonic() - began < seconds, (state, (tmp_path / "log").read_text()[-2000:])
            time.sleep(0.1)
        return state

    try:
        seen = until(lambda state: state is not None and state.diagnosis is not None, 500)
        assert seen.state == "starting"
        seen = until(lambda state: state.state == "running" and not state.diagnosis.missing, 500)
        process_of_1 = seen.diagnosis.ranks[1].beat.process

        os.kill(process_of_1, signal.SIGSTOP)
        seen = until(lambda state: state.state == "hanging", 500)
        assert [rank.beat.rank for rank in seen.diagnosis.blamed] == [1]
        assert f"(process {process_of_1}, CPU) is suspended (as by SIGSTOP), in phase " in seen.reason
        os.kill(process_of_1, signal.SIGCONT)
        until(lambda state: state.state == "running", 500)

        os.kill(process_of_1, signal.SIGKILL)
        seen = until(lambda state: state.state == "dead", 500)
        assert [rank.beat.rank for rank in seen.diagnosis.blamed] == [1], "and not rank 0, which lost it"
        assert "exited silently" in seen.reason
        assert process.wait(500) != 0
    finally:
        process.kill()


def test_a_finished_run_leaves_no_heartbeats_and_a_refused_one_no_folder(program, tmp_path):
    mess3(0.15, 0.6).save_pretrained(tmp_path / "hmm")
    script = str(Path(__file__).with_name("killed_run.py"))
    flags = [
        "--max_steps",
        "2",
        "--global_batch_size",
        "12",
        "--per_device_train_batch_size",
        "6",
        "--report_to",
        "none",
    ]
    result = program.run(script, "--output_dir", tmp_path / "refused", *flags, "--learning_rate", "fast")
    assert result.returncode == 2
    assert not (tmp_path / "refused").exists()
    result = program.run(script, "--output_dir", tmp_path / "run", *flags)
    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "run" / ".heartbeats").exists()
    assert RunObserver(tmp_path / "run").look().state == "finished"
