"""Draws from an HMM given tokens, exactly: what follows a prefix, paths of states, and what gaps may have held.

Paths come from forward filtering and backward sampling (Carter and Kohn, Biometrika 81, 1994; for HMMs: Scott, J. Am.
Stat. Assoc. 97, 2002). The filter gives the belief before every token and after the last. The state after the last
token is drawn from the last belief, and then, from the end to the beginning, each state from

    P(state i before token t | tokens before t) P(emit token t, go to j | in i)

for the state `j` drawn after it. A missing token is drawn last, given the states on both sides of it. The filter takes
`O(T H^2)` per row, and a draw `O(T H)`. The beliefs of a few rows are kept at a time.

Every number is a sum or product in a fixed order, and random numbers are those of `kernels.backward`, so that draws
depend on the HMM, the row, the seed and the index alone, on every machine.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int

from ..array_input import Observed, integers_with_gaps
from ..errors import InputError
from .arrays import checked_tokens, over_rows, tokens_with_gaps
from .integers import integer
from .kernels.backward import draw_backward
from .kernels.structured import filter_in_order
from .named_tokens import symbols_of_names
from .sampling import derived_seed, smallest_unsigned

if TYPE_CHECKING:
    from .model import HMM
    from .process import Process

_BELIEFS = 1 << 22  # numbers in the beliefs that are kept at a time
_CONTINUATIONS = 1 << 31  # parts of a seed from here on are for what follows a prefix of so many tokens


def draw_given(
    hmm: "HMM", tokens: Any, num_samples: int, seed: int, first: int, lengths: Any
) -> tuple[Int[np.ndarray, "B S T"], Int[np.ndarray, "B S T"]]:
    """States and tokens given the tokens that were observed; see [`HMM.sample_states`] and [`HMM.impute`].

    Raises:
        `InputError`: an argument is out of range, or the HMM cannot emit a row; the message has the place.
    """
    num_samples = integer("num_samples", num_samples, 1, 31)
    seed, first = integer("seed", seed, 0, 64), integer("first", first, 0, 64)
    values, ends, _ = tokens_with_gaps(symbols_of_names(tokens, hmm.vocabulary), hmm.num_symbols, lengths)
    rows = values.masked_fill(values < 0, hmm.num_symbols).cpu().numpy()
    batch, length = rows.shape
    ends = np.full(batch, length) if ends is None else ends.cpu().numpy()
    states = np.zeros((batch, num_samples, length), smallest_unsigned(hmm.num_states))
    symbols = np.zeros(states.shape, smallest_unsigned(hmm.num_symbols))
    at_once = max(1, _BELIEFS // ((length + 1) * hmm.num_states))

    def work(part: slice) -> None:
        for begin in range(part.start, part.stop, at_once):
            some = slice(begin, min(begin + at_once, part.stop))
            beliefs, in_logs = filtered(hmm, rows[some], ends[some], begin)
            origin = np.uint64((first + begin * num_samples) % (1 << 64))
            inputs = beliefs, in_logs, *hmm._tables_with_missing, rows[some], ends[some], np.uint64(seed), origin
            draw_backward(*inputs, states[some], symbols[some])

    over_rows(work, batch, rows.size * hmm.num_states * (hmm.num_states + num_samples))
    return states, symbols


def filtered(
    hmm: "HMM", rows: Int[np.ndarray, "B T"], ends: Int[np.ndarray, "B"], begin: int = 0
) -> tuple[Float[np.ndarray, "B T+1 H"], Bool[np.ndarray, "B"]]:
    """Beliefs before each token and after the last, the same to the last bit on every machine.

    Rows in which a belief may underflow have the logarithms of their beliefs; these rows come second.

    Raises:
        `InputError`: the HMM cannot emit a row, which the message counts from `begin`.
    """
    emission, moves = hmm._tables_with_missing
    beliefs, scales = np.empty((len(rows), rows.shape[1] + 1, hmm.num_states)), np.empty(rows.shape)
    lowest = np.empty(len(rows))
    shown = np.ones(moves.shape[:2]) if emission is None else emission
    filter_in_order(hmm.start, shown, moves, rows, beliefs, scales, lowest)
    in_logs = lowest < hmm._log_tables.safe[0]
    possible = scales > 0
    for row in np.flatnonzero(in_logs):
        beliefs[row], log_scales = hmm._log_tables.filtered(rows[row])
        possible[row] = log_scales > -np.inf
    impossible = np.argwhere(~possible & (np.arange(rows.shape[1]) < ends[:, None]))
    if len(impossible) > 0:
        row, position = impossible[0].tolist()
        raise InputError(
            f"tokens[{begin + row}, {position}] is {rows[row, position]}, which {hmm!r} cannot emit after the tokens "
            "before it; expected tokens of positive probability"
        )
    return beliefs, in_logs


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
