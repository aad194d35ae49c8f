"""Ranks of processes that MPI started, from the variables that each MPI sets."""

import itertools
import os
import subprocess
import sys

import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.runtime import environment

OURS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture
def take(monkeypatch):
    """Take the rank from given variables; returns what is missing, and the variables of torch."""

    def take(**variables):
        for name in list(os.environ):
            if name in OURS or name.startswith(("OMPI_", "PMI_", "MPI_", "MV2_", "SLURM_")):
                monkeypatch.delenv(name)
        for name in OURS:  # so that they are gone after the test
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        missing = environment.read_mpi_variables()
        return missing, {name: os.environ[name] for name in OURS if name in os.environ}

    return take


OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
MPICH = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
MVAPICH = ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE")
CRAY = ("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE")


@pytest.mark.parametrize("names", [OPEN_MPI, MPICH, MVAPICH, CRAY], ids=["Open MPI", "MPICH", "MVAPICH", "Cray"])
def test_each_mpi_tells_the_rank(take, names):
    missing, found = take(**dict(zip(names, ("3", "4", "3", "4"), strict=True)))
    assert missing is None
    assert found == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "3",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }


def test_ranks_on_several_hosts_need_the_address_of_rank_0(take):
    variables = dict(zip(OPEN_MPI, ("5", "8", "1", "4"), strict=True))
    missing, _ = take(**variables)
    assert missing.startswith("OMPI_COMM_WORLD_SIZE is 8, on several hosts, and MASTER_ADDR is not set; export it")
    missing, found = take(**variables, MASTER_ADDR="node0", MASTER_PORT="1234")
    assert missing is None
    assert (found["RANK"], found["LOCAL_RANK"]) == ("5", "1")
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("node0", "1234")


def test_tasks_of_srun_are_ranks_and_a_single_one_is_not(take):
    variables = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_NODES": "1"}
    missing, found = take(**variables)
    assert missing is None
    assert (found["RANK"], found["WORLD_SIZE"], found["MASTER_ADDR"]) == ("1", "2", "127.0.0.1")
    assert take(**variables | {"SLURM_STEP_NUM_TASKS": "1"}) == (None, {})


def test_what_a_launcher_of_torch_has_set_is_left(take):
    variables = dict(zip(OPEN_MPI, ("1", "2", "0", "1"), strict=True))
    assert take(**variables, RANK="9", WORLD_SIZE="16") == (None, {"RANK": "9", "WORLD_SIZE": "16"})


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"])
@pytest.mark.parametrize("text", ["abc", "", "-1", "1.5", "0x1", "1e3", " 1"])
def test_a_variable_of_a_launcher_that_is_no_number_is_refused_by_its_name(name, text, take):
    with pytest.raises(InputError) as caught:
        take(**{"RANK": "0", "WORLD_SIZE": "2"} | {name: text})
    assert str(caught.value).startswith(f"the variable {name} is {text!r}; expected an integer, 0 or more")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rank", "size", "local_rank", "local_size"),
    list(itertools.product([None, 0, 1, 3], [None, 0, 1, 4], [None, 0, 1], [None, 1])),
)
def test_one_process_is_rank_0_or_the_variables_are_refused(rank, size, local_rank, local_size, take):
    values = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": local_size}
    variables = {name: str(value) for name, value in values.items() if value is not None}
    most, most_here = (1 if size is None else size), local_size
    most_here = most if most_here is None else most_here
    if (rank or 0) < most and (local_rank or 0) < most_here:
        take(**variables)
        assert environment.rank() < environment.world_size() == most
    else:
        with pytest.raises(InputError, match="expected a rank less than the number of ranks"):
            take(**variables)


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
