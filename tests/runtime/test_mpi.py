"""Ranks that mpiexec starts, directly and through the batch file for PBS."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BATCH_FILES = sorted((ROOT / "recipes" / "pbs").glob("*.pbs"))
HOST = socket.gethostname()
MPIEXECS = {"Open MPI": "mpiexec.openmpi", "MPICH": "mpiexec.hydra"}
"""Debian's names of the programs; elsewhere there is one of the name `mpiexec`."""


def mpiexec(name):
    program = shutil.which(MPIEXECS[name])
    if program is None:
        pytest.skip(f"needs {name} (Debian: openmpi-bin, mpich)")
    return program


@pytest.fixture
def environment(child_environment):
    """The environment in which Open MPI also runs for root, on fewer cores than ranks."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    allowed = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe")
    return child_environment | {"PATH": path, "GLOO_SOCKET_IFNAME": "lo"} | dict.fromkeys(allowed, "1")


@pytest.fixture
def recipe(tmp_path):
    """A short pretraining run."""
    from hmm_datasets.hmm import processes

    processes.mess3(0.15, 0.6).save_pretrained(tmp_path / "mess3")
    return [
        *("recipes/pretrain.py", "--hmm", tmp_path / "mess3", "--length", 16, "--model", "1m", "--max_steps", 2),
        *("--num_test_sequences", 8, "--global_batch_size", 4, "--per_device_train_batch_size", 2),
        *("--logging_steps", 1, "--output_dir", tmp_path / "run"),
    ]


def run(command, environment, timeout=500):
    command = list(map(str, command))
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)


def places_in(text):
    """The places that ranks printed, without their process ids."""
    return sorted(line.rpartition(",")[0] for line in text.splitlines() if line.startswith("rank "))


@pytest.mark.parametrize("path", BATCH_FILES, ids=lambda path: path.stem)
def test_a_batch_file_of_pbs_parses(path):
    subprocess.run(["bash", "-n", path], check=True)


@pytest.mark.thorough
def test_ranks_that_mpiexec_starts_are_ranks_of_a_run_and_print_their_places(
    environment, recipe, warm_python, tmp_path
):
    environment |= {"HMM_DATASETS_PRINT_PLACES": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = run([mpiexec("Open MPI"), "-n", 2, warm_python, *recipe], environment)
    assert result.returncode == 0, result.stderr[-3000:]
    assert places_in(result.stderr) == [
        f"rank {rank} of 2: local rank {rank}, host {HOST}, device CPU" for rank in (0, 1)
    ]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["world_size"] == 2


@pytest.mark.thorough
@pytest.mark.parametrize("name", MPIEXECS)
def test_preflight_runs_under_mpiexec(name, environment, warm_python, tmp_path):
    quick = ("--min_disk_gib", 0, "--timeout", 100)
    command = [mpiexec(name), "-n", 2, warm_python, "-m", "hmm_datasets.commands.preflight", tmp_path, *quick]
    result = run(command, environment)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "preflight of 2 ranks on 1 host: a run can start" in result.stdout


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", MPIEXECS)
def test_the_batch_file_of_pbs_starts_a_launcher_on_each_machine(name, environment, recipe, tmp_path):
    """As PBS starts it, on two machines that are both this one."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "mpiexec"
    program.write_text(f'#!/bin/sh\nexec {mpiexec(name)} "$@"\n')  # MPICH looks for its helpers beside itself
    program.chmod(0o755)
    nodes = tmp_path / "nodes"
    nodes.write_text("localhost\nlocalhost\n127.0.0.1\n127.0.0.1\n")
    environment |= {
        "PATH": os.pathsep.join([str(tmp_path / "bin"), environment["PATH"]]),
        **{"PBS_NODEFILE": str(nodes), "PBS_JOBID": "4321.server", "PBS_O_WORKDIR": str(ROOT), "GPUS": "1"},
        **{"RUN": " ".join(map(str, recipe)), "CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"},
    }
    result = run(["bash", BATCH_FILES[0]], environment)
    assert result.returncode == 0, result.stderr[-3000:]
    assert places_in(result.stderr) == [f"rank {rank} of 2: local rank 0, host {HOST}, device CPU" for rank in (0, 1)]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["world_size"] == 2
