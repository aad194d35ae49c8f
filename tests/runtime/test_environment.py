"""Variables of launchers: a rank is one of several, and processes without ranks are refused."""

import itertools
import os
import subprocess
import sys

import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.runtime import environment

OURS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture
def check(monkeypatch):
    """Check the variables of a process that has the given ones."""

    def check(**variables):
        for name in list(os.environ):
            if name in OURS or name.startswith(("OMPI_", "PMI_", "MPI_", "MV2_", "SLURM_")):
                monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        environment.check_alone()

    return check


@pytest.mark.outside(
    "https://github.com/Lightning-AI/pytorch-lightning/pull/15011",
    "jobs of Slurm that hang because of variables that srun has set",
    "refused before it waits for others: `the variable SLURM_STEP_NUM_TASKS is 4, so mpiexec or srun started ...`",
)
@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_one_of_several_processes_without_a_launcher_is_refused(name, check):
    with pytest.raises(InputError, match=f"the variable {name} is 4, so mpiexec or srun started several processes"):
        check(**{name: "4"})
    check(**{name: "1"})
    check(**{name: "4"}, RANK="9", WORLD_SIZE="16", LOCAL_RANK="1")
    assert (environment.rank(), environment.world_size()) == (9, 16)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"])
@pytest.mark.parametrize("text", ["abc", "", "-1", "1.5", "0x1", "1e3", " 1"])
def test_a_variable_of_a_launcher_that_is_no_number_is_refused_by_its_name(name, text, check):
    with pytest.raises(InputError) as caught:
        check(**{"RANK": "0", "WORLD_SIZE": "2"} | {name: text})
    assert str(caught.value).startswith(f"the variable {name} is {text!r}; expected an integer, 0 or more")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rank", "size", "local_rank", "local_size"),
    list(itertools.product([None, 0, 1, 3], [None, 0, 1, 4], [None, 0, 1], [None, 1])),
)
def test_one_process_is_rank_0_or_the_variables_are_refused(rank, size, local_rank, local_size, check):
    values = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": local_size}
    variables = {name: str(value) for name, value in values.items() if value is not None}
    most, most_here = (1 if size is None else size), local_size
    most_here = most if most_here is None else most_here
    if (rank or 0) < most and (local_rank or 0) < most_here:
        check(**variables)
        assert environment.rank() < environment.world_size() == most
    else:
        with pytest.raises(InputError, match="expected a rank less than the number of ranks"):
            check(**variables)


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/meta-llama/llama/issues/391",
    "start one process with `RANK=1` set by hand",
    "refused before it waits for others: `the variable RANK is 1, but WORLD_SIZE is not set; ...`",
)
@pytest.mark.parametrize("words", [["describe", "mess3"], ["fit", "x.npy"], ["preflight"]])
def test_every_command_refuses_a_rank_without_a_number_of_ranks(words, tmp_path):
    variables = {name: value for name, value in os.environ.items() if name not in OURS} | {"RANK": "1"}
    command = [sys.executable, "-m", "hmm_datasets.cli", *words]
    ended = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "the variable RANK is 1, but WORLD_SIZE is not set" in ended.stderr
    assert not list(tmp_path.iterdir())
