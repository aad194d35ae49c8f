"""Markov chains in the long run."""

import numpy as np
from jaxtyping import Float


def cesaro_limit(start: Float[np.ndarray, "H"], transition: Float[np.ndarray, "H H"]) -> Float[np.ndarray, "H"]:
    """The long-run share of time a chain started from `start` spends in each state, which always exists.

    By squaring the transition matrix, `O(H^3)` a doubling of time, 64 doublings at most.
    """
    # The lazy chain (I + P) / 2 has the same long-run averages and no period, so its powers converge; squaring
    # doubles the time, and rescaling the rows keeps rounding from growing with it.
    power = (np.eye(len(transition)) + transition) / 2
    law = start @ power
    for _ in range(64):
        power = power @ power
        power /= power.sum(axis=1, keepdims=True)
        last, law = law, start @ power
        if np.abs(law - last).max() < 1e-15:
            break
    return law / law.sum()


def entropy(laws: Float[np.ndarray, "... E"]) -> Float[np.ndarray, "..."]:
    """Entropy of each law over the last axis, in nats."""
    logs = np.log(np.where(laws > 0, laws, 1.0))
    return -(laws * logs).sum(axis=-1)
