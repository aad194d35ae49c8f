"""Preflight on several ranks, started without a launcher so that each can be stopped or computes in its own way."""

import os
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta

import pytest

pytestmark = pytest.mark.thorough

HOST = socket.gethostname()
QUICK = ("--min_disk_gib", "0")


@pytest.fixture
def start(child_environment):
    """Start a rank; none outlives the test."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []

    def start(rank, world_size, *flags, prefix=(), python=sys.executable, **environment):
        environment = child_environment | {
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "CUDA_VISIBLE_DEVICES": ""},
            "GLOO_SOCKET_IFNAME": "lo",
            **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)},
            **environment,
        }
        command = [*prefix, python, "-m", "hmm_datasets.commands.preflight", *map(str, flags)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        ranks.append(subprocess.Popen(command, env=environment, **pipes))
        return ranks[-1]

    start.port = port
    yield start
    for rank in ranks:
        rank.kill()
        rank.communicate()


@pytest.fixture
def on_another_host(tmp_path):
    """The beginning of a command line that runs on a host of another name, which does not share the run's folder."""
    (tmp_path / "run").mkdir()
    script = f'hostname nodeb && mount -t tmpfs tmpfs {tmp_path / "run"} && exec "$@"'
    prefix = ["unshare", "--uts", "--mount", "sh", "-c", script, "sh"]
    try:
        subprocess.run([*prefix, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("other hosts are made by root only")
    return prefix


def test_a_host_that_does_not_share_the_folder_is_named(start, on_another_host, warm_python, tmp_path):
    """Three ranks, the last of which is on a host of its own."""
    flags = (tmp_path / "run", *QUICK, "--timeout", 150)
    ranks = [start(rank, 3, *flags, python=warm_python) for rank in (0, 1)]
    ranks.append(start(2, 3, *flags, prefix=on_another_host, LOCAL_RANK="0"))
    said = [rank.communicate(timeout=500)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1, 1], said[0]
    lines = said[0].splitlines()
    (output,) = [line for line in lines if line.startswith("FAIL")]
    assert output.startswith(
        "FAIL  rank 2 on nodeb, CPU: shared output: does not see the file that rank 0 wrote into "
    )
    assert [line for line in lines if f"; {HOST} (rank 0-1), nodeb (rank 2)" in line]
    assert any(line.startswith("ok    all-reduce: 16 MiB summed over 3 ranks by gloo") for line in lines)
    assert list((tmp_path / "run").iterdir()) == []
    assert "all-reduce" not in said[1] + said[2], "rank 0 reports for all"


def test_a_stopped_rank_and_one_that_never_started_are_named(start, tmp_path):
    import torch.distributed as dist

    served = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    store = dist.TCPStore("127.0.0.1", start.port, 3, True, timedelta(seconds=120), wait_for_workers=False)
    keys = dist.PrefixStore("hmm_datasets_preflight/0", store)
    rank_1 = start(1, 3, tmp_path, *QUICK, "--timeout", "100", **served, LOCAL_RANK="0")  # waits for rank 0
    deadline = time.monotonic() + 120
    while not keys.check(["place/1"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(rank_1.pid, signal.SIGSTOP)
    rank_0 = start(0, 3, tmp_path, *QUICK, "--timeout", "2", **served)
    said = rank_0.communicate(timeout=500)[0]
    assert rank_0.returncode == 1
    assert rank_1.poll() is None
    stopped, absent = [line for line in said.splitlines() if line.startswith("FAIL")]
    assert stopped.startswith(
        f"FAIL  rank 1 on {HOST}, CPU: answer: process {rank_1.pid} did not end 'own checks' within 2 s"
    )
    assert absent.startswith("FAIL  rank 2 on unknown host, unknown device: answer: none within 2 s: it did not start")
    assert said.rstrip().endswith("preflight of 3 ranks on 1 host: 2 failures")


def test_two_processes_with_one_rank_are_refused_by_name(start, tmp_path):
    served = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", start.port, 2, True, wait_for_workers=False)
    dist.PrefixStore("hmm_datasets_preflight/0", store).add("processes/1", 1)
    rank = start(1, 2, tmp_path, *QUICK, "--timeout", "20", **served)
    said = rank.communicate(timeout=500)[0]
    assert rank.returncode == 1
    assert f"FAIL  rank 1 on {HOST}: another process has RANK 1 too; give each process a RANK of its own" in said


def test_the_command_launches_all_ranks_of_a_configuration(launch, tmp_path):
    result = launch("hmm_datasets.cli", "preflight", tmp_path, *QUICK, "--launch", "cpu2", "--timeout", 100)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Warning" not in result.stderr, "torch 2.13 warns of collectives by their names before"
    assert result.stdout.count("preflight of 2 ranks on 1 host: a run can start") == 1
    assert f"; {HOST} (rank 0-1)" in result.stdout
    assert list(tmp_path.iterdir()) == []
