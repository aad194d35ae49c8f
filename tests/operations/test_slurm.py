"""The batch files of recipes/slurm/ under a local Slurm: a controller and two nodes, all on this machine."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest
import yaml

from hmm_datasets.runtime.events import read_events
from hmm_datasets.runtime.rank_heartbeats import read_heartbeats

ROOT = Path(__file__).resolve().parents[2]
BATCH_FILES = [
    path for folder in ("slurm", "pbs", "rented") for path in sorted((ROOT / "recipes" / folder).glob("*.*"))
]
DAEMONS = ("slurmctld", "slurmd")

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
MailProg=/bin/true
ReturnToService=2
SlurmctldPort=26817
NodeName=n[0-1] NodeHostname={host} NodeAddr=127.0.0.1 Port=[26820-26821] CPUs=2
PartitionName=main Nodes=ALL Default=YES
"""


@pytest.mark.parametrize("path", BATCH_FILES, ids=lambda path: path.stem)
def test_a_batch_file_parses(path):
    subprocess.run(["bash", "-n", path], check=True)


@pytest.mark.parametrize("path", BATCH_FILES, ids=lambda path: path.stem)
def test_no_program_of_a_batch_file_is_killed_by_a_reader_that_ends_early(path):
    """Under `pipefail`, `scontrol | head -n 1` ends the job with 141 whenever head is the faster one."""
    code = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    assert "pipefail" in code
    assert not re.search(r"\|\s*(head\b|grep\s+-\w*[qm]|sed\s.*q\b)", code)


