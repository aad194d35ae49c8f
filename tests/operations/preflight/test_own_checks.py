import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hmm_datasets.errors import InputError
from hmm_datasets.operations.preflight import PreflightSettings, run_preflight
from hmm_datasets.operations.preflight.device import check_device
from hmm_datasets.operations.preflight.disk import check_disk, check_shared_output

ROOT = Path(__file__).parents[3]


def test_all_checks_run_on_this_machine_and_name_it(tmp_path, monkeypatch, capsys):
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    settings = PreflightSettings(min_disk_gib=0)
    assert run_preflight(tmp_path / "not" / "yet", settings) == 0
    out = capsys.readouterr().out
    names = re.findall(r"^ok    ([a-z ]+): ", out, re.MULTILINE)
    assert set(names) == {"device", "disk", "same versions"}
    assert "ok    own GPU: " in out
    assert socket.gethostname() in out
    assert f"torch {torch.__version__}" in out
    assert list(tmp_path.iterdir()) == []


def test_too_little_space_fails(tmp_path):
    check = check_disk(tmp_path, min_gib=1e9)
    assert not check.ok
    assert str(tmp_path) in check.detail


def test_a_folder_that_cannot_be_written_fails():
    check = check_disk("/proc/no/such/place", min_gib=0)
    assert not check.ok
    assert "/proc cannot be written" in check.detail


def test_a_file_of_rank_0_that_is_not_seen_fails_with_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    check = check_shared_output(str(tmp_path / "token"))
    assert not check.ok
    assert check.detail.startswith(f"does not see the file that rank 0 wrote into {tmp_path}; choose an output_dir")
    (tmp_path / "token").touch()
    assert check_shared_output(str(tmp_path / "token")).ok


def test_the_available_device_is_named():
    detail = check_device(0 if torch.cuda.is_available() else None).detail
    assert (torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU") in detail


def test_bad_settings_are_refused():
    with pytest.raises(InputError, match="min_disk_gib is -2; expected 0 or more"):
        PreflightSettings(min_disk_gib=-2)
    with pytest.raises(InputError, match="timeout is -1; expected 0 or more"):
        PreflightSettings(timeout=-1)


SCRIPT = """
import os
from datetime import timedelta
import torch.distributed as dist
from hmm_datasets.operations.preflight.collective import check_all_reduce
rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, timedelta(seconds=60), wait_for_workers=False)
check = check_all_reduce(%s, store)
print(check, flush=True)
store.add("done", 1)
while rank == 0 and check.ok and store.add("done", 0) < 2:
    pass
os._exit(0)
"""


@pytest.mark.thorough
def test_ranks_that_meet_sum_over_all_of_them():
    lines = [process.communicate(timeout=500)[0] for process in start_ranks(SCRIPT % 60.0, (0, 1))]
    for line in lines:
        assert "ok=True, detail='16 MiB summed over 2 ranks by gloo'" in line


@pytest.mark.thorough
def test_a_rank_whose_peer_never_comes_gives_up_and_ends():
    (process,) = start_ranks(SCRIPT % 4.0, (0,))
    output = process.communicate(timeout=500)[0]
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
