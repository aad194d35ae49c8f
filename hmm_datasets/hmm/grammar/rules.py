"""Rules of a probabilistic context-free grammar, and their Chomsky normal form.

In Chomsky normal form a nonterminal becomes two nonterminals or one word. Rules of any length are brought into it
without changing the probability of any sentence:

1. Unary rules between nonterminals are eliminated one nonterminal after the other, as states are eliminated from a
   Markov chain: a nonterminal that rewrites to itself is scaled by the geometric series, and its rules take the place
   of unary rules to it. That is the unary closure `(I - U)^-1`, without subtractions (Stolcke, "An efficient
   probabilistic context-free parsing algorithm that computes prefix probabilities", Computational Linguistics 21,
   1995, section 4.5.1).
2. A word within a longer rule becomes a nonterminal that has this word alone.
3. `A -> X Y Z` becomes `A -> X <Y Z>` and `<Y Z> -> Y Z`, where rules with the same end share it.

The numbers are products, sums and quotients of float64 in a fixed order, so that they are equal on all machines.
Checks of the rules raise an [`~hmm_datasets.errors.InputError`] that names the rule.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ...array_input import FILL_IN, checked_entries, integer_array
from ...errors import InputError
from ..arrays import REFUSE, RESCALE, array
from ..integers import integer

_MAX_RADIUS = 1 - 1e-9


Alternatives = Mapping[str, float] | Sequence[str]
"""Right sides of a nonterminal: with their probabilities, or alone, which are then equally likely."""

_PART = re.compile(r"""'[^'\s]+'|"[^"\s]+"|\[[^\]]*\]|\||#.*|[^\s|#\['"]+""")
"""A word in quotes, a probability in brackets, a bar, a comment, or a name."""

_Row = dict[tuple[int, ...], float]  # right sides, with words as -1, -2, ..., and their probabilities


def as_rules(rules: Any, probs: Any) -> tuple[Int[np.ndarray, "R 3"], Float[np.ndarray, "R"]]:
    """Check binary rules `A, B, C` and their probabilities."""
    numbered = _numbers("rules", rules, 3)
    return numbered, _probabilities("rule_probs", probs, len(numbered))


def as_words(
    words: Any, probs: Any, num_symbols: int | None
) -> tuple[Int[np.ndarray, "M 2"], Float[np.ndarray, "M"], int]:
    """Check rules `A, x` for words and their probabilities; return them and `E`."""
    numbered = _numbers("words", words, 2)
    if len(numbered) == 0:
        raise InputError("words is empty; a grammar needs a rule A -> x for a word x")
    needed = int(numbered[:, 1].max()) + 2
    num_symbols = needed if num_symbols is None else integer("num_symbols", num_symbols, 1, 31)
    if num_symbols < needed:
        raise InputError(
            f"num_symbols is {num_symbols}; expected {needed} or more, since words has symbol {needed - 2} and the "
            "end symbol is the last one"
        )
    return numbered, _probabilities("word_probs", probs, len(numbered)), int(num_symbols)


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
    if (off > REFUSE).any():
        worst = int(np.argmax(off > REFUSE))
        raise InputError(
            f"the rules of nonterminal {_named(worst, names)} have probabilities that sum to "
            f"{totals[worst]:.6g}, not 1"
        )
    scale = np.where(off > RESCALE, totals, 1.0)
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
    numbers = integer_array(name, values, FILL_IN)
    if numbers.size == 0:
        return np.zeros((0, columns), dtype=np.int64)
    if numbers.ndim != 2 or numbers.shape[1] != columns:
        raise InputError(f"{name} is {numbers.dtype} of shape {numbers.shape}; expected integers, {columns} per rule")
    if numbers.min() < 0:
        row = int(np.argwhere(numbers < 0)[0, 0])
        raise InputError(f"{name}[{row}] is {numbers[row].tolist()}; expected numbers of 0 or more")
    return numbers.astype(np.int64)


def _probabilities(name: str, values: Any, count: int) -> np.ndarray:
    if count == 0 and np.size(values) == 0:
        return np.zeros(0)
    probabilities = array(name, values, 1)
    if len(probabilities) != count:
        raise InputError(f"{name} has {len(probabilities)} entries; expected {count}, one per rule")
    good = np.isfinite(probabilities) & (probabilities > 0)
    return checked_entries(name, probabilities, good, "a positive probability")


