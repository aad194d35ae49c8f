"""What follows a prefix, drawn exactly.

An HMM whose start is the belief after a prefix emits what follows the prefix. Every number of that belief is a sum or
product in a fixed order, and random numbers are those of any draw, so that what is drawn depends on the HMM, the
prefix, the seed and the index alone, on every machine. The filter takes `O(P H^2)` per distinct prefix of `P` tokens.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from ..array_input import Observed, integers_with_gaps
from ..errors import InputError
from .arrays import checked_tokens
from .kernels.structured import filter_in_order
from .kernels.tilted import normalize_logs
from .named_tokens import symbols_of_names
from .sampling import derived_seed

if TYPE_CHECKING:
    from .model import HMM
    from .process import Process

_CONTINUATIONS = 1 << 31  # parts of a seed from here on are for what follows a prefix of so many tokens


def belief_after(hmm: "HMM", tokens: Int[np.ndarray, "P"]) -> Float[np.ndarray, "H"]:
    """The belief after a prefix, in which symbol `E` is a missing token, the same to the last bit on every machine.

    If a belief may underflow on the way, it is found in logarithms.

    Raises:
        `InputError`: the HMM cannot emit the prefix.
    """
    emission, moves = hmm._tables_with_missing
    belief, scales = hmm.start.copy(), np.empty(len(tokens))
    shown = np.ones(moves.shape[:2]) if emission is None else emission
    lowest, possible = filter_in_order(shown, moves, tokens, belief, scales), scales > 0
    if lowest < hmm._log_tables.safe[0]:
        logs, log_scales = hmm._log_tables.filtered(tokens)
        normalize_logs(logs[-1], belief)
        possible = log_scales > -np.inf
    if not possible.all():
        position = int(possible.argmin())
        raise InputError(
            f"tokens[0, {position}] is {tokens[position]}, which {hmm!r} cannot emit after the tokens before it; "
            "expected tokens of positive probability"
        )
    return belief


def fill_after(process: "Process", prefix: Any, seed: int, first: int, step: int, out: Any, num_threads: Any) -> None:
    """Fill row `r` of `out` with sequence `first + step r` of what follows row `r` of `prefix`, or its only row.

    The seed is another one for every length of a prefix, so that what a sequence is continued by is independent of how
    it was drawn.
    """
    rows = _prefixes(process, prefix, len(out))
    seed = derived_seed(seed, _CONTINUATIONS + rows.shape[1])
    distinct, which = np.unique(rows, axis=0, return_inverse=True)
    which = np.broadcast_to(which.reshape(-1), len(out)) if len(rows) == 1 else which.reshape(-1)
    order = np.argsort(which, kind="stable")
    # Runs of consecutive rows that have the same prefix.
    ends = np.flatnonzero((np.diff(order) != 1) | (np.diff(which[order]) != 0)) + 1
    for run in np.split(order, ends) if len(order) > 0 else []:
        begin, end = int(run[0]), int(run[-1]) + 1
        try:
            following = process._after(distinct[which[begin]])
        except InputError as error:
            raise InputError(f"of prefix, row {begin}: {error}") from None
        origin = (first + step * begin) % (1 << 64)
        following.sample(
            end - begin, out.shape[1], seed, origin, step=step, out=out[begin:end], num_threads=num_threads
        )


def _prefixes(process: "Process", prefix: Any, count: int) -> Int[np.ndarray, "N P"]:
    values, missing = integers_with_gaps("prefix", symbols_of_names(prefix, process.vocabulary))
    if values.ndim == 1:
        values, missing = values[None], None if missing is None else missing[None]
    if values.ndim != 2 or len(values) not in (1, count):
        raise InputError(
            f"prefix has shape {tuple(values.shape)}; expected (P,), or (N, P) with a row for each of the {count} "
            "sequences"
        )
    try:
        return checked_tokens(Observed(values, missing), process.num_symbols, None).tokens.cpu().numpy()
    except InputError as error:
        raise InputError(f"of prefix: {error}") from None
