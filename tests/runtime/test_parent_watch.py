"""A program ends with the launcher that started it, and outlives a shell that did."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

PROGRAM = """
import os, sys, time
from dataclasses import dataclass
from pathlib import Path
from hmm_datasets.runtime.parent_watch import end_with_launcher

end_with_launcher()
folder = Path(sys.argv[1])
(folder / f"pid-{os.getpid()}").touch()
(folder / ".half-written").mkdir(exist_ok=True)
from hmm_datasets.files import unfinished
with unfinished(folder / ".half-written"):
    while not (folder / "go").exists():
        time.sleep(0.05)
(folder / f"done-{os.getpid()}").touch()
"""


def wait_for(condition, seconds=500.0):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited for too long"
        time.sleep(0.05)


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def processes(folder):
    return [int(path.name.split("-")[1]) for path in folder.glob("pid-*")]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("module", "flags", "count"),
    [
        ("torch.distributed.run", ["--nproc_per_node", "2", "--master_port", "0"], 2),
        ("accelerate.commands.accelerate_cli", ["launch", "--num_processes", "1", "--cpu"], 1),
    ],
)
def test_the_processes_of_a_killed_launcher_end_and_leave_nothing_half_written(
    module, flags, count, program, tmp_path, child_environment
):
    command = [sys.executable, "-m", module, *flags, str(program), str(tmp_path)]
    with subprocess.Popen(command, env=child_environment, stderr=subprocess.DEVNULL) as launcher:
        wait_for(lambda: len(processes(tmp_path)) == count)
        ranks = [psutil.Process(number) for number in processes(tmp_path)]
        launcher.kill()
        gone, alive = psutil.wait_procs(ranks, timeout=300)
        for process in alive:
            process.kill()
    assert len(gone) == count
    assert not (tmp_path / ".half-written").exists()
    assert not list(tmp_path.glob("done-*"))


# tmux keeps its programs in a session of their own, as setsid does.
@pytest.mark.thorough
@pytest.mark.parametrize("prefix", ["", "nohup ", "setsid ", "env TORCHELASTIC_X=1 ACCELERATE_USE_CPU=true "])
def test_a_program_started_from_a_shell_outlives_it(prefix, program, tmp_path, child_environment):
    command = f"{prefix}{sys.executable} {program} {tmp_path} >/dev/null 2>&1 & sleep 60"
    shell = subprocess.Popen(command, shell=True, env=child_environment, start_new_session=True)
    wait_for(lambda: processes(tmp_path))
    (number,) = processes(tmp_path)
    shell.kill()
    shell.wait()
    if prefix in ("nohup ", "setsid "):
        os.killpg(shell.pid, signal.SIGHUP)  # as a terminal that is closed does
    time.sleep(1.5)  # three looks
    assert psutil.pid_exists(number)
    (tmp_path / "go").touch()
    wait_for(lambda: (tmp_path / f"done-{number}").exists(), 500)


@pytest.mark.thorough
def test_a_command_that_another_program_starts_is_not_taken_for_a_lost_rank(tmp_path, child_environment):
    """The command line of `timeout` names the command, but `timeout` is not its launcher."""
    command = tmp_path / "hmm-datasets"
    words = "from hmm_datasets.runtime.parent_watch import end_with_launcher\nend_with_launcher()\nprint('runs')\n"
    command.write_text(f"#!{sys.executable}\n{words}")
    command.chmod(0o755)
    result = subprocess.run(["timeout", "60", command], env=child_environment, capture_output=True, text=True)
    assert (result.stdout, result.stderr, result.returncode) == ("runs\n", "", 0)


FORKS = """
import multiprocessing, sys, time
from hmm_datasets.runtime.parent_watch import end_forks_with_this_process

if __name__ == "__main__":
    end_forks_with_this_process()
    pools = [multiprocessing.get_context(method).Pool(2) for method in ("fork", "forkserver")]
    manager = multiprocessing.get_context("fork").Manager()
    for pool in pools:
        pool.map(abs, range(8))
    print("started", flush=True)
    time.sleep(60)
"""


@pytest.mark.outside(
    "https://github.com/dask/distributed/issues/1322",
    "after a kernel was killed, its fork servers and workers stay for ever",
    "workers, managers and fork servers of a recipe end with it within a second",
)
@pytest.mark.thorough
def test_the_workers_of_a_killed_program_end_with_it(tmp_path, child_environment):
    path = tmp_path / "forks.py"
    path.write_text(FORKS)
    child = subprocess.Popen([sys.executable, path], env=child_environment, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "started\n"
    children = psutil.Process(child.pid).children(recursive=True)
    assert len(children) >= 6
    child.kill()
    child.wait()
    wait_for(lambda: not any(one.is_running() and one.status() != "zombie" for one in children), 500)
