"""The place of a process: rank, host and device."""

import torch

from hmm_datasets.runtime.process_identity import Place, uses_gpu


def test_a_place_has_rank_host_and_device():
    place = Place("node1", 4321, "boot", 1.0, 3, 8, 1, "cuda:1 NVIDIA H200", "GPU-1234")
    assert place.short == "rank 3 on node1, cuda:1 NVIDIA H200 (GPU-1234)"


def test_a_launch_configuration_for_the_cpu_uses_no_gpu(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert not uses_gpu()
    monkeypatch.setenv("ACCELERATE_USE_CPU", "false")
    assert uses_gpu() == torch.cuda.is_available()
