"""The filter and the expected counts of an HMM whose states are in blocks and whose transitions have a low rank.

A step multiplies with two tables of the symbol's block, `(R, S)` and `(S, R)`, and so do all sequences whose symbol is
of that block. So the sequences are put in the order of their blocks at every step, and those of a block go through a
product together ([`.panels`]). A symbol that is missing may be of any block, and its sequence goes through all. Counts
of moves are added in the type of the recursions for `FLUSH` steps, then in float64.
"""

import numpy as np

from ...compilation import compiled
from .lanes import lanes_of, load, lower, store
from .panels import FLUSH, add_outer, take_over, times_panels


@compiled
def _order(symbols, t, live, blocks, num_blocks, begin, order):
    # The first `live` rows by the block of their symbol at `t`: rows of block `k` are those from `begin[k]` to
    # `begin[k + 1]`, those whose symbol is missing from `begin[num_blocks]` to `live`.
    for k in range(num_blocks + 2):
        begin[k] = 0
    for row in range(live):
        begin[blocks[symbols[row, t]] + 1] += 1
    for k in range(num_blocks + 1):
        begin[k + 1] += begin[k]
    for row in range(live):
        k = blocks[symbols[row, t]]
        order[begin[k]] = row
        begin[k] += 1
    for k in range(num_blocks + 1, 0, -1):
        begin[k] = begin[k - 1]
    begin[0] = 0


@compiled
def _choose(order, begin, k, num_blocks, live, chosen):
    # The rows of block `k`, then those of missing symbols.
    of_block, missing = begin[k + 1] - begin[k], live - begin[num_blocks]
    for i in range(of_block + missing):
        chosen[i] = order[begin[k] + i if i < of_block else begin[num_blocks] + i - of_block]
    return of_block + missing


@compiled
def _gather(source, offset, step, width, chosen, count, out):
    # The rows one after the other, and zeros up to a multiple of four.
    for i in range(count):
        place, to = np.uint64(chosen[i]) * step + offset, np.uint64(i) * width
        for r in range(width):
            out[to + r] = source[place + r]
    full = (count + 3) // 4 * 4
    for r in range(np.uint64(count) * width, np.uint64(full) * width):
        out[r] = 0


@compiled
def _scatter(source, width, chosen, count, step, offset, out):
    # Add the rows to those that were chosen.
    for i in range(count):
        place, to = np.uint64(i) * width, np.uint64(chosen[i]) * step + offset
        for r in range(width):
            out[to + r] += source[place + r]


@compiled
def _clear_ended(going, chosen, count, width, out):
    # Zeros for rows that have no further token, after which there is no move.
    for i in range(count):
        if chosen[i] >= going:
            for r in range(width):
                out[np.uint64(i) * width + r] = 0


@compiled
def _fill_rows(value, count, width, step, offset, out):
    for row in range(count):
        for r in range(width):
            out[np.uint64(row) * step + offset + r] = value


@compiled
def _room(num_blocks, batch, rank, states, dtype):
    # What a step needs: the order of rows, and vectors of the rows of a block.
    full = np.uint64(batch + 4)
    numbers = np.empty(num_blocks + 2, np.int64), np.empty(batch, np.int64), np.empty(batch, np.int64)
    return *numbers, np.empty(full * rank, dtype), np.empty(full * states, dtype), np.empty(full * rank, dtype)


