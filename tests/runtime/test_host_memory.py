"""Memory of the host, or of the container, in heartbeats and in the state of a run."""

import os

import psutil
import pytest

from hmm_datasets.operations.run_state import RunObserver, format_state
from hmm_datasets.report.curves import panels_of
from hmm_datasets.runtime.heartbeat_writer import HeartbeatWriter
from hmm_datasets.runtime.host_memory import SHARED, read_host_memory

MIB = 1 << 20


def test_the_limit_of_a_control_group_counts_without_the_cache_of_files(tmp_path):
    total = psutil.virtual_memory().total
    assert read_host_memory(tmp_path).total == total
    (tmp_path / "memory.max").write_text("max\n")
    assert read_host_memory(tmp_path).total == total
    for name, text in (("max", "1000"), ("current", "700"), ("stat", "anon 300\ninactive_file 250\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    memory = read_host_memory(tmp_path)
    assert (memory.used, memory.total) == (450, 1000)


@pytest.mark.outside(
    "https://github.com/pytorch/pytorch/issues/1355",
    "to see that /dev/shm fills up before workers of a DataLoader wait for ever",
    "heartbeats, `watch` and the history have /dev/shm and the host's memory; a run draws them",
)
def test_what_fills_shared_memory_is_shown(tmp_path):
    if not os.path.isdir(SHARED):
        pytest.skip(f"no {SHARED} here")
    before = read_host_memory().shared_used
    path = f"{SHARED}/test-{os.getpid()}"
    writer = HeartbeatWriter(tmp_path, every=60)
    try:
        with open(path, "wb") as file:
            file.write(os.urandom(8 * MIB))
        writer._file.write_now()
        state = RunObserver(tmp_path).look()
    finally:
        os.unlink(path)
        writer.end()
    memory = state.diagnosis.ranks[0].beat.memory
    assert memory.shared_used >= before + 4 * MIB
    assert 0 < memory.used < memory.total
    header, _, line = format_state(state).splitlines()[-3:]
    assert header.split()[-4:] == ["memory", "/dev/shm", "beat", "phase"]
    assert line.split()[:2] == [state.diagnosis.ranks[0].beat.host, "0"]
    assert f"{memory.used / memory.total:.0%}  " in line
    assert f"{memory.shared_used / memory.shared_total:.0%}  " in line


def test_memory_of_the_host_is_drawn():
    rows = [{"tokens": 10 * n, "host_memory": n * 2.0**30, "shared_memory": 2.0**29} for n in range(1, 4)]
    (panel,) = panels_of(rows)
    assert panel.name == "host_memory"
    assert [list(curve.values) for curve in panel.curves] == [[1.0, 2.0, 3.0], [0.5, 0.5, 0.5]]
