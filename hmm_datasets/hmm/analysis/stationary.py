"""The long-run behaviour of Markov chains: stationary distributions and mixing times."""

import numpy as np
from jaxtyping import Float, Int

_BLOCK = 48  # states that are eliminated between two products with all that remain


def cesaro_limit(start: Float[np.ndarray, "H"], transition: Float[np.ndarray, "H H"]) -> Float[np.ndarray, "H"]:
    """The long-run share of time that a chain started from `start` spends in each state. The limit always exists.

    It is computed by powers of the transition matrix, squared at most 64 times in `O(H^3)` each, and by
    [`eliminate`], whose result is taken where they differ by more than rounding. So every entry has a relative error
    of at most about 1e-10, or an absolute one of 1e-15, however rarely the chain moves between its parts. The share of
    a transient state, which the powers only approach, is 0.
    """
    exact, _ = eliminate(start, transition)
    powers = np.where(exact > 0, _limit_of_powers(start, transition), 0.0)
    # A start that is not given is part of a fingerprint and of the draws, so its last bits are those of the powers.
    return powers if (np.abs(powers - exact) <= 1e-15 + 1e-10 * exact).all() else exact


def _limit_of_powers(start: Float[np.ndarray, "H"], transition: Float[np.ndarray, "H H"]) -> Float[np.ndarray, "H"]:
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


def eliminate(
    start: Float[np.ndarray, "H"], transition: Float[np.ndarray, "H H"]
) -> tuple[Float[np.ndarray, "H"], Int[np.ndarray, "C"]]:
    """The same limit by eliminating one state after the other, and a state of each closed class.

    Where a state is left out of the chain, paths through it are added to the moves between the others (Grassmann,
    Taksar and Heyman, Operations Research 33, 1985). Only numbers of 0 or more are added, multiplied and divided, and
    the probability of staying is never used. So every entry keeps its digits, also where the probability of leaving a
    part of the chain is far below the rounding of one. Only paths of a probability below 1e-308 count as impossible.
    A state that nothing leads away from is the last of its closed class, and is kept; the weights of such states end
    as the probabilities that the chain is caught by their classes. Time is `O(H^3)`, most of it in matrix products.
    """
    states = len(transition)
    moves, weights = np.array(transition, dtype=np.float64), np.array(start, dtype=np.float64)
    np.fill_diagonal(moves, 0)
    # The chain seen only when it moves: its stationary share of a state is divided by how often that is left.
    rate = moves.sum(axis=1)
    moves /= np.where(rate > 0, rate, 1)[:, None]
    arriving = np.zeros_like(moves)  # [i, k] leads from `i` to `k` where `k` is eliminated
    leaving = np.zeros(states)
    lasts: list[int] = []
    for begin in range(0, states, _BLOCK):
        end = min(begin + _BLOCK, states)
        onward, rest = np.zeros((end - begin, states)), moves[end:, begin:end]
        for k in range(begin, end):
            row = moves[k]
            row[k] = 0
            leaving[k] = row.sum()
            if leaving[k] == 0:
                lasts.append(k)
                continue
            onward[k - begin] = row / leaving[k]
            weights += weights[k] * onward[k - begin]
            weights[k] = 0
            arriving[k + 1 :, k] = moves[k + 1 :, k]
            moves[k + 1 :, k] = 0
            moves[k + 1 : end] += np.outer(arriving[k + 1 : end, k], onward[k - begin])
            rest += np.outer(arriving[end:, k], onward[k - begin, begin:end])
        caught = [last for last in lasts if last < begin]
        moves[end:, end:] += arriving[end:, begin:end] @ onward[:, end:]
        moves[end:, caught] += arriving[end:, begin:end] @ onward[:, caught]
    return _shares(weights, arriving, leaving, rate, lasts), np.array(lasts)


def _shares(
    weights: Float[np.ndarray, "H"],
    arriving: Float[np.ndarray, "H H"],
    leaving: Float[np.ndarray, "H"],
    rate: Float[np.ndarray, "H"],
    lasts: list[int],
) -> Float[np.ndarray, "H"]:
    # From the last state of each class back to the first that was eliminated. The largest share within a class so far
    # is one, so that nothing overflows.
    share, of_class = np.zeros(len(weights)), np.full(len(weights), -1)
    for k in reversed(range(len(weights))):
        if leaving[k] == 0:
            share[k], of_class[k] = 1, k
            continue
        flow = share[k + 1 :] * arriving[k + 1 :, k]
        total = flow.sum()
        if total == 0:  # transient
            continue
        of_class[k] = of_class[k + 1 + flow.argmax()]
        if total > leaving[k]:
            share[of_class == of_class[k]] *= leaving[k] / total
            share[k] = 1
        else:
            share[k] = total / leaving[k]
    result = np.zeros(len(weights))
    for last in lasts:
        own_states = np.flatnonzero((of_class == last) & (share > 0))
        slow = rate[own_states].min()
        times = share[own_states] * (slow / rate[own_states] if slow > 0 else 1)
        result[own_states] = weights[last] * (times / times.sum())
    return result / result.sum()


def entropy(distributions: Float[np.ndarray, "... E"]) -> Float[np.ndarray, "..."]:
    """Entropy of each distribution over the last axis, in nats."""
    logs = np.log(np.where(distributions > 0, distributions, 1.0))
    return -(distributions * logs).sum(axis=-1)


def mixing_time(
    transition: Float[np.ndarray, "H H"], stationary: Float[np.ndarray, "H"], distance: float = 0.25
) -> float:
    """Steps until the chain is within `distance` of its stationary distribution in total variation, from any state.

    `min {t : max_i |P^t(i, .) - stationary|_TV <= distance}` (Levin and Peres, Markov Chains and Mixing Times, 2017,
    eq. 4.30). It is infinite for a chain with a period or with several closed classes, and given as infinite above
    about 2^50 steps. Time is `O(H^3 log t)`.

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
