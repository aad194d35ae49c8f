"""Flags spelt with hyphens or underscores: parsers of this package have hyphens, those of recipes underscores."""

import argparse
from collections.abc import Sequence


def parse_known(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The arguments that a parser knows in either spelling, and the other words as they were written."""
    spelt = {hyphenated(word): word for word in words}
    arguments, others = parser.parse_known_args(list(map(hyphenated, words)))
    return arguments, [spelt.get(word, word) for word in others]


def hyphenated(word: str) -> str:
    """A flag spelt with hyphens; other words stay as they are.

    ```python
    >>> hyphenated("--num_states=3_000"), hyphenated("my_file")
    ('--num-states=3_000', 'my_file')

    ```
    """
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value if word.startswith("--") else word
