"""What processes write about themselves, and what is left of it."""

import json
import os
import subprocess
import sys
import time

import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.runtime import heartbeats
from hmm_datasets.runtime.heartbeat_writer import HeartbeatWriter
from hmm_datasets.runtime.rank_heartbeats import FOLDER_NAME, read_heartbeats


@pytest.fixture
def ranks(monkeypatch):
    """A function that sets the place of this process."""

    def place(rank: int, world_size: int) -> None:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world_size))

    return place


def until(condition, seconds: float = 500.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def test_a_file_says_who_does_what_since_when(tmp_path, ranks):
    ranks(1, 2)
    heart = HeartbeatWriter(tmp_path, every=0.01)
    heart.name_device("cpu")
    heart.enter("data", step=7)
    (beat,) = until(lambda: [one for one in read_heartbeats(tmp_path) if one.phase == "data" and one.device])
    assert (beat.rank, beat.world_size, beat.process, beat.step) == (1, 2, os.getpid(), 7)
    later = until(lambda: [one for one in read_heartbeats(tmp_path) if one.phase_seconds > 0.1])[0]
    assert later.beat > beat.beat
    assert later.place.startswith("rank 1 on ")
    heart.end()
    assert not (tmp_path / FOLDER_NAME).exists()


def test_rank_0_of_a_finished_run_leaves_nothing_of_earlier_starts(tmp_path, ranks):
    (tmp_path / "run.json").write_text("{}")
    heart = HeartbeatWriter(tmp_path, every=60)
    (tmp_path / FOLDER_NAME / "killed-1.json").write_text("{}")
    ranks(1, 2)
    other = HeartbeatWriter(tmp_path, every=60)
    ranks(0, 2)
    heart.end()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json"]
    ranks(1, 2)
    other._file.write_now()
    other.end()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json"]


@pytest.mark.thorough
def test_seconds_of_phases_are_means_per_step_without_the_first(tmp_path):
    heart = HeartbeatWriter(tmp_path, every=60)
    for step, (forward, backward) in enumerate([(0.3, 0.0), (0.04, 0.02), (0.08, 0.04)], start=1):
        heart.enter("data", step)
        heart.enter("forward")
        heart.count(100)
        time.sleep(forward)
        heart.enter("backward")
        time.sleep(backward)
    heart.enter("data", 4)
    heart.enter("backward")
    beat = heart._now(1)
    assert beat.seconds["forward"] == pytest.approx(0.06, abs=0.02)
    assert beat.seconds["backward"] == pytest.approx(0.03, abs=0.02)
    assert beat.longest == pytest.approx(0.04, abs=0.02)
    assert beat.tokens_per_second == pytest.approx(200 / 0.18, rel=0.3)
    heart.end()


def test_a_file_keeps_its_length_so_that_it_needs_no_room_on_a_full_disk(tmp_path):
    heart = HeartbeatWriter(tmp_path, every=60)
    path = next((tmp_path / FOLDER_NAME).glob("*.json"))
    length = path.stat().st_size
    for step in range(1, 100):
        heart.enter("forward", step)
    (tmp_path / "run.json").write_text("{}")
    heart.end("failed", "é\x01" * 5000)
    assert path.stat().st_size == length
    (beat,) = read_heartbeats(tmp_path)
    assert set(beat.message) == set("é\x01")


def test_a_refused_start_leaves_nothing_and_an_error_of_a_step_is_kept(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")

    def fail(folder, step=None, error=InputError):
        with heartbeats.heartbeat(folder):
            heartbeats.enter("setup", step)
            raise error("learning_rate is -1; expected a positive number")

    for name in ("new", "run"):
        with pytest.raises(InputError):
            fail(tmp_path / name)
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "run.json"]
    for given in ({"step": 4}, {"error": RuntimeError}):
        with pytest.raises((InputError, RuntimeError)):
            fail(tmp_path / "run", **given)
        (beat,) = read_heartbeats(tmp_path / "run")
        assert (beat.phase, beat.has_ended) == ("failed", True)
        assert beat.message == "learning_rate is -1; expected a positive number"


def test_a_supervisor_is_told_why_a_start_was_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HMM_DATASETS_SUPERVISED", "1")
    heart = HeartbeatWriter(tmp_path, every=60)
    heart.end("failed", "no such file", "InputError")
    (beat,) = read_heartbeats(tmp_path)
    assert beat.error == "InputError"


def test_outside_a_run_phases_are_ignored(tmp_path):
    heartbeats.enter("forward", 3)
    heartbeats.count(5)
    heartbeats.end("stopped", "reason")
    with heartbeats.during("saving"), heartbeats.heartbeat(None):
        pass
    assert not list(tmp_path.iterdir())


def test_a_phase_inside_another_ends_with_it(tmp_path):
    with heartbeats.heartbeat(tmp_path / "run"):
        heartbeats.enter("optimizer", 4)
        with heartbeats.heartbeat(tmp_path / "other"), heartbeats.during("saving"):
            assert heartbeats._writer._phase == "saving"
        assert heartbeats._writer._phase == "optimizer"
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "other").exists()


