"""The filter and the smoother on a CPU, in compiled loops: one lane for each of the sequences processed together.

The recursions are those of `inference`. A step in time of a small HMM is far too little work for calls into torch, and
the products here are about as fast as a BLAS for large tables too. So there is one loop for any number of states.
Sequences of similar lengths are put together, 16 in float32 and 8 in float64, and go through all their steps without
Python's global lock; threads share the sequences. Memory is that of the result plus `O(T + H)` per thread, and a copy
of the tables.

For a state-emitting HMM a step takes `H` look-ups of emissions and `H^2` products per sequence. For an edge-emitting
one it takes `H^2` of both. Rows of tables and of results are read and written in blocks: as many entries of as many
rows as there are lanes are transposed in registers. A product multiplies a table with a vector of each of the
sequences processed together, one lane for each.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...compilation import compiled
from .counts import backward_bound
from .lanes import fill, lanes_of, load, load_fours, load_rows, lower, store, store_rows, sum_of_logs, where_larger
from .threads import in_parallel

if TYPE_CHECKING:
    from ..inference import Parameters

PANEL = 6
"""Columns of a table that a product takes together, and by which what it writes may be too long."""


_MIN_WORK = 1 << 23  # operations of a thread: about half a millisecond, and a sleeping core wakes up in a tenth of one


class Tables:
    """The tables of an HMM as the kernels read them.

    Args:
        hmm ([`~hmm_datasets.hmm.inference.Parameters`]): the tables.
        initial (`torch.Tensor` of shape `(B, H)`, *optional*): beliefs to start from instead of `start`.
    """

    def __init__(self, hmm: "Parameters", initial: Float[Tensor, "B H"] | None = None):
        self.initial = (hmm.start.unsqueeze(0) if initial is None else initial).contiguous().numpy(force=True)
        self.num_states = self.initial.shape[1]
        limit, every = hmm.safe if initial is None else (0.0, 1)
        self.safe = self.initial.dtype.type(limit), np.uint64(every)
        if hmm.edges is None:
            emission = padded(hmm.emission.T)
            self.emission, self.stride = emission.reshape(-1), np.uint64(emission.shape[1])  # of a symbol
            self.moves = panels(hmm.transition)
        else:
            self.emission, self.stride = None, np.uint64(self.num_states**2)
            self.moves = flat(hmm.edges)
            if self.num_states**2 < _num_lanes(hmm.edges):  # a block ends after the symbol
                self.moves = np.append(self.moves, np.zeros(_num_lanes(hmm.edges), self.moves.dtype))
        self._hmm = hmm

    @property
    def to_previous(self) -> np.ndarray:
        """The transitions with the previous state last; for an edge-emitting HMM the same entries serve both ways."""
        return panels(self._hmm.transition.T) if self._hmm.edges is None else self.moves


def flat(table: Tensor) -> np.ndarray:
    """The entries of a table in order, without a copy where they are in order already."""
    return np.ascontiguousarray(table.numpy(force=True)).reshape(-1)


def padded(table: Float[Tensor, "N M"], multiple: int | None = None) -> Float[np.ndarray, "N M"]:
    """The table with columns of zeros after the last one, up to a multiple: of the number of lanes, unless given."""
    values, multiple = table.numpy(force=True), multiple or _num_lanes(table)
    rows, columns = values.shape
    wide = np.zeros((rows, columns + -columns % multiple), values.dtype)
    wide[:, :columns] = values
    return wide


def panels(table: Float[Tensor, "N M"]) -> Float[np.ndarray, "M*N"]:
    """The entries in the order in which [`multiply`] reads them: columns six at a time, zeros after the last."""
    wide = padded(table, PANEL)
    return np.ascontiguousarray(wide.reshape(len(wide), -1, PANEL).transpose(1, 0, 2)).reshape(-1)


def _num_lanes(table: Tensor) -> int:
    return 64 // table.element_size()


@compiled
def take_emissions(emission, offset, states, out):
    # The entry of each lane's symbol in every state, from a table that is `padded` to the number of lanes.
    lanes = lanes_of(emission)
    for i in range(np.uint64(0), states, lanes):
        if states - i <= np.uint64(4):
            load_fours(emission, offset, i, out, i * lanes)
        else:
            load_rows(emission, offset, i, out, i * lanes)


@compiled
def multiply(lefts, states, table, out):
    """`out[j] = sum over i of lefts[i] * table[i, j]` in every lane, for a table in [`panels`].

    Six sums of 64 bytes fit the 16 registers of AVX2, and are enough to keep the units of AVX-512 busy. `out` has room
    for whole panels.
    """
    lanes = lanes_of(table)
    size = states * lanes
    zero = fill(table, 0.0)
    at, to = np.uint64(0), np.uint64(0)
    while at < np.uint64(len(table)):
        a, b, c, d, e, f = zero, zero, zero, zero, zero, zero
        for i in range(0, size, lanes):
            left = load(lefts, i)
            a, b = a + table[at] * left, b + table[at + np.uint64(1)] * left
            c, d = c + table[at + np.uint64(2)] * left, d + table[at + np.uint64(3)] * left
            e, f = e + table[at + np.uint64(4)] * left, f + table[at + np.uint64(5)] * left
            at += np.uint64(6)
        store(out, to, a)
        store(out, to + lanes, b)
        store(out, to + np.uint64(2) * lanes, c)
        store(out, to + np.uint64(3) * lanes, d)
        store(out, to + np.uint64(4) * lanes, e)
        store(out, to + np.uint64(5) * lanes, f)
        to += np.uint64(6) * lanes


@compiled
def multiply_edges(lefts, edges, offset, block, out):
    # As `multiply`, with a table `T^(x)` for each lane: `out[j] = sum over i of lefts[i] * T^(x)[i, j]`.
    lanes = lanes_of(edges)
    states = np.uint64(len(lefts)) // lanes
    zero = fill(edges, 0.0)
    for j in range(0, states * lanes, lanes):
        store(out, j, zero)
    i, j = np.uint64(0), np.uint64(0)
    for first in range(np.uint64(0), states * states, lanes):
        begin = min(first, states * states - min(lanes, states * states))  # the last block ends with the symbol
        load_rows(edges, offset, begin, block, np.uint64(0))
        for k in range(first - begin, min(lanes, states * states - begin)):
            store(out, j * lanes, load(out, j * lanes) + load(lefts, i * lanes) * load(block, k * lanes))
            j += np.uint64(1)
            if j == states:
                i, j = i + np.uint64(1), np.uint64(0)


@compiled
def multiply_edges_back(values, edges, offset, block, out):
    # `out[i] = sum over j of T^(x)[i, j] * values[j]`.
    lanes = lanes_of(edges)
    states = np.uint64(len(values)) // lanes
    zero = fill(edges, 0.0)
    total = zero
    i, j = np.uint64(0), np.uint64(0)
    for first in range(np.uint64(0), states * states, lanes):
        begin = min(first, states * states - min(lanes, states * states))  # the last block ends with the symbol
        load_rows(edges, offset, begin, block, np.uint64(0))
        for k in range(first - begin, min(lanes, states * states - begin)):
            total = total + load(values, j * lanes) * load(block, k * lanes)
            j += np.uint64(1)
            if j == states:
                store(out, i * lanes, total)
                total = zero
                i, j = i + np.uint64(1), np.uint64(0)


def serves(hmm: "Parameters", *others: Tensor | None) -> bool:
    """Whether the kernels compute this: everything is on the CPU, in float32 or float64, and needs no gradient."""
    tables = [hmm.start, hmm.transition, hmm.emission, hmm.edges, *others]
    present = [table for table in tables if table is not None]
    needs_gradient = torch.is_grad_enabled() and any(table.requires_grad for table in present)
    return (
        hmm.start.dtype in (torch.float32, torch.float64)
        and all(table.device.type == "cpu" for table in present)
        and not needs_gradient
    )


def filter_rows(
    tables: Tables,
    tokens: Int[Tensor, "B T"],
    lengths: Int[Tensor, "B"] | None,
    *,
    readout: Float[Tensor, "H E"] | None = None,
    keep_scales: bool = False,
) -> tuple[Float[Tensor, "B T+1 N"], Float[Tensor, "B T"], Bool[Tensor, "B"]]:
    """Beliefs before every token and after the last, the probability of every token, and rows to compute again.

    Args:
        tables ([`Tables`]): the HMM.
        tokens (`torch.Tensor` of shape `(B, T)`, int64): symbols in `[0, E)`.
        lengths (`torch.Tensor` of shape `(B,)`, *optional*): number of tokens in each row; the rest is padding.
        readout (`torch.Tensor` of shape `(H, E)`, *optional*): multiply every belief by this table.
        keep_scales (`bool`, *optional*, defaults to `False`): whether to keep the probabilities; empty if not.

    Returns:
        Beliefs or their products with `readout`, and `P(token t | tokens before t)`, 1 beyond the length, in the type
        of the tables; and which rows may have lost a state to underflow, unless `initial` was given.
    """
    batch, length = tokens.shape
    width = tables.num_states if readout is None else readout.shape[1]
    out = _empty((batch, length + 1, width), tables)
    scales = _empty((batch if keep_scales else 0, length), tables)
    packed = tables.moves[:0] if readout is None else panels(readout)
    totals = np.zeros(batch if tables.safe[0] > 0 else 0)
    _run(tables, tokens, lengths, packed, out, scales, totals)
    lost = torch.from_numpy(np.isnan(totals) if tables.safe[0] > 0 else np.zeros(batch, bool))
    return torch.from_numpy(out), torch.from_numpy(scales), lost


def log_likelihoods(
    tables: Tables, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None
) -> Float[Tensor, "B"]:
    """`log P(tokens)` of every row in nats, float64; NaN where a state may have been lost to underflow."""
    totals = np.empty(len(tokens))
    _run(tables, tokens, lengths, tables.moves[:0], _empty((0, 0, 0), tables), _empty((0, 0), tables), totals)
    return torch.from_numpy(totals)


def smooth_rows(
    tables: Tables, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None
) -> tuple[Float[Tensor, "B T H"], Bool[Tensor, "B"]]:
    """`P(state that emits token t | all tokens)`; zeros beyond the length, and where the sequence is impossible.

    And which rows are impossible, or may have lost a state: a value passed [`~.counts.backward_bound`].
    """
    out, lost = _empty((*tokens.shape, tables.num_states), tables), np.empty(len(tokens), bool)
    bound = out.dtype.type(backward_bound(out.dtype))
    shared = tables.initial, tables.emission, tables.moves, tables.to_previous, tables.stride, bound
    work = lambda *rows: _smooth_rows(*shared, *rows, out.reshape(-1), lost)  # noqa: E731
    run_rows(tokens, lengths, 2 * operations(tables.num_states), work)
    return torch.from_numpy(out), torch.from_numpy(lost)


def _empty(shape: tuple[int, ...], tables: Tables) -> np.ndarray:
    # Of NumPy, which asks for large pages: to touch small ones first takes as long as to filter 50 states.
    return np.empty(shape, tables.initial.dtype)


def _run(tables: Tables, tokens, lengths, readout, out, scales, totals) -> None:
    shared = tables.initial, tables.emission, tables.moves, tables.stride, tables.safe, readout
    views = out.reshape(-1), np.uint64(out.shape[2]), scales.reshape(-1), totals
    number = operations(tables.num_states) + (tables.num_states * out.shape[2] if len(readout) > 0 else 0)
    run_rows(tokens, lengths, number, lambda *rows: _filter_rows(*shared, *rows, *views))


def operations(num_states: int) -> int:
    """What a step of a sequence takes, about: a product for each pair of states, and as much as 16 for each state."""
    return num_states * (num_states + 16)


def run_rows(tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None, number: int, work) -> None:
    """Call `work(tokens, lengths, rows)` for parts of the rows, each in a thread; rows of similar lengths together.

    A token takes about this `number` of [`operations`]; there are as many threads as have enough to do.
    """
    batch, length = tokens.shape
    if lengths is None:
        ends, order = np.full(batch, length), np.arange(batch)
    else:
        ends = lengths.numpy()
        order = np.argsort(-ends, kind="stable")
    values = np.ascontiguousarray(tokens.numpy())
    threads = min(torch.get_num_threads(), 1 + tokens.numel() * number // _MIN_WORK)
    # Every thread gets its share of the long rows and of the short ones.
    in_parallel(lambda part: work(values, ends, order[part::threads].copy()), range(threads), threads)


class _Room(NamedTuple):
    """What the lanes processed together need.

    Attributes:
        row, end (arrays of the lanes, uint64): the row of each lane, and its length.
        begin, place (arrays of the lanes, uint64): where the row begins in the result, and among the tokens.
        offset (array of the lanes, uint64): where the entries of the next symbol begin.
        live (array of the lanes): 1 if the row has tokens left, else 0.
        weight, work (arrays): two vectors to work with; blocks and panels end after the last state.
        scale (array): the probability of every token, given those before it.
        low, high (arrays of the lanes): the lowest belief above 0, if asked for, or the lowest probability of a token,
            and the highest backward value.
        ring, mask (array and uint64): entry `m` of a row in the result, and blocks around it, at vector `m & mask`.
    """

    row: np.ndarray
    end: np.ndarray
    begin: np.ndarray
    place: np.ndarray
    offset: np.ndarray
    live: np.ndarray
    weight: np.ndarray
    work: np.ndarray
    scale: np.ndarray
    low: np.ndarray
    high: np.ndarray
    ring: np.ndarray
    mask: np.uint64


@compiled
def _room(table, states, length, width):
    lanes, ring = lanes_of(table), np.uint64(1)
    while ring < width + np.uint64(2) * lanes:
        ring *= np.uint64(2)
    numbers = np.empty((5, lanes), np.uint64)
    wide = (states + max(lanes, np.uint64(PANEL))) * lanes
    return _Room(
        numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], np.empty(lanes, table.dtype),
        np.empty(wide, table.dtype), np.empty(wide, table.dtype), np.empty((length + lanes) * lanes, table.dtype),
        np.empty(lanes, table.dtype), np.empty(lanes, table.dtype),
        np.empty(ring * lanes, table.dtype), ring - np.uint64(1),
    )  # fmt: skip


@compiled
def _filter_rows(initial, emission, moves, stride, safe, readout, tokens, ends, rows, out, width, scales, totals):
    lanes, states, length = lanes_of(moves), np.uint64(initial.shape[1]), np.uint64(tokens.shape[1])
    positions = length + np.uint64(1) if len(out) > 0 else np.uint64(0)
    room, symbols = _room(moves, states, length, max(states, width)), tokens.reshape(-1)
    for first in range(0, len(rows), lanes):
        count = _take_rows(room, rows, np.uint64(first), ends, length, positions * width)
        _forward(initial, emission, moves, stride, safe, readout, symbols, count, room, out, positions, width)
        end = room.end
        if len(totals) > 0:
            for lane in range(count):
                lost = room.low[lane] < safe[0]
                totals[room.row[lane]] = np.nan if lost else sum_of_logs(room.scale, lane, lanes, end[lane])
        if len(scales) > 0:
            for index in range(end[0] * lanes, length * lanes):
                room.scale[index] = 1
            for t in range(np.uint64(0), length, lanes):
                _write_block(room.scale, t * lanes, t, length, scales, room.place, count)
        for lane in range(count if positions > 0 else np.uint64(0)):
            begin = room.begin[lane]
            for index in range(begin + (end[0] + np.uint64(1)) * width, begin + positions * width):
                out[index] = out[index - width]


@compiled
def _smooth_rows(initial, emission, moves, to_previous, stride, bound, tokens, ends, rows, out, lost):
    lanes, states, length = lanes_of(moves), np.uint64(initial.shape[1]), np.uint64(tokens.shape[1])
    room, symbols, safe = _room(moves, states, length, states), tokens.reshape(-1), (moves.dtype.type(0), np.uint64(1))
    for first in range(0, len(rows), lanes):
        count = _take_rows(room, rows, np.uint64(first), ends, length, length * states)
        _forward(initial, emission, moves, stride, safe, moves[:0], symbols, count, room, out, room.end[0], states)
        _backward(emission, to_previous, stride, symbols, count, room, out, states)
        store(room.low, np.uint64(0), _least(room.scale, room.end[0] * lanes))
        for lane in range(count):
            begin, lost[room.row[lane]] = room.begin[lane], room.high[lane] >= bound or room.low[lane] == 0
            for index in range(begin + room.end[lane] * states, begin + length * states):
                out[index] = 0


@compiled
def take_rows(rows, first, ends, row, end):
    # The rows of the lanes and their lengths; lanes without a row repeat the last one.
    count = min(np.uint64(len(row)), np.uint64(len(rows)) - first)
    for lane in range(np.uint64(len(row))):
        row[lane] = rows[first + min(lane, count - np.uint64(1))]
        end[lane] = ends[row[lane]]
    return count


@compiled
def _take_rows(room, rows, first, ends, length, entries):
    # The same, and where they begin in the result and among the tokens.
    count = take_rows(rows, first, ends, room.row, room.end)
    for lane in range(np.uint64(len(room.row))):
        room.begin[lane], room.place[lane] = room.row[lane] * entries, room.row[lane] * length
    return count


@compiled
def _begin(initial, row, belief):
    # The belief of each lane before its first token.
    lanes = np.uint64(len(row))
    for lane in range(lanes):
        for j in range(np.uint64(initial.shape[1])):
            belief[j * lanes + lane] = initial[row[lane] if len(initial) > 1 else np.uint64(0), j]


@compiled
def _multiply_entries(left, right, out, size):
    for i in range(np.uint64(0), size, lanes_of(left)):
        store(out, i, load(left, i) * load(right, i))


@compiled
def _sum(values, size):
    total = fill(values, 0.0)
    for i in range(np.uint64(0), size, lanes_of(values)):
        total = total + load(values, i)
    return total


@compiled
def _least(values, size):
    least = fill(values, 1.0)
    for i in range(np.uint64(0), size, lanes_of(values)):
        least = where_larger(least, load(values, i), load(values, i), least)
    return least


@compiled
def _forward(initial, emission, moves, stride, safe, readout, symbols, count, room, out, positions, width):
    # Lane 0 is the longest row. `out` gets what belongs to the first `positions` beliefs of every row, 0 for none.
    # `readout` is empty rather than None for beliefs themselves, so that the loop is compiled once for both.
    lanes, states = lanes_of(moves), np.uint64(initial.shape[1])
    zero, one = fill(moves, 0.0), fill(moves, 1.0)
    end, weight, work, ring, mask = room.end, room.weight, room.work, room.ring, room.mask
    belief, shortest = np.empty(states * lanes, moves.dtype), end[count - np.uint64(1)]
    predicted = np.empty((width + np.uint64(PANEL)) * lanes if len(readout) > 0 else lanes, moves.dtype)
    _begin(initial, room.row, belief)
    written = np.uint64(0)
    store(room.low, np.uint64(0), one)
    for t in range(end[0] + np.uint64(1)):
        if t < positions:
            source = belief
            if len(readout) > 0:
                multiply(belief, states, readout, predicted)
                source = predicted
            for j in range(width):
                store(ring, ((t * width + j) & mask) * lanes, load(source, j * lanes))
            while written + lanes <= (t + np.uint64(1)) * width:
                store_rows(ring, (written & mask) * lanes, out, room.begin, written, count)
                written += lanes
        if t == end[0]:
            break
        if safe[0] > 0 and t & (safe[1] - np.uint64(1)) == 0:
            lower(belief, np.uint64(0), states * lanes, room.low, np.uint64(0))
        _find_offsets(room, symbols, t, stride)
        if emission is None:
            multiply_edges(belief, moves, room.offset, weight, work)
        else:
            take_emissions(emission, room.offset, states, weight)
            _multiply_entries(belief, weight, weight, states * lanes)
            multiply(weight, states, moves, work)
        total = _sum(work, states * lanes)
        factor, inverse = _reciprocal(moves, total)
        if t < shortest:
            store(room.scale, t * lanes, total)
            for j in range(0, states * lanes, lanes):
                store(belief, j, load(work, j) * factor * inverse)
        else:
            is_live = live_lanes(end, t, room.live)
            store(room.scale, t * lanes, where_larger(is_live, zero, total, one))
            for j in range(0, states * lanes, lanes):
                store(belief, j, where_larger(is_live, zero, load(work, j) * factor * inverse, load(belief, j)))
    _write_block(
        ring, (written & mask) * lanes, written, min(positions, end[0] + np.uint64(1)) * width, out, room.begin, count
    )


@compiled
def _backward(emission, to_previous, stride, symbols, count, room, out, states):
    # Turns the beliefs in `out` into posteriors, from the last token to the first.
    lanes = lanes_of(out)
    zero, one, high = fill(out, 0.0), fill(out, 1.0), fill(out, 0.0)
    end, weight, work, ring, mask = room.end, room.weight, room.work, room.ring, room.mask
    shortest, stop = end[count - np.uint64(1)], end[0] * states
    value = np.empty(states * lanes, out.dtype)
    for j in range(0, states * lanes, lanes):
        store(value, j, one)
    low = last = (stop + lanes - np.uint64(1)) // lanes * lanes
    for step in range(end[0]):
        t = end[0] - np.uint64(1) - step
        start = t * states
        while low > start:
            low -= lanes
            _read_block(out, room.begin, low, stop, ring, (low & mask) * lanes)
        _find_offsets(room, symbols, t, stride)
        if emission is None:
            multiply_edges_back(value, to_previous, room.offset, weight, work)
        else:
            multiply(value, states, to_previous, work)
            take_emissions(emission, room.offset, states, weight)
            _multiply_entries(work, weight, work, states * lanes)
        factor, inverse = _reciprocal(out, load(room.scale, t * lanes))
        is_live = live_lanes(end, t, room.live)
        total = zero
        for j in range(states):
            at = ((start + j) & mask) * lanes
            here, found = load(ring, at), load(work, j * lanes) * factor * inverse
            high = where_larger(found, high, found, high)  # one that is infinite makes its row be computed again
            if t >= shortest:
                found = where_larger(is_live, zero, found, load(value, j * lanes))
            store(value, j * lanes, found)
            store(ring, at, here * found)
            total = total + here * found
        # The sums are 1 up to rounding of the scales, which accumulates with the length.
        factor, inverse = _reciprocal(out, total)
        for j in range(states):
            at = ((start + j) & mask) * lanes
            store(ring, at, load(ring, at) * factor * inverse)
        while last >= start + lanes:
            last -= lanes
            _write_block(ring, (last & mask) * lanes, last, stop, out, room.begin, count)
    store(room.high, np.uint64(0), high)


@compiled
def _reciprocal(table, total):
    # Two factors whose product is 1 / total, because that of the smallest numbers is infinity; 0 for 0, so that an
    # impossible token makes its row zeros rather than NaN. A division for every state would take longer than both.
    limits = np.finfo(table.dtype)
    one, large = fill(table, 1.0), fill(table, 1.0 / limits.eps**2)
    factor = where_larger(total, fill(table, limits.tiny), one, large)
    return factor, where_larger(total, fill(table, 0.0), one / (total * factor), fill(table, 0.0))


@compiled
def _find_offsets(room, symbols, t, stride):
    # Where the entries of each lane's symbol begin.
    for lane in range(np.uint64(len(room.row))):
        room.offset[lane] = np.uint64(symbols[room.place[lane] + t]) * stride


@compiled
def live_lanes(end, t, live):
    # 1 in the lanes whose rows have a token at `t`, else 0.
    for lane in range(np.uint64(len(end))):
        live[lane] = t < end[lane]
    return load(live, np.uint64(0))


@compiled
def _read_block(table, begin, m, stop, out, at):
    # Entries `m` to `m + lanes` of a row for each lane as vectors; those before `stop` alone exist.
    lanes = lanes_of(table)
    if m + lanes <= stop:
        load_rows(table, begin, m, out, at)
    else:
        for k in range(stop - m):
            for lane in range(lanes):
                out[at + k * lanes + lane] = table[begin[lane] + m + k]


@compiled
def _write_block(vectors, at, m, stop, out, begin, count):
    # The inverse, for the first `count` lanes.
    lanes = lanes_of(vectors)
    if m + lanes <= stop:
        store_rows(vectors, at, out, begin, m, count)
    elif m < stop:
        for k in range(stop - m):
            for lane in range(count):
                out[begin[lane] + m + k] = vectors[at + k * lanes + lane]
