"""Hierarchical grammars of the literature: levels of symbols, of which each becomes a few symbols of the next level.

- [`physics_of_language_models`]: `cfg3b`, `cfg3i`, `cfg3h`, `cfg3g`, `cfg3f`, and the deeper `cfg3j` and `cfg3k`;
- [`random_hierarchy`]: the random hierarchy model.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...errors import InputError
from ..integers import integer
from .pcfg import PCFG

FOLDER = Path(__file__).parent / "cfg3"
"""The rules of each grammar of [`physics_of_language_models`], a file by its name."""


def physics_of_language_models(name: str) -> PCFG:
    """A grammar of Allen-Zhu and Li, "Physics of language models: part 1, learning hierarchical language structures"
    (arXiv 2305.13673, section 2 and appendix A), by its name there.

    Words 1, 2 and 3 are symbols 0, 1 and 2, and the end symbol is 3. Above the words are six levels, or seven for
    `cfg3j` and `cfg3k`, with three symbols each and one at the top. A symbol has two to four right sides, of two or
    three symbols of the next level, which are equally likely.

    Args:
        name (`str`): `"cfg3b"`, `"cfg3i"`, `"cfg3h"`, `"cfg3g"`, `"cfg3f"` (in the order of their difficulty),
            `"cfg3j"` or `"cfg3k"`.

    ```python
    >>> grammar = physics_of_language_models("cfg3f")
    >>> grammar.vocabulary, round(grammar.mean_sentence_length, 1)
    (('1', '2', '3', 'end'), 249.9)

    ```
    """
    names = sorted(path.stem for path in FOLDER.glob("*.txt"))
    if name not in names:
        raise InputError(f"name is {name!r}; expected one of {', '.join(names)}")
    return PCFG.from_rules((FOLDER / f"{name}.txt").read_text(encoding="utf-8"), terminals=("1", "2", "3"))


def random_hierarchy(
    num_features: int,
    num_rules: int,
    *,
    branching: int = 2,
    depth: int = 3,
    num_classes: int | None = None,
    seed: int = 0,
) -> PCFG:
    """The random hierarchy model of Cagnetta, Petrini, Tomasini, Favero and Wyart, "How deep neural networks learn
    compositional data: the random hierarchy model" (Physical Review X 14, 031001, 2024), section II.

    A sentence of `branching ** depth` words begins with one of `num_classes` classes, uniformly. Each class, and each
    of the `num_features` symbols of every level, has `num_rules` right sides of `branching` symbols of the next
    level, which are equally likely. They are drawn without replacement among all symbols of a level, so that a
    sentence has one derivation.

    Args:
        num_features (`int`): `v`, the number of symbols of a level, and of words.
        num_rules (`int`): `m`, at most `v ** (s - 1)`.
        branching (`int`, *optional*, defaults to 2): `s`.
        depth (`int`, *optional*, defaults to 3): `L`, the number of levels of rules.
        num_classes (`int`, *optional*): by default `v`.
        seed (`int`, *optional*, defaults to 0): seed of NumPy's PCG64.

    ```python
    >>> random_hierarchy(4, 2, depth=3).mean_sentence_length
    8.0

    ```
    """
    num_classes = num_features if num_classes is None else num_classes
    sizes = {"num_features": num_features, "num_rules": num_rules, "depth": depth, "num_classes": num_classes}
    for name, number in (sizes | {"branching": branching}).items():
        integer(name, number, 2 if name == "branching" else 1, 31)
    tuples = num_features**branching
    needed = max(num_features if depth > 1 else 0, num_classes) * num_rules
    if needed > tuples:
        raise InputError(
            f"num_rules is {num_rules}: a level needs {needed:,} different right sides, and there are {tuples:,}"
        )
    generator = np.random.default_rng(integer("seed", seed, 0, 64))
    rules = {"top": [_name(0, symbol) for symbol in range(num_classes)]}
    for level in range(depth):
        symbols = num_classes if level == 0 else num_features
        drawn = generator.permutation(tuples)[: symbols * num_rules].tolist()
        for symbol in range(symbols):
            sides = [
                tuple(code // num_features**place % num_features for place in range(branching))
                for code in drawn[symbol * num_rules : (symbol + 1) * num_rules]
            ]
            rules[_name(level, symbol)] = [_written(level + 1, side, depth + 1) for side in sides]
    return PCFG.from_rules(rules, terminals=[str(word) for word in range(num_features)])


def _name(level: int, symbol: int) -> str:
    return f"level{level}_{symbol}"


def _written(level: int, side: Sequence[int], num_levels: int) -> str:
    """A right side of symbols of a level, of which the last has the words."""
    return " ".join(f"'{symbol}'" if level == num_levels - 1 else _name(level, symbol) for symbol in side)
