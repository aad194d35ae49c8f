"""Recipes are tested as users start them: as programs, under `accelerate launch` where there are several processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Program:
    """Runs recipes from the root of the checkout, in a quiet environment of its own."""

    def __init__(self, python: str, environment: dict[str, str], run_to_end):
        self.root = ROOT
        self._run_to_end = run_to_end
        self.python = python
        self.environment = {
            **environment,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "TOKENIZERS_PARALLELISM": "false",
        }

    def run(self, *arguments: object, timeout: float = 500, **environment: str) -> subprocess.CompletedProcess:
        """`python ARGUMENTS`."""
        command = [self.python, *map(str, arguments)]
        return self._run_to_end(command, timeout, cwd=ROOT, env=self.environment | environment)

    def launch(self, config: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess:
        """`accelerate launch --config_file accelerate_configs/CONFIG.yaml arguments`."""
        launcher = ("-m", "accelerate.commands.accelerate_cli", "launch")
        return self.run(*launcher, "--config_file", f"accelerate_configs/{config}.yaml", *arguments, **environment)


@pytest.fixture(scope="session")
def program(warm_python, child_environment, run_to_end) -> Program:
    return Program(warm_python, child_environment, run_to_end)


@pytest.fixture(scope="session")
def hmm_folder(tmp_path_factory) -> Path:
    from hmm_datasets.hmm import processes

    folder = tmp_path_factory.mktemp("hmm") / "random"
    processes.random(6, 10, alpha=0.3, seed=1).save_pretrained(folder)
    return folder


def succeeded(result: subprocess.CompletedProcess) -> subprocess.CompletedProcess:
    """The result, or a failure that shows what the program said."""
    assert result.returncode == 0, f"{result.stdout[-3000:]}\n{result.stderr[:6000]}\n...\n{result.stderr[-3000:]}"
    return result


@pytest.fixture(scope="session", name="succeeded")
def succeeded_fixture():
    return succeeded
