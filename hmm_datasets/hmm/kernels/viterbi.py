"""The most probable paths on a CPU, in compiled loops.

There is one lane for each of the sequences processed together, as in `kernels.filter`. Every state remembers in two
bytes where its best way came from, which of equal ways is that from the lowest state.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...compilation import compiled
from .filter import flat, live_lanes, operations, padded, run_rows, take_emissions, take_rows
from .lanes import accumulate, fill, gather, lanes_of, load, store, where_larger

if TYPE_CHECKING:
    from ..inference import Parameters

MAX_STATES = 1 << 16
"""A state is remembered in two bytes."""


class LogTables:
    """The logarithms of the tables of an HMM as the kernels read them: flat, with the next state last.

    Args:
        hmm ([`~hmm_datasets.hmm.inference.Parameters`]): the tables.
    """

    def __init__(self, hmm: "Parameters"):
        self.on_edges = hmm.edges is not None
        moves = hmm.transition if hmm.edges is None else hmm.edges
        self.start, self.moves = flat(_logarithms(hmm.start)), flat(_logarithms(moves))
        emission = padded(_logarithms(hmm.emission.T))
        self.emission, self.stride = emission.reshape(-1), np.uint64(emission.shape[1])  # of a symbol


def _logarithms(table: Tensor) -> Tensor:
    """The logarithms of a table on the CPU, by NumPy.

    torch computes them with threads however few they are, and those keep a core busy for some milliseconds, which the
    kernels could use.
    """
    with np.errstate(divide="ignore"):
        return torch.from_numpy(np.log(table.numpy(force=True)))


def best_paths(
    tables: LogTables, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"] | None
) -> tuple[Int[Tensor, "B T"], Float[Tensor, "B"]]:
    """The most probable paths: states, and log-probabilities in nats, float64."""
    states, scores = torch.empty(tokens.shape, dtype=torch.int64), torch.empty(len(tokens), dtype=torch.float64)
    shared = tables.start, tables.emission, tables.stride, tables.moves, tables.on_edges
    work = lambda *rows: _best_rows(*shared, *rows, states.numpy(), scores.numpy())  # noqa: E731
    run_rows(tokens, lengths, operations(len(tables.start)), work)
    return states, scores


@compiled
def _best_rows(start, emission, own_stride, moves, on_edges, tokens, ends, rows, out, scores):
    lanes, states = lanes_of(moves), np.uint64(len(start))
    length = np.uint64(tokens.shape[1])
    stride = states * states if on_edges else np.uint64(0)
    zero = fill(moves, 0.0)
    row, end = np.empty(lanes, np.uint64), np.empty(lanes, np.uint64)
    own, step = np.empty(lanes, np.uint64), np.empty(lanes, np.uint64)
    last, taken = np.empty(lanes, np.uint64), np.empty(lanes)
    arrival, ready = np.empty(states * lanes, moves.dtype), np.empty(states * lanes, moves.dtype)
    live, leaving = np.empty(lanes, moves.dtype), np.empty((states + lanes) * lanes, moves.dtype)
    symbols, paths = tokens.reshape(-1), out.reshape(-1)
    # Lanes without a row in all groups take no room: what is stored for them is overwritten by what is stored next.
    width = min(lanes, np.uint64(len(rows)))
    came = np.empty(length * states * width + lanes, np.uint16)
    for first in range(0, len(rows), lanes):
        count = take_rows(rows, np.uint64(first), ends, row, end)
        shortest, longest = end[count - np.uint64(1)], end[0]
        taken[:] = 0
        last[:] = 0
        for lane in range(count):
            scores[row[lane]] = 0
        for j in range(states):
            store(arrival, j * lanes, fill(moves, start[j]))
        for t in range(longest):
            _find_tables(symbols, row, length, t, own_stride, stride, own, step)
            if not on_edges:
                take_emissions(emission, own, states, leaving)
            peak = _leave(arrival, leaving, on_edges, states * lanes, ready)
            if t < shortest:
                accumulate(taken, np.uint64(0), peak)
            else:
                accumulate(taken, np.uint64(0), where_larger(live_lanes(end, t, live), zero, peak, zero))
            if t + np.uint64(1) >= shortest:
                for lane in range(count):
                    if t + np.uint64(1) == end[lane]:
                        best, last[lane] = _best_end(ready, emission, on_edges, own[lane], lane, states, lanes)
                        scores[row[lane]] = best + taken[lane]
            if t + np.uint64(1) < longest:
                place = (t + np.uint64(1)) * states
                _arrive(ready, moves, on_edges, step, states, arrival, came, place, width)
        _go_back(came, scores, row, end, last, count, longest, states, width, length, paths)


@compiled
def _find_tables(symbols, row, length, t, own_stride, stride, own, step):
    # Where the emissions and the moves of each lane's symbol begin.
    for lane in range(np.uint64(len(row))):
        symbol = np.uint64(symbols[row[lane] * length + t])
        own[lane], step[lane] = symbol * own_stride, symbol * stride


@compiled
def _leave(arrival, leaving, on_edges, size, ready):
    # Scores before the next move, less the best of their lane, which is returned: near 0 they keep their last digits,
    # however long the sequence.
    lanes, lowest = lanes_of(arrival), fill(arrival, -np.inf)
    peak = lowest
    for i in range(np.uint64(0), size, lanes):
        here = load(arrival, i)
        peak = where_larger(here, peak, here, peak)
    peak = where_larger(peak, lowest, peak, fill(arrival, 0.0))
    for i in range(np.uint64(0), size, lanes):
        here = load(arrival, i) - peak
        store(ready, i, here if on_edges else here + load(leaving, i))
    return peak


@compiled
def _best_end(ready, emission, on_edges, own, lane, states, lanes):
    # The best score of a lane after its last token, and its state.
    best, chosen = -np.inf, np.uint64(0)
    for i in range(states):
        value = ready[i * lanes + lane]
        if on_edges:
            value += emission[own + i]
        if value > best:
            best, chosen = value, i
    return best, chosen


@compiled
def _go_back(came, scores, row, end, last, count, longest, states, width, length, paths):
    # Write the paths from their last states, which are overwritten; zeros beyond the end and where there is no path.
    for lane in range(count):
        if scores[row[lane]] == -np.inf:
            end[lane] = 0
        for t in range(end[lane], length):
            paths[row[lane] * length + t] = 0
    for back in range(longest):
        t = longest - np.uint64(1) - back
        place = t * states * width
        for lane in range(count):
            if t < end[lane]:
                paths[row[lane] * length + t] = last[lane]
                if t > 0:
                    last[lane] = came[place + last[lane] * width + lane]


@compiled
def _arrive(ready, moves, on_edges, step, states, arrival, came, place, width):
    # The best score in every state entered, and the lowest state that it comes from.
    lanes, lowest, none = lanes_of(moves), fill(moves, -np.inf), fill(moves, 0.0)
    size = states * lanes
    j = np.uint64(0)
    while j + np.uint64(3) <= states:
        a, b, c, from_a, from_b, from_c = lowest, lowest, lowest, none, none, none
        at = j
        for i in range(0, size, lanes):
            left, state = load(ready, i), fill(moves, i // lanes)
            if on_edges:
                new_a, new_b = left + gather(moves, step, at), left + gather(moves, step, at + np.uint64(1))
                new_c = left + gather(moves, step, at + np.uint64(2))
            else:
                new_a, new_b = left + fill(moves, moves[at]), left + fill(moves, moves[at + np.uint64(1)])
                new_c = left + fill(moves, moves[at + np.uint64(2)])
            from_a, a = where_larger(new_a, a, state, from_a), where_larger(new_a, a, new_a, a)
            from_b, b = where_larger(new_b, b, state, from_b), where_larger(new_b, b, new_b, b)
            from_c, c = where_larger(new_c, c, state, from_c), where_larger(new_c, c, new_c, c)
            at += states
        one, two = np.uint64(1), np.uint64(2)
        store(arrival, j * lanes, a)
        store(came, (place + j) * width, from_a)
        store(arrival, (j + one) * lanes, b)
        store(came, (place + j + one) * width, from_b)
        store(arrival, (j + two) * lanes, c)
        store(came, (place + j + two) * width, from_c)
        j += np.uint64(3)
    while j < states:
        a, from_a = lowest, none
        at = j
        for i in range(0, size, lanes):
            left = load(ready, i)
            new_a = left + (gather(moves, step, at) if on_edges else fill(moves, moves[at]))
            from_a = where_larger(new_a, a, fill(moves, i // lanes), from_a)
            a = where_larger(new_a, a, new_a, a)
            at += states
        store(arrival, j * lanes, a)
        store(came, (place + j) * width, from_a)
        j += np.uint64(1)
