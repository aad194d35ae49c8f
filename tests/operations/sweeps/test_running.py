"""Sweeps of real processes: killed at any time they go on, nothing runs twice, and nothing outlives them."""

import csv
import json
import os
import shutil
import signal
import time

import psutil
import pytest
import yaml

from hmm_datasets.operations.sweeps.cells import CellState, failure
from hmm_datasets.operations.sweeps.local import environments


def wait_for(condition, seconds=500.0):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited for too long"
        time.sleep(0.02)


def write_sweep(path, folder, **entries):
    """Twelve cells."""
    content = {
        "recipe": "stand-in",
        "output_dir": str(folder),
        "grid": {"a": [1, 2, 3], "b": [0, 1], "seed": [0, 1]},
        "table": {"values": ["value"]},
        **entries,
    }
    path.write_text(yaml.safe_dump(content))
    return path


def finished(folder):
    return [path.parent for path in folder.glob("*/cell.json") if CellState.read(path.parent).state == "finished"]


def processes_of(folder):
    """The processes that a sweep has started and that are alive: of its cells, and what they run."""
    alive = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(f"{folder}/" in word for word in words):
            alive.append(words)
    return alive


@pytest.mark.thorough
@pytest.mark.slow
def test_a_sweep_killed_twice_ends_as_one_that_was_not_and_runs_nothing_twice(tmp_path, start_sweep):
    folder, whole = tmp_path / "killed", tmp_path / "whole"
    path = write_sweep(tmp_path / "killed.yaml", folder)
    started_before = {}
    for count in (2, 7):
        sweep = start_sweep(path, "--jobs", 3)
        wait_for(lambda count=count: len(finished(folder)) >= count and len(processes_of(folder)) >= 3)
        started_before |= {cell: (cell / "run" / "started").read_text() for cell in finished(folder)}
        sweep.kill()
        sweep.communicate()
        wait_for(lambda: not processes_of(folder), seconds=3)
        assert len(finished(folder)) < 12
    undisturbed = start_sweep(write_sweep(tmp_path / "whole.yaml", whole), "--jobs", 6)
    output, _ = (sweep := start_sweep(path, "--jobs", 3)).communicate(timeout=500)
    assert sweep.returncode == 0, output
    assert "12 of 12 cells are finished." in output
    for cell in folder.glob("a=*"):
        # One more if the kill came after the program's end, but before it was recorded.
        assert 1 <= len((cell / "run" / "ended").read_text().splitlines()) <= CellState.read(cell).attempts
        assert len((cell / "run" / "steps").read_text().splitlines()) == 8, "a stopped cell continues"
    for cell, started in started_before.items():
        assert (cell / "run" / "started").read_text() == started, "a finished cell is not run again"
    attempts = [CellState.read(cell).attempts for cell in folder.glob("a=*")]
    assert 12 < sum(attempts) <= 12 + 2 * 3

    output, _ = undisturbed.communicate(timeout=500)
    assert undisturbed.returncode == 0, output
    assert (folder / "sweep.csv").read_text() == (whole / "sweep.csv").read_text()
    assert len(list(csv.DictReader((folder / "sweep.csv").open()))) == 12


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/wandb/wandb/issues/1787",
    "a grid of which the runs that were deleted are run again when it is resumed, which found nothing to do",
    "the same command runs the cell whose folder was deleted, and no other that is finished",
)
def test_a_stopped_sweep_stops_its_cells_and_the_same_command_continues(tmp_path, start_sweep):
    """Cells that fail once, three times and never; the sweep is stopped once a cell counts; then it goes on."""
    folder = tmp_path / "sweep"
    cells = [{"a": 1, "fails": 1}, {"a": 2, "fails": 3}, {"a": 3, "fails": 0}]
    path = write_sweep(tmp_path / "s.yaml", folder, cells=cells, grid=None, settings={"steps": 120})
    sweep = start_sweep(path, "--jobs", 3)
    try:
        wait_for(lambda: len(list(folder.glob("*/run/started"))) == 3)
        wait_for(lambda: CellState.read(folder / "a=2,fails=3").state == "failed")
        wait_for(lambda: CellState.read(folder / "a=1,fails=1").state == "failed")
        wait_for(lambda: (folder / "a=3,fails=0" / "run" / "steps").exists())
    finally:
        sweep.send_signal(signal.SIGTERM)
        output, _ = sweep.communicate(timeout=500)
    assert sweep.returncode == 128 + signal.SIGTERM
    assert not processes_of(folder)
    assert CellState.read(folder / "a=3,fails=0").state == "stopped"
    assert "a=1,fails=1: failed: error: attempt 1 fails" in output
    assert "the same command continues" in output

    output, _ = (sweep := start_sweep(path, "--jobs", 3)).communicate(timeout=500)
    assert sweep.returncode == 1
    assert "failed: a=2,fails=3: error: attempt 2 fails" in output
    assert f"{folder}/a=2,fails=3/log.txt" in output
    assert "2 of 3 cells are finished; 1 failed." in output
    report = json.loads((folder / "sweep.json").read_text())
    assert [cell["state"] for cell in report["cells"]] == ["finished", "failed", "finished"]

    shutil.rmtree(folder / "a=3,fails=0")
    output, _ = (sweep := start_sweep(path, "--jobs", 3)).communicate(timeout=500)
    assert CellState.read(folder / "a=3,fails=0").state == "finished", output
    assert CellState.read(folder / "a=1,fails=1").attempts == 2, "a finished cell is not run again"


def test_each_cell_has_a_gpu_of_its_own_and_cores_are_shared(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)

    def slots_of(num_gpus, jobs=None, processes=1, cells=1000):
        return environments(num_gpus, jobs=jobs, processes=processes, cells=cells)

    def devices_of(*arguments, **options):
        return [slot["CUDA_VISIBLE_DEVICES"] for slot in slots_of(*arguments, **options)]

    assert devices_of(4) == ["0", "1", "2", "3"]
    assert slots_of(4)[0]["OMP_NUM_THREADS"] == "4"
    assert devices_of(4, processes=2) == ["0,1", "2,3"]
    assert devices_of(2, jobs=4) == ["0", "1", "0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert devices_of(2)[1] == "7"
    assert len(slots_of(0, cells=12)) == 12
    assert slots_of(0, cells=100)[0]["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert len(slots_of(0)) == 4


def test_the_reason_of_a_failure_is_the_error_or_the_last_line(tmp_path):
    log = tmp_path / "log.txt"
    log.write_bytes(b"earlier\nerror: not found\nsome more\n 10%\r 20%\r\x1b[0m\n")
    assert failure(log, 0, 2) == "error: not found"
    assert failure(log, 27, 1) == "20%"
    assert failure(log, 27, -9) == "ended by signal 9 (Killed); last line: 20%"
    assert failure(log, log.stat().st_size, 1) == "it printed nothing"
