"""What a run, its processes and the batch system say together, and the command that shows it."""

import io
import json
import os
import re
import sys
import time

import pexpect
import pytest
from rich.console import Console

from hmm_datasets.cli import main
from hmm_datasets.files import append_jsonl, write_json
from hmm_datasets.operations.live_view import render
from hmm_datasets.operations.run_state import RunObserver, format_state
from hmm_datasets.runtime.environment import host as this_host
from hmm_datasets.runtime.events import append_event
from hmm_datasets.runtime.heartbeat_writer import HeartbeatWriter
from hmm_datasets.runtime.process_identity import this_process
from hmm_datasets.runtime.rank_heartbeats import FOLDER_NAME


@pytest.fixture
def run(tmp_path):
    """A run with a history of 30 steps of 40, whose last row is a second old."""
    now = time.time()
    for step in range(1, 31):
        row = {"step": step, "time": now - 31 + step, "loss": 1 + 3 / step, "grad_norm": 1.0, "tokens": 64 * step}
        append_jsonl(tmp_path / "history.jsonl", row | {"max_steps": 40, "host": "node7"})
    return tmp_path


def finish(run):
    append_jsonl(run / "history.jsonl", {"step": 40, "max_steps": 40, "time": time.time(), "loss": 1.0})
    write_json(run / "summary.json", {"steps": 40})


def state_of(run):
    return RunObserver(run).look()


