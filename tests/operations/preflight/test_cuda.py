"""The preflight checks on a machine with GPUs."""

import subprocess

import pytest
import torch

from hmm_datasets.operations.preflight.collective import check_all_reduce
from hmm_datasets.operations.preflight.device import check_device, gpu_drivers
from hmm_datasets.operations.preflight.versions import versions_to_compare
from hmm_datasets.runtime.process_identity import this_place

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

BACKEND = "nccl"


@pytest.mark.parametrize("index", range(torch.cuda.device_count()))
def test_every_gpu_multiplies_and_is_named_with_its_memory(index):
    check = check_device(index)
    assert check.ok, check.detail
    assert check.detail.startswith(f"cuda:{index} {torch.cuda.get_device_name(index)}, ")
    assert "GiB free" in check.detail


def test_the_all_reduce_of_one_process_is_by_nccl(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    check = check_all_reduce(60.0, torch.distributed.HashStore())
    assert check.ok, check.detail
    assert check.detail.endswith(f"by {BACKEND}")


def test_a_rank_names_its_gpu_by_the_uuid_of_nvidia_smi(monkeypatch):
    for index in range(torch.cuda.device_count()):
        monkeypatch.setenv("LOCAL_RANK", str(index))
        place = this_place()
        assert place.device == f"cuda:{index} {torch.cuda.get_device_name(index)}"
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
        assert f"UUID: {place.uuid})" in listed


def test_versions_of_driver_cuda_and_nccl_are_known():
    found = versions_to_compare()
    assert found["driver"] == gpu_drivers()[0]
    assert found["CUDA"] == torch.version.cuda
    assert found["NCCL"][0].isdigit()
