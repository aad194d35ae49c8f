"""Which rank is to blame, from heartbeats made up for every way in which a run can go wrong."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from hmm_datasets.operations.diagnosis import DEAD, HANGING, RUNNING, STARTING, Limits, Observer, diagnose
from hmm_datasets.process_state import machine_id, start_time
from hmm_datasets.runtime.heartbeat_writer import HeartbeatWriter
from hmm_datasets.runtime.rank_heartbeats import FOLDER_NAME, Heartbeat

LIMITS = Limits(silent=30, step=60, start=600, pause=900)


def beat_of(rank: int, *, world_size: int = 4, **changes) -> Heartbeat:
    """A heartbeat from another machine: two ranks per host, in the backward pass of step 50."""
    values = {
        "host": f"node{rank // 2}",
        "process": 100 + rank,
        "machine": f"machine {rank // 2}",
        "process_started": 1.0,
        "rank": rank,
        "world_size": world_size,
        "device": f"cuda:{rank % 2}",
        "started": 1000.0,
        "beat": 200,
        "phase": "backward",
        "phase_seconds": 0.3,
        "step": 50,
        "visits": 3,
        "longest": 1.0,
        "seconds": {"data": 0.01, "forward": 0.2, "backward": 0.4},
    }
    return Heartbeat(**values | changes)


def diagnosis(**changed):
    """Of four ranks, with the changes given for some, as `r2=...`; None for one that has not reported."""
    beats = [beat_of(rank) for rank in range(4)]
    for name, changes in changed.items():
        rank = int(name[1:])
        beats[rank] = None if changes is None else replace(beats[rank], **changes)
    return diagnose([beat for beat in beats if beat is not None], LIMITS)


def blamed(found) -> list[int]:
    return [rank.beat.rank for rank in found.blamed]


WAITS = {"phase_seconds": 100.0}


def test_a_run_whose_ranks_move_runs_and_nobody_is_blamed():
    found = diagnosis(r1={"step": 49, "phase": "optimizer"})
    assert (found.state, found.reason, found.blamed, found.slow) == (RUNNING, "", (), ())


@pytest.mark.outside(
    "https://github.com/NVIDIA/nccl/issues/968",
    "to find the node that makes all ranks wait in NCCL, where each looks alike",
    "`watch` and `supervise` name the rank, host and GPU that is behind the others in step and phase",
)
@pytest.mark.parametrize(
    ("behind", "phase"),
    [({"visits": 2, "phase": "forward"}, "forward"), ({"step": 49, "visits": 9, "phase": "optimizer"}, "optimizer")],
)
def test_of_ranks_that_all_wait_the_one_that_is_behind_is_blamed(behind, phase):
    found = diagnosis(r0=WAITS, r1=WAITS, r2=WAITS | behind, r3=WAITS)
    assert (found.state, blamed(found)) == (HANGING, [2])
    assert f"rank 2 on node1 (process 102, cuda:0) in phase {phase} of step" in found.reason
    assert "for 1.7 min; the others wait in phase backward of step 50" in found.reason


def test_where_all_ranks_wait_at_the_same_place_the_network_is_suspected():
    found = diagnosis(r0=WAITS, r1=WAITS, r2=WAITS, r3=WAITS)
    assert found.state == HANGING
    assert "all 4 ranks" in found.reason
    assert "network" in found.reason


def test_a_phase_may_take_ten_times_as_long_as_it_once_did():
    assert diagnosis(r0=WAITS | {"longest": 10.1}).state == RUNNING
    assert diagnosis(r0=WAITS | {"longest": 9.9}).state == HANGING
    assert diagnosis(r0={"phase": "saving", "phase_seconds": 890.0}).state == RUNNING
    assert diagnosis(r0={"phase": "evaluating", "phase_seconds": 910.0}).state == HANGING


def test_ranks_may_wait_for_one_that_compiles_and_it_may_not_compile_for_ever():
    compiles = {"phase": "forward", "visits": 2, "phase_seconds": 500.0, "compiling": 450.0}
    waits = {"phase_seconds": 490.0}
    assert diagnosis(r0=waits, r1=waits, r2=compiles, r3=waits).state == RUNNING
    found = diagnosis(r0=waits, r1=waits, r2=compiles | {"compiling": 420.0}, r3=waits)
    assert (found.state, blamed(found)) == (HANGING, [2])
    assert "in phase forward of step 50 for 8.3 min (compiling: 7.0 min)" in found.reason
    ever = compiles | {"phase_seconds": 700.0, "compiling": 699.0}
    assert diagnosis(r2=ever).state == HANGING, "the limit of compiling is that of the start, 600 s"


def test_work_of_unknown_length_hangs_only_once_a_step_of_it_is_known():
    works = {"phase": "working", "phase_seconds": 9000.0, "longest": 0.0}
    assert diagnosis(r0=works).state == RUNNING
    assert diagnosis(r0=works | {"longest": 100.0}).state == HANGING


def test_a_silent_rank_is_blamed_before_those_that_wait_for_it():
    found = diagnosis(r0=WAITS, r1=WAITS, r2={"age": 45.0}, r3=WAITS)
    assert (found.state, blamed(found)) == (HANGING, [2])
    assert "rank 2 on node1 (process 102, cuda:0) is silent for 45.0 s" in found.reason


def test_a_host_all_of_whose_ranks_are_silent_is_lost():
    found = diagnosis(r2={"age": 45.0}, r3={"age": 44.0})
    assert (found.state, blamed(found)) == (HANGING, [2, 3])
    assert found.reason.startswith("host node1 is lost or unreachable: all its 2 ranks are silent")


def test_a_rank_that_never_reported_is_named_and_so_is_what_the_others_do():
    waits = {"phase": "rendezvous", "step": None, "visits": 2}
    found = diagnosis(r0=waits, r1=None, r2=waits, r3=waits)
    assert (found.state, found.missing) == (STARTING, (1,))
    assert "not yet reported: rank 1" in found.reason
    waits |= {"phase_seconds": 700.0}
    found = diagnosis(r0=waits, r1=None, r2=waits, r3=waits)
    assert found.state == HANGING
    assert "rank 1 has never reported; the others wait for it: in phase rendezvous for 11.7 min" in found.reason


def test_a_run_is_starting_until_its_last_rank_has_opened_its_data():
    found = diagnosis(r1={"phase": "setup", "step": None})
    assert (found.state, found.reason) == (STARTING, "rank 1 is in phase setup for 0.3 s")


def test_the_first_rank_that_failed_is_blamed_and_not_those_that_lost_it():
    lost = {"phase": "failed", "message": "lost another process", "error": "LostPeer"}
    own = {"phase": "failed", "message": "step 50: the loss is nan"}
    found = diagnosis(r0=lost, r1=lost, r2=own, r3=lost)
    assert (found.state, blamed(found)) == (DEAD, [2])
    assert found.reason.endswith("failed: step 50: the loss is nan")
    found = diagnosis(r0=lost, r1={"age": 300.0}, r2=lost, r3=lost)
    assert (found.state, blamed(found)) == (DEAD, [1])
    found = diagnosis(r0=lost)
    assert (found.state, blamed(found)) == (HANGING, [0])
    assert "ended because another process had ended, which has not reported why: lost another process" in found.reason
    found = diagnosis(r2=own)
    assert (found.state, blamed(found)) == (HANGING, [2])
    assert "other ranks have not ended yet" in found.reason


def test_a_run_that_was_asked_to_stop_is_not_dead():
    stopped = {"phase": "stopped", "message": "SIGTERM"}
    found = diagnosis(r0=stopped, r1=stopped, r2=stopped, r3=stopped)
    assert found.state == "stopped"
    assert "SIGTERM; the same command continues" in found.reason


def test_a_rank_whose_own_work_takes_longer_is_slow_and_one_that_waits_is_not():
    found = diagnosis(r3={"seconds": {"data": 0.3, "forward": 0.25, "backward": 0.05}})
    assert [rank.beat.rank for rank in found.slow] == [3]
    assert "rank 3 on node1 (process 103, cuda:1) is slow: 0.55 s per step" in found.remark
    assert found.state == RUNNING
    assert diagnosis(r3={"seconds": {"data": 0.01, "forward": 0.21, "backward": 0.9}}).slow == ()


def test_clocks_that_differ_do_not_make_a_rank_silent(tmp_path):
    HeartbeatWriter(tmp_path, every=60)
    (path,) = (tmp_path / FOLDER_NAME).glob("*.json")
    content = path.read_text().replace(f'"machine": "{machine_id()}"', '"machine": "another"')
    assert "another" in content
    path.write_text(content)
    os.utime(path, (1.0, 1.0))  # by a clock that is decades behind
    observer = Observer(tmp_path, LIMITS)
    assert observer.look().ranks[0].condition == "silent"
    path.write_text(content.replace('"beat": 1,', '"beat": 2,'))
    os.utime(path, (1.0, 1.0))
    assert observer.look().ranks[0].condition == "beating"


def test_processes_on_this_machine_are_looked_up():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    here = {"machine": machine_id(), "process": child.pid, "process_started": start_time(child.pid), "age": 3600.0}
    try:
        assert diagnosis(r1=here).state == RUNNING
        child.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 10
        while (found := diagnosis(r1=here)).state == RUNNING:
            assert time.monotonic() < deadline
        assert (found.state, blamed(found)) == (HANGING, [1])
        assert (
            "is suspended (as by SIGSTOP), in phase backward of step 50, no heartbeat for 1 h 0 min; continue: "
            in (found.reason)
        )
        assert f"kill -CONT {child.pid}" in found.reason
        assert diagnosis(r1=here | {"process_started": here["process_started"] - 1}).ranks[1].condition == "gone"
    finally:
        child.kill()
        child.wait()
    found = diagnosis(r1=here)
    assert (found.state, blamed(found)) == (HANGING, [1])
    assert "exited silently" in found.reason
