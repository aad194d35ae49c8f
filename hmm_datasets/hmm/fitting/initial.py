"""First guesses for Baum-Welch: random tables."""

from collections.abc import Collection

import numpy as np

from ..model import HMM


def random_guess(num_states: int, num_symbols: int, *, seed: int = 0) -> HMM:
    """A first guess with rows drawn uniformly from the simplex (Dirichlet distributions of concentration 1).

    With flatter rows the states would be almost equal, and Baum-Welch would start on a plateau.
    """
    generator = np.random.default_rng(seed)

    def rows(count: int, width: int) -> np.ndarray:
        return generator.dirichlet(np.ones(width), count)

    return HMM(
        start=rows(1, num_states)[0],
        transition=rows(num_states, num_states),
        emission=rows(num_states, num_symbols),
        normalize=True,
    )


def redrawn(hmm: HMM, fixed: Collection[str] = (), *, seed: int = 0) -> HMM:
    """A first guess with the zeros of `hmm` and its `fixed` tables, and all else drawn as by [`random_guess`].

    Args:
        hmm ([`HMM`]): a state-emitting HMM.
        fixed (collection of `str`, *optional*): tables to keep: start, transition, emission.
        seed (`int`, *optional*, defaults to 0): seed of the draws.
    """
    tables = hmm.tables()
    for name, table in random_guess(hmm.num_states, hmm.num_symbols, seed=seed).tables().items():
        if name not in fixed:
            drawn = np.where(tables[name] > 0, table, 0.0)
            tables[name] = drawn / drawn.sum(-1, keepdims=True)
    return HMM(**tables, vocabulary=hmm.vocabulary)
