"""Expected counts of small HMMs on a CPU, in one compiled loop over the sequences.

The recursions are those of [`expected_counts`]. With few states, one step in time is too little work for a call into
torch, and threads that make such calls wait for Python's global lock. Here four sequences go through all their steps
together without the lock, so that each table row that is loaded serves four sequences. States are padded to a multiple
of eight with states that are never visited, so that vector instructions are always full. With many states the blocked
products of a BLAS are faster: see `MAX_STATES`.

Results in float32 have a relative error of about 1e-6 at any length, although a sum of float32 numbers stops growing
near 2^24 of them. Emissions are added in float64, and so are moves after every few steps. The product of filter and
backward value sums to one but for rounding, which multiplies from step to step, so the values are divided by that sum
every few steps. Where states hardly mix, tables rounded to float32 are what limits the precision. Time is `6 H^2`
operations per token; memory `O(T H)`.
"""

from typing import Any

import numba
import numpy as np
from jaxtyping import Float, Int

MAX_STATES = 64
"""With more states, torch is faster. Measured in float32 on a Zen 3: on one thread this loop had 0.8 of torch's
throughput at 50 states, and 0.6 from 100 on. A second thread doubled the throughput of this loop, but added nothing to
torch's at 50 states."""

_LANES = 4
_FLUSH = 32  # steps whose moves are summed in the type of the recursions

BLOCK = 8
"""Steps after which backward values are scaled again, and after which torch adds the counts of moves in float64."""


# Products and sums may be fused and partly reordered, so results are bit-identical only on processors of one kind.
_compiled = numba.njit(cache=True, nogil=True, fastmath={"contract"})


def backward_bound(dtype: Any) -> float:
    """Maximum of a backward value in a type of NumPy or torch.

    In a state of probability p the value is at most 1 / p. In an impossible state it has no bound. There it is
    multiplied by 0, and infinity times 0 would be NaN.
    """
    return 1e290 if dtype.itemsize == 8 else 1e30


def fused_counts(
    start: Float[np.ndarray, "H"],
    transition: Float[np.ndarray, "H H"],
    emission: Float[np.ndarray, "H E"],
    tokens: Int[np.ndarray, "B T"],
    lengths: Int[np.ndarray, "B"] | None,
    weights: Float[np.ndarray, "B"] | None,
) -> tuple[Float[np.ndarray, "H"], Float[np.ndarray, "H H"], Float[np.ndarray, "H E"], Float[np.ndarray, "B"]]:
    """Expected counts of first states, moves and emissions, summed over sequences; and log-likelihoods in nats.

    Args:
        start, transition, emission (`np.ndarray`): the tables, float32 or float64, which is the type of the
            recursions.
        tokens (`np.ndarray` of shape `(B, T)`, int64): symbols in `[0, E)`.
        lengths (`np.ndarray` of shape `(B,)`, *optional*): number of tokens in each row; the rest is padding.
        weights (`np.ndarray` of shape `(B,)`, *optional*): how often each row counts, in the type of the tables.

    Returns:
        Float64 arrays `(H,)`, `(H, H)`, `(H, E)` and `(B,)`. An impossible sequence has log-likelihood -inf and adds
        nothing to the counts.
    """
    states, symbols = emission.shape
    pad = -states % 8
    transition = np.pad(transition, ((0, pad), (0, pad)))
    sums = np.zeros(states + pad), np.zeros(transition.shape), np.zeros((symbols, states + pad))
    scores = np.zeros(len(tokens))
    limits = np.finfo(start.dtype)
    _count(
        *(np.pad(start, (0, pad)), transition, np.ascontiguousarray(transition.T)),
        *(np.ascontiguousarray(np.pad(emission, ((0, pad), (0, 0))).T), np.ascontiguousarray(tokens)),
        np.full(len(tokens), tokens.shape[1]) if lengths is None else lengths,
        np.ones(len(tokens), start.dtype) if weights is None else weights,
        *(limits.smallest_subnormal, limits.max, start.dtype.type(backward_bound(start.dtype))),
        *(*sums, scores),
    )
    start_H, flow_HH, emitted_EH = sums
    return start_H[:states], (flow_HH * transition)[:states, :states], emitted_EH[:, :states].T, scores


