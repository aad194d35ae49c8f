"""Recipes are tested as users start them: as programs, under `accelerate launch` where there are several processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


_ONE_AFTER_ANOTHER = """
import contextlib, io, json, runpy, sys
printed = {}
for name, command in json.loads(sys.argv[1]).items():
    sys.argv = command
    with contextlib.redirect_stdout(io.StringIO()) as output:
        runpy.run_path(command[0], run_name="__main__")
    printed[name] = output.getvalue()
print(json.dumps(printed))
"""


class Program:
    """Runs recipes from the root of the checkout, in a quiet environment of its own."""

    def __init__(self, home: Path):
        self.root = ROOT
        self.environment = {
            **os.environ,
            "HF_HOME": str(home),
            "OMP_NUM_THREADS": "1",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "TOKENIZERS_PARALLELISM": "false",
        }

    def run(self, *arguments: object, timeout: float = 300, **environment: str) -> subprocess.CompletedProcess:
        """`python arguments`."""
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(
            command,
            cwd=ROOT,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def run_in_one_process(self, commands: dict[str, tuple], **environment: str) -> dict[str, str]:
        """What programs printed, by name, run one after another in a process that imports their libraries once."""
        words = {name: [str(word) for word in command] for name, command in commands.items()}
        result = succeeded(self.run("-c", _ONE_AFTER_ANOTHER, json.dumps(words), timeout=500, **environment))
        return json.loads(result.stdout.splitlines()[-1])

    def launch(self, config: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess:
        """`accelerate launch --config_file accelerate_configs/CONFIG.yaml arguments`."""
        launcher = ("-m", "accelerate.commands.accelerate_cli", "launch")
        return self.run(*launcher, "--config_file", f"accelerate_configs/{config}.yaml", *arguments, **environment)


@pytest.fixture(scope="session")
def program(tmp_path_factory) -> Program:
    return Program(tmp_path_factory.mktemp("hf_home"))


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
