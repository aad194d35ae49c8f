"""Checks of the rules of a grammar; each raises [`~hmm_datasets.errors.InputError`] that names the rule."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ...errors import InputError
from ..checks import array
from ..integers import integer

_REFUSE = 1e-5  # as for the tables of an HMM
_RESCALE = 1e-9
_MAX_RADIUS = 1 - 1e-9


def as_rules(rules: Any, probs: Any) -> tuple[Int[np.ndarray, "R 3"], Float[np.ndarray, "R"]]:
    """Check binary rules `A, B, C` and their probabilities."""
    found = _numbers("rules", rules, 3)
    return found, _probabilities("rule_probs", probs, len(found))


def as_words(
    words: Any, probs: Any, num_symbols: int | None
) -> tuple[Int[np.ndarray, "M 2"], Float[np.ndarray, "M"], int]:
    """Check rules `A, x` for words and their probabilities; return them and `E`."""
    found = _numbers("words", words, 2)
    if len(found) == 0:
        raise InputError("words is empty; a grammar needs a rule A -> x for a word x")
    needed = int(found[:, 1].max()) + 2
    num_symbols = needed if num_symbols is None else integer("num_symbols", num_symbols, 1, 31)
    if num_symbols < needed:
        raise InputError(
            f"num_symbols is {num_symbols}; expected {needed} or more, since words has symbol {needed - 2} and the "
            "end symbol is the last one"
        )
    return found, _probabilities("word_probs", probs, len(found)), int(num_symbols)


def check_sums(
    rules: np.ndarray, rule_probs: np.ndarray, words: np.ndarray, word_probs: np.ndarray, names: Sequence[str] | None
) -> tuple[Float[np.ndarray, "R"], Float[np.ndarray, "M"]]:
    """Check that rules and words of every nonterminal sum to one; rescale them where they are wrong by rounding."""
    size = int(max(rules.max(initial=0), words[:, 0].max())) + 1
    if names is not None and len(names) != size:
        raise InputError(f"nonterminals has {len(names)} names; expected {size}, one per nonterminal")
    for name, table in (("rules", rules), ("words", words)):
        unique, counts = np.unique(table, axis=0, return_counts=True)
        if (counts > 1).any():
            raise InputError(f"{name} has {unique[counts > 1][0].tolist()} more than once; add their probabilities")
    totals = np.bincount(rules[:, 0], rule_probs, size) + np.bincount(words[:, 0], word_probs, size)
    off = np.abs(totals - 1)
    if (off > _REFUSE).any():
        worst = int(np.argmax(off > _REFUSE))
        raise InputError(
            f"the rules of nonterminal {_named(worst, names)} have probabilities that sum to "
            f"{totals[worst]:.6g}, not 1"
        )
    scale = np.where(off > _RESCALE, totals, 1.0)
    return rule_probs / scale[rules[:, 0]], word_probs / scale[words[:, 0]]


def expected_lengths(
    rules: np.ndarray, rule_probs: np.ndarray, words: np.ndarray, word_probs: np.ndarray, names: Sequence[str] | None
) -> Float[np.ndarray, "N"]:
    """The expected number of words that each nonterminal derives: `(I - M)^-1 w`, where `M[A, B]` is the expected
    number of children `B` of `A` and `w[A]` the probability of a word.

    A derivation ends with probability one and has finite expected length if the spectral radius of `M` is below one
    (Booth and Thompson, "Applying probability measures to abstract languages", IEEE Trans. Computers 22, 1973).
    """
    size = int(max(rules.max(initial=0), words[:, 0].max())) + 1
    children = np.zeros((size, size))
    for column in (1, 2):
        np.add.at(children, (rules[:, 0], rules[:, column]), rule_probs)
    values, vectors = np.linalg.eig(children)
    largest = int(np.argmax(np.abs(values)))
    if abs(values[largest]) > _MAX_RADIUS:
        worst = int(np.argmax(np.abs(vectors[:, largest])))
        raise InputError(
            f"the expected length of sentences is infinite: the expected numbers of children have spectral radius "
            f"{abs(values[largest]):.6g}, expected below 1; lower the probability of rules by which nonterminal "
            f"{_named(worst, names)} derives itself"
        )
    return np.linalg.solve(np.eye(size) - children, np.bincount(words[:, 0], word_probs, size))


def _numbers(name: str, values: Any, columns: int) -> np.ndarray:
    found = np.array(values)
    if found.size == 0:
        return np.zeros((0, columns), dtype=np.int64)
    if found.ndim != 2 or found.shape[1] != columns or found.dtype.kind not in "iu":
        raise InputError(f"{name} is {found.dtype} of shape {found.shape}; expected integers, {columns} per rule")
    if found.min() < 0:
        row = int(np.argwhere(found < 0)[0, 0])
        raise InputError(f"{name}[{row}] is {found[row].tolist()}; expected numbers of 0 or more")
    return found.astype(np.int64)


def _probabilities(name: str, values: Any, count: int) -> np.ndarray:
    if count == 0 and np.size(values) == 0:
        return np.zeros(0)
    found = array(name, values, 1)
    if len(found) != count:
        raise InputError(f"{name} has {len(found)} entries; expected {count}, one per rule")
    bad = np.flatnonzero(~(np.isfinite(found) & (found > 0)))
    if len(bad) > 0:
        raise InputError(f"{name}[{bad[0]}] is {found[bad[0]]}; expected a positive probability")
    return found


def _named(number: int, names: Sequence[str] | None) -> str:
    return str(number) if names is None else repr(names[number])
