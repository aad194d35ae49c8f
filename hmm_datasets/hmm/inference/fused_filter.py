"""The filter and the smoother on a CPU, in compiled loops: one lane for each of the sequences processed together.

The recursions are those of [`.forward_backward`]. A step in time of a small HMM is far too little work for calls into
torch, and [`multiply`] is as fast as a BLAS for large tables too: in float32 on one core of a Zen 4 it ran at 110
GFLOP/s for 20, 50 and 200 states, where MKL ran at 51, 70 and 90. So there is one loop for any number of states.
Sequences of similar lengths are put together, 16 in float32 and 8 in float64, and go through all their steps without
Python's global lock; threads share the sequences. Memory is that of the result plus `O(T + H)` per thread.

For a state-emitting HMM a step takes `H` look-ups of emissions and `H^2` products per sequence. For an edge-emitting
one it takes `H^2` of both.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...compat.numba_lanes import compiled, fill, gather, lanes_of, load, store, where_larger
from ..threads import in_parallel

if TYPE_CHECKING:
    from .forward_backward import Parameters

_MIN_TOKENS = 1 << 14  # of a thread; fewer take less time than to start one


def serves(hmm: "Parameters", *others: Tensor | None) -> bool:
    """Whether the kernels compute this: everything is on the CPU, in float32 or float64, and needs no gradient."""
    tables = [hmm.start, hmm.transition, hmm.emission, hmm.edges, *others]
    given = [table for table in tables if table is not None]
    needs_gradient = torch.is_grad_enabled() and any(table.requires_grad for table in given)
    return (
        hmm.start.dtype in (torch.float32, torch.float64)
        and all(table.device.type == "cpu" for table in given)
        and not needs_gradient
    )


class Tables:
    """The tables of an HMM as the kernels read them: flat, with the next state last.

    Args:
        hmm ([`~hmm_datasets.hmm.inference.forward_backward.Parameters`]): the tables.
        initial (`torch.Tensor` of shape `(B, H)`, *optional*): beliefs to start from instead of `start`.
    """

    def __init__(self, hmm: "Parameters", initial: Float[Tensor, "B H"] | None = None):
        self.num_states = len(hmm.start)
        self.initial = (hmm.start.unsqueeze(0) if initial is None else initial).contiguous().numpy(force=True)
        if hmm.edges is None:
            self.emission, self.moves, self.to_previous = map(flat, (hmm.emission.T, hmm.transition, hmm.transition.T))
        else:
            self.emission, self.moves = None, flat(hmm.edges)
            self.to_previous = self.moves
        self.stride = np.uint64(self.num_states if hmm.edges is None else self.num_states**2)  # of a symbol


def flat(table: Tensor) -> np.ndarray:
    """The entries of a table in order, without a copy where they are in order already."""
    return table.contiguous().numpy(force=True).reshape(-1)


def filter_rows(
    tables: Tables, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None, *, keep: bool
) -> tuple[Float[Tensor, "B T+1 H"], Float[Tensor, "B T"], Float[Tensor, "B"]]:
    """Beliefs before every token and after the last, probability of every token, and log-likelihoods.

    Args:
        tables ([`Tables`]): the HMM.
        tokens (`torch.Tensor` of shape `(B, T)`, int64): symbols in `[0, E)`.
        lengths (`torch.Tensor` of shape `(B,)`, *optional*): number of tokens in each row; the rest is padding.
        keep (`bool`): whether to keep the beliefs and probabilities; if not, both are empty.

    Returns:
        Beliefs and `P(token t | tokens before t)`, 1 beyond the length, in the type of the tables; log-likelihoods in
        nats, float64.
    """
    batch, length = tokens.shape
    dtype = torch.from_numpy(tables.moves).dtype
    beliefs = torch.empty(batch * keep, length + 1, tables.num_states, dtype=dtype)
    scales, totals = torch.empty(batch * keep, length, dtype=dtype), torch.empty(batch, dtype=torch.float64)
    views = beliefs.numpy().reshape(-1), scales.numpy().reshape(-1), totals.numpy()
    shared = tables.initial, tables.emission, tables.moves, tables.stride
    run_rows(tokens, lengths, lambda *rows: _filter_rows(*shared, *rows, *views, keep))
    return beliefs, scales, totals


def smooth_rows(
    tables: Tables, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None
) -> Float[Tensor, "B T H"]:
    """`P(state that emits token t | all tokens)`; zeros beyond the length, and where the sequence is impossible."""
    out = torch.empty(*tokens.shape, tables.num_states, dtype=torch.from_numpy(tables.moves).dtype)
    flat = out.numpy().reshape(-1)
    shared = tables.initial, tables.emission, tables.moves, tables.to_previous, tables.stride
    run_rows(tokens, lengths, lambda *rows: _smooth_rows(*shared, *rows, flat))
    return out


def run_rows(tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None, work) -> None:
    """Call `work(tokens, lengths, rows)` for parts of the rows, each in a thread; rows of similar lengths together."""
    batch, length = tokens.shape
    if lengths is None:
        ends, order = np.full(batch, length), np.arange(batch)
    else:
        ends = lengths.numpy()
        order = np.argsort(-ends, kind="stable")
    values = np.ascontiguousarray(tokens.numpy())
    threads = min(torch.get_num_threads(), 1 + tokens.numel() // _MIN_TOKENS)
    # Every thread gets its share of the long rows and of the short ones.
    in_parallel(lambda part: work(values, ends, order[part::threads].copy()), range(threads), threads)


@compiled
def _filter_rows(initial, emission, moves, stride, tokens, ends, rows, beliefs, scales, totals, keep):
    lanes, states = lanes_of(moves), np.uint64(initial.shape[1])
    length = np.uint64(tokens.shape[1])
    positions = length + np.uint64(1) if keep else np.uint64(0)
    row, end, offset, live, belief, weight, work, scale = _room(moves, states, length)
    product = np.empty(lanes)
    for first in range(0, len(rows), lanes):
        count = take_rows(rows, np.uint64(first), ends, row, end)
        _forward(
            initial, emission, moves, stride, tokens, count, row, end, offset, live, belief, weight, work, scale,
            beliefs, positions,
        )  # fmt: skip
        for lane in range(count):
            totals[row[lane]] = 0
            product[lane] = 1
        for t in range(end[0]):
            for lane in range(count):
                # The logarithm of a product of many probabilities, taken before it underflows.
                following = product[lane] * scale[t * lanes + lane]
                if following < 1e-250:
                    totals[row[lane]] += np.log(product[lane])
                    following = np.float64(scale[t * lanes + lane])
                product[lane] = following
        for lane in range(count):
            totals[row[lane]] += np.log(product[lane])
            if keep:
                for t in range(length):
                    scales[row[lane] * length + t] = scale[t * lanes + lane] if t < end[lane] else 1
                last = (row[lane] * positions + end[lane]) * states
                for t in range(end[lane] + np.uint64(1), positions):
                    for j in range(states):
                        beliefs[(row[lane] * positions + t) * states + j] = beliefs[last + j]


@compiled
def _smooth_rows(initial, emission, moves, to_previous, stride, tokens, ends, rows, out):
    lanes, states = lanes_of(moves), np.uint64(initial.shape[1])
    length = np.uint64(tokens.shape[1])
    row, end, offset, live, belief, weight, work, scale = _room(moves, states, length)
    value = np.empty_like(belief)
    for first in range(0, len(rows), lanes):
        count = take_rows(rows, np.uint64(first), ends, row, end)
        _forward(
            initial, emission, moves, stride, tokens, count, row, end, offset, live, belief, weight, work, scale,
            out, length,
        )  # fmt: skip
        _backward(
            emission, to_previous, stride, tokens, count, row, end, offset, live, belief, value, work, scale, out
        )
        for lane in range(count):
            begin = row[lane] * length
            for index in range((begin + end[lane]) * states, (begin + length) * states):
                out[index] = 0


@compiled
def _room(moves, states, length):
    # What the lanes processed together need: for each its row, end, offset of its symbol, and whether it has tokens
    # left; its belief, two vectors to work with, and the scale of every token.
    lanes = lanes_of(moves)
    row, end, offset = np.empty(lanes, np.uint64), np.empty(lanes, np.uint64), np.empty(lanes, np.uint64)
    belief = np.empty(states * lanes, moves.dtype)
    scale = np.empty(max(length, np.uint64(1)) * lanes, moves.dtype)
    return row, end, offset, np.empty(lanes, moves.dtype), belief, np.empty_like(belief), np.empty_like(belief), scale


@compiled
def take_rows(rows, first, ends, row, end):
    # The rows of the lanes; lanes without a row repeat the last one, with length 0.
    count = min(np.uint64(len(row)), np.uint64(len(rows)) - first)
    for lane in range(np.uint64(len(row))):
        row[lane] = rows[first + min(lane, count - np.uint64(1))]
        end[lane] = ends[row[lane]] if lane < count else 0
    return count


@compiled
def _forward(
    initial, emission, moves, stride, tokens, count, row, end, offset, live, belief, weight, work, scale,
    beliefs, positions,
):  # fmt: skip
    # Lane 0 is the longest row. `beliefs` gets the first `positions` beliefs of every row, 0 for none.
    lanes, states = lanes_of(moves), np.uint64(initial.shape[1])
    zero, infinite = fill(moves, 0.0), fill(moves, np.inf)
    for lane in range(lanes):
        for j in range(states):
            belief[j * lanes + lane] = initial[row[lane] if len(initial) > 1 else np.uint64(0), j]
    _write(belief, count, row, np.uint64(0), positions, beliefs, states, lanes)
    for t in range(end[0]):
        _find_offsets(tokens, t, stride, row, end, offset, live)
        if emission is None:
            _multiply_edges(belief, moves, offset, states, np.uint64(1), work)
        else:
            for i in range(0, states * lanes, lanes):
                store(weight, i, load(belief, i) * gather(emission, offset, i // lanes))
            multiply(weight, moves, work)
        total = zero
        for j in range(0, states * lanes, lanes):
            total = total + load(work, j)
        store(scale, t * lanes, total)
        divisor, is_live = where_larger(total, zero, total, infinite), load(live, np.uint64(0))
        for j in range(0, states * lanes, lanes):
            store(belief, j, where_larger(is_live, zero, load(work, j) / divisor, load(belief, j)))
        _write(belief, count, row, t + np.uint64(1), positions, beliefs, states, lanes)
        for lane in range(lanes):
            if t >= end[lane]:
                scale[t * lanes + lane] = 1


@compiled
def _backward(emission, to_previous, stride, tokens, count, row, end, offset, live, belief, value, work, scale, out):
    # Turns the beliefs in `out` into posteriors, from the last token to the first.
    lanes, length = lanes_of(scale), np.uint64(tokens.shape[1])
    states = np.uint64(len(belief)) // lanes
    zero, one, infinite = fill(scale, 0.0), fill(scale, 1.0), fill(scale, np.inf)
    tiny = fill(scale, np.finfo(scale.dtype).tiny)
    for j in range(0, states * lanes, lanes):
        store(value, j, one)
    for step in range(end[0]):
        t = end[0] - np.uint64(1) - step
        _find_offsets(tokens, t, stride, row, end, offset, live)
        for lane in range(lanes):
            start = (row[lane] * length + t) * states
            for j in range(states):
                belief[j * lanes + lane] = out[start + j]
        if emission is None:
            _multiply_edges(value, to_previous, offset, np.uint64(1), states, work)
        else:
            multiply(value, to_previous, work)
        total = load(scale, t * lanes)
        divisor, is_live = where_larger(total, zero, total, infinite), load(live, np.uint64(0))
        total = zero
        for j in range(0, states * lanes, lanes):
            here, found = load(belief, j), load(work, j)
            if emission is not None:
                found = found * gather(emission, offset, j // lanes)
            # In a state of belief p the value is at most 1 / p. In an impossible state it has no bound, and infinity
            # times 0 would be NaN.
            found = where_larger(tiny, here, zero, found / divisor)
            found = where_larger(is_live, zero, found, load(value, j))
            store(value, j, found)
            total = total + here * found
        # The sums are 1 up to rounding of the scales, which accumulates with the length.
        divisor = where_larger(total, zero, total, infinite)
        for j in range(0, states * lanes, lanes):
            store(belief, j, load(belief, j) * load(value, j) / divisor)
        _write(belief, count, row, t, length, out, states, lanes)


@compiled
def _find_offsets(tokens, t, stride, row, end, offset, live):
    # Where the entries of each lane's symbol begin, and whether its row still has tokens.
    for lane in range(np.uint64(len(row))):
        live[lane] = t < end[lane]
        offset[lane] = np.uint64(tokens[row[lane], t]) * stride


@compiled
def _write(belief, count, row, t, positions, out, states, lanes):
    if t >= positions:
        return
    for lane in range(count):
        start = (row[lane] * positions + t) * states
        for j in range(states):
            out[start + j] = belief[j * lanes + lane]


@compiled
def multiply(lefts, table, out):
    """`out[j] = sum over i of lefts[i] * table[i, j]` in every lane, six sums at a time.

    Six sums of 64 bytes fit the 16 registers of AVX2, and are enough to keep the units of AVX-512 busy.
    """
    lanes = lanes_of(table)
    states = np.uint64(len(lefts)) // lanes
    size = states * lanes
    zero = fill(table, 0.0)
    j = np.uint64(0)
    while j + np.uint64(6) <= states:
        a, b, c, d, e, f = zero, zero, zero, zero, zero, zero
        at = j
        for i in range(0, size, lanes):
            left = load(lefts, i)
            a, b = a + table[at] * left, b + table[at + np.uint64(1)] * left
            c, d = c + table[at + np.uint64(2)] * left, d + table[at + np.uint64(3)] * left
            e, f = e + table[at + np.uint64(4)] * left, f + table[at + np.uint64(5)] * left
            at += states
        to = j * lanes
        store(out, to, a)
        store(out, to + lanes, b)
        store(out, to + np.uint64(2) * lanes, c)
        store(out, to + np.uint64(3) * lanes, d)
        store(out, to + np.uint64(4) * lanes, e)
        store(out, to + np.uint64(5) * lanes, f)
        j += np.uint64(6)
    while j + np.uint64(3) <= states:
        a, b, c = zero, zero, zero
        at = j
        for i in range(0, size, lanes):
            left = load(lefts, i)
            a, b, c = a + table[at] * left, b + table[at + np.uint64(1)] * left, c + table[at + np.uint64(2)] * left
            at += states
        store(out, j * lanes, a)
        store(out, (j + np.uint64(1)) * lanes, b)
        store(out, (j + np.uint64(2)) * lanes, c)
        j += np.uint64(3)
    while j < states:
        a = zero
        at = j
        for i in range(0, size, lanes):
            a = a + table[at] * load(lefts, i)
            at += states
        store(out, j * lanes, a)
        j += np.uint64(1)


@compiled
def _multiply_edges(lefts, edges, offset, stride, out_stride, out):
    # As `multiply`, with a table for each lane, whose entry for `i` and `j` is at
    # `offset + i * stride + j * out_stride`.
    lanes = lanes_of(edges)
    states = np.uint64(len(lefts)) // lanes
    for j in range(states):
        total = fill(edges, 0.0)
        for i in range(states):
            total = total + load(lefts, i * lanes) * gather(edges, offset, i * stride + j * out_stride)
        store(out, j * lanes, total)
