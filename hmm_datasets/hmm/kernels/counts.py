"""Expected counts of HMMs on a CPU, in one compiled loop over the sequences.

The recursions are those of [`expected_counts`]. With few states, one step in time is too little work for a call into
torch, and threads that make such calls wait for Python's global lock. Here some sequences go through all their steps
together without the lock, by the products of [`.panels`]. With many states the products of a BLAS are faster: see
`MAX_STATES`.

Results in float32 have a relative error of about 1e-6 at any length, although a sum of float32 numbers stops growing
near 2^24 of them. Emissions are added in float64, and so are moves after every few steps. The product of filter and
backward value sums to one but for rounding, which multiplies from step to step, so the values are divided by that sum
every few steps. Where states hardly mix, tables rounded to float32 are what limits the precision. Time is `6 H^2`
operations per token; memory `O(T H)`.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ...compilation import compiled
from .lanes import accumulate, fill, lanes_of, load, store, sum_of_logs, where_larger
from .panels import FLUSH, add_outer, packed, take_over, times_panels, unpacked, widened

MAX_STATES = 512
"""With more states, torch is as fast. In float32 on two cores with AVX2 this loop had 3.6 times its throughput at 50
states, 1.9 times at 200, 1.1 times at 500, and 0.95 times at 1,000."""

# Sequences that go through their steps together: enough to use what is read, and few if they are long.
_MAX_ROWS, _MAX_NUMBERS = 32, 1 << 22

BLOCK = 8
"""Steps after which backward values are scaled again, and after which torch adds the counts of moves in float64."""


def backward_bound(dtype: Any) -> float:
    """Maximum of a backward value in a type of NumPy or torch.

    In a state of probability p the value is at most 1 / p. In an impossible state it has no bound. There it is
    multiplied by 0, and infinity times 0 would be NaN. A row with a value that passes the bound may have lost a state
    to underflow, and is computed again ([`.logs`]).
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
        nothing to the counts. The log-likelihood is NaN, and the counts are not for use, where a value passed
        [`backward_bound`].
    """
    states, dtype = len(start), start.dtype.type
    # The longest first: those that go together have similar lengths.
    ends = np.full(len(tokens), tokens.shape[1]) if lengths is None else lengths
    order = np.argsort(-ends, kind="stable")
    tables = widened(start, dtype, 1), packed(transition[None], dtype), packed(transition.T[None], dtype)
    emission = widened(np.ascontiguousarray(emission.T), dtype, 1)
    sums = np.zeros(tables[0].shape), np.zeros(tables[1].shape), np.zeros(emission.shape)
    scores = np.zeros(len(tokens))
    limits, width = np.finfo(dtype), len(tables[0])
    fitting = max(4, _MAX_NUMBERS // (width * max(1, tokens.shape[1])))
    _count(
        np.uint64(max(1, min(_MAX_ROWS, fitting, len(tokens)))),
        *(*tables, np.uint64(states), emission.reshape(-1), np.ascontiguousarray(tokens), ends, order),
        np.ones(len(tokens), dtype) if weights is None else weights,
        *(limits.smallest_subnormal, limits.max, dtype(backward_bound(start.dtype))),
        *(*sums[:2], sums[2].reshape(-1), scores),
    )
    flow = unpacked(sums[1], (1, states, states), dtype)[0] * transition
    return sums[0][:states], flow, sums[2][:, :states].T, scores


@compiled
def _count(
    together, start, transition, to_previous, states, emission, tokens, ends, order, weights, smallest, largest, bound,
    starts, flow, emitted, scores,
):  # fmt: skip
    width, length, one, none = np.uint64(len(start)), tokens.shape[1], start.dtype.type(1), start.dtype.type(0)
    # Products take four rows; those after the last one are where the next step's will be.
    step, extra = together * width, np.uint64(3) * width
    filtered = np.empty(np.uint64(length) * step + extra, start.dtype)
    scale = np.empty((length, together), start.dtype)
    value, arriving = np.empty(step + extra, start.dtype), np.empty(step + extra, start.dtype)
    moved, parts = np.zeros(flow.shape, start.dtype), np.empty(lanes_of(start), start.dtype)
    peaks = np.empty(together * lanes_of(start), start.dtype)
    for first in range(0, len(order), together):
        rows = order[first : first + np.int64(together)]
        live = _filter(
            together, start, transition, states, emission, tokens, ends, rows, smallest, filtered, scale, value, parts
        )
        for r in range(live):
            scores[rows[r]] = sum_of_logs(scale.reshape(-1), np.uint64(r), together, np.uint64(ends[rows[r]]))
        live, peaks[:] = 0, none
        for t in range(ends[rows[0]] - 1, -1, -1):
            here = np.uint64(t) * step
            while live < len(rows) and ends[rows[live]] > t:
                for j in range(width):
                    value[np.uint64(live) * width + j] = weights[rows[live]]
                live += 1
            for r in range(live):
                weight, total, symbol = weights[rows[r]], one, np.uint64(tokens[rows[r], t]) * width
                if t % BLOCK == 0 and weight > 0:
                    # The sum is the weight but for rounding, which would accumulate with the length.
                    total = _sum_of_products(filtered, here, value, np.uint64(r) * width, width, parts) / weight
                divisor = scale[t, r] * total
                inverse = min(one / divisor, largest) if divisor > 0 else none
                _smooth(
                    filtered, here, value, np.uint64(r) * width, width, emission, symbol, inverse, emitted, arriving,
                    peaks, np.uint64(r) * lanes_of(start),
                )  # fmt: skip
            if t > 0:
                count = np.uint64(live)
                add_outer(filtered, here - step, count, states, width, arriving, width, moved, np.uint64(0))
                full = _fill_up(arriving, np.uint64(0), count, width)
                times_panels(arriving, np.uint64(0), full, states, width, to_previous, np.uint64(0), width, value)
            if t % FLUSH == 0:
                take_over(moved, flow)
        for r in range(live):
            for j in range(width):
                starts[j] += filtered[np.uint64(r) * width + j]
            for lane in range(lanes_of(start)):
                if peaks[np.uint64(r) * lanes_of(start) + lane] >= bound:
                    scores[rows[r]] = np.nan


@compiled
def _sum_of_products(filtered, here, value, at, width, parts):
    total = fill(value, 0.0)
    for j in range(np.uint64(0), width, lanes_of(value)):
        total = total + load(filtered, here + at + j) * load(value, at + j)
    return _sum(total, parts)


@compiled
def _smooth(filtered, here, value, at, width, emission, symbol, inverse, emitted, arriving, peaks, own):
    # P(state at t | all tokens) in place of the filter's belief, and the value of the state before its symbol, whose
    # maximum comes to `peaks`. One that is infinite makes its row be computed again.
    peak = load(peaks, own)
    for j in range(np.uint64(0), width, lanes_of(value)):
        ahead = load(value, at + j)
        posterior = load(filtered, here + at + j) * ahead
        store(filtered, here + at + j, posterior)
        accumulate(emitted, symbol + j, posterior)
        ahead = load(emission, symbol + j) * ahead * inverse
        store(arriving, at + j, ahead)
        peak = where_larger(ahead, peak, ahead, peak)
    store(peaks, own, peak)


@compiled
def _filter(together, start, transition, states, emission, tokens, ends, rows, smallest, filtered, scale, work, parts):
    # P(state at t | tokens up to and including t), P(token t | tokens before it), and how many rows have tokens.
    width, lanes = np.uint64(len(start)), lanes_of(start)
    live = len(rows)
    for j in range(width):
        for r in range(together):
            work[r * width + j] = start[j]
    while live > 0 and ends[rows[live - 1]] == 0:
        live -= 1
    with_tokens = live
    for t in range(ends[rows[0]]):
        here = np.uint64(t) * together * width
        while ends[rows[live - 1]] <= t:
            live -= 1
        for r in range(live):
            at, symbol, total = np.uint64(r) * width, np.uint64(tokens[rows[r], t]) * width, fill(start, 0.0)
            for j in range(np.uint64(0), width, lanes):
                weight = load(emission, symbol + j) * load(work, at + j)
                store(filtered, here + at + j, weight)
                total = total + weight
            scale[t, r] = _sum(total, parts)
            # An impossible token has scale 0; 0 divided by the smallest number is 0, not NaN.
            divisor = max(scale[t, r], smallest)
            for j in range(np.uint64(0), width, lanes):
                store(filtered, here + at + j, load(filtered, here + at + j) / divisor)
        full = _fill_up(filtered, here, np.uint64(live), width)
        times_panels(filtered, here, full, states, width, transition, np.uint64(0), width, work)
    return with_tokens


@compiled
def _fill_up(table, at, count, width):
    # Zeros in the rows after the first `count`, up to a multiple of four.
    full = (count + np.uint64(3)) // np.uint64(4) * np.uint64(4)
    for i in range(at + count * width, at + full * width):
        table[i] = 0
    return full


@compiled
def _sum(lanes, parts):
    store(parts, np.uint64(0), lanes)
    total = parts.dtype.type(0)
    for part in parts:
        total += part
    return total
