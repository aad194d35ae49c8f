"""What a supervisor does after each way in which a command can end, with real commands that do so."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from hmm_datasets.cli import main
from hmm_datasets.errors import InputError
from hmm_datasets.operations.diagnosis import Limits
from hmm_datasets.operations.exits import faulty_hosts
from hmm_datasets.operations.run_state import RunObserver
from hmm_datasets.operations.supervision import SupervisionSettings, Supervisor
from hmm_datasets.runtime.environment import FIRST_START
from hmm_datasets.runtime.environment import host as this_host
from hmm_datasets.runtime.events import append_event, read_events
from hmm_datasets.runtime.rank_heartbeats import FOLDER_NAME
from hmm_datasets.runtime.supervisors import SupervisorHeartbeat

QUICK = {"first_delay": 0.05, "max_delay": 0.4, "patience": 0.5}

# A run of one process, which does as the file `plan` says, line by line, at one start after another.
PROGRAM = """
import os, sys, time
from pathlib import Path
from hmm_datasets.runtime import heartbeats
from hmm_datasets.errors import InputError, LostPeer, RankError, disk_full
from hmm_datasets.runtime.one_line_errors import one_line_errors
from hmm_datasets.runtime.stop_requests import StopRequests

run = Path(sys.argv[2])
number = int(os.environ["HMM_DATASETS_SUPERVISED"])
action = Path(sys.argv[1]).read_text().splitlines()[number - 1]
if action == "usage":
    sys.exit(2)
if action == "compile":
    import torch
    from hmm_datasets.compat.torch import on_compilations

    def backend(graph, inputs):
        time.sleep(3)
        return graph

    slow = torch.compile(lambda x: x + 1, backend=backend)
    on_compilations(heartbeats.compiling)
with one_line_errors(), heartbeats.heartbeat(run, every=0.1):
    (run / "run.json").write_text("{}")
    if action == "settings":
        raise InputError("learning_rate is -1; expected a positive number")
    heartbeats.enter("data", 10 * number if "same" not in action else 7)
    heartbeats._writer._file.write_now()
    if action == "checkpoint then die":
        (run / f"checkpoint-{number}").mkdir()
        os.kill(os.getpid(), 9)
    if action == "die":
        os.kill(os.getpid(), 9)
    if action in ("nan", "same nan"):
        raise RankError("step 7: the loss is nan")
    if action == "full disk":
        raise disk_full(run / "model.safetensors", "1.0 GiB")
    if action == "compile":
        slow(torch.ones(2))
    if action == "abort":
        os.abort()
    if action == "hang":
        time.sleep(600)
    if action == "wait":
        with StopRequests(run) as requests:
            while not requests.look():
                time.sleep(0.05)
        heartbeats.end("stopped", requests.reason)
