"""When a launcher is killed, its ranks end within seconds, and the same command can resume at once."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from killed_run import GLOBAL_BATCH, train
from safetensors.torch import load_file

from hmm_datasets.files import read_jsonl
from hmm_datasets.hmm.processes import mess3
from hmm_datasets.training.settings import PretrainSettings

pytestmark = pytest.mark.thorough

SETTINGS = {"global_batch_size": GLOBAL_BATCH, "save_steps": 7, "eval_steps": 5, "eval_strategy": "steps"}
SETTINGS |= {"save_total_limit": 2, "logging_steps": 1, "learning_rate": 1e-4, "report_to": "none"}
SETTINGS |= {"log_indices": True, "lr_scheduler_type": "constant"}
MICRO_BATCH = {1: 6, 2: 3, 3: 4}  # by the number of processes


class Launch:
    """`accelerate launch` of `killed_run.py`, and the ranks it started."""

    def __init__(self, program, folder, processes, max_steps):
        flags = {"output_dir": folder / "run", "max_steps": max_steps, **SETTINGS}
        flags["per_device_train_batch_size"] = MICRO_BATCH[processes]
        self.processes = processes
        self.phases = folder / f"phases-{time.monotonic_ns()}"
        self.log = folder / "log.txt"
        launcher = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--config_file"]
        config = f"accelerate_configs/cpu{min(processes, 2)}.yaml"
        script = str(Path(__file__).with_name("killed_run.py"))
        words = [str(word) for name, value in flags.items() for word in (f"--{name}", value)]
        self.process = subprocess.Popen(
            [*launcher, config, "--num_processes", str(processes), script, *words],
            cwd=program.root,
            env=program.environment | {"PHASES": str(self.phases), "STEP_SECONDS": "0.15"},
            stdout=self.log.open("a"),
            stderr=subprocess.STDOUT,
        )

    def phase(self):
        """The last phase of the ranks."""
        last = [path.read_text().split("\n")[-2] for path in self.phases.parent.glob(f"{self.phases.name}-*")]
        order = ["import", "rendezvous", "building", "training", "evaluation", "saving", "saving the model"]
        return min(last, key=order.index) if len(last) == self.processes else "launcher"

    def kill(self):
        """Kill only the launcher; return its ranks."""
        ranks = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        return ranks


def seconds_until_gone(processes, began):
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert not alive, alive
    return time.monotonic() - began


@pytest.mark.parametrize(
    "kills",
    [pytest.param(2, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.slow)],
)
def test_however_often_the_launcher_is_killed_every_row_is_trained_on_once_per_step(kills, program, tmp_path):
    chance = random.Random(7)
    max_steps = 400 if kills == 20 else 24
    rows = []
    mess3(0.15, 0.6).save_pretrained(tmp_path / "hmm")
    launch = Launch(program, tmp_path, 2, max_steps)
    for number in range(kills):
        moment = chance.uniform(0.5, 18.0) if kills > 2 else (3.0, 9.0)[number]
        time.sleep(moment)
        phase, began, before = launch.phase(), time.monotonic(), launch.processes
        if launch.process.poll() is not None:
            break  # it was finished
        ranks = launch.kill()
        launch = Launch(program, tmp_path, chance.choice([1, 2, 3]), max_steps)
        gone = seconds_until_gone(ranks, began)
        steps = [int(path.name.split("-")[1]) for path in (tmp_path / "run").glob("checkpoint-*")]
        rows.append([number + 1, before, f"{moment:.1f}", phase, f"{gone:.1f}", max(steps, default="-")])
        assert gone < 5, "the ranks end within seconds"
    assert launch.process.wait(600) == 0, launch.log.read_text()[-3000:]
    print("\nkill  ranks  after s  phase             ranks gone after s  checkpoint then")
    for row in rows:
        print("{:>4}  {:>5}  {:>7}  {:<16}  {:>18}  {}".format(*row))

    folder = tmp_path / "run"
    trained = {}
    for path in folder.glob("indices-*.jsonl"):
        for row in read_jsonl(path):
            trained.setdefault(row["step"], []).extend(row["indices"])
    expected = {step + 1: list(range(GLOBAL_BATCH * step, GLOBAL_BATCH * (step + 1))) for step in range(max_steps)}
    assert {step: sorted(indices) for step, indices in sorted(trained.items())} == expected
    steps = [row["step"] for row in read_jsonl(folder / "history.jsonl") if "loss" in row]
    assert steps == list(range(1, max_steps + 1)), "the history never goes back"
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == [], "nothing half-written is left"

    given = SETTINGS | {"log_indices": False, "save_strategy": "no", "eval_strategy": "no"}
    train(
        PretrainSettings(str(tmp_path / "undisturbed"), max_steps=max_steps, per_device_train_batch_size=12, **given)
    )
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("run", "undisturbed")]
    difference = max((weights[0][name] - weights[1][name]).abs().max().item() for name in weights[1])
    print(f"largest difference of a weight from the undisturbed run: {difference:.1e}")
    assert difference < 2e-5