@compiled
def filter_blocks(start, enter, leave, emission, blocks, num_blocks, symbols, num_live, kept, beliefs, scales, lowest):
    """Fill `beliefs` (B, kept, R) and `scales` (B, T), the probability of each token given those before it.

    `lowest` (B,), unless it is empty, is lowered to the lowest belief above 0.

    Rows are sorted by length, longest first, and `num_live[t]` of them have a token at `t`. `blocks` (E + 1,) ends
    with `num_blocks`, for a symbol that is missing, and the row of `emission` (E + 1, S) for that is ones.
    """
    rank, states, zero = np.uint64(len(start)), np.uint64(emission.shape[1]), start.dtype.type(0)
    batch, length = symbols.shape
    step, lanes = np.uint64(kept) * rank, lanes_of(start)
    lows = np.ones(np.uint64(batch) * lanes, start.dtype)
    begin, order, chosen, z, y, moved = _room(num_blocks, batch, rank, states, start.dtype)
    for row in range(batch):
        for r in range(rank):  # an assignment of arrays compiles the message of an error, for seconds
            beliefs[np.uint64(row) * step + r] = start[r]
    for t in range(length):
        live = num_live[t]
        _order(symbols, t, live, blocks, num_blocks, begin, order)
        here, there = np.uint64(t % kept) * rank, np.uint64((t + 1) % kept) * rank
        _fill_rows(zero, live, rank, step, there, beliefs)
        for k in range(num_blocks):
            count = _choose(order, begin, k, num_blocks, live, chosen)
            if count > 0:
                full, table = np.uint64((count + 3) // 4 * 4), np.uint64(k) * rank * states
                _gather(beliefs, here, step, rank, chosen, count, z)
                times_panels(z, np.uint64(0), full, rank, rank, enter, table, states, y)
                for i in range(count):
                    emitted, to = emission[symbols[chosen[i], t]], np.uint64(i) * states
                    for s in range(states):
                        y[to + s] *= emitted[s]
                times_panels(y, np.uint64(0), full, states, states, leave, table, rank, moved)
                _scatter(moved, rank, chosen, count, step, there, beliefs)
        for row in range(live):
            total, to = zero, np.uint64(row) * step + there
            for r in range(rank):
                total += beliefs[to + r]
            scales[row, t] = total
            if total > 0:
                for r in range(np.uint64(0), rank, lanes):
                    store(beliefs, to + r, load(beliefs, to + r) / total)
                if len(lowest) > 0:
                    lower(beliefs, to, to + rank, lows, np.uint64(row) * lanes)
    for row in range(len(lowest)):
        for lane in range(lanes):
            lowest[row] = min(lowest[row], lows[np.uint64(row) * lanes + lane])


@compiled
def count_blocks(
    enter, leave, to_enter, to_leave, emission, blocks, num_blocks, symbols, num_live, weights, beliefs, scales, lost,
    starts, entered, left, emitted,
):  # fmt: skip
    """Add the expected counts of all rows, given what `filter_blocks` filled.

    `to_enter` and `to_leave` are the tables with rows and columns exchanged. Rows in which a backward value is not
    finite are marked in `lost` (B,), and the counts are not for use then.
    `entered` and `left` are float64, in the panels of `enter` and `leave`, and become counts once multiplied with
    these. `emitted` is float64, (E + 1, S).
    """
    rank, states, zero = np.uint64(len(starts)), np.uint64(emission.shape[1]), enter.dtype.type(0)
    batch, length = symbols.shape
    step = np.uint64(length + 1) * rank
    begin, order, chosen, z, y, moved = _room(num_blocks, batch, rank, states, enter.dtype)
    after, g, in_enter, in_leave = np.empty_like(z), np.empty_like(y), np.zeros_like(enter), np.zeros_like(leave)
    value, before = np.empty(np.uint64(batch) * rank, enter.dtype), np.empty(np.uint64(batch) * rank, enter.dtype)
    for row in range(batch):
        value[np.uint64(row) * rank : np.uint64(row + 1) * rank] = weights[row]
    for t in range(length - 1, -1, -1):
        live, here = num_live[t], np.uint64(t) * rank
        _order(symbols, t, live, blocks, num_blocks, begin, order)
        _fill_rows(zero, live, rank, rank, np.uint64(0), before)
        for k in range(num_blocks):
            count = _choose(order, begin, k, num_blocks, live, chosen)
            if count > 0:
                full, table = np.uint64((count + 3) // 4 * 4), np.uint64(k) * rank * states
                _gather(beliefs, here, step, rank, chosen, count, z)
                _gather(value, np.uint64(0), rank, rank, chosen, count, after)
                times_panels(z, np.uint64(0), full, rank, rank, enter, table, states, y)
                times_panels(after, np.uint64(0), full, rank, rank, to_leave, table, states, g)
                _count_symbols(symbols, scales, t, chosen, count, emission, states, y, g, emitted)
                _clear_ended(num_live[t + 1] if t + 1 < length else 0, chosen, count, rank, after)
                add_outer(y, np.uint64(0), np.uint64(count), states, states, after, rank, in_leave, table)
                add_outer(z, np.uint64(0), np.uint64(count), rank, rank, g, states, in_enter, table)
                times_panels(g, np.uint64(0), full, states, states, to_enter, table, rank, moved)
                _scatter(moved, rank, chosen, count, rank, np.uint64(0), before)
        _scale_values(before, beliefs, here, step, rank, live, weights, lost, value)
        if t % FLUSH == 0:
            take_over(in_enter, entered)
            take_over(in_leave, left)
    for row in range(num_live[0] if length > 0 else 0):
        for r in range(rank):
            starts[r] += beliefs[np.uint64(row) * step + r] * value[np.uint64(row) * rank + r]


@compiled
def _scale_values(before, beliefs, here, step, rank, live, weights, lost, value):
    # The sum is the weight but for rounding, which would multiply from step to step.
    zero = value.dtype.type(0)
    for row in range(live):
        total, at, to = zero, np.uint64(row) * step + here, np.uint64(row) * rank
        for r in range(rank):
            total += beliefs[at + r] * before[to + r]
        lost[row] |= not np.isfinite(total)
        factor = weights[row] / total if total > 0 else zero
        for r in range(rank):
            value[to + r] = before[to + r] * factor


@compiled
def _count_symbols(symbols, scales, t, chosen, count, emission, states, y, g, emitted):
    # Count the symbols that the states of a block emit, and multiply `y` and `g` with their emissions. A state that
    # cannot be visited has `y` 0, and `g` no bound.
    limits = np.finfo(emission.dtype)
    for i in range(count):
        symbol, scale, to = symbols[chosen[i], t], scales[chosen[i], t], np.uint64(i) * states
        inverse = min(emission.dtype.type(1) / scale, limits.max) if scale > 0 else emission.dtype.type(0)
        for s in range(states):
            factor = emission[symbol, s] * inverse
            y[to + s] *= factor
            emitted[symbol, s] += y[to + s] * g[to + s]
            g[to + s] *= factor
