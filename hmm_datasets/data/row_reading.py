"""Reading several rows of a map-style data set, in one call if the data set supports it."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any


class BatchReader:
    """A map-style data set that reads a whole batch in one call, and a single row as a batch of one."""

    @abstractmethod
    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The rows at `indices`. DataLoader calls this once per batch."""

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]


def rows_at(rows: Any, indices: Sequence[int]) -> list[Any]:
    """The rows at `indices`, read in one call if the data set has `__getitems__`.

    ```python
    >>> rows_at(["a", "b", "c"], [2, 0])
    ['c', 'a']

    ```
    """
    together = getattr(rows, "__getitems__", None)
    return together(indices) if together else [rows[index] for index in indices]
