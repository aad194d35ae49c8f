"""One writer per folder: a running process keeps others out, a dead one does not."""

import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.runtime import lock as module
from hmm_datasets.runtime.heartbeat_file import FILE_BYTES, ProcessHeartbeat, read_heartbeat
from hmm_datasets.runtime.lock import LOCK_NAME, Holder, exclusive_lock

HOLD = """
import sys, time
from hmm_datasets.runtime.lock import exclusive_lock
with exclusive_lock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def hold(tmp_path, child_environment):
    """Another process that holds the lock of `tmp_path` for some seconds."""
    started = []

    def hold(seconds):
        command = [sys.executable, "-c", HOLD, str(tmp_path), str(seconds)]
        process = subprocess.Popen(command, env=child_environment, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def elsewhere(tmp_path):
    """A lock of a process on another machine, and a way to let it give a sign of life."""
    holder = Holder("node7", 4711, "another boot", 1.0, 0, time.time() - 300, "abc")
    path, numbers = tmp_path / LOCK_NAME, itertools.count(1)

    def beat():
        path.write_bytes(replace(holder, beat=next(numbers)).to_bytes())

    beat()
    return beat


@pytest.mark.thorough
def test_a_living_process_is_named_with_host_and_age_and_nothing_of_its_is_touched(tmp_path, hold, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.5)
    process = hold(60)
    content = (tmp_path / LOCK_NAME).read_bytes()
    with pytest.raises(InputError) as caught, exclusive_lock(tmp_path):
        pass
    message = str(caught.value)
    assert re.search(
        rf": process {process.pid} on {os.uname().nodename} has been writing there for [\d.]+ s; wait", message
    )
    assert f"end it (kill {process.pid})" in message
    assert (tmp_path / LOCK_NAME).read_bytes() == content


def test_the_lock_of_a_killed_process_is_taken_over_at_once(tmp_path, hold, monkeypatch):
    process = hold(60)
    process.kill()
    process.wait()
    monkeypatch.setattr(module, "_LOOK_EVERY", None)  # so that it cannot wait
    with exclusive_lock(tmp_path):
        assert json.loads((tmp_path / LOCK_NAME).read_text())["process"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_a_process_that_is_about_to_end_is_waited_for(tmp_path, hold):
    hold(1.0)
    with exclusive_lock(tmp_path):
        pass


def test_the_number_of_a_dead_process_that_another_has_now_says_nothing(tmp_path):
    ours = Holder.this_process()
    (tmp_path / LOCK_NAME).write_bytes(replace(ours, process_started=ours.process_started - 1.0).to_bytes())
    with exclusive_lock(tmp_path):
        pass


@pytest.mark.outside(
    "https://github.com/tox-dev/filelock/issues/526",
    "the lock of a process that died on another node of a cluster to be broken",
    "it is taken over after a minute without a heartbeat",
)
@pytest.mark.thorough
def test_a_silent_process_of_another_machine_is_taken_for_dead_after_the_silence(tmp_path, elsewhere, monkeypatch):
    monkeypatch.setattr(module, "SILENCE", 1.0)
    began = time.monotonic()
    with exclusive_lock(tmp_path):
        assert time.monotonic() - began >= 1.0


@pytest.mark.thorough
def test_a_process_of_another_machine_that_gives_signs_of_life_is_not(tmp_path, elsewhere):
    ended = threading.Event()

    def live():
        while not ended.wait(0.5):
            elsewhere()

    threading.Thread(target=live, daemon=True).start()
    expected = r"process 4711 on node7 has been writing there for 5.0 min; wait for it to end or end it there"
    with pytest.raises(InputError, match=expected), exclusive_lock(tmp_path):
        pass
    ended.set()
    assert (tmp_path / LOCK_NAME).exists()


@pytest.mark.thorough
def test_a_holder_gives_signs_of_life_and_ends_once_another_has_taken_over(tmp_path, child_environment):
    script = "import hmm_datasets.runtime.lock as module; module.BEAT_EVERY = 0.2\n" + HOLD
    command = [sys.executable, "-c", script, str(tmp_path), "60"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=child_environment, **streams) as process:
        assert process.stdout.readline() == "held\n"
        path = tmp_path / LOCK_NAME
        before = json.loads(path.read_text())
        time.sleep(1)
        assert json.loads(path.read_text())["beat"] > before["beat"]
        path.unlink()
        path.write_bytes(Holder("node7", 4711, "another boot", 1.0, 0, time.time(), "abc").to_bytes())
        _, errors = process.communicate(timeout=500)
    assert process.returncode == 1
    assert "process 4711 on node7 has taken this over" in errors


WRITES = """
import os, sys
from pathlib import Path
import numpy as np
import hmm_datasets.runtime.lock as module
from hmm_datasets import files
from hmm_datasets.runtime import heartbeats
from hmm_datasets.runtime.events import append_event
from hmm_datasets.text.stream import write_tokens