def test_of_each_rank_the_newest_start_is_read_and_ranks_beyond_the_world_are_not(tmp_path, ranks):
    ranks(0, 2)
    HeartbeatWriter(tmp_path, every=60)
    (path,) = (tmp_path / FOLDER_NAME).glob("*.json")
    newest = json.loads(path.read_text())
    for name, changes in {
        "old": {"rank": 1, "world_size": 4, "started": newest["started"] - 900, "process": 1},
        "older": {"rank": 3, "world_size": 4, "started": newest["started"] - 900, "process": 3},
        "same": {"rank": 0, "world_size": 4, "started": newest["started"] - 900, "process": 2},
    }.items():
        path.with_name(f"{name}.json").write_text(json.dumps(newest | changes))
    path.with_name("torn.json").write_text('{"rank": 0, "wor')
    assert [(beat.rank, beat.process) for beat in read_heartbeats(tmp_path)] == [(0, os.getpid()), (1, 1)]


def test_rank_0_removes_the_files_of_an_earlier_start_only(tmp_path):
    heart = HeartbeatWriter(tmp_path, every=60)
    (path,) = (tmp_path / FOLDER_NAME).glob("*.json")
    fresh, old = path.with_name("fresh.json"), path.with_name("old.json")
    for other in (fresh, old):
        other.write_bytes(path.read_bytes())
    os.utime(old, (time.time() - 100, time.time() - 100))
    heart.forget_earlier()
    assert sorted(path.parent.iterdir()) == sorted([path, fresh])


def test_the_latest_start_is_known_after_a_clock_was_an_hour_ahead(tmp_path, ranks):
    ranks(0, 2)
    first = HeartbeatWriter(tmp_path, every=60)
    (path,) = (tmp_path / FOLDER_NAME).glob("*.json")
    values = json.loads(path.read_text())
    assert values["start"] == 1
    first._file.end()
    later = time.time() + 3600
    for rank in range(4):  # four ranks of a start that was killed while the clock was ahead
        killed = path.with_name(f"old-{rank}.json")
        changes = {"rank": rank, "world_size": 4, "process": 2**22 + rank, "started": later, "time": later, "start": 4}
        killed.write_text(json.dumps(values | changes))
        os.utime(killed, (later, later))
    heart = HeartbeatWriter(tmp_path, every=60)
    assert heart._now(1).start == 5
    found = read_heartbeats(tmp_path)
    assert [(beat.rank, beat.world_size) for beat in found] == [(0, 2), (1, 4)]
    assert found[0].process == os.getpid()
    heart.forget_earlier()
    assert [beat.process for beat in read_heartbeats(tmp_path)] == [os.getpid()]
    heart.end()


def test_a_start_has_the_same_number_on_all_ranks(tmp_path, ranks):
    ranks(1, 2)
    HeartbeatWriter(tmp_path, every=60)
    (path,) = (tmp_path / FOLDER_NAME).glob("*.json")
    values = json.loads(path.read_text())
    other = path.with_name("other-7.json")
    other.write_text(json.dumps(values | {"rank": 0, "machine": "another", "process": 7, "start": 3}))
    assert HeartbeatWriter(tmp_path, every=60)._now(1).start == 3, "it was written just now, so its process runs"
    os.utime(other, (time.time() - 100, time.time() - 100))
    assert HeartbeatWriter(tmp_path, every=60)._now(1).start == 4


@pytest.mark.parametrize(
    "change",
    [
        {"world_size": 10**30},
        {"world_size": 10**9},
        {"rank": -1},
        {"rank": 2},
        {"rank": 0.5},
        {"step": "7"},
        {"phase": "flying"},
        {"phase_seconds": float("nan")},
        {"phase_seconds": 10**400},
        {"seconds": {"data": None}},
        {"started": float("inf")},
        {"host": 7},
        {"process": True},
    ],
    ids=str,
)
def test_a_heartbeat_with_impossible_values_is_not_read(tmp_path, ranks, change):
    ranks(0, 2)
    HeartbeatWriter(tmp_path, every=60)
    (path,) = (tmp_path / FOLDER_NAME).glob("*.json")
    assert read_heartbeats(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert read_heartbeats(tmp_path) == []


def test_a_killed_process_leaves_its_last_heartbeat(tmp_path, child_environment):
    program = (
        "import sys, time; from hmm_datasets.runtime import heartbeats\n"
        "with heartbeats.heartbeat(sys.argv[1]):\n"
        "    heartbeats.enter('data', 12); print('in', flush=True)\n"
        "    heartbeats._writer._file.write_now(); time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, env=child_environment)
    child.stdout.readline()
    until(lambda: [beat for beat in read_heartbeats(tmp_path) if beat.step == 12])
    child.kill()
    child.wait()
    (beat,) = read_heartbeats(tmp_path)
    assert (beat.process, beat.phase, beat.step, beat.has_ended) == (child.pid, "data", 12, False)
