"""The preflight checks on a machine with GPUs."""

import socket

import pytest
import torch

from hmm_datasets.monitoring.preflight import check_all_reduce, check_devices

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

BACKEND = "nccl"


def test_every_gpu_multiplies_and_is_named_with_its_memory():
    check = check_devices()
    assert check.ok, check.detail
    for index in range(torch.cuda.device_count()):
        assert f"cuda:{index} {torch.cuda.get_device_name(index)}, " in check.detail
    assert check.detail.count("GiB free") == torch.cuda.device_count()


def test_the_all_reduce_of_one_process_is_by_nccl(monkeypatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_PORT", str(probe.getsockname()[1]))
    for name, value in {"MASTER_ADDR": "127.0.0.1", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    check = check_all_reduce(60.0)
    assert check.ok, check.detail
    assert check.detail.endswith(f"by {BACKEND}")