run, lock = Path(sys.argv[1]), Path(sys.argv[1], ".lock")
module._GONE_AFTER = 0.05
(run / "made").mkdir()
(run / "made" / "file").write_text("new")


def lose():
    lock.unlink()
    if sys.argv[2] == "taken over":
        lock.write_bytes(module.Holder("node7", 4711, "another boot", 1.0, 0, 0.0, "abc").to_bytes())


def within(context):
    with context(run / "new") as temporary:
        assert temporary.is_dir() or temporary.write_text("new")


def slowly():  # the lock is lost while a file is written, before its rename
    with files.atomic_file(run / "new") as temporary:
        temporary.write_text("new")
        lose()


def documents():
    yield np.arange(5)
    lose()
    yield np.arange(5)


stream = {"vocab_size": 9, "eos_id": 8, "tokenizer_hash": "", "corpus": "", "shard_tokens": 5}
during = {"a rename": slowly, "a token stream": lambda: write_tokens(documents(), run / "stream", **stream)}
before = {
    "atomic_file": lambda: within(files.atomic_file),
    "atomic_folder": lambda: within(files.atomic_folder),
    "written_together": lambda: within(files.written_together),
    "put_folder": lambda: files.put_folder(run / "made", run / "new"),
    "move_into": lambda: files.move_into(run / "made", run),
    "append_jsonl": lambda: files.append_jsonl(run / "history.jsonl", {"step": 7}),
    "overwrite": lambda: files.overwrite(run / "new", b"{}"),
    "append_event": lambda: append_event(run, "spike", "higher"),
    "heartbeat": lambda: heartbeats.HeartbeatWriter(run, every=60)._file.write_now(),
}
with module.exclusive_lock(run):
    content = lock.read_bytes()
    for name, write in {**during, **before}.items():
        child = os.fork()
        if child == 0:
            if name in before:
                lose()
            write()
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        lock.write_bytes(content)
        names = sorted(path.name for path in run.rglob("*") if "stream" not in str(path))
        print(code, *names, *run.glob("stream*/*.ds"), name, sep=" | ")
