"""Ranks, supervisors and locks write one format of heartbeats."""

import os
import threading
import time
from dataclasses import asdict

import pytest

from hmm_datasets.runtime.heartbeat_file import FILE_BYTES, HeartbeatFile, ProcessHeartbeat, read_heartbeat
from hmm_datasets.runtime.heartbeat_writer import HeartbeatWriter
from hmm_datasets.runtime.lock import exclusive_lock
from hmm_datasets.runtime.process_identity import this_process
from hmm_datasets.runtime.supervisors import SupervisorHeartbeat


def test_heartbeats_go_on_after_errors_of_the_disk_and_stop_at_the_end(tmp_path):
    numbers, third = [], threading.Event()

    def record(number):
        numbers.append(number)
        if number == 2:
            raise OSError("the disk is away")
        if number == 3:
            third.set()
        return ProcessHeartbeat(**asdict(this_process()), beat=number)

    file = HeartbeatFile(tmp_path / "made" / "file", record, 0.01, "test-heartbeat")
    file.write_now()
    assert numbers == [1], "the thread has not begun"
    file.start()
    assert third.wait(10)
    file.end()
    assert file.has_ended
    written = len(numbers)
    time.sleep(0.05)
    assert numbers == list(range(1, written + 1))
    assert read_heartbeat(tmp_path / "made" / "file", ProcessHeartbeat).beat == written


def test_a_rank_a_supervisor_and_a_lock_are_read_by_one_reader(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with exclusive_lock(tmp_path), SupervisorHeartbeat(tmp_path, silent=1.0):
        rank = HeartbeatWriter(tmp_path, every=60)
        files = [tmp_path / ".lock", *(tmp_path / ".heartbeats").iterdir()]
        assert len(files) == 3
        for path in files:
            record = read_heartbeat(path, ProcessHeartbeat)
            assert (record.process, record.is_alive_here) == (os.getpid(), True)
            assert path.stat().st_size == FILE_BYTES
        rank.end()


@pytest.mark.parametrize("content", [b"", b'{"host": "a", "proc', b"[]", b'{"host": "a"}', b"\xff" * 9])
def test_what_is_no_heartbeat_is_not_read(content):
    assert read_heartbeat(content, ProcessHeartbeat) is None
