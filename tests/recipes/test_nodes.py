"""The multi-node command on two hosts, which are connected network namespaces or, without those, on loopback."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from hmm_datasets.operations.diagnosis import Limits
from hmm_datasets.operations.run_state import RunObserver, format_state
from hmm_datasets.training.checkpoints.inspection import verify_checkpoint

pytestmark = [pytest.mark.thorough, pytest.mark.slow]

PORT = 29517


@dataclass(frozen=True)
class Host:
    """A host: the prefix of its commands, its address, and its network interface.

    With a network namespace it also has a name and processes of its own, but the same disk.
    """

    prefix: tuple[str, ...]
    address: str
    network: str

    def plug(self, state):
        """Connect its cable, `up`, or pull it, `down`."""
        ip("-n", self.prefix[3], "link", "set", "eth0", state)


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True, timeout=20)


@pytest.fixture
def hosts():
    """Two network namespaces joined by a pair of virtual devices, or without those two launchers on loopback."""
    names = [f"hmm{os.getpid()}n{number}" for number in range(2)]
    with ExitStack() as undo:
        try:
            for name in names:
                ip("netns", "add", name)
                undo.callback(subprocess.run, ["ip", "netns", "del", name], capture_output=True)
            ip("link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1])
            for number, name in enumerate(names):
                ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
                for device in ("lo", "eth0"):
                    ip("-n", name, "link", "set", device, "up")
        except (OSError, subprocess.SubprocessError) as error:
            print(f"no network namespaces here, so on loopback: {getattr(error, 'stderr', error)}")
            yield [Host((), "127.0.0.1", "lo")] * 2
        else:
            own = ("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c")
            yield [
                Host(
                    ("ip", "netns", "exec", name, *own, f'hostname host{number}; exec "$@"', "sh"),
                    f"10.77.0.{number + 1}",
                    "eth0",
                )
                for number, name in enumerate(names)
            ]


class Cluster:
    """Starts the command on both hosts, each in its own session; none outlives the test."""

    def __init__(self, program, hosts, folder, hmm_folder):
        self.program, self.hosts, self.folder, self.hmm_folder = program, hosts, folder, hmm_folder
        self.launchers = []

    def arguments(self, output, steps, *settings):
        return [
            *("recipes/pretrain.py", "--hmm", self.hmm_folder, "--output_dir", output, "--max_steps", steps),
            *("--length", 16, "--model", "1m", "--num_test_sequences", 8, "--logging_steps", 1, "--save_steps", 3),
            *("--global_batch_size", 8, "--per_device_train_batch_size", 2, *settings),
        ]

    def start(self, config, output, steps, *settings, processes=2, supervise=None, only=None):
        """Start the command on each host, or on one, with a supervisor around it if its flags are given."""
        supervisor = (sys.executable, "-m", "hmm_datasets.cli", "supervise", *(supervise or ()), "--")
        for number, host in enumerate(self.hosts):
            if only not in (None, number):
                continue
            command = [
                *host.prefix,
                *(() if supervise is None else supervisor),
                *(sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"),
                *("--config_file", f"accelerate_configs/{config}.yaml", "--num_machines", 2),
                *("--num_processes", processes, "--machine_rank", number, "--mixed_precision", "no"),
                *("--main_process_ip", self.hosts[0].address, "--main_process_port", PORT),
                *self.arguments(output, steps, *settings),
            ]
            with (self.folder / f"host{number}.log").open("a") as log:
                self.launchers.append(
                    subprocess.Popen(
                        list(map(str, command)),
                        cwd=self.program.root,
                        env=self.program.environment | {"GLOO_SOCKET_IFNAME": host.network},
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )

    def said(self, number):
        return (self.folder / f"host{number}.log").read_text()

    def wait(self, timeout):
        deadline = time.monotonic() + timeout
        codes = [launcher.wait(max(1.0, deadline - time.monotonic())) for launcher in self.launchers]
        self.launchers = []
        return codes

    def kill(self, number):
        """Kill the launcher and all ranks of a host at once, as in a power failure."""
        for process in _tree(self.launchers[number].pid):
            os.kill(process, signal.SIGKILL)


def _tree(process):
    children = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True).stdout.split()
    return [process, *(one for child in children for one in _tree(int(child)))]


@pytest.fixture
def cluster(program, hosts, tmp_path, hmm_folder):
    cluster = Cluster(program, hosts, tmp_path, hmm_folder)
    yield cluster
    for number in range(len(cluster.launchers)):
        if cluster.launchers[number].poll() is None:
            cluster.kill(number)
            cluster.launchers[number].wait(30)


def test_a_host_that_was_cut_off_or_lost_comes_back_and_no_row_is_lost_or_repeated(cluster, hosts, program, succeeded):
    """Supervised on both hosts, and watched from a third, as which this process counts."""
    if not hosts[1].prefix:
        pytest.skip("no network namespaces here, so no cable to pull")
    output, undisturbed = cluster.folder / "run", cluster.folder / "undisturbed"
    flags = ("--first_delay", 1, "--max_delay", 2, "--hang_after", 12, "--start_after", 100, "--patience", 3)
    settings = ("--log_indices", "true", "--learning_rate", "1e-3")
    steps = 240

    def start(**given):
        cluster.start("multi_node", output, steps, *settings, supervise=flags, **given)

    def until(condition, seconds):
        deadline = time.monotonic() + seconds
        while not condition(state := observer.look()):
            assert time.monotonic() < deadline, (state.state, state.reason, cluster.said(0)[-3000:])
            time.sleep(0.3)
        return state

    def trains_beyond(step):
        def condition(state):
            found = state.diagnosis
            return (
                state.state == "running" and not found.missing and all((r.beat.step or 0) > step for r in found.ranks)
            )

        return condition

    output.mkdir()
    observer = RunObserver(output, Limits(silent=11, step=12))
    start()
    until(trains_beyond(4), 500)

    hosts[1].plug("down")
    cut = until(lambda state: state.state == "hanging", 500)
    assert "in phase backward of step " in cut.reason
    assert "none is behind, so look at their network" in cut.reason
    until(lambda state: [event["kind"] for event in state.events].count("hang") == 2, 500)
    hosts[1].plug("up")
    back = until(trains_beyond(4), 500)
    step = back.diagnosis.ranks[0].beat.step

    cluster.kill(1)
    lost = until(lambda state: state.state in ("hanging", "dead"), 500)
    silent = until(lambda state: any(rank.condition == "silent" for rank in state.diagnosis.ranks), 500)
    assert "rank 1 on host1 (process " in silent.reason, silent.reason
    del cluster.launchers[1]
    start(only=1)
    until(trains_beyond(step), 500)
    assert cluster.wait(400) == [0, 0], cluster.said(0)[-3000:] + cluster.said(1)[-3000:]
    assert observer.look().state == "finished"

    succeeded(program.launch("cpu2", *cluster.arguments(undisturbed, steps, *settings)))
    assert losses(output) == losses(undisturbed)
    assert [rows(output, rank) for rank in range(2)] == [rows(undisturbed, rank) for rank in range(2)]
    assert (output / "model.safetensors").read_bytes() == (undisturbed / "model.safetensors").read_bytes()
    print(format_state(observer.look()), lost.reason, sep="\n")


def rows(output, rank):
    """The rows that a rank logged at each step."""
    logged = [json.loads(line) for line in (output / f"indices-{rank}.jsonl").read_text().splitlines()]
    return [(line["step"], line["indices"]) for line in logged]


def losses(output):
    rows = [json.loads(line) for line in (output / "history.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


@pytest.mark.parametrize(("config", "alone"), [("multi_node_zero2", "zero2"), ("multi_node", "cpu2")])
def test_two_hosts_train_the_same_model_as_one_host_with_as_many_processes(config, alone, cluster, program, succeeded):
    two, one = cluster.folder / "two", cluster.folder / "one"
    cluster.start(config, two, 4)
    assert cluster.wait(240) == [0, 0], cluster.said(0)[-3000:] + cluster.said(1)[-3000:]
    succeeded(program.launch(alone, *cluster.arguments(one, 4)))
    assert losses(two) == losses(one)
    assert sorted(losses(two)) == [1, 2, 3, 4]
    summary = json.loads((two / "summary.json").read_text())
    assert summary["world_size"] == 2
    assert summary["tokens"] == 4 * 8 * 17
    assert (two / "model.safetensors").read_bytes() == (one / "model.safetensors").read_bytes()


@pytest.mark.parametrize("how", ["killed", "unplugged"])
def test_when_a_host_fails_the_other_ends_in_bounded_time_and_says_why(how, cluster, hosts):
    """A killed host closes its connections; after an unplugged one the other waits for --ddp_timeout."""
    output = cluster.folder / "run"
    cluster.start("multi_node_zero2", output, 100_000, "--ddp_timeout", 20)
    deadline = time.monotonic() + 500
    while not (output / "checkpoint-3").exists():
        assert time.monotonic() < deadline, cluster.said(0)[-3000:]
        time.sleep(0.5)
    if how == "unplugged":
        if not hosts[1].prefix:
            pytest.skip("no network namespaces here, so no cable to pull")
        hosts[1].plug("down")
    else:
        cluster.kill(1)
    assert cluster.launchers[0].wait(90) not in (0, -signal.SIGKILL)
    assert "error: rank 0 on" in cluster.said(0)
    assert "lost another process" in cluster.said(0)
    assert ("Timed out waiting 20000ms" if how == "unplugged" else hosts[1].address) in cluster.said(0)
    assert verify_checkpoint(output / "checkpoint-3").ok