@_compiled
def _count(
    start,
    transition,
    to_previous,
    emission,
    tokens,
    lengths,
    weights,
    smallest,
    largest,
    bound,
    starts,
    flow,
    emitted,
    scores,
):
    states, one, none = len(start), start.dtype.type(1), start.dtype.type(0)
    filtered = np.empty((tokens.shape[1], _LANES, states), start.dtype)
    scale = np.empty((tokens.shape[1], _LANES), start.dtype)
    work, value = np.empty((_LANES, states), start.dtype), np.empty((_LANES, states), start.dtype)
    arriving, moved = np.empty((_LANES, states), start.dtype), np.zeros(flow.shape, start.dtype)
    end, weight = np.empty(_LANES, np.int64), np.ones(_LANES, start.dtype)
    for first in range(0, len(tokens), _LANES):
        for r in range(_LANES):
            end[r] = lengths[first + r] if first + r < len(tokens) else 0
            weight[r] = weights[first + r] if first + r < len(tokens) else one
            value[r] = weight[r]  # instead of 1, which multiplies the counts of the row
        rows = tokens[first : first + _LANES]
        _filter(start, transition, emission, rows, end, smallest, filtered, scale, work)
        for r in range(len(rows)):
            scores[first + r] = _sum_of_logs(scale, r, end[r])
        for t in range(end.max() - 1, -1, -1):
            for r in range(_LANES):
                if t < end[r]:
                    symbol, divisor = rows[r, t], scale[t, r]
                    if t % BLOCK == 0 and weight[r] > 0:
                        # The sum is the weight but for rounding, which would accumulate with the length.
                        divisor *= _sum_of_products(filtered[t, r], value[r]) / weight[r]
                    inverse = min(one / divisor, largest) if divisor > 0 else none
                    for j in range(states):
                        filtered[t, r, j] *= value[r, j]
                    for j in range(states):
                        emitted[symbol, j] += filtered[t, r, j]
                        arriving[r, j] = min(emission[symbol, j] * value[r, j] * inverse, bound)
                else:
                    arriving[r] = 0
            if t > 0:
                _add_outer(filtered[t - 1], arriving, moved)
                _multiply(arriving, to_previous, value)
                for r in range(_LANES):
                    if t >= end[r]:
                        value[r] = weight[r]
            if t % _FLUSH == 0:
                _take_over(moved, flow)
        for r in range(_LANES):
            if end[r] > 0:
                for j in range(states):
                    starts[j] += filtered[0, r, j]


@_compiled
def _take_over(moved, flow):
    # Add the moves to those in float64, and begin again.
    for i in range(len(moved)):
        for j in range(len(moved)):
            flow[i, j] += moved[i, j]
            moved[i, j] = 0


@_compiled
def _sum_of_logs(scale, r, end):
    # The logarithm of a product of many probabilities, taken before it underflows.
    total, product = 0.0, 1.0
    for t in range(end):
        factor = np.float64(scale[t, r])
        if product * factor < 1e-100:
            total += np.log(product)
            product = 1.0
        product *= factor
    return total + np.log(product)


@_compiled
def _filter(start, transition, emission, rows, end, smallest, filtered, scale, work):
    # P(state at t | tokens up to and including t) and P(token t | tokens before it); zeros and ones beyond a row's
    # end.
    for r in range(_LANES):
        # Not as one assignment: for the error of unequal shapes numba would compile for seconds.
        for j in range(len(start)):
            work[r, j] = start[j]
    for t in range(end.max()):
        for r in range(_LANES):
            if t < end[r]:
                symbol = rows[r, t]
                for j in range(len(start)):
                    filtered[t, r, j] = emission[symbol, j] * work[r, j]
                scale[t, r] = _sum(filtered[t, r])
                # An impossible token has scale 0; 0 divided by the smallest number is 0, not NaN.
                divisor = max(scale[t, r], smallest)
                for j in range(len(start)):
                    filtered[t, r, j] /= divisor
            else:
                filtered[t, r] = 0
                scale[t, r] = 1
        _multiply(filtered[t], transition, work)


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _sum_of_products(left, right):
    total = left.dtype.type(0)
    for j in range(len(left)):
        total += left[j] * right[j]
    return total


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _sum(values):
    total = values.dtype.type(0)
    for value in values:
        total += value
    return total


@_compiled
def _multiply(left, table, out):
    # out (4, H) = left (4, H) @ table (H, H), four rows of the table at a time.
    a, b, c, d = out[0], out[1], out[2], out[3]
    out[:] = 0
    for i in range(0, len(table), 4):
        a0, a1, a2, a3 = left[0, i], left[0, i + 1], left[0, i + 2], left[0, i + 3]
        b0, b1, b2, b3 = left[1, i], left[1, i + 1], left[1, i + 2], left[1, i + 3]
        c0, c1, c2, c3 = left[2, i], left[2, i + 1], left[2, i + 2], left[2, i + 3]
        d0, d1, d2, d3 = left[3, i], left[3, i + 1], left[3, i + 2], left[3, i + 3]
        t0, t1, t2, t3 = table[i], table[i + 1], table[i + 2], table[i + 3]
        for j in range(len(table)):
            a[j] += a0 * t0[j] + a1 * t1[j] + a2 * t2[j] + a3 * t3[j]
            b[j] += b0 * t0[j] + b1 * t1[j] + b2 * t2[j] + b3 * t3[j]
            c[j] += c0 * t0[j] + c1 * t1[j] + c2 * t2[j] + c3 * t3[j]
            d[j] += d0 * t0[j] + d1 * t1[j] + d2 * t2[j] + d3 * t3[j]


@_compiled
def _add_outer(left, right, out):
    # out (H, H) += left (4, H)^T @ right (4, H), two rows at a time.
    r0, r1, r2, r3 = right[0], right[1], right[2], right[3]
    for i in range(0, len(out), 2):
        a0, a1, a2, a3 = left[0, i], left[1, i], left[2, i], left[3, i]
        b0, b1, b2, b3 = left[0, i + 1], left[1, i + 1], left[2, i + 1], left[3, i + 1]
        a, b = out[i], out[i + 1]
        for j in range(len(out)):
            a[j] += a0 * r0[j] + a1 * r1[j] + a2 * r2[j] + a3 * r3[j]
            b[j] += b0 * r0[j] + b1 * r1[j] + b2 * r2[j] + b3 * r3[j]
