"""Tokens that are given by the names of their symbols."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..array_input import is_missing
from ..errors import InputError, suggestion


def symbols_of_names(tokens: Any, vocabulary: Sequence[str] | None) -> Any:
    """Tokens of which names are replaced by their symbols, -1 where one is missing; what has no names stays as it is.

    Args:
        tokens: nested lists, an array or a table of names, or of numbers.
        vocabulary (sequence of `str`, *optional*): the name of every symbol.

    Raises:
        `InputError`: a name is not in the vocabulary, or rows have unequal lengths; the message gives the place.

    ```python
    >>> symbols_of_names([["sun", "rain"], ["sun", None]], ("rain", "sun")).tolist()
    [[1, 0], [1, -1]]
    >>> symbols_of_names([[1, 0]], ("rain", "sun"))
    [[1, 0]]

    ```
    """
    if vocabulary is None or not _has_names(tokens):
        return tokens
    names = np.array(tokens, dtype=object)
    symbol_of = {name: symbol for symbol, name in enumerate(vocabulary)}
    symbols = np.full(names.shape, -1, np.int64)
    for place, name in np.ndenumerate(names):
        if isinstance(name, str):
            if name not in symbol_of:
                near = suggestion(name, vocabulary) or f"; expected one of {', '.join(list(vocabulary)[:8])}, ..."
                raise InputError(f"tokens[{', '.join(map(str, place))}] is {name!r}, no name in the vocabulary{near}")
            symbols[place] = symbol_of[name]
        elif isinstance(name, list | tuple | np.ndarray):
            raise InputError("tokens are ragged; expected rows of equal length, padded with None, and lengths=")
        elif not is_missing(name):
            raise InputError(f"tokens[{', '.join(map(str, place))}] is {name!r} beside names; expected a name")
    return symbols


def _has_names(tokens: Any) -> bool:
    if isinstance(tokens, list | tuple):
        return any(map(_has_names, tokens))
    if isinstance(tokens, str):
        return True
    if isinstance(tokens, int | float | np.number) or not hasattr(tokens, "__array__"):
        return False
    kind = np.asarray(tokens).dtype.kind if getattr(tokens, "is_cuda", None) is None else "i"  # tensors have none
    return kind in "UT" or (kind == "O" and any(isinstance(name, str) for name in np.asarray(tokens).flat))