class Slurm:
    """Submits jobs, each with a log of its own, and waits for them."""

    def __init__(self, folder, environment):
        self.folder, self.environment = folder, environment

    def run(self, *command, timeout=500, **environment):
        result = subprocess.run(
            list(map(str, command)),
            cwd=ROOT,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    def submit(self, name, *arguments, **environment):
        # No GPUs here: one process a node.
        log = self.folder / f"{name}-%a.out" if name == "chain" else self.folder / f"{name}.out"
        return self.run(
            *("sbatch", "--parsable", "--gpus-per-node=0", "--output", log),
            *(
                *arguments[: arguments.index("--")],
                f"recipes/slurm/{name}.sbatch",
                *arguments[arguments.index("--") + 1 :],
            ),
            **{"LOGS": str(self.folder)} | environment,
        )

    def states(self, job):
        return self.run("squeue", "-h", "-j", job, "--states=all", "--array", "-o", "%T").split()

    def wait(self, job, timeout=500):
        """The states a job and its array end in."""
        deadline = time.monotonic() + timeout
        while not {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"}.isdisjoint(self.states(job)):
            assert time.monotonic() < deadline, self.said()
            time.sleep(1)
        return self.states(job)

    def said(self):
        logs = {path: path.read_text(encoding="utf-8", errors="replace") for path in sorted(self.folder.glob("*.out"))}
        return "\n".join(f"{path}:\n{text[-3000:]}" for path, text in logs.items())


@pytest.fixture(scope="module")
def slurm(tmp_path_factory, child_environment):
    missing = [name for name in ("sbatch", "srun", *DAEMONS) if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs Slurm (Debian: slurm-wlm) and root; missing: {', '.join(missing) or 'root'}")
    folder = tmp_path_factory.mktemp("slurm")
    path = folder / "slurm.conf"
    path.write_text(CONFIGURATION.format(host=socket.gethostname().split(".")[0], folder=folder))
    (folder / "state").mkdir()
    bin_folder = str(Path(sys.executable).parent)
    environment = child_environment | {"SLURM_CONF": str(path), "GLOO_SOCKET_IFNAME": "lo"}
    environment["PATH"] = os.pathsep.join([bin_folder, environment["PATH"]])
    daemons = []
    try:
        for command in (["slurmctld", "-D"], ["slurmd", "-D", "-N", "n0"], ["slurmd", "-D", "-N", "n1"]):
            daemons.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )
        slurm = Slurm(folder, environment)
        deadline = time.monotonic() + 60
        while True:
            result = subprocess.run(["sinfo", "-h", "-o", "%D %T"], env=environment, capture_output=True, text=True)
            if result.stdout.strip() == "2 idle":
                break
            assert time.monotonic() < deadline, (result.stdout, result.stderr)
            time.sleep(0.5)
        yield slurm
        subprocess.run(["scancel", "--user=root"], env=environment, capture_output=True, timeout=500)
        time.sleep(2)
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(30)


@pytest.fixture(scope="module")
def recipe(slurm):
    from hmm_datasets.hmm import processes

    processes.mess3(0.15, 0.6).save_pretrained(slurm.folder / "mess3")
    return [
        *("recipes/pretrain.py", "--hmm", slurm.folder / "mess3", "--length", 16, "--model", "1m"),
        *("--num_test_sequences", 8, "--global_batch_size", 4, "--per_device_train_batch_size", 2),
        *("--logging_steps", 1, "--save_steps", 100_000),
    ]


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def until(condition, seconds, slurm):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, slurm.said()
        time.sleep(0.3)
    return found


@pytest.mark.thorough
@pytest.mark.slow
def test_on_one_node_the_limit_of_the_job_is_that_of_the_run(slurm, recipe):
    """Of a job of one minute no step is sure to be saved in time but the first; then the job waits in the queue."""
    output = slurm.folder / "one"
    job = slurm.submit(
        "one_node", "--time=1", "--", *recipe, "--output_dir", output, "--max_steps", 100_000, CONFIG="cpu1"
    )
    until(lambda: "the job goes back into the queue: stopped: the time limit is near" in slurm.said(), 120, slurm)
    assert "saving and stopping (the time limit is near)" in slurm.said()
    assert [path.name for path in output.glob("checkpoint-*")] == ["checkpoint-1"]
    waiting = until(lambda: slurm.states(job) == ["PENDING"] and slurm.run(*watch(output, ok=True)), 60, slurm)
    assert f"state            waiting in the queue: job {job} (PENDING, " in waiting
    slurm.run("scancel", job)


def watch(output, ok):
    command = (sys.executable, "-m", "hmm_datasets.cli", "watch", output)
    return command if ok else ("sh", "-c", f"{' '.join(map(str, command))} || true")


@pytest.mark.thorough
@pytest.mark.slow
def test_a_job_goes_on_without_the_node_that_failed_twice_and_one_that_depends_on_it_waits(slurm, recipe):
    output, after = slurm.folder / "requeued", slurm.folder / "after"
    slurm.run("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=test")  # so that it starts on n0
    try:
        job = slurm.submit(
            *("one_node", "--nice=50", "--", *recipe, "--output_dir", output, "--max_steps", 1500, "--save_steps", 20),
            CONFIG="cpu1",
        )
        depends = f"--dependency=afterok:{job}"
        second = slurm.submit(
            "one_node", depends, "--", *recipe, "--output_dir", after, "--max_steps", 3, CONFIG="cpu1"
        )
        for kill in (signal.SIGKILL, signal.SIGKILL, None):
            known = {beat.process for beat in read_heartbeats(output)} if output.exists() else set()
            beat = until(
                lambda known=known: next(
                    (one for one in read_heartbeats(output) if one.process not in known and (one.step or 0) > 1), None
                ),
                120,
                slurm,
            )
            assert beat.host == "n0"
            assert beat.job == f"slurm {job} pretrain"
            if kill is not None:
                os.kill(beat.process, kill)
    finally:
        slurm.run("scontrol", "update", "NodeName=n1", "State=RESUME")
    assert "NICE=50" in slurm.run("squeue", "-h", "-j", job, "-o", "NICE=%y")
    # As Slurm does before the end of a job. Slurm 22's scancel signals all it should, and exits with 229.
    subprocess.run(["scancel", "--signal=USR1", job], env=slurm.environment, timeout=500)
    until(lambda: [event["kind"] for event in read_events(output)].count("requeue") == 1, 60, slurm)
    assert slurm.states(second) == ["PENDING"]
    # Slurm puts a job back two minutes into the future.
    until(lambda: any(beat.host == "n1" for beat in read_heartbeats(output)), 240, slurm)
    assert slurm.wait(job) == ["COMPLETED"], slurm.said()
    assert slurm.wait(second) == ["COMPLETED"], slurm.said()
    assert summary(output)["steps"] == 1500
    assert summary(after)["steps"] == 3
    kinds = [event["kind"] for event in read_events(output) if event["kind"] not in ("start", "restart")]
    assert kinds == ["killed", "killed", "stopped", "requeue", "finished"], slurm.said()
    message = next(event["message"] for event in read_events(output) if event["kind"] == "requeue")
    assert message == "the job goes back into the queue, without n0: stopped: SIGUSR1; the same command continues"


@pytest.mark.thorough
@pytest.mark.slow
def test_many_nodes_train_as_one(slurm, recipe):
    output = slurm.folder / "many"
    job = slurm.submit("many_nodes", "--", *recipe, "--output_dir", output, "--max_steps", 4, CONFIG="zero3")
    until(lambda: slurm.states(job) == ["RUNNING"], 30, slurm)
    shown = slurm.run("scontrol", "show", "job", job)
    assert "NumNodes=2 NumCPUs=4 " in shown, "all cores of both nodes"
    assert "OverSubscribe=NO" in shown
    assert slurm.wait(job) == ["COMPLETED"], slurm.said()
    assert summary(output)["world_size"] == 2
    assert summary(output)["tokens"] == 4 * 4 * 17
    # In the name of a log some versions of Slurm have the node, and others the machine that plays both.
    logs = [path.read_text(encoding="utf-8") for path in slurm.folder.glob(f"pretrain-{job}-*.out")]
    assert "".join(logs).count("supervise: finished: finished") == 2


@pytest.mark.thorough
@pytest.mark.slow
def test_jobs_of_a_chain_go_on_from_one_another_until_the_run_is_finished(slurm, recipe):
    output = slurm.folder / "chain"
    job = slurm.submit("chain", "--", *recipe, "--max_steps", 400, CONFIG="ddp", OUTPUT_DIR=str(output))
    deadline = time.monotonic() + 120
    while not (output / "history.jsonl").exists():
        assert time.monotonic() < deadline, slurm.said()
        time.sleep(0.2)
    # As Slurm does before the end of a job. Slurm 22's scancel signals all it should, and exits with 229.
    subprocess.run(["scancel", "--signal=USR1", f"{job}_1"], env=slurm.environment, timeout=500)
    states = slurm.wait(job)
    assert states.count("COMPLETED") == 2, (states, slurm.said())
    assert set(states) == {"COMPLETED", "CANCELLED"}
    (log,) = slurm.folder.glob(f"pretrain-chain-{job}-1-*.out")
    assert "saving and stopping (SIGUSR1)" in log.read_text(encoding="utf-8")
    assert [event["kind"] for event in read_events(output)].count("start") == 2, "supervised"
    (stopped, *_) = sorted(int(path.name.split("-")[1]) for path in output.glob("checkpoint-*"))
    assert 0 < stopped < 400
    assert summary(output)["resumed_from"] == f"checkpoint-{stopped}"
    assert summary(output)["steps"] == 400
    assert not (slurm.folder / "chain-3.out").exists()


@pytest.mark.thorough
@pytest.mark.slow
def test_a_sweep_is_an_array_and_only_what_is_unfinished_is_submitted_again(slurm):
    """Four fits on two nodes; one is cancelled, and is the only one in the second array."""
    pytest.importorskip("submitit")
    from hmm_datasets.hmm import processes

    numpy.save(slurm.folder / "tokens.npy", processes.mess3(0.15, 0.6).sample(2000, 64, seed=0))
    folder = slurm.folder / "sweep"
    content = {"recipe": "fit", "output_dir": str(folder), "grid": {"num_states": [2, 3], "seed": [0, 1]}}
    content["settings"] = {"corpus": str(slurm.folder / "tokens.npy"), "max_epochs": 300, "tolerance": 0.0}
    content["slurm"] = {"timeout_min": 10, "cpus_per_task": 1, "slurm_array_parallelism": 2}
    (slurm.folder / "sweep.yaml").write_text(yaml.safe_dump(content))

    def sweep(*flags):
        command = (sys.executable, "-m", "hmm_datasets.cli", "sweep", slurm.folder / "sweep.yaml")
        return slurm.run(*command, *flags, timeout=500)

    def jobs():
        return json.loads((folder / "slurm.json").read_text())

    said = sweep("--slurm")
    assert "4 cells submitted, 0 were queued" in said, said
    job = jobs()["num_states=2,seed=0"].split("_")[0]
    # Slurm 22's scancel signals all it should, and exits with 229.
    subprocess.run(["scancel", f"{job}_3"], env=slurm.environment, timeout=500)
    said = sweep("--slurm")
    assert "1 cells submitted" in said, said
    again = jobs()["num_states=3,seed=1"]
    slurm.wait(job)
    slurm.wait(again)
    logs = "\n".join(path.read_text() for path in [*folder.glob("*/log.txt"), *folder.glob(".submitit/*.err")])
    said = sweep("--table")
    assert "4 of 4 cells are finished." in said, (said, logs)
    assert "0 cells submitted, 0 were queued" in sweep("--slurm")
    assert len((folder / "sweep.csv").read_text().splitlines()) == 5


@pytest.mark.thorough
@pytest.mark.slow
def test_tasks_of_srun_without_a_launcher_are_refused(slurm):
    program = (sys.executable, "-m", "hmm_datasets.commands.preflight", slurm.folder)
    command = ["srun", "--nodes=1", "--ntasks=2", *map(str, program)]
    done = subprocess.run(command, env=slurm.environment, capture_output=True, text=True, timeout=500)
    assert "the variable SLURM_STEP_NUM_TASKS is 2, so mpiexec or srun started several processes" in done.stderr
