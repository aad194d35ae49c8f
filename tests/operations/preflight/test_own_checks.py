import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hmm_datasets.errors import InputError
from hmm_datasets.operations.preflight import (
    Check,
    PreflightSettings,
    check_all_reduce,
    check_builds,
    check_devices,
    check_disk,
    check_hub,
    check_memory,
    check_shared_memory,
    check_versions,
    format_checks,
    run_checks,
)
from hmm_datasets.operations.preflight.device import _wrong_words, check_device_memory
from hmm_datasets.operations.preflight.host import check_disk_speed

ROOT = Path(__file__).parents[3]


def test_all_checks_run_on_this_machine_and_name_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    settings = PreflightSettings(min_disk_gib=0, min_memory_gib=0, min_shm_gib=0, seconds=0)
    checks = run_checks(tmp_path / "not" / "yet", settings)
    names = ["host", "versions", "disk", "disk speed", "memory", "shared memory", "limits", "builds", "Hub", "devices"]
    names += ["device memory", "matrix product"]
    assert [c.name for c in checks] == names
    assert all(check.ok for check in checks), format_checks(checks)
    assert socket.gethostname() in format_checks(checks)
    assert not (tmp_path / "not").exists()


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


def test_the_speed_of_a_disk_is_measured_and_nothing_is_left_on_it(tmp_path):
    check = check_disk_speed(tmp_path / "not" / "yet")
    assert check.ok
    assert f" MB/s written and synced at {tmp_path}, a sync of few bytes takes " in check.detail
    assert list(tmp_path.iterdir()) == []


def test_few_open_files_are_a_warning_with_the_command_that_allows_more(child_environment):
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512)); "
        "from hmm_datasets.operations.preflight.host import check_limits; print(check_limits())"
    )
    command = [sys.executable, "-c", script]
    said = subprocess.run(command, env=child_environment, capture_output=True, text=True, check=True).stdout
    assert "512 open files" in said
    assert "ulimit -n 65536" in said
    assert "warning=True" in said


def test_memory_that_keeps_what_is_written_passes():
    check = check_device_memory(size=1 << 20)
    assert check.ok
    assert check.detail == "0.00 GiB keep 5 patterns"


def test_a_word_of_memory_that_changes_is_counted():
    """A block whose last word is the first word of another: what is written to one is read back from the other."""
    memory = torch.empty(101, dtype=torch.int64)
    blocks = [memory[:100], memory[99:]]
    assert [_wrong_words(torch, blocks, pattern) for pattern in (0, -1, None)] == [0, 0, 1]


def test_versions_are_those_that_are_imported():
    version, _, _ = torch.__version__.partition("+")  # a build's own label is not in every package's metadata
    assert f"torch {version}" in check_versions().detail


def test_a_package_that_is_missing_or_too_old_is_named(monkeypatch):
    from packaging.specifiers import SpecifierSet

    from hmm_datasets.operations.preflight import host as versions

    wanted = {"numpy": SpecifierSet(">=999"), "no-such-package-at-all": None}
    monkeypatch.setattr(versions, "_requirements", lambda: wanted)
    check = check_versions()
    assert not check.ok
    assert "numpy" in check.detail
    assert ">=999" in check.detail
    assert "no-such-package-at-all is missing" in check.detail


def test_the_available_device_is_named():
    detail = check_devices().detail
    assert (torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU") in detail


def test_a_lock_that_a_killed_compilation_left_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    lock = tmp_path / "py311_cpu" / "deepspeed_shm_comm" / "lock"
    lock.parent.mkdir(parents=True)
    assert check_builds().ok
    lock.touch()
    assert check_builds().ok, "one that is under way"
    os.utime(lock, (0, 0))
    check = check_builds()
    assert not check.ok
    assert check.detail.startswith(f"{lock}: lock of a compilation that was killed")


def test_a_silent_hub_is_a_warning_and_fails_only_a_run_that_pushes(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not check_hub().warning
    script = (
        "from hmm_datasets.operations.preflight import check_hub; print(check_hub()); print(check_hub(needed=True))"
    )
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    unneeded, needed = result.stdout.splitlines()
    assert "ok=True" in unneeded
    assert "warning=True" in unneeded
    assert "ok=False" in needed
    assert (
        "http://127.0.0.1:9 does not answer; a run that needs nothing from it can run with HF_HUB_OFFLINE=1" in needed
    )


def test_a_run_that_pushes_does_not_pass_offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    check = check_hub(needed=True)
    assert not check.ok
    assert check.detail == "HF_HUB_OFFLINE is set, so a run that pushes fails: unset it"


def test_a_table_has_one_line_per_check():
    table = format_checks(
        [Check("disk", True, "much"), Check("memory", False, "little"), Check("Hub", True, "", True)]
    )
    assert table.splitlines() == ["ok    disk    much", "FAIL  memory  little", "warn  Hub     "]


def test_bad_settings_are_refused():
    with pytest.raises(InputError, match="seconds is -2; expected 0 or more"):
        PreflightSettings(seconds=-2)
    with pytest.raises(InputError, match="timeout is -1; expected 0 or more"):
        PreflightSettings(timeout=-1)


@pytest.mark.launch
def test_ranks_that_meet_time_an_all_reduce():
    script = (
        "from hmm_datasets.operations.preflight import check_all_reduce; print(check_all_reduce(60.0), flush=True)"
    )
    lines = [process.communicate(timeout=120)[0] for process in start_ranks(script, (0, 1))]
    for rank, line in enumerate(lines):
        assert f"rank {rank} of 2 on {socket.gethostname()}: 16 MiB in " in line
        assert "ok=True" in line


@pytest.mark.launch
def test_a_rank_whose_peer_never_comes_gives_up_and_ends():
    script = "from hmm_datasets.operations.preflight import check_all_reduce; print(check_all_reduce(4.0), flush=True)"
    (process,) = start_ranks(script, (0,))
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert "ok=False" in output
    assert f"rank 0 of 2 on {socket.gethostname()}: " in output


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


def test_a_failure_to_connect_is_reported_with_rank_and_host(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    check = check_all_reduce(5.0)
    assert not check.ok
    assert check.detail.startswith(f"rank 1 of 2 on {socket.gethostname()}: ")
