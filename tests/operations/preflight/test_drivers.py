"""What is read from the output of nvidia-smi."""

import os

import pytest
import torch

from hmm_datasets.operations.preflight.device import check_device, gpu_drivers


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """A program of that name, which prints two GPUs."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 570.86.15; echo 570.86.15\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a torch that cannot use the GPUs")
def test_gpus_that_torch_cannot_use_fail_unless_they_are_hidden(nvidia_smi, monkeypatch):
    check = check_device(None)
    assert not check.ok
    assert check.detail.startswith("nvidia-smi lists 2 GPUs with driver 570.86.15, but torch ")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert check_device(None).ok


def test_without_nvidia_smi_nothing_is_known(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_drivers() == []