def _named(number: int, names: Sequence[str] | None) -> str:
    return str(number) if names is None else repr(names[number])


class NormalForm(NamedTuple):
    """A grammar in Chomsky normal form, whose start symbol is nonterminal 0.

    Attributes:
        rules (`np.ndarray` of shape `(R, 3)`): rows `A, B, C` for `A -> B C`.
        rule_probs (`np.ndarray` of shape `(R,)`): their probabilities.
        words (`np.ndarray` of shape `(M, 2)`): rows `A, x` for `A -> x`, where `x` is a word.
        word_probs (`np.ndarray` of shape `(M,)`): their probabilities.
        nonterminals (`list` of `str`): names.
        terminals (`list` of `str`): names of the words.
    """

    rules: Int[np.ndarray, "R 3"]
    rule_probs: Float[np.ndarray, "R"]
    words: Int[np.ndarray, "M 2"]
    word_probs: Float[np.ndarray, "M"]
    nonterminals: list[str]
    terminals: list[str]


def parse_rules(text: str) -> dict[str, dict[str, float]]:
    """The rules in lines such as `S -> NP VP [0.9] | S "and" S [0.1]`, as a mapping.

    Right sides without probabilities are equally likely. A left side may have several lines. What follows `#` is a
    comment. Words with one of the characters `|#[` need quotes.

    Raises:
        `InputError`: a line is not a rule, or a nonterminal has probabilities for some of its rules only.

    ```python
    >>> parse_rules("S -> a S [0.25] | b [0.75]")
    {'S': {'a S': 0.25, 'b': 0.75}}

    ```
    """
    sides_by_symbol: dict[str, list[tuple[str, float | None]]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        parts = [part for part in _PART.findall(line) if not part.startswith("#")]
        if not parts:
            continue
        if parts[1:2] != ["->"]:
            raise InputError(
                f"line {number} is {line.strip()!r}; expected 'NONTERMINAL -> RIGHT SIDE | RIGHT SIDE ...'"
            )
        sides: list[list[str]] = [[]]
        for part in parts[2:]:
            if part == "|":
                sides.append([])
            else:
                sides[-1].append(part)
        for side in sides:
            written = side.pop() if side and side[-1].startswith("[") else None
            if any(part.startswith("[") for part in side):
                raise InputError(
                    f"line {number} has brackets within {' '.join(side)!r}; expected them after it, or in quotes"
                )
            sides_by_symbol.setdefault(parts[0], []).append((" ".join(side), _number(written, number)))
    return {left: _mapping(left, sides) for left, sides in sides_by_symbol.items()}


def _number(written: str | None, line: int) -> float | None:
    if written is None:
        return None
    try:
        return float(written.strip("[]"))
    except ValueError:
        raise InputError(f"line {line} has {written}; expected a probability in brackets, or quotes") from None


def _mapping(left: str, sides: list[tuple[str, float | None]]) -> dict[str, float]:
    probabilities = [probability for _, probability in sides if probability is not None]
    if probabilities and len(probabilities) < len(sides):
        raise InputError(
            f"{left!r} has probabilities for {len(probabilities)} of {len(sides)} right sides; give all or none"
        )
    mapping: dict[str, float] = {}
    for side, probability in sides:
        mapping[side] = mapping.get(side, 0.0) + (1 / len(sides) if probability is None else probability)
    return mapping


def normal_form(
    rules: Mapping[str, Alternatives], start: str | None = None, terminals: Sequence[str] | None = None
) -> NormalForm:
    """Bring rules into Chomsky normal form; see [`~hmm_datasets.PCFG.from_rules`]."""
    names = list(rules)
    if not names:
        raise InputError("there are no rules; expected a mapping from nonterminals to right sides")
    if start is not None and start not in rules:
        raise InputError(f"start is {start!r}; expected a nonterminal with rules, such as {names[0]!r}")
    if start is not None:
        names = [start, *(name for name in names if name != start)]
    number = {name: index for index, name in enumerate(names)}
    words = {word: index for index, word in enumerate(terminals or ())}
    fixed = terminals is not None

    def numbers_of(left: str, side: str) -> tuple[int, ...]:
        parts = side.split()
        if not parts:
            raise InputError(f"{left!r} has an empty right side; every right side needs a nonterminal or a word")
        result = []
        for part in parts:
            word = part[1:-1] if len(part) > 2 and part[0] in "'\"" and part[-1] == part[0] else part
            if part in number:
                result.append(number[part])
                continue
            if fixed and word not in words:
                raise InputError(f"{left!r} -> {side!r}: {word!r} is neither a nonterminal nor one of the terminals")
            result.append(-1 - words.setdefault(word, len(words)))
        return tuple(result)

    rows: list[_Row] = []
    for name in names:
        sides = rules[name]
        if not isinstance(sides, Mapping):
            sides = _mapping(name, [(side, None) for side in sides])
        row: _Row = {}
        for side, probability in sides.items():
            if not (math.isfinite(probability) and probability > 0):
                raise InputError(f"{name!r} -> {side!r} has probability {probability}; expected a positive number")
            right = numbers_of(name, side)
            row[right] = row.get(right, 0.0) + float(probability)
        rows.append(row)
    _eliminate_unary(rows, names)
    return _binary(rows, names, list(words))


def _eliminate_unary(rows: list[_Row], names: list[str]) -> None:
    for here, row in enumerate(rows):
        again = row.pop((here,), 0.0)
        if again >= 1:
            raise InputError(f"{names[here]!r} rewrites to itself for ever; give it a rule that ends in words")
        if again > 0:
            for right in row:
                row[right] /= 1 - again
        for other in rows:
            weight = other.pop((here,), 0.0) if other is not row else 0.0
            if weight > 0:
                for right, probability in row.items():
                    other[right] = other.get(right, 0.0) + weight * probability


def _binary(rows: list[_Row], names: list[str], words: list[str]) -> NormalForm:
    """Make the rules binary, and leave out what the start symbol never reaches."""
    names = list(names)
    made: dict[tuple[int, ...], int] = {}  # the nonterminals of words and of ends of rules
    binary: list[tuple[int, int, int, float]] = []
    lexical: list[tuple[int, int, float]] = []

    def nonterminal(part: tuple[int, ...]) -> int:
        if len(part) == 1 and part[0] >= 0:
            return part[0]
        if part not in made:
            made[part] = len(names)
            written = " ".join(names[x] if x >= 0 else f"'{words[-1 - x]}'" for x in part)
            names.append(written if len(part) == 1 else f"<{written}>")
            add(made[part], part, 1.0)
        return made[part]

    def add(left: int, right: tuple[int, ...], probability: float) -> None:
        if len(right) == 1:
            lexical.append((left, -1 - right[0], probability))
        else:
            binary.append((left, nonterminal(right[:1]), nonterminal(right[1:]), probability))

    for left, row in enumerate(rows):
        for right, probability in row.items():
            add(left, right, probability)
    return _reachable(binary, lexical, names, words)


def _reachable(
    binary: list[tuple[int, int, int, float]],
    lexical: list[tuple[int, int, float]],
    names: list[str],
    words: list[str],
) -> NormalForm:
    children: dict[int, set[int]] = {}
    for left, first, second, _ in binary:
        children.setdefault(left, set()).update((first, second))
    reached, todo = {0}, [0]
    while todo:
        new = children.get(todo.pop(), set()) - reached
        reached |= new
        todo += new
    number = {old: new for new, old in enumerate(sorted(reached))}
    rules = sorted((*(number[x] for x in rule[:3]), rule[3]) for rule in binary if rule[0] in reached)
    emitted = sorted((number[rule[0]], rule[1], rule[2]) for rule in lexical if rule[0] in reached)
    return NormalForm(
        np.array([rule[:3] for rule in rules], dtype=np.int64).reshape(-1, 3),
        np.array([rule[3] for rule in rules]),
        np.array([rule[:2] for rule in emitted], dtype=np.int64).reshape(-1, 2),
        np.array([rule[2] for rule in emitted]),
        [names[old] for old in sorted(reached)],
        words,
    )
