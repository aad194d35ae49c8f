"""Rank and world size of this process, from the variables that `accelerate launch` and `torchrun` set."""

import os


def rank() -> int:
    """The rank of this process, from 0; 0 if no launcher started it."""
    return int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    """The rank of this process among those of its machine, from 0."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def world_size() -> int:
    """The number of processes; 1 if no launcher started this one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def expect_no_gpu_if_there_is_none() -> None:
    """Tell DeepSpeed that there is no GPU, about which it would otherwise write a warning to stdout."""
    import torch

    if not torch.accelerator.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
