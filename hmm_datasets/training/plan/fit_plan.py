"""What a fit will consume: parameters, tokens, operations, memory, and time at an assumed rate.

An epoch costs `6 N L H^2` operations for `N` sequences of `L` tokens and `H` states: a product with the transition
table for each token in the forward pass, in the backward pass, and for the expected counts of moves. An HMM of blocks
of `S` states, with transitions of rank `R`, costs `14 N L R S`: two products in the forward pass and five in
the backward pass and for the counts. The loss on held-out sequences is not counted; it costs a third of that for as
many tokens. Tables of data sheets have no rate for such products in float32, so the rate is one that was measured,
here or in an earlier fit, whose history has its tokens per second: times the operations of a token these are its
FLOP/s.
"""

from typing import Any, NamedTuple

import torch

from ...errors import InputError
from ...hmm.fitting.baum_welch import batch_rows
from ...hmm.fitting.settings import FitSettings


class BlockSizes(NamedTuple):
    """Sizes of a [`~hmm_datasets.hmm.structured.blocked.BlockedHMM`]: `K` blocks of `S` states, and `R` classes."""

    num_blocks: int
    block_size: int
    rank: int


def plan_fit(
    settings: FitSettings,
    num_tokens: int,
    length: int,
    num_symbols: int,
    *,
    blocks: BlockSizes | None = None,
    flops_per_second: float | None = None,
) -> dict[str, Any]:
    """The plan of a fit that runs for all of its `max_epochs`, and all of `num_restarts` first guesses.

    Args:
        settings ([`FitSettings`]): settings of the fit.
        num_tokens (`int`): tokens per epoch.
        length (`int`): `L`, tokens per sequence.
        num_symbols (`int`): `E`.
        blocks ([`BlockSizes`], *optional*): those of an HMM of blocks, whose product with the number of blocks is
            `num_states`, planned for threads of a CPU; by default a dense HMM on a GPU.
        flops_per_second (`float`, *optional*): operations per second of the device.

    Returns:
        `dict`: `parameters`, the free ones of the tables; `tokens_per_epoch` and `flops_per_epoch`; `tokens` and
        `flops` of all epochs; `memory`, bytes of the tables and counts and of what is kept of a batch, on a GPU or
        in one thread; `where`, which of them; `formula`, of the operations; and with a rate `time`,
        a `dict` with `seconds` and `device_hours`.

    Raises:
        `InputError`: a number is not positive.

    ```python
    >>> plan_fit(FitSettings(num_states=2, max_epochs=10), 1000, 50, 3)["parameters"]
    7

    ```
    """
    positive: dict[str, float] = {"num_tokens": num_tokens, "length": length, "num_symbols": num_symbols}
    positive |= {} if flops_per_second is None else {"flops_per_second": flops_per_second}
    for name, value in positive.items():
        if not value > 0:
            raise InputError(f"{name} is {value}; expected a positive number")
    states, dtype = settings.num_states, getattr(torch, settings.dtype)
    tables = _dense(states, num_symbols) if blocks is None else _blocked(blocks, num_symbols)
    shape, on = (max(1, num_tokens // length), length), torch.device("cuda" if blocks is None else "cpu")
    width = states if blocks is None else blocks.rank
    rows = min(shape[0], settings.batch_size or batch_rows(shape, width, dtype, on, blocked=blocks is not None))
    per_epoch = num_tokens * tables.flops_per_token
    epochs = settings.max_epochs + (settings.num_restarts - 1) * min(settings.restart_epochs, settings.max_epochs)
    plan = {
        "parameters": tables.parameters,
        "tokens_per_epoch": num_tokens,
        "flops_per_epoch": per_epoch,
        "tokens": num_tokens * epochs,
        "flops": per_epoch * epochs,
        # Tables in the type of the recursions; counts, and those of stochastic EM, in float64.
        "memory": rows * length * width * dtype.itemsize + tables.numbers * (tables.copies * dtype.itemsize + 2 * 8),
        "where": "in one thread" if on.type == "cpu" else "on a GPU",
        "formula": tables.formula,
    }
    if flops_per_second is None:
        return plan
    seconds = plan["flops"] / flops_per_second
    return plan | {"time": {"seconds": seconds, "device_hours": seconds / 3600}}


class _Tables(NamedTuple):
    numbers: int
    parameters: int
    flops_per_token: int
    copies: int  # in the type of the recursions
    formula: str


def _dense(states: int, symbols: int) -> _Tables:
    numbers = states * (1 + states + symbols)
    return _Tables(numbers, numbers - 1 - 2 * states, 6 * states**2, 1, "6 N L H^2")


def _blocked(blocks: BlockSizes, symbols: int) -> _Tables:
    count, size, rank = blocks
    states = count * size
    numbers = rank + 2 * rank * states + symbols * size
    # Their rows, their columns, and the counts of some steps.
    return _Tables(numbers, numbers - 1 - rank - 2 * states, 14 * rank * size, 3, "14 N L R S")
