"""Languages of finite automata as HMMs whose states are those of the automaton."""

import numpy as np

from ..errors import InputError
from .integers import integer
from .model import HMM

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
    if not 0 <= p <= 1:
        raise InputError(f"p is {p}; expected a probability")
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
