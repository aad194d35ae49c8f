"""Which of a launcher's processes this one is: the variables that `accelerate launch` and `torchrun` set."""

import os


def rank() -> int:
    """The number of this process among all, from 0; 0 where no launcher started it."""
    return int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    """The number of this process among those of its machine, from 0."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def world_size() -> int:
    """Processes in all; 1 where no launcher started this one."""
    return int(os.environ.get("WORLD_SIZE", "1"))
