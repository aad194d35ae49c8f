"""Named processes of the literature, with their entropy rates where these are known.

A process that its source defines by edges is an edge-emitting HMM here, with the states of the source. All processes
start in their stationary distribution, except `dishonest_casino`, `weather` and `left_right`, which start as their
sources do. In `T^(x)` the row is the state left, the column the state entered.
"""

import numpy as np

from ..errors import InputError
from .model import HMM


def mess3(x: float = 0.15, a: float = 0.6) -> HMM:
    """Three states, three symbols, beliefs that fill a fractal (Marzen and Crutchfield, Entropy 19, 2017; the
    process of Shai et al., "Transformers represent belief state geometry in their residual stream", 2024, eq. 6).

    `T^(k)[i, j]` is `P(go from i to j)` times `P(emit k | enter j)`: the chain stays with probability `1 - 2x` and
    moves to either other state with `x`; on entering a state, its own symbol is emitted with probability `a`, each
    other one with `(1 - a) / 2`.

    Args:
        x (`float`, *optional*, defaults to 0.15): probability of moving to each other state, in `[0, 1/2]`.
        a (`float`, *optional*, defaults to 0.6): probability of the own symbol of the state entered, in `[0, 1]`.
    """
    _probability("x", x, upper=0.5)
    _probability("a", a)
    chain = np.full((3, 3), x) + np.eye(3) * (1 - 3 * x)
    shown = np.full((3, 3), (1 - a) / 2) + np.eye(3) * (a - (1 - a) / 2)
    return HMM(edges=np.einsum("ij,jk->kij", chain, shown))


def rrxor() -> HMM:
    """Random-random-XOR: two fair bits, then their exclusive or, repeated (Crutchfield and Feldman, Chaos 13, 2003;
    the states of Shai et al. 2024). States: S (start of a triple), 0 and 1 (one bit seen), T (the XOR is 1), F (it is
    0).

    Unifilar. Three symbols have two bits of entropy, so the entropy rate is `(2/3) ln 2` nats per token.

    ```python
    >>> round(rrxor().entropy_rate().value, 4)
    0.4621

    ```
    """
    start, zero, one, true, false = range(5)
    edges = np.zeros((2, 5, 5))
    edges[0, start, zero] = edges[1, start, one] = 0.5
    edges[0, zero, false] = edges[1, zero, true] = 0.5
    edges[0, one, true] = edges[1, one, false] = 0.5
    edges[1, true, start] = edges[0, false, start] = 1.0
    return HMM(edges=edges)


def leaky_rrxor(epsilon: float = 0.1) -> HMM:
    """RRXOR with leaks: with probability `epsilon` a step emits a fair bit and enters one of the five states
    uniformly.

    `T^(x) = (1 - epsilon) T_rrxor^(x) + epsilon / 10` in every entry (the `leaky_rrxor` of the library simplexity, by
    the authors of Shai et al. 2024). Every state can follow every other, so an observer never knows the phase for
    good. The process is not unifilar and has infinitely many mixed states.

    Args:
        epsilon (`float`, *optional*, defaults to 0.1): share of steps that leak, in `[0, 1]`; 0 is RRXOR.
    """
    _probability("epsilon", epsilon)
    return HMM(edges=(1 - epsilon) * np.asarray(rrxor().edges) + epsilon / 10)


def golden_mean(p: float = 0.5) -> HMM:
    """No two zeros in a row (a subshift of finite type; Crutchfield and Feldman 2003). State A emits 1 and stays with
    probability `p`, else emits 0 and moves to B. B always emits 1 and returns to A.

    Unifilar. The entropy rate is `h(p) / (2 - p)` nats per token, with `h` the binary entropy.
    """
    _probability("p", p)
    edges = np.zeros((2, 2, 2))
    edges[1, 0, 0] = p
    edges[0, 0, 1] = 1 - p
    edges[1, 1, 0] = 1.0
    return HMM(edges=edges)


def even(p: float = 0.5) -> HMM:
    """Blocks of ones of even length, separated by zeros (a sofic shift of infinite order; Crutchfield and Feldman
    2003). State A emits 0 and stays with probability `p`, else emits 1 and moves to B. B always emits 1 and returns to
    A.

    Unifilar. The entropy rate is `h(p) / (2 - p)` nats per token, with `h` the binary entropy.
    """
    _probability("p", p)
    edges = np.zeros((2, 2, 2))
    edges[0, 0, 0] = p
    edges[1, 0, 1] = 1 - p
    edges[1, 1, 0] = 1.0
    return HMM(edges=edges)


def zero_one_random() -> HMM:
    """A zero, a one and a fair bit, repeated (Z1R of Shai et al. 2024). The entropy rate is `ln(2) / 3` nats per
    token."""
    edges = np.zeros((2, 3, 3))
    edges[0, 0, 1] = 1.0
    edges[1, 1, 2] = 1.0
    edges[0, 2, 0] = edges[1, 2, 0] = 0.5
    return HMM(edges=edges)


