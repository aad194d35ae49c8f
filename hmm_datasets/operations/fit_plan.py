"""What a fit of an HMM will consume: parameters, tokens, operations, and time at an assumed rate.

An epoch costs `6 N L H^2` operations for `N` sequences of `L` tokens and `H` states: a product with the transition
table for each token in the forward pass, in the backward pass, and for the expected counts of moves. An HMM of blocks
of `S` states, with transitions of rank `R`, costs `14 N L R S`: two products in the forward pass and five in
the backward pass and for the counts. The loss on held-out sequences is not counted; it costs a third of that for as
many tokens. Tables of data sheets have no rate for such products in float32, so the rate is one that was measured,
here or in an earlier fit, whose history has its tokens per second: times the operations of a token these are its
FLOP/s.
"""

import os
from collections.abc import Sequence
from typing import Any

from ..errors import InputError
from ..hmm.fitting.baum_welch import free_parameters
from ..hmm.structured.blocked import BlockedHMM
from ..hmm.token_files import read_token_rows
from ..runtime.command_line import parse_settings
from .launching import recipe_settings


def plan_fit(arguments: Sequence[str]) -> dict[str, Any]:
    """Plan a fit that runs for all of its `max_epochs`, and all of `num_restarts` first guesses.

    A corpus is not read for it: its tokens are those of `assumed_tokens`. Those of a file of symbols are counted. A
    first guess is read, which has the number of states or of blocks. Several sizes are fitted one after the other.

    Args:
        arguments (sequence of `str`): what would follow `hmm-datasets fit`.

    Returns:
        `dict`: `parameters`, the free ones of the largest size; `tokens_per_epoch`; `flops_per_epoch`, `tokens` and
        `flops` of all sizes; `formula`, of the operations; and with a rate `time`, a `dict` with `seconds` and
        `device_hours`.

    Raises:
        `InputError`: settings that the recipe would refuse too, or tokens that are not known before they are read.
    """
    corpus, fit = parse_settings(*recipe_settings("fit"), arguments=["--output_dir", "fit", *arguments])
    num_tokens, num_symbols = corpus.assumed_tokens, corpus.vocabulary_size
    if corpus.is_array and os.path.exists(corpus.corpus):
        rows = read_token_rows(corpus.corpus, corpus.lengths)
        num_tokens = rows.num_tokens
        num_symbols = corpus.num_symbols or int(rows.tokens[rows.observed].max()) + 1
    if num_tokens is None:
        raise InputError(f"the tokens of {corpus.corpus} are not known before it is read; set assumed_tokens")
    initial, sizes = None if fit.num_states else fit.read_initial(), []
    is_blocked = bool(fit.block_size) or isinstance(initial, BlockedHMM)
    if is_blocked:
        BlockedHMM.check_device(corpus.device)
        for block_size in fit.block_size or [initial.block_size]:
            size, initial = fit.of_blocks(block_size, initial)
            sizes.append((size, free_parameters(initial), 14 * initial.rank * block_size))
    else:
        symbols = num_symbols if initial is None else initial.num_symbols
        for size in fit.sizes(initial):
            states = size.num_states
            sizes.append((size, states * (states + symbols - 1) - 1, 6 * states**2))
    plan = {
        "parameters": max(parameters for _, parameters, _ in sizes),
        "tokens_per_epoch": num_tokens,
        "flops_per_epoch": num_tokens * sum(flops_per_token for *_, flops_per_token in sizes),
        "tokens": num_tokens * sum(_epochs(size) for size, *_ in sizes),
        "flops": num_tokens * sum(_epochs(size) * flops_per_token for size, _, flops_per_token in sizes),
        "formula": "14 N L R S" if is_blocked else "6 N L H^2",
    }
    if corpus.assumed_flops is None:
        return plan
    seconds = plan["flops"] / corpus.assumed_flops
    return plan | {"time": {"seconds": seconds, "device_hours": seconds / 3600}}


def _epochs(fit: Any) -> int:
    """Epochs of a fit of one size, with those that choose between its first guesses."""
    return fit.max_epochs + (fit.num_restarts - 1) * min(fit.restart_epochs, fit.max_epochs)
