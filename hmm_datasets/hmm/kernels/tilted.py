"""The loops of a tilted HMM, compiled by numba: backward messages, the distributions of a step, and draws from them.

They use the portable logarithm and exponential of `dirichlet` and add in a fixed order, so that messages, and with
them the sequences drawn, are the same on every machine. Messages are logarithms, since with a small `beta` those of
two states differ by more than the range of float64. A sum is still computed as a product of a matrix and a vector,
divided by its maximum, wherever nothing that counts underflows in it, and term by term elsewhere.

Shapes: `H` states, `E` symbols, `L` tokens. `Y` is the number of contexts of a reward: 1 where symbols are rewarded
one by one, else `E + 1`: the symbol before, and last the beginning of the sequence. `M` is 1 for a state-emitting HMM,
whose next state does not depend on the symbol, and `E` for an edge-emitting one. `log_emission` is 0 for the latter.
"""

import numpy as np

from ...compilation import compiled
from .dirichlet import exp, log
from .draws import START, TOKENS_STREAM, block_of, pick

_SAFE = 1e-280  # sums above this have lost nothing that float64 could show


@compiled
def log_sum(terms):
    """The logarithm of the sum of the exponentials of `terms`."""
    peak = terms.max()
    if peak == -np.inf:
        return peak
    total = 0.0
    for term in terms:
        if term - peak > -700:
            total += exp(term - peak)
    return peak + log(total)


@compiled
def log_of(probability):
    """The logarithm, -inf for 0."""
    return log(probability) if probability > 0 else -np.inf


@compiled
def log_entries(table, out):
    """Fill `out` with the logarithms of the probabilities in `table`; both have one axis."""
    for i in range(len(table)):
        out[i] = log_of(table[i])


@compiled
def log_product(moves, log_moves, message, out):
    """`out[s] = log sum_j moves[s, j] exp(message[j])`, where not all messages are -inf."""
    peak = message.max()
    scaled = np.empty(len(message))
    for j in range(len(message)):
        scaled[j] = exp(message[j] - peak)
    for s in range(len(moves)):
        total = 0.0
        for j in range(len(message)):
            total += moves[s, j] * scaled[j]
        out[s] = peak + log(total) if total > _SAFE else log_sum(log_moves[s] + message)


@compiled
def fill_values(moves, log_moves, log_emission, tilts, values):
    """The backward pass. Fill `values` (L, E, H); return the messages of position 0 (Y, H) and their log-scale.

    `values[t, x, s]` is the logarithm of the sum over what may follow of `P(emit x, then that | in s)`, each weighted
    by the exponential of its reward over beta, up to a constant per position.
    """
    length, symbols, states = values.shape
    contexts = len(tilts)
    message = np.zeros((contexts, states))
    product = np.empty(states)
    log_scale = 0.0
    for t in range(length - 1, -1, -1):
        for x in range(symbols):
            m, y = min(x, len(moves) - 1), x if contexts > 1 else 0
            if x == 0 or m > 0 or y > 0:
                log_product(moves[m], log_moves[m], message[y], product)
            for s in range(states):
                values[t, x, s] = log_emission[s, x] + product[s]
        fill_message(values[t], tilts, message)
        peak = message.max()
        message -= peak
        log_scale += peak
    return message, log_scale


@compiled
def fill_message(values, tilts, message):
    """Fill `message` (Y, H) with the logarithms of sums over the symbols, from the `values` (E, H) of a position."""
    for y in range(message.shape[0]):
        for s in range(message.shape[1]):
            message[y, s] = log_sum(tilts[y] + values[:, s])


@compiled
def fill_symbol_rows(values, tilts, out):
    """Fill `out` (Y, H, E) with `P(symbol | context, state)` at a position, from its `values` (E, H)."""
    for y in range(out.shape[0]):
        for s in range(out.shape[1]):
            normalize_logs(tilts[y] + values[:, s], out[y, s])


@compiled
def fill_state_rows(log_moves, message, out):
    """Fill `out` (N, H, H) with `P(next state | state, symbol)`, from the `message` (Y, H) of the position after.

    `N` is 1 where the next state does not depend on the symbol, else `E`. Where a state cannot emit the symbol, the
    row names the first state; it is never used.
    """
    for x in range(out.shape[0]):
        m, y = min(x, len(log_moves) - 1), x if len(message) > 1 else 0
        for s in range(out.shape[1]):
            normalize_logs(log_moves[m, s] + message[y], out[x, s])


@compiled
def normalize_logs(terms, out):
    """Fill `out` with the distribution in proportion to the exponentials of `terms`; they may be the same array."""
    peak = terms.max()
    if peak == -np.inf:
        out[:] = 0.0
        out[0] = 1.0
        return
    total = 0.0
    for i in range(len(terms)):
        out[i] = exp(terms[i] - peak) if terms[i] - peak > -700 else 0.0
        total += out[i]
    for i in range(len(terms)):
        out[i] /= total


@compiled
def draw_start(start, bits, seed, first, step, state):
    """Fill `state` (N,) with the start states of sequences `first`, `first + step`, ..."""
    for n in range(len(state)):
        index = first + step * np.uint64(n)
        a, b, _, _ = block_of(index, START, TOKENS_STREAM, seed)
        state[n] = pick(start, np.uint64(0), bits, a, b)


@compiled
def draw_step(symbol, e_bits, following, f_bits, num_contexts, num_states, position, seed, first, step, state, out):
    """Draw column `position` of `out` (N, L), and move `state` (N,) on.

    Row `context * H + state` of `symbol` is the alias table of the next symbol; row `symbol * H + state` of
    `following` (or row `state`, if it has only `H`) that of the next state.
    """
    by_symbol = len(following) >> f_bits > num_states
    for n in range(len(state)):
        index = first + step * np.uint64(n)
        w0, w1, w2, w3 = block_of(index, np.uint64(position), TOKENS_STREAM, seed)
        context = np.uint64(0)
        if num_contexts > 1:
            context = np.uint64(out[n, position - 1]) if position > 0 else np.uint64(num_contexts - 1)
        drawn = pick(symbol, context * np.uint64(num_states) + state[n], e_bits, w0, w1)
        out[n, position] = drawn
        row = drawn * np.uint64(num_states) + state[n] if by_symbol else state[n]
        state[n] = pick(following, row, f_bits, w2, w3)