"""


@pytest.fixture
def supervised(tmp_path, child_environment):
    """A function that supervises the program while it does some things one after another; returns code and events."""

    def supervise(*actions, limits=None, **settings):
        script, plan, run = tmp_path / "program.py", tmp_path / "plan", tmp_path / "run"
        script.write_text(PROGRAM)
        plan.write_text("\n".join(actions) + "\n")
        command = [sys.executable, str(script), str(plan), str(run)]
        code = Supervisor(command, run, SupervisionSettings(**QUICK | settings), limits).run()
        return code, [event for event in read_events(run) if event["kind"] not in ("start", "restart")]

    os.environ["PYTHONPATH"], before = child_environment["PYTHONPATH"], os.environ.get("PYTHONPATH")
    yield supervise
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


def kinds(events):
    return [event["kind"] for event in events]


def test_faults_are_named_and_the_command_starts_again_until_it_is_finished(supervised, tmp_path):
    code, events = supervised("die", "full disk", "nan", "finish")
    assert code == 0
    assert kinds(events) == ["killed", "disk full", "error", "finished"]
    assert "last heard in phase data of step 10" in events[0]["message"]
    assert (events[0]["rank"], events[0]["step"], events[0]["exit_code"]) == (0, 10, -9)
    assert "no room left on the disk" in events[1]["message"]
    assert events[2]["message"].endswith("failed: step 7: the loss is nan")
    delays = [event["delay"] for event in read_events(tmp_path / "run") if event["kind"] == "restart"]
    assert delays == [0.05, 0.1, 0.2], "doubled without a new checkpoint"
    assert not (tmp_path / "run" / FOLDER_NAME).exists()


@pytest.mark.thorough
def test_a_new_checkpoint_resets_the_delay_and_the_count_of_failures(supervised, tmp_path):
    code, events = supervised("die", "die", "checkpoint then die", "die", "die", "die", max_failures=3)
    assert code == 137
    assert kinds(events) == ["killed"] * 5 + ["give up"]
    delays = [event["delay"] for event in read_events(tmp_path / "run") if event["kind"] == "restart"]
    assert delays == [0.05, 0.1, 0.05, 0.1]
    assert "3 failures in a row, without a new checkpoint" in events[-1]["message"]


@pytest.mark.thorough
@pytest.mark.parametrize(("action", "kind"), [("settings", "settings"), ("usage", "settings")])
def test_a_wrong_setting_is_not_tried_again(supervised, action, kind):
    code, events = supervised(action)
    assert (code, kinds(events)) == (2, [kind])


@pytest.mark.thorough
def test_the_same_error_at_the_same_step_is_not_tried_a_third_time(supervised):
    code, events = supervised("same nan", "same nan")
    assert (code, kinds(events)) == (2, ["error", "error", "give up"])
    assert "the same error at the same step again" in events[-1]["message"]


@pytest.mark.thorough
def test_a_hang_is_ended_and_its_stacks_are_printed(supervised, tmp_path, capfd):
    code, events = supervised("hang", "finish", limits=Limits(step=0.3))
    assert (code, kinds(events)) == (0, ["hang", "finished"])
    assert "in phase data of step 10 for " in events[0]["message"]
    assert events[0]["message"].endswith("; ended, its stacks are in the supervisor's log")
    line = 1 + PROGRAM.splitlines().index("        time.sleep(600)")
    assert f'File "{tmp_path / "program.py"}", line {line} in <module>' in capfd.readouterr().out
    assert not (tmp_path / "run" / FOLDER_NAME).exists()


@pytest.mark.thorough
def test_a_step_that_compiles_for_longer_than_a_step_may_take_does_not_hang(supervised):
    code, events = supervised("compile", limits=Limits(step=0.3))
    assert (code, kinds(events)) == (0, ["finished"])


@pytest.mark.thorough
def test_a_signal_to_the_supervisor_stops_the_run_and_one_to_the_run_does_not(tmp_path, child_environment):
    run = tmp_path / "run"
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "plan").write_text("wait\nwait\n")
    words = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "plan"), str(run)]
    command = [
        sys.executable,
        "-m",
        "hmm_datasets.cli",
        "supervise",
        "--first_delay",
        "0.05",
        "--output_dir",
        str(run),
    ]
    supervisor = subprocess.Popen([*command, "--", *words], env=child_environment, stdout=subprocess.PIPE, text=True)

    def rank():
        deadline = time.monotonic() + 60
        while True:
            assert time.monotonic() < deadline
            found = RunObserver(run).look() if run.exists() else None
            if found is not None and found.state == "running":
                return found.diagnosis.ranks[0].beat.process
            time.sleep(0.05)

    first = rank()
    os.kill(first, signal.SIGTERM)
    while (second := rank()) == first:
        time.sleep(0.05)
    supervisor.send_signal(signal.SIGTERM)
    said = supervisor.communicate(timeout=500)[0]
    events = read_events(run)
    assert kinds(events) == ["start", "stopped", "restart", "start", "stopped"], said
    assert "stopped with a checkpoint (SIGTERM)" in events[1]["message"]
    assert second != first
    assert RunObserver(run).look().state == "stopped"


# Two ranks under a launcher: one is killed, the other is aborted, as by the watchdog of NCCL.
RANKS = """
import os, subprocess, sys
run, *actions = sys.argv[1:]
code = 0
for rank, action in enumerate(actions):
    plan = run + str(rank)
    open(plan, "w").write(action)
    place = {"RANK": str(rank), "WORLD_SIZE": "2"}
    result = subprocess.run([sys.executable, os.path.dirname(run) + "/program.py", plan, run], env=os.environ | place)
    code = code or result.returncode
