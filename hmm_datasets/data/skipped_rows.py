"""Rows that a run leaves out: intervals of a data set, and the data set without them.

A run that went back because of a loss spike does not train on the rows around it. The other rows keep their order, so
row `n` of what it trains on is found from the intervals alone, in time proportional to their number, and resuming
still takes constant time.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from torch.utils.data import Dataset

from ..errors import InputError
from .row_reading import BatchReader, rows_at


class SkippedRows:
    """Intervals of rows of a data set that are left out.

    Args:
        intervals (iterable of `(int, int)`, *optional*): first row of each, and the row after its last; they may
            overlap.

    Attributes:
        intervals (`tuple` of `(int, int)`): the same rows in order, without overlaps.
        count (`int`): number of rows left out.

    Raises:
        `InputError`: an interval without rows.

    ```python
    >>> left_out = SkippedRows([(3, 5), (8, 9)])
    >>> [left_out.index(number) for number in range(7)]
    [0, 1, 2, 5, 6, 7, 9]
    >>> left_out.number(8)
    6

    ```
    """

    def __init__(self, intervals: Iterable[Sequence[int]] = ()):
        merged: list[tuple[int, int]] = []
        for first, end in sorted(map(tuple, intervals)):
            if not 0 <= first < end:
                raise InputError(f"rows {first} to {end} are no interval of rows; expected 0 <= first < end")
            if merged and first <= merged[-1][1]:
                first, end = merged[-1][0], max(end, merged.pop()[1])
            merged.append((first, end))
        self.intervals = tuple(merged)
        lengths = list(accumulate((end - first for first, end in merged), initial=0))
        self.count = lengths[-1]
        self._lengths = lengths
        # The number, among the rows that are kept, of the first row after each interval.
        self._numbers = [first - before for (first, _), before in zip(merged, lengths, strict=False)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SkippedRows) and self.intervals == other.intervals

    def __hash__(self) -> int:
        return hash(self.intervals)

    def __bool__(self) -> bool:
        return bool(self.intervals)

    def __repr__(self) -> str:
        return f"SkippedRows({list(self.intervals)})"

    def index(self, number: int) -> int:
        """The index, in the data set, of the row with this number among those that are kept."""
        return number + self._lengths[bisect_right(self._numbers, number)]

    def number(self, index: int) -> int:
        """How many of the rows before an index of the data set are kept."""
        return index - sum(min(end, index) - first for first, end in self.intervals if first < index)

    def end(self, number: int) -> int:
        """The index after that of the last of the first `number` rows that are kept; 0 if there are none."""
        return 0 if number == 0 else self.index(number - 1) + 1

    def before(self, index: int) -> "SkippedRows":
        """The rows left out before an index of the data set."""
        return SkippedRows((first, min(end, index)) for first, end in self.intervals if first < index)


class RemainingRows(BatchReader, Dataset):
    """The rows of a map-style data set from some row on, without those that are skipped.

    Args:
        rows (map-style data set): all rows.
        skipped_rows ([`SkippedRows`]): those that are left out.
        first (`int`, *optional*, defaults to 0): number, among the rows that are kept, of the first.

    ```python
    >>> kept = RemainingRows("abcdefghij", SkippedRows([(3, 5), (8, 9)]), first=2)
    >>> len(kept), [kept[index] for index in range(5)]
    (5, ['c', 'f', 'g', 'h', 'j'])

    ```
    """

    def __init__(self, rows: Any, skipped_rows: SkippedRows, first: int = 0):
        self.rows, self.skipped_rows, self.first = rows, skipped_rows, first

    def __len__(self) -> int:
        return max(0, self.skipped_rows.number(len(self.rows)) - self.first)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        chosen = range(len(self))
        return rows_at(self.rows, [self.skipped_rows.index(self.first + chosen[index]) for index in indices])
