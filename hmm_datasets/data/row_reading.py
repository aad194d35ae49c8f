"""Reading several rows of a map-style data set, in one call if the data set supports it."""

from collections.abc import Sequence
from typing import Any


def rows_at(rows: Any, indices: Sequence[int]) -> list[Any]:
    """The rows at `indices`, read in one call if the data set has `__getitems__`.

    ```python
    >>> rows_at(["a", "b", "c"], [2, 0])
    ['c', 'a']

    ```
    """
    together = getattr(rows, "__getitems__", None)
    return together(indices) if together else [rows[index] for index in indices]
