"""Rows of tokens in which a number underflows, once more in logarithms: the filter, the smoother, expected counts.

A scaled filter loses a state whose belief falls below the smallest number of its type, although later tokens may need
it: the states that a left-to-right model has left, or the components of a mixture. Those that filter compare every
belief with [`safe_beliefs`]: above it no product underflows. Those that go back in time compare every backward value
with a bound, which for HMMs of blocks is infinity. A state of belief `p` adds `p` times its value to a probability, so
that states lost (below 1e-308 in float64) matter only where a value passes the bound (1e290), which sequences drawn
from the HMM itself do with a probability below 1e-290. Rows that fail such a test, and they alone, are computed again
here. Here a sum is a product divided by its maximum where nothing that counts underflows in it, else it is taken term
by term ([`.tilted`]).
"""

import math
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from ...compilation import compiled
from .counts import backward_bound
from .tilted import log_entries, log_product, log_sum

_CHUNK = 1 << 22  # numbers of the largest temporary array


@compiled
def _recur(log_emission, moves, log_moves, tokens, out, scales):
    # out[t+1, j] = log sum_i exp(out[t, i] + log_emission[x, i]) moves[y, j, i], less the log of the sum over j.
    for t in range(len(tokens)):
        x, y = min(tokens[t], len(log_emission) - 1), min(tokens[t], len(moves) - 1)
        message = out[t] + log_emission[x]
        scales[t] = -np.inf
        if message.max() == -np.inf:
            out[t + 1] = -np.inf
        else:
            log_product(moves[y], log_moves[y], message, out[t + 1])
            scales[t] = log_sum(out[t + 1])
            if scales[t] > -np.inf:
                out[t + 1] -= scales[t]