"""


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["taken over", "released"])
def test_a_holder_that_lost_its_lock_ends_before_its_next_write_of_any_kind(tmp_path, child_environment, how):
    """Also if the other has released it again since, so that there is no lock any more."""
    command = [sys.executable, "-c", WRITES, str(tmp_path), how]
    done = subprocess.run(command, env=child_environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 11
    assert {line.rpartition(" | ")[0] for line in lines} == {"1 | .lock | file | made"}, lines
    word = "process 4711 on node7 has taken this over" if how == "taken over" else "deleted, by hand or by another"
    assert (
        len(re.findall(rf"^error: .*: {word}.*; process \d+ ends, and writes nothing more$", done.stderr, re.M)) == 11
    )


def test_a_second_lock_in_one_process_is_refused_unless_nested(tmp_path):
    with exclusive_lock(tmp_path):
        with exclusive_lock(tmp_path, nested=True):
            pass
        assert (tmp_path / LOCK_NAME).exists()
        with pytest.raises(InputError, match="has been writing there"), exclusive_lock(tmp_path):
            pass
    assert not (tmp_path / LOCK_NAME).exists()


@pytest.mark.outside(
    "https://github.com/moxystudio/node-proper-lockfile/issues/121",
    "a process that was interrupted after it had found a stale lock to leave the lock of another that took it over",
    "it claims the lock that it has seen, finds another in its place, and takes the claim back",
)
def test_a_process_interrupted_after_it_found_a_dead_lock_leaves_the_next_one_alone(tmp_path, hold, monkeypatch):
    dead = replace(Holder.this_process(), process_started=1.0)
    (tmp_path / LOCK_NAME).write_bytes(dead.to_bytes())
    read, held = module._read, []

    def interrupted(path):
        content = read(path)
        if not held:
            held.append(hold(60))
        return content

    monkeypatch.setattr(module, "_read", interrupted)
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    monkeypatch.setattr(module, "_LOOK_EVERY", 0.01)
    with pytest.raises(InputError, match="has been writing there"), exclusive_lock(tmp_path):
        pass
    assert held[0].poll() is None
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_NAME]
    assert read_heartbeat(tmp_path / LOCK_NAME, Holder).process == held[0].pid


@pytest.mark.outside(
    "https://github.com/npm/lockfile/issues/4",
    "one of sixteen processes to take a stale lock over, however they are interrupted",
    "it is replaced in one step by the one that holds the lock of the lock",
)
def test_of_many_that_start_at_once_over_a_dead_lock_one_writes_at_a_time(tmp_path, hold, child_environment):
    """Each adds one to a number in a file by reading and writing it: none is lost.

    They wait up to 20 ms before each call that touches a lock, so that they come between the calls of one another.
    """
    dead = hold(60)
    dead.kill()
    dead.wait()
    count = tmp_path / "count"
    count.write_text("0")
    script = (
        "import random, sys, time; from pathlib import Path; from hmm_datasets.runtime.lock import exclusive_lock\n"
        "calls = {'open', 'os.rename', 'os.link', 'os.remove'}\n"
        "def delay(call, arguments):\n"
        "    if call in calls and '.lock' in str(arguments[0]):\n"
        "        time.sleep(random.random() / 50)\n"
        "sys.addaudithook(delay)\n"
        "with exclusive_lock(sys.argv[1]):\n"
        "    path = Path(sys.argv[1], 'count'); n = int(path.read_text())\n"
        "    time.sleep(0.2); path.write_text(str(n + 1))"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    processes = [subprocess.Popen(command, env=child_environment) for _ in range(8)]
    assert [process.wait(60) for process in processes] == [0] * 8
    assert count.read_text() == "8"
    assert sorted(path.name for path in Path(tmp_path).iterdir()) == ["count"]


def test_a_process_that_was_killed_while_it_took_a_lock_over_does_not_keep_the_next_out(tmp_path, monkeypatch):
    ours = Holder.this_process()
    dead, next_dead = (replace(ours, process_started=ours.process_started - 1, token=name) for name in "ab")
    (tmp_path / LOCK_NAME).write_bytes(dead.to_bytes())
    (tmp_path / f"{LOCK_NAME}.a").write_bytes(next_dead.to_bytes())
    monkeypatch.setattr(module, "_LOOK_EVERY", None)  # so that it cannot wait
    with exclusive_lock(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [LOCK_NAME]
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / LOCK_NAME).mkdir()
    with pytest.raises(InputError, match=r"\.lock: cannot be used .Is a directory."), exclusive_lock(tmp_path):
        pass


def test_a_lock_is_a_heartbeat_that_is_written_through_the_open_file(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BEAT_EVERY", 0.05)
    path = tmp_path / LOCK_NAME
    with exclusive_lock(tmp_path):
        first = path.read_bytes()
        assert read_heartbeat(path, ProcessHeartbeat).process == os.getpid()
        assert len(first) == FILE_BYTES
        aside = path.rename(tmp_path / "aside")
        time.sleep(0.3)
        assert not path.exists(), "it does not come back at a path from which another process has removed it"
        assert json.loads(aside.read_bytes())["beat"] > json.loads(first)["beat"]
