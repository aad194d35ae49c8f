"""Tokens of a micro-batch on all ranks, padding left out, for rows that have no attention mask."""

from typing import Any

from accelerate import Accelerator

from ...data.packing import count_tokens


def count_on_all_ranks(inputs: dict[str, Any], accelerator: Accelerator) -> int:
    """The tokens that all ranks read in this micro-batch.

    Packed rows tell their padding by labels and positions. Other rows have none and are equally long on every rank, so
    that nothing has to be exchanged.

    Args:
        inputs (`dict`): a micro-batch without `attention_mask`.
        accelerator ([`~accelerate.Accelerator`]): of all ranks.
    """
    count = count_tokens(inputs)
    if isinstance(count, int):
        return count * accelerator.num_processes
    return accelerator.gather(count).sum().item()