def simple_nonunifilar(p: float = 0.5, q: float = 0.5) -> HMM:
    """The simple nonunifilar source (Crutchfield, Chaos 4, 1994; Marzen and Crutchfield 2015): state A emits 1 and
    stays with probability `1 - p`, else emits 1 and moves to B. B emits 1 and stays with probability `1 - q`, else
    emits 0 and returns to A. Only a 0 reveals the state."""
    _probability("p", p)
    _probability("q", q)
    edges = np.zeros((2, 2, 2))
    edges[1, 0, 0] = 1 - p
    edges[1, 0, 1] = p
    edges[1, 1, 1] = 1 - q
    edges[0, 1, 0] = q
    return HMM(edges=edges)


def dishonest_casino() -> HMM:
    """A fair die and a loaded one that shows six half the time (Durbin, Eddy, Krogh and Mitchison, Biological
    Sequence Analysis, 1998, section 3.2). Symbols 0 .. 5 are the faces 1 .. 6. It starts with the fair die."""
    loaded = np.full(6, 0.1)
    loaded[5] = 0.5
    return HMM(
        start=[1.0, 0.0],
        transition=[[0.95, 0.05], [0.10, 0.90]],
        emission=[np.full(6, 1 / 6), loaded],
    )


def umbrella() -> HMM:
    """Rain or none, umbrella or none (Russell and Norvig, Artificial Intelligence, figure 14.2). State 0 is rain,
    symbol 1 is an umbrella."""
    return HMM(start=[0.5, 0.5], transition=[[0.7, 0.3], [0.3, 0.7]], emission=[[0.1, 0.9], [0.8, 0.2]])


def weather() -> HMM:
    """Hot and cold days, inferred from ice creams eaten (Eisner 2002; the numbers of Jurafsky and Martin, Speech and
    Language Processing, figure A.2). State 0 is hot, 1 cold; symbols 0, 1, 2 are one, two and three ice creams."""
    return HMM(
        start=[0.8, 0.2],
        transition=[[0.6, 0.4], [0.5, 0.5]],
        emission=[[0.2, 0.4, 0.4], [0.5, 0.4, 0.1]],
        vocabulary=("1", "2", "3"),
    )


def left_right(num_states: int, num_symbols: int, *, stay: float = 0.5, alpha: float = 1.0, seed: int = 0) -> HMM:
    """A left-right chain (Bakis 1976; Rabiner 1989, section IV.A, with jumps of one state).

    It starts in state 0. Each state stays with probability `stay` or moves to the next; the last state stays forever.
    After about `num_states / (1 - stay)` tokens only the last state is left, so the entropy of the last row of
    `emission` is the entropy rate. The rows of `emission` are drawn from a symmetric Dirichlet distribution.

    Args:
        num_states (`int`): `H`.
        num_symbols (`int`): `E`.
        stay (`float`, *optional*, defaults to 0.5): probability that a state other than the last stays, in `[0, 1]`.
        alpha (`float`, *optional*, defaults to 1.0): concentration of the Dirichlet distribution, as in [`random`].
        seed (`int`, *optional*, defaults to 0): seed of NumPy's PCG64.
    """
    _probability("stay", stay)
    emission = random(num_states, num_symbols, alpha=alpha, seed=seed).emission
    transition = np.diag(np.full(num_states, stay)) + np.diag(np.full(num_states - 1, 1 - stay), k=1)
    transition[-1, -1] = 1.0
    return HMM(start=np.eye(num_states)[0], transition=transition, emission=emission)


def random(num_states: int, num_symbols: int, *, alpha: float = 1.0, seed: int = 0) -> HMM:
    """An HMM whose rows of both tables are drawn from a symmetric Dirichlet distribution of concentration `alpha`.

    Args:
        num_states (`int`): `H`.
        num_symbols (`int`): `E`.
        alpha (`float`, *optional*, defaults to 1.0): concentration; rows are peaked below 1 and flat above 1.
        seed (`int`, *optional*, defaults to 0): seed of NumPy's PCG64.
    """
    if num_states < 1 or num_symbols < 1 or alpha <= 0:
        raise InputError(
            f"random HMM of {num_states} states, {num_symbols} symbols, alpha {alpha}; expected all positive"
        )
    generator = np.random.default_rng(seed)
    return HMM(
        transition=generator.dirichlet(np.full(num_states, alpha), num_states),
        emission=generator.dirichlet(np.full(num_symbols, alpha), num_states),
        normalize=True,
    )


def _probability(name: str, value: float, upper: float = 1.0) -> None:
    if not 0 <= value <= upper:
        raise InputError(f"{name} is {value}; expected a number in [0, {upper:g}]")
