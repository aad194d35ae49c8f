"""How many steps a budget buys, and how a global batch is cut over processes.

Tokens are model inputs, padding apart: what goes into a step of global batch `G` and row length `L` is `G L` tokens,
whatever the world size, micro-batch and accumulation that multiply out to `G`.
"""

from ..errors import InputError


def accumulation_steps(global_batch_size: int, world_size: int, micro_batch_size: int) -> int:
    """Micro-batches a rank runs before each optimizer step: `G / (world size * micro-batch)`.

    Raises:
        `InputError`: the three do not multiply out.

    ```python
    >>> accumulation_steps(64, world_size=2, micro_batch_size=8)
    4

    ```
    """
    if min(global_batch_size, world_size, micro_batch_size) < 1:
        raise InputError(
            f"global_batch_size {global_batch_size}, world size {world_size}, per_device_train_batch_size "
            f"{micro_batch_size}; expected all positive"
        )
    steps, rest = divmod(global_batch_size, world_size * micro_batch_size)
    if rest != 0 or steps == 0:
        raise InputError(
            f"global_batch_size {global_batch_size} does not divide by world size {world_size} x "
            f"per_device_train_batch_size {micro_batch_size}; change one of the three"
        )
    return steps


def steps_for_tokens(tokens: int, global_batch_size: int, row_length: int) -> int:
    """Optimizer steps that consume at least `tokens` tokens.

    ```python
    >>> steps_for_tokens(1_000_000, global_batch_size=64, row_length=65)
    241

    ```
    """
    if tokens < 1:
        raise InputError(f"train_tokens is {tokens}; expected 1 or more")
    return -(-tokens // (global_batch_size * row_length))
