"""The forward and backward recursions with numbers of 40 digits, whose exponents have no bound."""

from collections.abc import Sequence
from typing import NamedTuple

import mpmath
import numpy as np


class Exact(NamedTuple):
    """`log P(tokens)`, beliefs (T+1, H), posteriors (T, H) of the states before each token, and counts of moves (T, H,
    H) at each token."""

    log_likelihood: float
    beliefs: np.ndarray
    posteriors: np.ndarray
    moves: np.ndarray


def exact(start: np.ndarray, steps: Sequence[Sequence[np.ndarray]]) -> Exact:
    """What follows from `P(emit the token, go to j | in i)` at each of the steps, each a product of matrices."""
    with mpmath.workdps(40):
        steps = [[mpmath.matrix(table.tolist()) for table in tables] for tables in steps]
        past = [mpmath.matrix(start.tolist()).T]
        for tables in steps:
            past.append(mpmath.fprod([past[-1], *tables]))
        ahead = [mpmath.ones(len(past[-1]), 1)]
        for tables in reversed(steps):
            ahead.append(mpmath.fprod([*tables, ahead[-1]]))
        ahead.reverse()
        total = mpmath.fsum(past[-1])
        beliefs = [[float(p / mpmath.fsum(row)) for p in row] for row in past]
        states = range(len(start))
        posteriors = [[float(past[t][i] * ahead[t][i] / total) for i in states] for t in range(len(steps))]
        moves = [
            [[float(past[t][i] * moves[i, j] * ahead[t + 1][j] / total) for j in states] for i in states]
            for t, moves in enumerate(map(mpmath.fprod, steps))
        ]
        return Exact(float(mpmath.log(total)), np.array(beliefs), np.array(posteriors), np.array(moves))


def steps_of(hmm, tokens: Sequence[int]) -> list[list[np.ndarray]]:
    """The matrices of the tokens of an HMM, of emissions and moves where states emit; -1 is a missing token."""
    if hmm.edges is not None:
        return [[hmm.transition if x < 0 else hmm.edges[x]] for x in tokens]
    return [[hmm.transition] if x < 0 else [np.diag(hmm.emission[:, x]), hmm.transition] for x in tokens]
