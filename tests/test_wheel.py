"""The wheel is self-contained: installed into a new environment, it works from an empty folder."""

import json
import os
import shlex
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest

from hmm_datasets.hmm import processes

pytest.importorskip("hatchling", reason="the wheel is built by hatchling, of the extra dev")
pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[1]
TINY = ("--length", 8, "--model", "1m", "--max_steps", 2, "--global_batch_size", 4, "--per_device_train_batch_size", 2)

MAMBA = (*TINY[:2], *TINY[4:])


class Installed:
    """An environment with the wheel, which borrows everything else from the one that runs the tests.

    Attributes:
        folder (`Path`): of the environment.
        wheel (`Path`): what was installed.
    """

    def __init__(self, root: Path):
        self.folder = root / "environment"
        self._home = root / "home"
        build = (sys.executable, "-m", "pip", "-q", "wheel", "--no-deps", "--no-build-isolation", "-w", root, ROOT)
        subprocess.run(list(map(str, build)), check=True, cwd=root)
        (self.wheel,) = root.glob("*.whl")
        venv.create(self.folder)
        # Without the others in sight: pip would take the one that is installed there for this one's predecessor.
        target = self.folder / "bin" / "python"
        subprocess.run(
            [sys.executable, "-m", "pip", "-q", "--python", target, "install", "--no-deps", "--no-index", self.wheel],
            check=True,
            env=os.environ | {"PYTHONPATH": ""},
        )
        self.packages = Path(sysconfig.get_path("purelib", vars={"base": str(self.folder)}))
        borrowed = [entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
        (self.packages / "borrowed.pth").write_text("\n".join(borrowed))

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a shell in which the environment is active."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        programs = os.pathsep.join([str(self.folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
        return environment | {
            **{"PATH": programs, "OMP_NUM_THREADS": "1"},
            **{"HF_HOME": str(self._home), "HF_HUB_OFFLINE": "1"},
        }

    def run(self, cwd: Path, *arguments: object, timeout: float = 500) -> subprocess.CompletedProcess:
        """`hmm-datasets ARGUMENTS` in a folder; fails where that fails."""
        command = [str(self.folder / "bin" / "hmm-datasets"), *map(str, arguments)]
        result = subprocess.run(
            command, cwd=cwd, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert result.returncode == 0, f"{result.stdout[-3000:]}\n{result.stderr[-5000:]}"
        return result


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Installed:
    return Installed(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def folder(tmp_path) -> Path:
    """Empty but for sequences to fit to."""
    np.save(tmp_path / "tokens.npy", processes.mess3(0.15, 0.6).sample(60, 16))
    return tmp_path


def test_the_wheel_carries_every_shipped_file_but_pictures_and_the_commands_find_them(installed, tmp_path):
    assert installed.wheel.stat().st_size < 3_000_000
    said = installed.run(tmp_path, "configs").stdout
    shipped = installed.packages / "hmm_datasets" / "shipped"
    for name in ("recipes", "accelerate_configs", "ds_configs", "model_cards"):
        there = {path.relative_to(shipped) for path in (shipped / name).rglob("*") if path.is_file()}
        kept = (path for path in (ROOT / name).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        assert {path.relative_to(ROOT) for path in kept if path.suffix != ".png"} <= there
        assert not [path for path in there if path.suffix == ".png"]
    for expected in ("demo/pretrain_hmm.yaml", "zero3.json", "leaky-tokenizer", "  cpu2\n"):
        assert expected in said
    assert not os.listdir(tmp_path)


def test_a_run_on_eight_ranks_under_zero_3_is_planned_and_its_batch_file_copied(installed, tmp_path):
    """The first hour of an engineer with Slurm, from an installed wheel."""
    installed.run(tmp_path, "configs", "copy", "slurm/one_node.sbatch")
    assert "#SBATCH" in (tmp_path / "slurm" / "one_node.sbatch").read_text()
    installed.run(tmp_path, "configs", "copy", "zero3")
    run = ("pretrain", "--hmm", "mess3", "--launch", "zero3", "--num_processes", 8)
    flags = ("--config", "demo/pretrain_hmm.yaml", "--per_device_train_batch_size", 8, "--optimizer", "adamw")
    plan = json.loads(installed.run(tmp_path, "plan", *run, *flags, "--json").stdout)
    assert plan["tokens"] >= 1_300_000
    assert plan["memory"]["zero3"]["total"] < plan["memory"]["ddp"]["total"]


def test_modules_come_from_the_environment_of_the_wheel(installed, tmp_path):
    program = (
        "import hmm_datasets.cli, hmm_datasets.training.settings, sys;"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('hmm_datasets')), sep='\\n')"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    python = installed.folder / "bin" / "python"
    result = subprocess.run(
        [python, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert all(Path(line).is_relative_to(installed.packages) for line in result.stdout.split())


@pytest.mark.slow
def test_use_and_reproduce_of_a_card_run_as_written(installed, tmp_path):
    command = "hmm-datasets pretrain --hmm mess3 --model mamba.json --output_dir run " + " ".join(map(str, MAMBA))
    (tmp_path / "mamba.json").write_text('{"model_type": "mamba", "hidden_size": 8, "num_hidden_layers": 1}')
    installed.run(tmp_path, *shlex.split(command)[1:])
    card = (tmp_path / "run" / "README.md").read_text()
    assert card.split("```sh\n")[1].partition("\n```")[0] == command, "which has just been run"
    use = card.split("```python\n")[1].partition("\n```")[0].replace("USER/NAME", str(tmp_path / "run"))
    program = f"{use}\nprint(model.num_parameters())"
    python = installed.folder / "bin" / "python"
    result = subprocess.run([python, "-c", program], env=installed.environment, capture_output=True, text=True)
    assert result.stdout.split(), result.stderr


# Slurm's programs as far as a batch file uses them, on two nodes that are both this machine.
STUBS = {
    "srun": """out=; while [ "$1" != bash ]; do case "$1" in --output=*) out="${1#--output=}";; esac; shift; done
for node in 0 1; do
    SLURM_NODEID=$node SLURMD_NODENAME=n$node "$@" > "$(echo "$out" | sed "s/%x-%j-%N/pretrain-7-n$node/")" 2>&1 &
done
code=0; for job in $(jobs -p); do wait $job || code=$?; done; exit $code""",
    "scontrol": """
if [ "$2" = hostnames ]; then echo n0; sleep 0.3; echo n1; else echo "  NodeAddr=127.0.0.1 Port=6818"; fi""",
    "squeue": "echo 10:00",
}


@pytest.mark.slow
def test_a_copied_batch_file_trains_on_a_fitted_hmm_on_two_nodes_from_the_installed_files_alone(installed, folder):
    """Under FSDP2, which has no configuration of its own for several machines."""
    installed.run(folder, "fit", "tokens.npy", "--num_states", 3, "--max_epochs", 2, "--output_dir", "fit")
    installed.run(folder, "configs", "copy", "slurm/many_nodes.sbatch")
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for name, text in STUBS.items():
        (bin_folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (bin_folder / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[0-1]", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_ON_NODE": "1"}
    environment = installed.environment | job | {"CONFIG": "fsdp2", "GLOO_SOCKET_IFNAME": "lo"}
    environment["PATH"] = f"{bin_folder}{os.pathsep}{environment['PATH']}"
    command = ["bash", "slurm/many_nodes.sbatch", "pretrain", "--hmm", "fit/hmm", "--output_dir", "run"]
    command += ["--log_indices", *map(str, TINY)]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
    logs = "".join(path.read_text() for path in folder.glob("pretrain-7-n?.out"))
    assert result.returncode == 0, result.stderr[-2000:] + logs[-5000:]
    assert "run: finished; the job is not put back" in result.stdout
    assert logs.count("supervise: finished: finished") == 2
    record = json.loads((folder / "run" / "run.json").read_text())
    assert record["world_size"] == 2
    assert record["command"].startswith("hmm-datasets pretrain --hmm fit/hmm")
    assert record["commit"] is None
    assert (folder / "run" / "model.safetensors").is_file()
    card = (folder / "run" / "README.md").read_text()
    assert card.startswith("---\n"), "the template of cards was found"
    assert str(ROOT) not in result.stdout + result.stderr + logs + json.dumps(record)


@pytest.mark.slow
def test_zero_2_starts_with_the_deepspeed_file_of_the_wheel(installed, folder):
    pytest.importorskip("deepspeed")
    processes.mess3(0.15, 0.6).save_pretrained(folder / "hmm")
    installed.run(folder, "pretrain", "--launch", "zero2", "--hmm", "hmm", "--output_dir", "run", *TINY, timeout=500)
    assert json.loads((folder / "run" / "run.json").read_text())["world_size"] == 2
    assert (folder / "run" / "model.safetensors").is_file()


@pytest.mark.slow
def test_the_demo_runs_from_an_empty_folder(installed, tmp_path):
    said = installed.run(tmp_path, "demo", timeout=1500).stdout
    assert os.listdir(tmp_path) == ["outputs"]
    assert (tmp_path / "outputs" / "demo" / "report.json").is_file()
    assert "optimal loss <= model <= unigram <= uniform: in order" in said
    assert str(ROOT) not in said
