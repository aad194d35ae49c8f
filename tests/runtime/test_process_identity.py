"""Every process of a recipe can print where it is."""

import os
import socket

import torch

from hmm_datasets.runtime.process_identity import Place, print_place, this_place, uses_gpu


def test_a_place_says_rank_host_device_and_process():
    place = Place("node1", 4321, "boot", 1.0, 3, 8, 1, "cuda:1 NVIDIA H200", "GPU-1234")
    assert str(place) == ("rank 3 of 8: local rank 1, host node1, device cuda:1 NVIDIA H200 (GPU-1234), process 4321")
    assert place.short == "rank 3 on node1, cuda:1 NVIDIA H200 (GPU-1234)"


def test_a_place_is_printed_only_if_the_environment_asks_for_it(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    for value in ("", "0"):
        monkeypatch.setenv("HMM_DATASETS_PRINT_PLACES", value)
        print_place()
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("HMM_DATASETS_PRINT_PLACES", "1")
    print_place()
    said = capsys.readouterr().err
    assert said == f"{this_place()}\n"
    assert said.startswith("rank 1 of 2: local rank ")
    assert f"host {socket.gethostname()}, device CPU, process {os.getpid()}" in said


def test_a_launch_configuration_for_the_cpu_uses_no_gpu(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert not uses_gpu()
    monkeypatch.setenv("ACCELERATE_USE_CPU", "false")
    assert uses_gpu() == torch.cuda.is_available()