def edit_heartbeat(run, **changes):
    (path,) = (run / FOLDER_NAME).glob("*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_run_is_starting_then_running_then_finished(run):
    heart = HeartbeatWriter(run, every=60)
    assert state_of(run).state == "starting"
    heart.enter("data", 1)
    heart._file.write_now()
    assert state_of(run).state == "running"
    heart.end()
    finish(run)
    assert state_of(run).state == "finished"
    assert state_of(run).trouble is None


def test_a_run_that_saves_its_model_after_the_last_step_is_still_running(run):
    heart = HeartbeatWriter(run, every=60)
    heart.enter("saving", 40)
    heart._file.write_now()
    finish(run)
    assert state_of(run).state == "running"
    heart.end()


def test_a_killed_run_is_dead_and_an_interrupted_one_is_stopped(run):
    HeartbeatWriter(run, every=60).end("stopped", "SIGTERM")
    state = state_of(run)
    assert (state.state, state.trouble) == ("stopped", None)
    edit_heartbeat(run, phase="data", step=31, process_started=1.0)
    state = state_of(run)
    assert (state.state, state.trouble) == ("dead", "dead")
    assert "exited silently, last heard in phase data of step 31" in state.reason


def test_a_run_that_is_not_at_its_end_and_has_no_heartbeats_is_dead(run):
    state = state_of(run)
    assert (state.state, state.trouble) == ("dead", "dead")
    assert state.reason.startswith("no process has a heartbeat here; no row for ")


def test_a_folder_in_which_nothing_started_says_so(tmp_path):
    assert state_of(tmp_path).state == "dead"
    assert "nothing has started here" in state_of(tmp_path).reason


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """A function that puts a `squeue` on the path, which knows one job."""

    def install(line: str) -> None:
        program = tmp_path / "bin" / "squeue"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\ncase \"$*\" in *{line.split('|')[0]}*) echo '{line}';; *) exit 1;; esac\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return install


def test_a_dead_run_whose_job_was_put_back_waits_in_the_queue(run, squeue, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_JOB_NAME", "pretrain")
    HeartbeatWriter(run, every=60).end("failed", "its launcher has ended")
    assert state_of(run).state == "dead"
    squeue("4711|PENDING|(BeginTime)|N/A")
    state = state_of(run)
    assert (state.state, state.trouble) == ("waiting in the queue", None)
    assert state.reason.startswith("job 4711 (PENDING, BeginTime); before: ")
    squeue("4711|RUNNING|None")
    assert state_of(run).state == "dead"
    squeue("4711|PENDING|(Priority)|2026-11-29T05:00:00")
    assert state_of(run).reason.startswith("job 4711 (PENDING, Priority, expected to start 2026-11-29T05:00:00)")


def test_the_table_shows_state_progress_and_the_latest_events(run):
    for step in range(5):
        append_event(run, "spike", f"number {step}", step=step, rank=1, host="node3")
    table = format_state(state_of(run))
    assert table.startswith("state            dead: no process has a heartbeat")
    assert "step             30 of 40 (75.0%)" in table
    assert "number 1" not in table
    assert "spike at step 4, rank 1 on node3: number 4" in table


def test_the_picture_has_hosts_curves_and_events(run, monkeypatch):
    heart = HeartbeatWriter(run, every=60)
    for step in range(1, 5):
        heart.enter("data", step)
        heart.count(100)
        heart.enter("forward")
    heart._file.write_now()
    append_event(run, "restart", "started again")
    console = Console(file=io.StringIO(), width=100, height=60, color_system=None, force_terminal=False)
    console.print(render(state_of(run), 100, 60))
    text = console.file.getvalue()
    (header, line) = [re.split(" {2,}", line) for line in text.splitlines() if line.startswith(("host ", this_host()))]
    assert header[:5] == ["host", "ranks", "step", "tokens/s", "data s"]
    assert (line[:3], line[-1]) == ([this_host(), "0", "4"], "forward")
    assert "loss (nats per token) by tokens seen" in text
    assert "gradient norm by tokens seen" in text
    assert "restart, " in text
    assert max(map(len, text.splitlines())) <= 100
    heart.end()


def test_a_run_on_rewards_shows_them_before_its_loss_which_has_no_unit(tmp_path):
    for step in range(1, 4):
        row = {"step": step, "time": time.time() - 4 + step, "loss": -0.5, "reward": step / 8, "tokens": 64 * step}
        append_jsonl(tmp_path / "history.jsonl", row | {"max_steps": 40})
    console = Console(file=io.StringIO(), width=100, height=60, color_system=None, force_terminal=False)
    console.print(render(state_of(tmp_path), 100, 60))
    text = console.file.getvalue()
    assert re.search(r"reward +0\.3750 *\n *loss +-0\.5000 *\n", text)
    assert "reward by tokens seen" in text
    assert "loss by tokens seen" not in text


def test_json_has_ranks_and_events(run, capsys):
    heart = HeartbeatWriter(run, every=60)
    append_event(run, "spike", "a spike")
    assert main(["watch", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["diagnosis"]["ranks"][0]["beat"]["process"], found["events"][0]["kind"]) == (
        "starting",
        os.getpid(),
        "spike",
    )
    heart.end()


@pytest.mark.thorough
def test_the_live_view_is_drawn_in_a_terminal_until_the_run_is_finished(run, child_environment):
    command = ["-m", "hmm_datasets.cli", "watch", str(run), "--follow", "--every", "0.2"]
    child = pexpect.spawn(
        sys.executable, command, env=child_environment, encoding="utf-8", dimensions=(50, 120), timeout=500
    )
    child.expect("loss \\(nats per token\\) by tokens seen")
    finish(run)
    child.expect("finished")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


@pytest.mark.parametrize("alive", [True, False])
def test_a_run_whose_supervisor_is_known_to_have_ended_is_not_starting(run, alive):
    append_event(run, "restart", "starts again in 60 s", delay=60.0)
    path = run / FOLDER_NAME / "supervisor-host-1"
    path.parent.mkdir()
    own = this_process()
    started = own.process_started + (not alive)
    content = {"host": own.host, "machine": own.machine, "process": own.process, "process_started": started}
    path.write_text(json.dumps(content | {"beat": 1, "runs": True, "start": 1}))
    assert state_of(run).state == ("starting" if alive else "dead")
    path.write_text(path.read_text().replace(own.machine, "another"))
    assert state_of(run).state == "starting", "it has written lately"
    for moment in (time.time() - 3600, time.time() + 3600):
        os.utime(path, (moment, moment))
        assert state_of(run).state == "dead", "by a clock that is wrong, too"


@pytest.mark.outside(
    "https://github.com/GingerGraham/bash-logger/issues/36",
    "log messages whose escape codes clear the screen or rename the terminal of whoever reads them",
    "messages, names of hosts and folders are shown with their codes as text, in the live view too",
)
def test_what_a_run_wrote_cannot_command_the_terminal(run):
    HeartbeatWriter(run, every=60).end("failed", "\x1b[2Jhidden")
    append_event(run, "restart", "\x1b]0;title\x07")
    console = Console(file=io.StringIO(), width=100, height=60, color_system=None, force_terminal=True)
    console.print(render(state_of(run), 100, 60))
    text = console.file.getvalue()
    assert "hidden" in text
    assert "title" in text
    assert "\x1b[2J" not in text
    assert "\x1b]0" not in text
