"""Number of tokens of a micro-batch on all ranks, without padding, for rows that have no attention mask."""

from typing import Any

from accelerate import Accelerator

from ...data.packing import count_tokens


def count_on_all_ranks(inputs: dict[str, Any], accelerator: Accelerator) -> int:
    """The number of tokens that all ranks read in this micro-batch.

    The padding of packed rows is known from labels and positions. Other rows have no padding and the same length on
    every rank, so nothing is communicated.

    Args:
        inputs (`dict`): a micro-batch without `attention_mask`.
        accelerator ([`~accelerate.Accelerator`]): the accelerator of the run.
    """
    count = count_tokens(inputs)
    if isinstance(count, int):
        return count * accelerator.num_processes
    return accelerator.gather(count).sum().item()
