"""The long-run behaviour of Markov chains: stationary distributions and mixing times."""

import numpy as np
from jaxtyping import Float


def cesaro_limit(start: Float[np.ndarray, "H"], transition: Float[np.ndarray, "H H"]) -> Float[np.ndarray, "H"]:
    """The long-run share of time that a chain started from `start` spends in each state. The limit always exists.

    The transition matrix is squared repeatedly, at most 64 times, in `O(H^3)` per squaring.
    """
    # The lazy chain (I + P) / 2 has the same long-run averages and no period, so its powers converge. Rescaling the
    # rows keeps rounding errors from growing with every squaring.
    power = (np.eye(len(transition)) + transition) / 2
    distribution = start @ power
    for _ in range(64):
        power = power @ power
        power /= power.sum(axis=1, keepdims=True)
        last, distribution = distribution, start @ power
        if np.abs(distribution - last).max() < 1e-15:
            break
    return distribution / distribution.sum()


def entropy(distributions: Float[np.ndarray, "... E"]) -> Float[np.ndarray, "..."]:
    """Entropy of each distribution over the last axis, in nats."""
    logs = np.log(np.where(distributions > 0, distributions, 1.0))
    return -(distributions * logs).sum(axis=-1)


def mixing_time(
    transition: Float[np.ndarray, "H H"], stationary: Float[np.ndarray, "H"], distance: float = 0.25
) -> float:
    """Steps until the chain is within `distance` of its stationary distribution in total variation, from any state.

    `min {t : max_i |P^t(i, .) - stationary|_TV <= distance}` (Levin and Peres, Markov Chains and Mixing Times, 2017,
    eq. 4.30). It is infinite for a chain with a period or with several closed classes. Time is `O(H^3 log t)`.

    ```python
    >>> mixing_time(np.array([[0.9, 0.1], [0.1, 0.9]]), np.array([0.5, 0.5]))
    4.0

    ```
    """

    def far(power: np.ndarray) -> bool:
        return bool(np.abs(power - stationary).sum(axis=1).max() / 2 > distance)

    if not far(np.eye(len(transition))):
        return 0.0
    powers = [transition]  # entry k is the transition over 2^k steps
    while far(powers[-1]):
        if len(powers) > 50:
            return np.inf
        squared = powers[-1] @ powers[-1]
        powers.append(squared / squared.sum(axis=1, keepdims=True))
    # The distance never grows with time, so a binary search finds the maximum number of steps that is still too few.
    steps, reached = 0, np.eye(len(transition))
    for exponent in reversed(range(len(powers))):
        further = reached @ powers[exponent]
        if far(further):
            steps, reached = steps + (1 << exponent), further
    return float(steps + 1)
