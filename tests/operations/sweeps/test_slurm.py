"""Sweeps as arrays of submitit: parameters, and cells that are run by its local executor in place of Slurm's."""

import os
import sys
import time
from dataclasses import replace

import pytest
import yaml

from hmm_datasets.errors import InputError
from hmm_datasets.operations.sweeps import slurm
from hmm_datasets.operations.sweeps.cells import CellState, prepare, read_states
from hmm_datasets.operations.sweeps.file import read_sweep


def test_parameters_of_sbatch_are_read():
    found = slurm.parse_parameters("partition=a,gres=gpu:h100:1,time=1-12,array_parallelism=4,--cpus-per-task=8")
    assert found == {
        "timeout_min": 36 * 60,
        "array_parallelism": 4,
        "additional_parameters": {"partition": "a", "gres": "gpu:h100:1", "cpus_per_task": "8"},
    }
    assert slurm.parse_parameters("time=UNLIMITED") == {"additional_parameters": {"time": "UNLIMITED"}}
    assert slurm.parse_parameters("nodelist=a,b,c")["additional_parameters"] == {"nodelist": "a,b,c"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("comment=a\nrm -rf x", "expected NAME=VALUE without control characters"),
        ("partition", "'partition' is not NAME=VALUE"),
        ("time=soon", "time is 'soon'; expected a time such as 02:00:00"),
        ("array_parallelism=all", "array_parallelism is 'all'; expected a number"),
        ("array=0-1", "--slurm array=0-1: the sweep sets it itself; array_parallelism=N limits the cells at a time"),
        ("partition=a,--arr=0", "--slurm --arr=0: the sweep sets it itself"),
        ("signal=USR1@5", "signal=USR1@5: the sweep sets it itself; .* signal_delay_s=SECONDS is how long before"),
        ("open-mode=truncate", "open-mode=truncate: the sweep sets it itself"),
    ],
)
def test_wrong_parameters_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        slurm.parse_parameters(text)


@pytest.fixture
def sweep(tmp_path, stand_in):
    path = tmp_path / "sweep.yaml"
    content = {"recipe": "stand-in", "output_dir": str(tmp_path / "sweep"), "settings": {"steps": 10}}
    content["cells"] = [{"a": 1, "fails": 0}, {"a": 2, "fails": 1}, {"a": 3, "fails": 9}]
    path.write_text(yaml.safe_dump(content))
    return read_sweep(path)


def test_without_submitit_the_remedy_is_named(sweep, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(InputError, match=r"pip install 'hmm-datasets\[slurm\]'"):
        slurm.submit(sweep, prepare(sweep), {})


@pytest.mark.launch
def test_elements_run_cells_and_only_what_is_unfinished_and_not_queued_is_submitted(
    sweep, sweep_environment, monkeypatch
):
    pytest.importorskip("submitit")
    for name, value in sweep_environment.items():
        monkeypatch.setenv(name, value)
    jobs = slurm.submit(sweep, prepare(sweep), {"timeout_min": 5}, cluster="local")
    assert list(jobs) == ["a=1,fails=0", "a=2,fails=1", "a=3,fails=9"]
    assert slurm.submit(sweep, prepare(sweep), {}, cluster="local") == {}, "all are queued"
    wait_for_end(jobs)
    states = read_states(sweep)
    assert [states[name].state for name in jobs] == ["finished", "failed", "failed"]
    assert [states[name].attempts for name in jobs] == [1, 1, 1]
    assert len((sweep.cells[0].output_dir / "ended").read_text().splitlines()) == 1

    jobs = slurm.submit(sweep, prepare(sweep), {"timeout_min": 5}, cluster="local")
    assert list(jobs) == ["a=2,fails=1", "a=3,fails=9"]
    wait_for_end(jobs)
    states = read_states(sweep)
    assert [(states[name].state, states[name].attempts) for name in jobs] == [("finished", 2), ("failed", 2)]


@pytest.mark.outside(
    "https://github.com/facebookincubator/submitit/issues/1732",
    "a job that runs a command to be requeued at its time limit",
    "the cell saves, stops and continues in another job",
)
@pytest.mark.launch
def test_an_element_that_is_about_to_end_lets_its_cell_stop_and_goes_on_later(sweep, sweep_environment, monkeypatch):
    pytest.importorskip("submitit")
    for name, value in sweep_environment.items():
        monkeypatch.setenv(name, value)
    prepare(sweep)
    cell = sweep.cells[0]
    job = slurm.CellJob(cell.folder)
    job._process = slurm.start_cell(cell.folder, {})
    deadline = time.monotonic() + 30
    while not (cell.output_dir / "steps").exists():
        assert time.monotonic() < deadline, (cell.folder / "log.txt").read_text()
        time.sleep(0.05)
    again = job.checkpoint().function
    assert CellState.read(cell.folder).state == "stopped"
    assert again() == "finished"
    assert len((cell.output_dir / "steps").read_text().splitlines()) == 10


def wait_for_end(jobs):
    """Wait for the processes of a local executor, which are children of this one."""
    for job in jobs.values():
        os.waitpid(int(job), 0)


def test_a_folder_with_a_line_end_does_not_become_a_line_of_a_script(sweep, tmp_path):
    """Its name stands in the comments at the head of the script that Slurm runs."""
    pytest.importorskip("submitit")
    odd = replace(sweep, output_dir=tmp_path / "a\ntouch ran\n")
    with pytest.raises(InputError, match="name one without control characters"):
        slurm._executor(odd, "slurm", {})