sys.exit(1 if code else 0)
"""


@pytest.mark.thorough
def test_a_rank_that_the_watchdog_of_nccl_aborts_is_not_blamed(tmp_path, monkeypatch, child_environment, capfd):
    monkeypatch.setenv("PYTHONPATH", child_environment["PYTHONPATH"])
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "ranks.py").write_text(RANKS)
    settings = SupervisionSettings(**QUICK, max_failures=1)
    for run, actions in ((tmp_path / "one", ("abort", "die")), (tmp_path / "both", ("abort", "abort"))):
        command = [sys.executable, str(tmp_path / "ranks.py"), str(run), *actions]
        assert Supervisor(command, run, settings).run() == 1
    events = {name: read_events(tmp_path / name)[1] for name in ("one", "both")}
    assert (events["one"]["kind"], events["one"]["rank"]) == ("killed", 1)
    assert "rank 1 on" in events["one"]["message"]
    assert events["both"]["kind"] == "lost"
    assert "aborted (SIGABRT)" in events["both"]["message"]
    assert faulty_hosts(tmp_path / "both") == []
    assert "Fatal Python error: Aborted" in capfd.readouterr().out, "the supervisor shows the stack"


def never() -> bool:
    return False


def always() -> bool:
    return True


def test_hosts_begin_each_start_together_and_a_new_one_joins_the_next(tmp_path, monkeypatch):
    waits = []

    def until_the_other_ends(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            two.end()
        return True

    def at_once(seconds):
        raise AssertionError("nobody to wait for")

    with SupervisorHeartbeat(tmp_path, silent=30.0) as one:
        monkeypatch.setenv("SLURMD_NODENAME", "two")
        with SupervisorHeartbeat(tmp_path, silent=30.0) as two:
            assert one.begin(at_once, never)
            assert two.begin(at_once, never), "of the same start"
            one.end()
            assert one.begin(until_the_other_ends, always)
            assert len(waits) == 3
            assert two.begin(at_once, always), "joins the second start, in which the other waits for it"
            two.end()
            assert not two.begin(lambda seconds: False, always)
        monkeypatch.setenv("SLURMD_NODENAME", "three")
        with SupervisorHeartbeat(tmp_path, silent=30.0) as three:

            def until_the_next(seconds):
                one.end()
                return one.begin(at_once, always)

            assert three.begin(until_the_next, always), "the ranks of the second start have gone on"
            assert one._start == three._start == 3
    assert not (tmp_path / FOLDER_NAME).exists()


def test_a_supervisor_that_is_gone_is_not_waited_for(tmp_path):
    with SupervisorHeartbeat(tmp_path, silent=0.3) as own:
        content = {
            "host": "lost",
            "machine": "there",
            "process": 7,
            "process_started": 1.0,
            "runs": True,
            "beat": 4,
            "start": 6,
        }
        (tmp_path / FOLDER_NAME / "supervisor-lost-7").write_text(json.dumps(content))
        waits = []
        assert own.begin(lambda seconds: not waits.append(time.sleep(0.1)), always)
        assert 2 <= len(waits) <= 20


def test_the_file_of_a_supervisor_that_was_killed_is_removed(tmp_path):
    child = os.fork()
    if child == 0:
        SupervisorHeartbeat(tmp_path, silent=30.0).__enter__().begin(lambda seconds: True, never)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert list((tmp_path / FOLDER_NAME).glob("supervisor-*"))
    with SupervisorHeartbeat(tmp_path, silent=30.0) as own:
        assert own.begin(lambda seconds: False, always), "it is not waited for"
    assert not (tmp_path / FOLDER_NAME).exists()


def test_a_time_limit_counts_from_the_start_of_the_supervisor(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    words = f"import os; open({str(tmp_path / 'began')!r}, 'w').write(os.environ['{FIRST_START}'])"
    supervisor = Supervisor([sys.executable, "-c", words], tmp_path / "run")
    monkeypatch.undo()
    assert supervisor.run() == 0
    assert (tmp_path / "began").read_text() == f"{this_host()} {os.getpid()} 1000.0"


@pytest.mark.outside(
    "https://github.com/snakemake/snakemake-executor-plugin-slurm/pull/411",
    "jobs that failed because of their node not to be started there again",
    "`supervise --requeue` leaves out hosts that caused two failures, other than full disks and wrong settings",
)
def test_hosts_at_fault_twice_are_left_out_of_a_requeued_job(tmp_path):
    for kind, host in [("killed", "n1"), ("hang", "n2"), ("killed", "n1"), ("disk full", "n3"), ("disk full", "n3")]:
        append_event(tmp_path, kind, "it", host=host, rank=0)
    append_event(tmp_path, "killed", "it", host="n1", rank=0)
    for _ in range(2):
        append_event(tmp_path, "error", "it", host="n4", rank=0)
    assert faulty_hosts(tmp_path) == ["n1", "n4"]


def test_a_run_that_a_supervisor_is_about_to_start_is_starting(tmp_path):
    append_event(tmp_path, "killed", "rank 1 was killed")
    with SupervisorHeartbeat(tmp_path, silent=30.0):
        assert RunObserver(tmp_path).look().state == "dead"
        append_event(tmp_path, "restart", "starts again in 40.0 s", delay=40.0)
        state = RunObserver(tmp_path).look()
        assert (state.state, state.reason) == ("starting", "supervised: starts again in 40.0 s")
        append_event(tmp_path, "give up", "5 failures in a row")
        assert RunObserver(tmp_path).look().state == "dead"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["supervise"], "no command; give it after --"),
        (["supervise", "--", "true"], "names no output_dir"),
        (
            ["supervise", "--max_failures", "0", "--output_dir", "RUN", "--", "true"],
            "max_failures is 0; expected 1 or",
        ),
        (["supervise", "--output_dir", "RUN", "--", "/no/such/program"], "/no/such/program: cannot be started"),
    ],
)
def test_a_wrong_command_is_refused_in_one_line(words, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([word.replace("RUN", str(tmp_path / "run")) for word in words])
    line = capsys.readouterr().err.strip()
    assert message in line
    assert line.startswith("error: ")


def test_a_wrong_setting_of_the_supervisor_is_refused():
    with pytest.raises(InputError, match=r"patience is -1; expected 0 or more"):
        SupervisionSettings(patience=-1.0)


def test_the_log_of_starts_has_no_secret_of_the_command(tmp_path):
    """The events of a run are read by others."""
    words = ["--hub_token", "mine-1", "--webhook=https://h/mine-2", "HF_TOKEN=mine-3", "https://me:mine-4@h/x"]
    assert Supervisor([sys.executable, "-c", "", *words], tmp_path, SupervisionSettings(**QUICK)).run() == 0
    (start, _) = read_events(tmp_path)
    assert "--hub_token <HUB_TOKEN>" in start["message"].replace("'", "")
    assert "mine" not in (tmp_path / "events.jsonl").read_text()


def test_a_request_that_comes_while_the_command_is_being_started_reaches_it(tmp_path, monkeypatch):
    begin = SupervisorHeartbeat.begin

    def asked_meanwhile(presence, *arguments):
        begins = begin(presence, *arguments)
        os.kill(os.getpid(), signal.SIGTERM)
        return begins

    monkeypatch.setattr(SupervisorHeartbeat, "begin", asked_meanwhile)
    assert Supervisor([sys.executable, "-c", "import time; time.sleep(3600)"], tmp_path).run() == 128 + signal.SIGTERM
