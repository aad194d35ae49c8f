"""The batch file for PBS, whose launchers mpiexec starts."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BATCH_FILES = sorted((ROOT / "recipes" / "pbs").glob("*.pbs"))
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


@pytest.mark.parametrize("path", BATCH_FILES, ids=lambda path: path.stem)
def test_a_batch_file_of_pbs_parses(path):
    subprocess.run(["bash", "-n", path], check=True)


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
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["world_size"] == 2
