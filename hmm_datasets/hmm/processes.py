"""Named processes of the literature, with their entropy rates where these are known.

A process that its source defines by edges is an edge-emitting HMM here, with the states of the source. All processes
start in their stationary distribution, except `dishonest_casino`, `weather` and `left_right`, which start as their
sources do. In `T^(x)` the row is the state left, the column the state entered. `h` is the binary entropy in nats.

`bloch_walk`, `frdn` and `moon` are generalized HMMs: no HMM of any finite size has their distribution. All of them are
stationary. Definitions and defaults are those of Riechers, Elliott and Shai, "Neural networks leverage nominally
quantum and post-quantum representations" (arXiv 2507.07432), appendix D. Languages of finite automata are HMMs whose
states are those of the automaton, and [`noisy`] makes a noisy process of any.
"""

import math
from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from ..errors import InputError
from ..intervals import rising_root
from .arrays import distribution, operators
from .generalized import GeneralizedHMM
from .integers import integer
from .model import HMM
from .process import Process

_BRACKETS = ("()", "[]", "{}", "<>")
_MAX_STATES = 2000
_MAX_ENTRIES = 1 << 29  # of the edges, which take 4 GiB


def dyck(depth: int, kinds: int = 1, p: float = 0.5) -> HMM:
    """Balanced brackets of `kinds` kinds, nested at most `depth` deep: the Dyck language `Dyck-(k, D)` (Hewitt et al.,
    "RNNs can generate bounded hierarchical languages with optimal memory", EMNLP 2020).

    A state is the stack of open brackets, so there are `1 + k + ... + k^D`. With an empty stack a bracket is opened,
    with a full one the last is closed, and otherwise one is opened with probability `p`. The kind of an opened bracket
    is uniform. Opening `i` is symbol `i`, and its closing is symbol `k + i`. A sequence begins with the empty stack.

    Unifilar. With `w_d` the stationary distribution of the depth, a birth-death chain, the entropy rate is
    `sum over 0 < d < D of w_d h(p) + ln(k) sum over d < D of w_d o_d` nats per token, with `h` the binary entropy and
    `o_d` the probability of opening.

    Args:
        depth (`int`): `D`, 1 or more.
        kinds (`int`, *optional*, defaults to 1): `k`.
        p (`float`, *optional*, defaults to 0.5): probability of opening a bracket, in `[0, 1]`.

    ```python
    >>> hmm = dyck(3, kinds=2)
    >>> hmm.num_states, "".join(hmm.vocabulary[x] for x in hmm.sample(1, 10, seed=1)[0])
    (15, '[][(())][]')

    ```
    """
    depth, kinds = integer("depth", depth, 1, 31), integer("kinds", kinds, 1, 31)
    _probability("p", p)
    states = depth + 1 if kinds == 1 else sum(kinds**d for d in range(min(depth, _MAX_STATES.bit_length()) + 1))
    if states > _MAX_STATES:
        raise InputError(f"depth {depth} of {kinds} kinds needs more than {_MAX_STATES:,} states; lower one of them")
    if 2 * kinds * states**2 > _MAX_ENTRIES:
        raise InputError(
            f"depth {depth} of {kinds} kinds needs tables of {2 * kinds * states**2:,} entries; expected at most "
            f"{_MAX_ENTRIES:,}, lower one of them"
        )
    edges = np.zeros((2 * kinds, states, states))
    for state in range(states):
        # Stacks are numbered as nodes of a complete tree: kind `i` on top of stack `s` is stack `k s + 1 + i`.
        inner = kinds * state + kinds < states
        opening = p if inner and state > 0 else float(inner)
        if inner:
            edges[range(kinds), state, range(kinds * state + 1, kinds * state + 1 + kinds)] = opening / kinds
        if state > 0:
            edges[kinds + (state - 1) % kinds, state, (state - 1) // kinds] = 1 - opening
    names = [_BRACKETS[i] if i < len(_BRACKETS) else (f"({i}", f"){i}") for i in range(kinds)]
    vocabulary = [name[0] for name in names] + [name[1] for name in names]
    return HMM(start=np.eye(states)[0], edges=edges, vocabulary=vocabulary)


def bloch_walk(alpha: float = 1.0, beta: float = math.sqrt(51)) -> GeneralizedHMM:
    """Weak measurements of a qubit along `z` and `x` in turn at random (arXiv 2507.07432, appendix D.2).

    Symbols 0 .. 3 are the outcomes `+z`, `-z`, `+x`, `-x`, with Kraus operators `g (alpha I + beta s)` for `s` = `Z`,
    `-Z`, `X`, `-X` and `g = 1 / (2 sqrt(alpha^2 + beta^2))`. Predictive vectors are `(1, x, z)`, where `(x, z)` lies
    in the disk of the Bloch ball with `y = 0`. The process starts in the centre, its stationary vector. Some libraries
    call it `tom_quantum`.

    The entropy rate has no known closed form. For the defaults it is 1.367251 nats per token, estimated with a
    standard error of 2e-7.

    Args:
        alpha (`float`, *optional*, defaults to 1.0): weight of the identity, above 0.
        beta (`float`, *optional*, defaults to the square root of 51): weight of the Pauli matrices; measurements are
            projective for `beta = alpha`, and say nothing for 0 or infinity.

    ```python
    >>> bloch_walk().beliefs([[2]])[0, 1].round(4).tolist()
    [1.0, 0.2747, 0.0]

    ```
    """
    if not (0 < alpha < math.inf and math.isfinite(beta)):
        raise InputError(f"alpha is {alpha}, beta {beta}; expected alpha above 0, and finite numbers")
    square = 4 * (alpha * alpha + beta * beta)
    turn, shrink = 2 * alpha * beta / square, (alpha * alpha - beta * beta) / square
    operators = np.zeros((4, 3, 3))
    for symbol, (axis, other, sign) in enumerate(((2, 1, 1), (2, 1, -1), (1, 2, 1), (1, 2, -1))):
        operators[symbol, 0, 0] = operators[symbol, axis, axis] = 0.25
        operators[symbol, 0, axis] = operators[symbol, axis, 0] = sign * turn
        operators[symbol, other, other] = shrink
    return GeneralizedHMM(operators, initial=[1.0, 0.0, 0.0], final=[1.0, 0.0, 0.0])


def frdn(alpha: float = 2000.0, lam: float = 0.49) -> GeneralizedHMM:
    """The process of Fox, Rubin, Dharmadhikari and Nadkarni: runs of symbol 1 between symbols 0, of length `n >= 1`
    with probability `lam^n sin(n alpha / 2)^2`, else of length 0 (arXiv 2507.07432, appendix D.3).

    It has 4 dimensions, and a quantum model of 3 levels. No HMM of finite size has its distribution if `alpha / pi` is
    irrational (Fox and Rubin, Ann. Math. Statist. 39, 1968; Dharmadhikari and Nadkarni, ibid. 41, 1970; Fanizza,
    Lumbreras and Winter, Commun. Math. Phys. 405, 2024). After each 0 it starts anew, so that the entropy rate is the
    entropy of the length of a run over the mean distance of two zeros: `-sum f(n) ln f(n) / sum (n + 1) f(n)`.

    Args:
        alpha (`float`, *optional*, defaults to 2000.0): angle in radians.
        lam (`float`, *optional*, defaults to 0.49): decay of the lengths, in `(0, 1/2]`.

    ```python
    >>> round(frdn().entropy_rate().value, 6)
    0.644751

    ```
    """
    if not (0 < lam <= 0.5 and math.isfinite(alpha)):
        raise InputError(f"alpha is {alpha}, lam {lam}; expected a finite angle, and lam in (0, 0.5]")
    cosine, sine = lam * math.cos(alpha), lam * math.sin(alpha)
    size = (1 - cosine) ** 2 + sine**2
    # (1, 1) times the inverse of 1 - lam R, for the rotation R by alpha.
    sums = (1 - cosine + sine) / size, (1 - cosine - sine) / size
    runs = 1 / (2 * (1 - lam))
    anew = np.array([1 - runs + (sums[0] + sums[1]) / 4, runs, -sums[0] / 4, -sums[1] / 4])
    stops = np.array([1, 1 - lam, 1 + sine - cosine, 1 - sine - cosine])
    goes_on = np.array([[0, 0, 0, 0], [0, lam, 0, 0], [0, 0, cosine, -sine], [0, 0, sine, cosine]])
    # The sum of `anew` times the powers of `goes_on`: how often each vector of a run occurs.
    turned = [
        (anew[2] * (1 - cosine) + anew[3] * sine) / size,
        (anew[3] * (1 - cosine) - anew[2] * sine) / size,
    ]
    visits = np.array([anew[0], anew[1] / (1 - lam), *turned])
    mean = visits[0] + visits[1] + visits[2] + visits[3]
    return GeneralizedHMM(np.stack([np.outer(stops, anew), goes_on]), initial=visits / mean, final=np.ones(4))


def moon(alpha: float = math.e, beta: float = 0.5) -> GeneralizedHMM:
    """A process of 3 dimensions that neither an HMM nor a quantum system of finite size has (arXiv 2507.07432,
    appendix D.4; Fanizza, Lumbreras and Winter, Commun. Math. Phys. 405, 2024).

    After a symbol 0 it starts anew. Then symbols 1 and 2, which multiply a number `p = 1` by `alpha` and `beta`, give
    a following 0 a weight of `p - 1 - ln p`, which is 0 for `p = 1` and positive elsewhere: two zeros never follow
    each other. The weights are made probabilities by the largest eigenvalue of the sum of the operators, and its
    vectors. Some libraries call it `post_quantum`.

    That no finite model exists is proven for irrational `ln alpha / ln beta` and `alpha + beta` other than 2. There is
    no closed form of the entropy rate, but `entropy_rate_bounds` gives it to rounding: 0.699046 nats per token.

    Args:
        alpha (`float`, *optional*, defaults to e): factor of symbol 1, above 1.
        beta (`float`, *optional*, defaults to 0.5): factor of symbol 2, in `(0, 1)`.
    """
    if not 1 < alpha < math.inf or not 0 < beta < 1 or alpha + beta == 2:
        raise InputError(f"alpha is {alpha}, beta {beta}; expected alpha > 1 > beta > 0, and a sum other than 2")
    logs = math.log(alpha), math.log(beta)
    largest = _moon_eigenvalue(alpha + beta, logs[0] + logs[1])
    operators = np.zeros((3, 3, 3))
    operators[0] = np.outer([1, 1, 0], [1, -1, -1])
    for symbol, factor in ((1, alpha), (2, beta)):
        operators[symbol] = [[factor, 0, 0], [0, 1, 0], [0, logs[symbol - 1], 1]]
    last = (logs[0] + logs[1]) / (largest - 2)
    final = np.array([largest - 1 + last, 1.0, last])
    second = largest - 1 - alpha - beta
    initial = np.array([1.0, second, -(1 + second) / (largest - 2)])
    norm = initial[0] * final[0] + initial[1] * final[1] + initial[2] * final[2]
    return GeneralizedHMM(operators / largest, initial=initial / norm, final=final)


def _moon_eigenvalue(factors: float, logs: float) -> float:
    """The largest root of the characteristic polynomial of `[[1 + factors, -1, -1], [1, 1, -1], [0, logs, 2]]`."""

    def polynomial(x: float) -> float:
        return (x - 1 - factors) * ((x - 1) * (x - 2) + logs) + x - 2 + logs

    # It is positive above the root.
    high = 4 + factors + abs(logs)
    low = high
    while polynomial(low) > 0:
        low -= 1 / 64
    return rising_root(polynomial, low, high)


def mess3(x: float = 0.05, a: float = 0.85) -> HMM:
    """Three states, three symbols, beliefs that fill a fractal (Marzen and Crutchfield, Entropy 19, 2017; the
    process of Shai et al., "Transformers represent belief state geometry in their residual stream", 2024, eq. 6).

    `T^(k)[i, j]` is `P(go from i to j)` times `P(emit k | enter j)`: the chain stays with probability `1 - 2x` and
    moves to either other state with `x`; on entering a state, its own symbol is emitted with probability `a`, each
    other one with `(1 - a) / 2`.

    By default the optimum is 0.31 nats per token below the uniform distribution. At `x=0.15, a=0.6`, whose beliefs
    fill the fractal that is drawn most often, it is only 0.0097 below, so that a trained model looks untrained.

    Args:
        x (`float`, *optional*, defaults to 0.05): probability of moving to each other state, in `[0, 1/2]`.
        a (`float`, *optional*, defaults to 0.85): probability of the own symbol of the state entered, in `[0, 1]`.
    """
    _probability("x", x, upper=0.5)
    _probability("a", a)
    chain = np.full((3, 3), x) + np.eye(3) * (1 - 3 * x)
    shown = np.full((3, 3), (1 - a) / 2) + np.eye(3) * (a - (1 - a) / 2)
    return HMM(edges=np.einsum("ij,jk->kij", chain, shown))


def coin(p: float = 0.5) -> HMM:
    """Independent throws that show symbol 0 with probability `p`, else 1: one state. The entropy rate is `h(p)`."""
    _probability("p", p)
    return HMM(transition=[[1.0]], emission=[[p, 1 - p]])


def rrxor(p1: float = 0.5, p2: float = 0.5) -> HMM:
    """Random-random-XOR: two random bits, then their exclusive or, repeated (Crutchfield and Feldman, Chaos 13, 2003;
    the states of Shai et al. 2024). States: S (start of a triple), 0 and 1 (one bit seen), T (the XOR is 1), F (it is
    0).

    Unifilar. The entropy rate is `(h(p1) + h(p2)) / 3` nats per token, two thirds of `ln 2` for fair bits.

    Args:
        p1 (`float`, *optional*, defaults to 0.5): probability that the first bit is 0.
        p2 (`float`, *optional*, defaults to 0.5): probability that the second bit is 0.

    ```python
    >>> round(rrxor().entropy_rate().value, 4)
    0.4621

    ```
    """
    _probability("p1", p1)
    _probability("p2", p2)
    start, zero, one, true, false = range(5)
    edges = np.zeros((2, 5, 5))
    edges[0, start, zero], edges[1, start, one] = p1, 1 - p1
    edges[0, zero, false], edges[1, zero, true] = p2, 1 - p2
    edges[0, one, true], edges[1, one, false] = p2, 1 - p2
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
    return HMM(edges=[[[0, 1 - p], [0, 0]], [[p, 0], [1, 0]]])


def even(p: float = 0.5) -> HMM:
    """Blocks of ones of even length, separated by zeros (a sofic shift of infinite order; Crutchfield and Feldman
    2003). State A emits 0 and stays with probability `p`, else emits 1 and moves to B. B always emits 1 and returns to
    A.

    Unifilar. The entropy rate is `h(p) / (2 - p)` nats per token, with `h` the binary entropy.
    """
    _probability("p", p)
    return HMM(edges=[[[p, 0], [0, 0]], [[0, 1 - p], [1, 0]]])


def zero_one_random(p: float = 0.5) -> HMM:
    """A zero, a one and a bit that is one with probability `p`, repeated (Z1R of Shai et al. 2024, where the bit is
    fair). Unifilar. The entropy rate is `h(p) / 3` nats per token."""
    _probability("p", p)
    return HMM(edges=[[[0, 1, 0], [0, 0, 0], [1 - p, 0, 0]], [[0, 0, 0], [0, 0, 1], [p, 0, 0]]])


def simple_nonunifilar(p: float = 0.5, q: float = 0.5) -> HMM:
    """The simple nonunifilar source, SNS (Crutchfield, Chaos 4, 1994; Marzen and Crutchfield 2015): state A emits 1
    and stays with probability `1 - p`, else emits 1 and moves to B. B emits 1 and stays with probability `1 - q`, else
    emits 0 and returns to A. Only a 0 reveals the state."""
    _probability("p", p)
    _probability("q", q)
    return HMM(edges=[[[0, 0], [q, 0]], [[1 - p, p], [0, 1 - q]]])


def days_of_week(next_day: float = 5.0) -> HMM:
    """Talk about days: the state is a day, and each symbol tells the next one (the `days_of_week` of the library
    simplexity, by the authors of Shai et al. 2024).

    Symbols are the seven days, which are then the state; "tomorrow" and "yesterday", relative to the state; "weekend"
    and "weekday", after which the state is any of these days. All have the weight 1, except the day that follows the
    state, whose weight is `next_day`. Not unifilar, but with finitely many beliefs: the entropy rate of the default is
    2.193174 nats per token, by [`GeneralizedHMM.from_hmm`][hmm_datasets.GeneralizedHMM.from_hmm].

    Args:
        next_day (`float`, *optional*, defaults to 5.0): weight of the day that follows the state, 0 or more.
    """
    if not 0 <= next_day < np.inf:
        raise InputError(f"next_day is {next_day}; expected a weight of 0 or more")
    days = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
    edges = np.zeros((11, 7, 7))
    edges[range(7), :, range(7)] = 1.0
    for day in range(7):
        edges[(day + 1) % 7, day, (day + 1) % 7] = next_day
        edges[7, day, (day + 1) % 7] = edges[8, day, day - 1] = 1.0
    edges[9, :, 5:], edges[10, :, :5] = 1 / 2, 1 / 5
    vocabulary = (*days, "tomorrow", "yesterday", "weekend", "weekday")
    return HMM(edges=edges / (10 + next_day), vocabulary=vocabulary)


def matching_parentheses(open_probabilities: Sequence[float] = (1.0, 0.5, 0.5)) -> HMM:
    """Parentheses nested up to a depth, as many as there are probabilities; the state is the depth, symbol 0 opens.

    At depth `d` a parenthesis opens with probability `open_probabilities[d]`, else one closes; at depth 0 it has to
    open, at the greatest it has to close. Sequences start at any depth, as the stationary process does.

    Unifilar. The stationary share of depth `d` is proportional to the product of `p[k] / (1 - p[k + 1])` for `k < d`,
    with `p` 0 at the greatest depth, and the entropy rate is the mean of `h(p[d])`.

    Args:
        open_probabilities (sequence of `float`, *optional*, defaults to `(1.0, 0.5, 0.5)`): the first is 1, the others
            lie in `(0, 1)`.
    """
    opens = np.array([*open_probabilities, 0.0])
    if len(opens) < 2 or opens[0] != 1 or not ((opens[1:-1] > 0) & (opens[1:-1] < 1)).all():
        raise InputError(f"open_probabilities is {open_probabilities}; expected 1, then numbers between 0 and 1")
    depths = np.arange(len(opens) - 1)
    edges = np.zeros((2, len(opens), len(opens)))
    edges[0, depths, depths + 1] = opens[:-1]
    edges[1, depths + 1, depths] = 1 - opens[1:]
    return HMM(edges=edges, vocabulary=("(", ")"))


def mr_name(p: float = 0.4, q: float = 0.25) -> HMM:
    """Words of which one asks for a name (the `mr_name` of the library simplexity, by the authors of Shai et al.
    2024): "Mr." is followed by "name", that by "Something" or "Blah" with equal probabilities. These are followed by
    each other with probability `p`, by "Mr." with `q`, else by themselves.

    A Markov chain: the state is the last word. The entropy rate is `(q ln 2 + H(p, q, 1 - p - q)) / (1 + 2 q)` nats
    per token, with `H` the entropy of a distribution.

    Args:
        p (`float`, *optional*, defaults to 0.4): probability of the other of the two words.
        q (`float`, *optional*, defaults to 0.25): probability of "Mr.", above 0; at most `1 - p`.
    """
    _probability("p", p)
    _probability("q", q, upper=1 - p)
    if q == 0:
        raise InputError("q is 0; expected a positive number, or the name never comes")
    words = ("Mr.", "Something", "Blah", "name")
    chain = np.array([[0, 0, 0, 1], [q, 1 - p - q, p, 0], [q, p, 1 - p - q, 0], [0, 0.5, 0.5, 0]])
    return HMM(edges=chain * np.eye(4)[:, None, :], vocabulary=words)


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
    num_states, num_symbols = integer("num_states", num_states, 1, 31), integer("num_symbols", num_symbols, 1, 31)
    if not 0 < alpha < np.inf:
        raise InputError(f"alpha is {alpha}; expected a positive number")
    generator = np.random.default_rng(integer("seed", seed, 0, 64))
    return HMM(
        transition=generator.dirichlet(np.full(num_states, alpha), num_states),
        emission=generator.dirichlet(np.full(num_symbols, alpha), num_states),
        normalize=True,
    )


@overload
def noisy(process: HMM, channel: Any, *, vocabulary: Sequence[str] | None = None) -> HMM: ...


@overload
def noisy(process: GeneralizedHMM, channel: Any, *, vocabulary: Sequence[str] | None = None) -> GeneralizedHMM: ...


def noisy(
    process: HMM | GeneralizedHMM, channel: Any, *, vocabulary: Sequence[str] | None = None
) -> HMM | GeneralizedHMM:
    """`process` seen through a memoryless noisy channel: symbol `x` is replaced by `y` with probability
    `channel[x, y]`.

    The result is of the same kind and has the same states: operators are blurred, `T'[y] = sum_x channel[x, y] T[x]`.
    Beliefs are those of an observer who sees the replaced symbols.

    Args:
        process ([`HMM`] or [`~hmm_datasets.GeneralizedHMM`]): the process before the channel, of `E` symbols.
        channel (array of shape `(E, F)`, or `float`):
            Rows are distributions over the `F` symbols seen. A number is the probability that a symbol is replaced by
            one of all `E` drawn uniformly, possibly itself.
        vocabulary (sequence of `str`, *optional*): names of the `F` symbols; those of `process` if `F = E`.

    Raises:
        `InputError`: `process` is of another kind, or `channel` is no such table.

    ```python
    >>> noisy(golden_mean(), 0.1).next_token_probs([[0]])[0, 1].round(4).tolist()
    [0.0929, 0.9071]

    ```
    """
    _check_kind(process)
    symbols = process.num_symbols
    if np.ndim(channel) == 0:
        _probability("channel", channel)
        channel = (1 - channel) * np.eye(symbols) + channel / symbols
    channel = distribution("channel", channel, 2)
    if len(channel) != symbols:
        raise InputError(f"channel has shape {channel.shape}; expected ({symbols}, F), one row per symbol")
    if vocabulary is None and channel.shape[1] == symbols:
        vocabulary = process.vocabulary
    if isinstance(process, GeneralizedHMM):
        operators = np.einsum("xij,xy->yij", process.operators, channel)
        return GeneralizedHMM(operators, process.initial, process.final, vocabulary)
    if process.edges is None:
        tables = {"transition": process.transition, "emission": process.emission @ channel}
    else:
        tables = {"edges": np.einsum("xij,xy->yij", process.edges, channel)}
    return HMM(start=process.start, **tables, vocabulary=vocabulary)


@overload
def leaky(process: HMM, epsilon: float) -> HMM: ...


@overload
def leaky(process: GeneralizedHMM, epsilon: float) -> GeneralizedHMM: ...


def leaky(process: HMM | GeneralizedHMM, epsilon: float) -> HMM | GeneralizedHMM:
    """`process`, interrupted with probability `epsilon` per token: the symbol is then uniform, and the process begins
    anew after it.

    So what a token reveals of the past is forgotten at a rate of `epsilon`, and every word is possible. An HMM that
    starts in the uniform distribution, such as Mess3, becomes `(1 - epsilon) T^(x) + epsilon / (E H)`, the leak of the
    library simplexity, by the authors of Shai et al. 2024; [`leaky_rrxor`] enters a uniform state, wherever it starts.

    Args:
        process ([`HMM`] or [`~hmm_datasets.GeneralizedHMM`]): the process, which stays one of the same states.
        epsilon (`float`): in `[0, 1]`.

    ```python
    >>> leaky(mess3(), 0.2).edges[0, 0].round(4).tolist()  # 0.8 T + 0.2 / 9
    [0.6342, 0.0252, 0.0252]

    ```
    """
    _check_kind(process)
    _probability("epsilon", epsilon)
    anew = epsilon / process.num_symbols
    if isinstance(process, HMM):
        edges = (1 - epsilon) * operators(process) + anew * process.start
        return HMM(start=process.start, edges=edges, vocabulary=process.vocabulary)
    tables = (1 - epsilon) * process.operators + anew * np.outer(process.final, process.initial)
    return GeneralizedHMM(tables, process.initial, process.final, process.vocabulary)


def _check_kind(process: Any) -> None:
    if not isinstance(process, (HMM, GeneralizedHMM)):
        remedy = "; its to_hmm() or joint_process() is one" if isinstance(process, Process) else ""
        raise InputError(f"process is a {type(process).__name__}; expected an HMM or a GeneralizedHMM{remedy}")


def _probability(name: str, value: float, upper: float = 1.0) -> None:
    if not 0 <= value <= upper:
        raise InputError(f"{name} is {value}; expected a number in [0, {upper:g}]")