class LogRecursions:
    """The logarithms of the tables of an HMM.

    Args:
        start (`np.ndarray` of shape `(H,)`): distribution of the first state.
        emission (`np.ndarray` of shape `(E, H)` or `None`): `P(emit x | in i)`; None if edges emit.
        moves (`np.ndarray` of shape `(1, H, H)` or `(E, H, H)`): `P(next j | in i)`, or `P(emit x, go to j | in i)`.
    """

    def __init__(self, start: np.ndarray, emission: np.ndarray | None, moves: np.ndarray):
        self._tables, self._on_edges = (start, emission, moves), emission is None

    @cached_property
    def safe(self) -> tuple[float, int]:
        """[`safe_beliefs`] of the tables: the lowest belief, and the steps."""
        return safe_beliefs(*self._tables)

    @cached_property
    def _logs(self) -> list[Float[np.ndarray, "..."]]:
        # Those of `tilted` are the same on every machine.
        logs = [np.zeros((1, 1)) if table is None else np.empty(table.shape) for table in self._tables]
        for table, out in zip(self._tables, logs, strict=True):
            if table is not None:
                log_entries(table.astype(np.float64).reshape(-1), out.reshape(-1))
        return logs

    def _recur(self, first: np.ndarray, tokens: np.ndarray, *axes: int) -> tuple[np.ndarray, np.ndarray]:
        out, scales = np.empty((len(tokens) + 1, len(first))), np.empty(len(tokens))
        out[0] = first
        moves, log_moves = (
            np.ascontiguousarray(table.transpose(0, *axes), np.float64) for table in (self._tables[2], self._logs[2])
        )
        _recur(self._logs[1], moves, log_moves, tokens, out, scales)
        return out, scales

    def filtered(self, tokens: Int[np.ndarray, "T"]) -> tuple[Float[np.ndarray, "T+1 H"], Float[np.ndarray, "T"]]:
        """Logarithms of the beliefs before every token and after the last, and of the probability of every token."""
        return self._recur(self._logs[0], tokens, 2, 1)

    def ahead(self, tokens: Int[np.ndarray, "T"]) -> Float[np.ndarray, "T+1 H"]:
        """Entry `t`: the log-probability, up to a constant, of tokens from `t` on, given the state that moves to the
        one before token `t`; for edges, given the state before token `t`."""
        return self._recur(np.zeros_like(self._logs[0]), np.ascontiguousarray(tokens[::-1]), 1, 2)[0][::-1]

    def posteriors(self, tokens: Int[np.ndarray, "T"]) -> Float[np.ndarray, "T H"]:
        """`P(state that emits token t | all tokens)`; zeros if the tokens are impossible."""
        return self._smoothed(tokens)[2]

    def _smoothed(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        (beliefs, scales), ahead = self.filtered(tokens), self.ahead(tokens)
        after = ahead[:-1] if self._on_edges else self._logs[1][tokens] + ahead[1:]
        return beliefs, ahead, softmax(beliefs[:-1] + after), float(scales.sum())

    def counts(self, tokens: Int[np.ndarray, "T"]) -> tuple[dict[str, Float[np.ndarray, "..."]], float]:
        """Expected counts by name, as [`~hmm_datasets.hmm.inference.ExpectedCounts`] has them, and `log P(tokens)`."""
        beliefs, ahead, states, score = self._smoothed(tokens)
        _, emission, moves = self._logs
        if self._on_edges:
            edges = np.zeros(moves.shape)
            for x in np.unique(tokens):
                (at,) = np.nonzero(tokens == x)
                edges[x] = flows(beliefs[at], moves[x], ahead[at + 1])
            sums = {"transition": edges.sum(0), "emission": edges.sum(2).T, "edges": edges}
        else:
            emitted, counts = emission[tokens], np.zeros(emission.shape)
            np.add.at(counts, tokens, states)
            flow = flows(beliefs[:-2] + emitted[:-1], moves[0], emitted[1:] + ahead[2:])
            sums = {"transition": flow, "emission": counts.T}
        return {"start": states[0], **sums}, score


def safe_beliefs(start: np.ndarray, emission: np.ndarray | None, *moves: np.ndarray) -> tuple[float, int]:
    """The belief from which on no product with the tables underflows in some steps, and their number, a power of two.

    The belief is 0 if none can be lower, where any state leads to any other: none is less than the smallest entry of
    the last of `moves`, and of a single table than that of its column ([`_never_low`]).
    """
    tables = [table for table in (start, emission, *moves) if table is not None]
    least = [float(table[table > 0].min(initial=1)) for table in tables]
    step, tiny = math.prod(least[1:]), float(np.finfo(start.dtype).tiny)
    dense, lowest = (moves[-1] > 0).all(), min(least[0], least[-1]) * step
    if dense and (lowest >= tiny or (len(moves) == 1 and _never_low(start, emission, *moves))):
        return 0.0, 1
    steps = 4 if step**8 > tiny else 1
    return (tiny / step**steps, steps) if step > tiny else (np.inf, 1)


def _never_low(start: np.ndarray, emission: np.ndarray | None, moves: np.ndarray) -> bool:
    # Whether the products of a step sum to numbers of full precision for the least beliefs that there are, and no
    # backward value of a possible state, which is at most the inverse of its belief, passes its bound.
    table, enough = moves.astype(np.float64), np.finfo(start.dtype).tiny * len(start)
    shown = np.ones((1, len(start))) if emission is None else emission
    for weights in (start.astype(np.float64), (table / table.sum(-1, keepdims=True)).min((0, 1))):
        reached = (weights * shown) @ table
        if reached[reached > 0].min() < enough or 1 / weights[weights > 0].min() >= backward_bound(start.dtype):
            return False
    return True


def log_sums(logs: Float[np.ndarray, "... N"]) -> Float[np.ndarray, "..."]:
    """The logarithm of the sum of the exponentials along the last axis."""
    peak = np.maximum(logs.max(-1, keepdims=True), np.finfo(np.float64).min)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(logs - peak).sum(-1)) + peak.squeeze(-1)


def softmax(logs: Float[np.ndarray, "... N"], axis: int | None = -1) -> Float[np.ndarray, "... N"]:
    """The distributions along an axis, or that of all entries; zeros where all are -inf."""
    table = np.exp(logs - np.maximum(logs.max(axis, keepdims=True), np.finfo(np.float64).min))
    total = table.sum(axis, keepdims=True)
    return np.divide(table, total, out=table, where=total > 0)


def flows(
    left: Float[np.ndarray, "T N"], moves: Float[np.ndarray, "N M"], right: Float[np.ndarray, "T M"]
) -> Float[np.ndarray, "N M"]:
    """The sum over `t` of the distributions in proportion to `exp(left[t, i] + moves[i, j] + right[t, j])`."""
    total, size = np.zeros(moves.size), max(1, _CHUNK // moves.size)
    for begin in range(0, len(left), size):
        part = slice(begin, begin + size)
        terms = left[part, :, None] + moves + right[part, None, :]
        total += softmax(terms.reshape(len(terms), -1)).sum(axis=0)
    return total.reshape(moves.shape)
