"""Posteriors of states and most probable paths of an HMM whose states are in blocks, without an `(H, H)` table.

A token that was observed has the `S` states of its block alone. So smoothing takes products with two tables of the
block at each step, and Viterbi's recursion a table `(S, S)` of moves from one block to the next, which is a product of
their factors. A token that is missing may have any state, and goes through all blocks.
"""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

if TYPE_CHECKING:
    from .blocked import BlockedHMM


def block_posteriors(
    hmm: "BlockedHMM", tokens: Int[np.ndarray, "B T"], lengths: Int[np.ndarray, "B"]
) -> Float[np.ndarray, "B T H"]:
    """`P(state that emits token t | all tokens)`; zeros beyond the length, and where the sequence is impossible.

    Args:
        hmm ([`~hmm_datasets.hmm.structured.blocked.BlockedHMM`]): the HMM.
        tokens (`np.ndarray` of shape `(B, T)`): symbols, -1 where one is missing.
        lengths (`np.ndarray` of shape `(B,)`): number of tokens in each row.
    """
    beliefs, in_logs = hmm._filtered(tokens)
    result = np.zeros((*tokens.shape, hmm.num_states))
    values = np.ones((len(tokens), hmm.rank))
    for t in reversed(range(tokens.shape[1])):
        live = t < lengths
        symbols = np.where(live, tokens[:, t], 0)
        before = np.zeros_like(values)
        for block in range(hmm.num_blocks):
            (rows,) = np.nonzero(live & ((symbols < 0) | (hmm.blocks[symbols] == block)))
            if len(rows) > 0:
                states = _states_of(hmm, block)
                enter, leave = hmm.enter[:, states], hmm.leave[states]
                emitted = np.where(symbols[rows, None] < 0, 1.0, hmm.emission[symbols[rows]])
                after = emitted * (values[rows] @ leave.T)
                result[rows, t, states] = (beliefs[rows, t] @ enter) * after
                before[rows] += after @ enter.T
        values[live] = _scaled(before[live])
    result = _scaled(result, np.add)
    for row in np.flatnonzero(in_logs):
        result[row, : lengths[row]] = hmm._logs.posteriors(tokens[row, : lengths[row]])
    return result


def _scaled(table: Float[np.ndarray, "... N"], total: np.ufunc = np.maximum) -> Float[np.ndarray, "... N"]:
    sums = total.reduce(table, axis=-1, keepdims=True)
    return np.divide(table, sums, out=np.zeros_like(table), where=sums > 0)


def best_path(hmm: "BlockedHMM", tokens: Int[np.ndarray, "T"]) -> tuple[Int[np.ndarray, "T"], float]:
    """The states that emit the tokens with the greatest joint probability, and its logarithm in nats.

    Of two paths that tie it is the one whose last differing state is lower. If no path is possible, the states are 0
    and the logarithm is -inf.

    Args:
        hmm ([`~hmm_datasets.hmm.structured.blocked.BlockedHMM`]): the HMM.
        tokens (`np.ndarray` of shape `(T,)`): symbols, -1 where one is missing.
    """
    path, total = np.zeros(len(tokens), np.int64), 0.0
    scores, came = np.zeros(1), []
    with np.errstate(divide="ignore"):
        for t, symbol in enumerate(tokens):
            parts = []
            for block in range(hmm.num_blocks) if symbol < 0 else [hmm.blocks[symbol]]:
                enter = hmm.enter[:, _states_of(hmm, block)]
                # Of all moves, those into one block at a time.
                moves = hmm.start[None] @ enter if t == 0 else hmm.leave[candidates(hmm, tokens[t - 1])] @ enter
                sums = scores[:, None] + np.log(moves)
                parts.append((sums.argmax(0), sums.max(0)))
            origins, scores = map(np.concatenate, zip(*parts, strict=True))
            came.append(origins)
            scores = scores if symbol < 0 else scores + np.log(hmm.emission[symbol])
            best = scores.max()
            if best == -np.inf:
                return path, best
            # Near 0 the best scores keep their last digits, however long the sequence.
            scores, total = scores - best, total + best
    state = int(scores.argmax())
    for t in reversed(range(len(tokens))):
        path[t] = candidates(hmm, tokens[t]).start + state
        state = came[t][state]
    return path, total


def _states_of(hmm: "BlockedHMM", block: int) -> slice:
    return slice(block * hmm.block_size, (block + 1) * hmm.block_size)


def candidates(hmm: "BlockedHMM", symbol: int) -> slice:
    """The states that may emit a symbol; all where it is missing."""
    return slice(0, hmm.num_states) if symbol < 0 else _states_of(hmm, hmm.blocks[symbol])
