"""Sweeps as arrays of submitit: parameters, and cells that are run by its local executor in place of Slurm's."""

import os
import threading
import time
from dataclasses import replace

import psutil
import pytest
import yaml

from hmm_datasets.errors import InputError
from hmm_datasets.operations.sweeps import slurm
from hmm_datasets.operations.sweeps.cells import CellState, prepare, read_states
from hmm_datasets.operations.sweeps.file import read_sweep


@pytest.mark.outside(
    "https://github.com/facebookincubator/submitit/issues/23",
    "further parameters of Slurm, which ended in a NameError",
    "the error names the file and the parameters that there are; `slurm_additional_parameters` takes any other",
)
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"slurm_comment": "a\nrm -rf x"}, "has control characters; leave them out"),
        ({"slurm_additional_parameters": {"wckey": "a\nrm -rf x"}}, "has control characters; leave them out"),
        ({"acount": "main"}, r"sweep\.yaml: slurm: Parameter 'acount' need"),
        ({"timeout_min": "soon"}, r"sweep\.yaml: slurm: "),
    ],
)
def test_wrong_parameters_are_refused(sweep, parameters, message):
    pytest.importorskip("submitit")
    with pytest.raises(InputError, match=message):
        slurm.submit(replace(sweep, file=replace(sweep.file, slurm=parameters)), prepare(sweep), {}, cluster="local")


@pytest.fixture
def sweep(tmp_path, stand_in):
    path = tmp_path / "sweep.yaml"
    content = {"recipe": "stand-in", "output_dir": str(tmp_path / "sweep"), "settings": {"steps": 10}}
    content["slurm"] = {"timeout_min": 5, "slurm_array_parallelism": 2}
    content["cells"] = [{"a": 1, "fails": 0}, {"a": 2, "fails": 1}, {"a": 3, "fails": 9}]
    path.write_text(yaml.safe_dump(content))
    return read_sweep(path)


@pytest.mark.thorough
def test_elements_run_cells_and_only_what_is_unfinished_and_not_queued_is_submitted(
    sweep, sweep_environment, monkeypatch
):
    pytest.importorskip("submitit")
    for name, value in sweep_environment.items():
        monkeypatch.setenv(name, value)
    jobs = slurm.submit(sweep, prepare(sweep), {}, cluster="local")
    assert list(jobs) == ["a=1,fails=0", "a=2,fails=1", "a=3,fails=9"]
    monkeypatch.setattr(slurm, "run_slurm", lambda *command: "\n".join(map(str, psutil.pids())))  # in place of squeue
    assert slurm.queued_cells(sweep) == jobs
    assert slurm.submit(sweep, prepare(sweep), jobs, cluster="local") == {}, "all are queued"
    wait_for_end(jobs)
    states = read_states(sweep)
    assert [states[name].state for name in jobs] == ["finished", "failed", "failed"]
    assert [states[name].attempts for name in jobs] == [1, 1, 1]
    assert len((sweep.cells[0].output_dir / "ended").read_text().splitlines()) == 1

    assert slurm.queued_cells(sweep) == {}
    jobs = slurm.submit(sweep, prepare(sweep), {}, cluster="local")
    assert list(jobs) == ["a=2,fails=1", "a=3,fails=9"]
    wait_for_end(jobs)
    states = read_states(sweep)
    assert [(states[name].state, states[name].attempts) for name in jobs] == [("finished", 2), ("failed", 2)]


@pytest.mark.outside(
    "https://github.com/facebookincubator/submitit/issues/1732",
    "a job that runs a command to be requeued at its time limit",
    "the cell saves, stops and continues in another job",
)
@pytest.mark.thorough
def test_an_element_that_is_about_to_end_lets_its_cell_stop_and_goes_on_later(sweep, sweep_environment, monkeypatch):
    pytest.importorskip("submitit")
    for name, value in sweep_environment.items():
        monkeypatch.setenv(name, value)
    prepare(sweep)
    cell = sweep.cells[0]
    job = slurm.CellJob(cell.folder)
    running = threading.Thread(target=job)
    running.start()
    deadline = time.monotonic() + 30
    while not (cell.output_dir / "steps").exists():
        assert time.monotonic() < deadline, (cell.folder / "log.txt").read_text()
        time.sleep(0.05)
    again = job.checkpoint().function
    running.join(30)
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
    odd = replace(sweep, file=replace(sweep.file, output_dir=str(tmp_path / "a\ntouch ran\n")))
    with pytest.raises(InputError, match="has control characters"):
        slurm.submit(odd, prepare(sweep), {}, cluster="local")
