"""Reasons for which an experiment on the beliefs of an HMM would show nothing, each with what to do about it.

Such an experiment asks whether a model has the belief, a distribution over hidden states. It is void where the symbols
give the state away, where the sequences are not those of a chain that mixes, and weaker where beliefs are few.
"""

import numpy as np
from jaxtyping import Float

from ..hmm.analysis.mixed_states import TOLERANCE, Tree
from ..hmm.analysis.stationary import eliminate, entropy, mixing_time
from ..hmm.model import HMM

_REVEALED = 0.05
"""Share of the entropy of the state from which on it counts as hidden."""

_FEW_BELIEFS = 1000
_POSITION = 32  # at which the past is long
_NUMBERS = 1 << 22  # in all beliefs that are computed


def belief_warnings(hmm: HMM) -> list[str]:
    """The reasons that hold for an HMM, in a sentence each with the remedy; none for a process such as Mess3."""
    return [*_of_chain(hmm), *_of_symbols(hmm), *_of_number(hmm)]


def _of_chain(hmm: HMM) -> list[str]:
    shares, lasts = eliminate(hmm.start, hmm.transition)
    classes = int((shares[lasts] > 0).sum())
    if classes > 1:
        return [
            f"the chain has {classes} closed classes, and a sequence stays in the one that it enters, so beliefs "
            "mostly show which; describe each class by itself, or start in one of them"
        ]
    recurrent = np.flatnonzero(shares > 0)
    if np.isinf(mixing_time(hmm.transition[np.ix_(recurrent, recurrent)], shares[recurrent])):
        return [
            "the chain is periodic and never mixes, so beliefs depend on the phase and so on the position; compare "
            "positions of one phase, or mix it with leaky(process, epsilon)"
        ]
    return []


def _of_symbols(hmm: HMM) -> list[str]:
    stationary = hmm.stationary()
    if entropy(stationary) < 1e-12:
        return []
    left = _uncertainty(stationary, _given_symbol(hmm, stationary))
    if left <= _REVEALED:
        return [
            f"a symbol alone reveals its hidden state (of whose entropy it leaves {left:.1%}), so beliefs depend on "
            "the last token only; let several states emit each symbol, as in mess3(x=0.15, a=0.6)"
        ]
    rows = max(2, min(256, _NUMBERS // (hmm.num_states * (_POSITION + 2))))
    tokens = hmm.sample_with_states(rows, _POSITION + 1)[0].astype(np.int64)  # compiled for the entropy rate already
    known = hmm.beliefs(tokens)
    if hmm.edges is None:
        known = known[:, _POSITION] * hmm.emission.T[tokens[:, _POSITION]]
        known /= known.sum(axis=1, keepdims=True)
    else:
        known = known[:, _POSITION + 1]
    left = float(entropy(known).mean() / entropy(stationary))
    if left <= _REVEALED:
        return [
            f"the past reveals the hidden state (after {_POSITION} tokens {left:.1%} of its entropy are left), so "
            "beliefs are nearly always a single state; compare with a probe for the state, or look at early positions"
        ]
    return []


def _given_symbol(hmm: HMM, stationary: Float[np.ndarray, "H"]) -> Float[np.ndarray, "E H"]:
    """Joint probabilities of a symbol and the state that emits it, or the one that its edge enters."""
    if hmm.edges is None:
        return (stationary[:, None] * hmm.emission).T
    return np.einsum("i,xij->xj", stationary, hmm.edges)


def _uncertainty(stationary: Float[np.ndarray, "H"], joint: Float[np.ndarray, "E H"]) -> float:
    """The share of the entropy of the state that is left given the symbol."""
    totals = joint.sum(axis=1)
    seen = totals > 0
    return float(totals[seen] @ entropy(joint[seen] / totals[seen, None])) / float(entropy(stationary))


def _of_number(hmm: HMM) -> list[str]:
    tree = Tree(hmm, hmm.start[None], np.ones(1))
    while tree.depth < _FEW_BELIEFS and tree.grow(_FEW_BELIEFS):
        pass
    if not tree.closed:
        return []
    found = len(tree.beliefs)
    beliefs = f"are only {found:,} beliefs that differ by {TOLERANCE:g}" if found > 1 else "is a single belief"
    return [
        f"there {beliefs}, which a model may keep as a table; compare with "
        "beliefs given the last symbols alone (the Markov controls of probe_beliefs), or choose mess3"
    ]
