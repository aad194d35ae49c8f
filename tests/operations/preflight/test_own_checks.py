import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hmm_datasets.errors import InputError
from hmm_datasets.operations.preflight import PreflightSettings, run_preflight, versions
from hmm_datasets.operations.preflight.device import check_device
from hmm_datasets.operations.preflight.host import check_disk, check_memory, check_shared_memory
from hmm_datasets.operations.preflight.network import check_all_reduce
from hmm_datasets.operations.preflight.versions import check_versions

ROOT = Path(__file__).parents[3]


def test_all_checks_run_on_this_machine_and_name_it(tmp_path, monkeypatch, capsys):
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    settings = PreflightSettings(min_disk_gib=0, min_memory_gib=0, min_shm_gib=0)
    assert run_preflight(tmp_path / "not" / "yet", settings) == 0
    out = capsys.readouterr().out
    names = re.findall(r"^ok    ([a-z ]+): ", out, re.MULTILINE)
    checks = {"versions", "disk", "memory", "shared memory", "device"}
    assert checks | {"same versions", "shared output"} <= set(names)
    assert socket.gethostname() in out
    assert " MB/s written" in out
    assert list(tmp_path.iterdir()) == []


def test_too_little_space_fails(tmp_path):
    check = check_disk(tmp_path, min_gib=1e9)
    assert not check.ok
    assert str(tmp_path) in check.detail
    assert not check_memory(1e9).ok
    if os.path.isdir("/dev/shm"):
        check = check_shared_memory(1e9)
        assert not check.ok
        assert "--shm-size" in check.detail
    assert check_shared_memory(1.0, path="/no/such/shm").ok


def test_a_folder_that_cannot_be_written_fails():
    check = check_disk("/proc/no/such/place", min_gib=0)
    assert not check.ok
    assert "/proc cannot be written" in check.detail


def test_versions_are_those_that_are_imported():
    version, _, _ = torch.__version__.partition("+")  # a build's own label is not in every package's metadata
    assert f"torch {version}" in check_versions().detail


def test_a_package_that_is_missing_or_was_not_tried_is_named(monkeypatch):
    monkeypatch.setattr(versions, "_PACKAGES", ("numpy", "no-such-package-at-all"))
    monkeypatch.setattr(versions, "untried_versions", lambda: ["trl 2.0 (tried: <1.17,>=1.16)"])
    check = check_versions()
    assert not check.ok
    assert check.detail.startswith("no-such-package-at-all is missing; trl 2.0 (tried: <1.17,>=1.16); install")


def test_the_available_device_is_named():
    detail = check_device(0 if torch.cuda.is_available() else None).detail
    assert (torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU") in detail


def test_bad_settings_are_refused():
    with pytest.raises(InputError, match="min_disk_gib is -2; expected 0 or more"):
        PreflightSettings(min_disk_gib=-2)
    with pytest.raises(InputError, match="timeout is -1; expected 0 or more"):
        PreflightSettings(timeout=-1)


@pytest.mark.launch
@pytest.mark.outside(
    "https://github.com/NVIDIA/nccl/issues/583",
    "the bandwidth of collectives by the size of the data",
    "`preflight` measures five collectives at 64 KiB, 1 MiB and 16 MiB, before a run",
)
def test_ranks_that_meet_time_an_all_reduce():
    script = "from hmm_datasets.operations.preflight.network import check_all_reduce; print(check_all_reduce(60.0)[0])"
    lines = [process.communicate(timeout=120)[0] for process in start_ranks(script, (0, 1))]
    for rank, line in enumerate(lines):
        assert "16 MiB in " in line, rank
        assert "; GB/s at 64 KiB, 1 MiB, 16 MiB: all-reduce " in line
        for name in ("all-reduce", "broadcast", "all-gather", "reduce-scatter", "all-to-all"):
            (rates,) = re.findall(rf"{name} ([\d., e+-]+|not available)[;']", line)
            assert len(rates.split(", ")) == 3 or rates == "not available"
        assert "ok=True" in line


@pytest.mark.launch
def test_a_rank_whose_peer_never_comes_gives_up_and_ends():
    script = "from hmm_datasets.operations.preflight.network import check_all_reduce; print(check_all_reduce(4.0)[0])"
    (process,) = start_ranks(script, (0,))
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert "ok=False" in output
    assert "try GLOO_SOCKET_IFNAME" in output


def start_ranks(script: str, ranks: tuple[int, ...]) -> list[subprocess.Popen]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "CUDA_VISIBLE_DEVICES": ""}
    return [
        subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in ranks
    ]


def test_a_failure_to_connect_is_reported(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    check, links = check_all_reduce(5.0)
    assert not check.ok
    assert "MASTER_ADDR" in check.detail
    assert links == {}
