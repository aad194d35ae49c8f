"""A host with a slow network among three, which are network namespaces on one bridge."""

import os
import subprocess
import sys
from contextlib import ExitStack

import pytest

pytestmark = [pytest.mark.launch, pytest.mark.slow]

NAMES = ("nodea", "nodeb", "nodec")


def command(*words):
    subprocess.run(list(map(str, words)), capture_output=True, check=True, timeout=20)


@pytest.fixture
def hosts():
    """Commands that run a program on each host; the second sends and receives at most 200 Mbit/s."""
    spaces = [f"slow{os.getpid()}n{number}" for number in range(len(NAMES))]
    bridge = f"br{os.getpid()}"
    with ExitStack() as undo:
        try:
            command("ip", "link", "add", bridge, "type", "bridge")
            undo.callback(subprocess.run, ["ip", "link", "del", bridge], capture_output=True)
            command("ip", "link", "set", bridge, "up")
            for number, space in enumerate(spaces):
                command("ip", "netns", "add", space)
                undo.callback(subprocess.run, ["ip", "netns", "del", space], capture_output=True)
                port = f"p{os.getpid()}n{number}"
                command("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
                command("ip", "link", "set", port, "master", bridge, "up")
                command("ip", "-n", space, "addr", "add", f"10.78.0.{number + 1}/24", "dev", "eth0")
                for device in ("lo", "eth0"):
                    command("ip", "-n", space, "link", "set", device, "up")
                if number == 1:
                    limit = ("root", "tbf", "rate", "200mbit", "burst", "256kb", "latency", "400ms")
                    command("tc", "qdisc", "add", "dev", port, *limit)
                    command("ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", "eth0", *limit)
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"needs network namespaces and tc: {getattr(error, 'stderr', error)}")
        yield [
            ["ip", "netns", "exec", space, "unshare", "--uts", "sh", "-c", f'hostname {name}; exec "$@"', "sh"]
            for space, name in zip(spaces, NAMES, strict=True)
        ]


def test_the_host_with_the_slow_network_is_named(hosts, child_environment, tmp_path):
    given = {"MASTER_ADDR": "10.78.0.1", "MASTER_PORT": "29600", "WORLD_SIZE": "3", "LOCAL_RANK": "0"}
    given |= {"GLOO_SOCKET_IFNAME": "eth0", "CUDA_VISIBLE_DEVICES": ""}
    program = [sys.executable, "-m", "hmm_datasets.commands.preflight", str(tmp_path)]
    program += ["--min_disk_gib", "0", "--min_memory_gib", "0", "--min_shm_gib", "0", "--timeout", "80"]
    ranks = [
        subprocess.Popen(
            [*host, *program],
            env=child_environment | given | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, host in enumerate(hosts)
    ]
    try:
        said = ranks[0].communicate(timeout=200)[0]
        assert [rank.wait(30) for rank in ranks] == [0, 0, 0], said
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    (warning,) = [line for line in said.splitlines() if line.startswith("warn")]
    assert warning.startswith("warn  links: every link of nodeb is slow, 0.0"), said
