"""The start script of a rented machine, run with programs that record how they were called."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "recipes" / "rented" / "start.sh"
RECORD = '#!/bin/bash\necho "$(basename "$0") $* IB=$NCCL_IB_DISABLE" >> "$RECORDED"\n'
PROGRAMS = {
    "python3": RECORD + 'mkdir -p "$3/bin"; cp "$STUBS/pip" "$STUBS/hmm-datasets" "$3/bin"\n',
    "pip": RECORD,
    "hmm-datasets": RECORD + 'if [ "$1" = preflight ]; then exit "${PREFLIGHT:-0}"; fi\n',
    "nvidia-smi": '#!/bin/bash\nfor n in $GPUS; do echo "GPU $n: NVIDIA GeForce RTX 4090 (UUID: GPU-$n)"; done\n',
    "tmux": '#!/bin/bash\nif [ "$1" = has-session ]; then exit "${NO_SESSION:-1}"; fi\n'
    + RECORD.partition("\n")[2]
    + 'while [ "$1" != env ]; do shift; done\nexec "$@"\n',
}


@pytest.fixture
def start(tmp_path):
    stubs, box = tmp_path / "stubs", tmp_path / "box"
    stubs.mkdir()
    box.mkdir()
    for name, text in PROGRAMS.items():
        (stubs / name).write_text(text)
        (stubs / name).chmod(0o755)
    recorded = tmp_path / "recorded"
    plain = {"PATH": f"{stubs}:/usr/bin:/bin", "STUBS": str(stubs), "RECORDED": str(recorded), "GPUS": "0 1"}

    def start(**variables):
        recorded.write_text("")
        command = ["bash", SCRIPT, "pretrain", "--config", "my settings.yaml"]
        result = subprocess.run(command, cwd=box, env=plain | variables, capture_output=True, text=True)
        return result, recorded.read_text().splitlines()

    return start


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/TrelisResearch/one-click-llms/pull/18",
    "rented GPUs that do not hang while NCCL looks for InfiniBand",
    "`recipes/rented/start.sh` sets NCCL_IB_DISABLE where there is none, checks the machine, and starts in tmux",
)
def test_the_start_script_installs_once_checks_the_machine_and_starts_in_tmux(start, tmp_path):
    wheel = tmp_path / "box" / "hmm_datasets-0.2.0-py3-none-any.whl"
    wheel.touch()
    result, calls = start(OUTPUT_DIR="outputs/run", TORCH_INDEX="https://example.org/cu126", HF_TOKEN="secret")
    assert result.returncode == 0, result.stderr
    infiniband = Path("/sys/class/infiniband")
    without = "" if infiniband.is_dir() and os.listdir(infiniband) else "1"
    ranks = "--launch ddp --num_processes 2"
    run = f"pretrain --config my settings.yaml {ranks} --output_dir outputs/run"
    assert calls[:3] == [
        "python3 -m venv .venv IB=",
        "pip install torch --index-url https://example.org/cu126 IB=",
        f"pip install {wheel.name} IB=",
    ]
    assert calls[3] == f"hmm-datasets preflight outputs/run {ranks} IB={without}"
    assert calls[4].startswith("tmux new-session -d -s run env ")
    assert "secret" not in calls[4]
    assert calls[5] == f"hmm-datasets supervise -- .venv/bin/hmm-datasets {run} IB={without}"
    assert "touch outputs/run/stop" in result.stdout
    _, calls = start(OUTPUT_DIR="outputs/run", NCCL_IB_DISABLE="0", CONFIG="zero2")
    assert [call.split()[0] for call in calls] == ["hmm-datasets", "tmux", "hmm-datasets"]
    assert calls[0].endswith("--launch zero2 --num_processes 2 IB=0")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("variables", "error"),
    [
        ({}, "OUTPUT_DIR: set it: the folder of the run"),
        ({"OUTPUT_DIR": "run", "GPUS": ""}, "nvidia-smi lists no GPU on this machine"),
        ({"OUTPUT_DIR": "run", "NO_SESSION": "0"}, "a tmux session run is there already"),
        ({"OUTPUT_DIR": "run", "PREFLIGHT": "1"}, ""),
    ],
)
def test_the_start_script_starts_nothing_on_a_machine_that_is_not_ready(start, variables, error):
    result, calls = start(**variables)
    assert result.returncode == 1
    assert error in result.stderr
    assert not any(call.startswith("tmux") for call in calls)
