"""Mixtures: several map-style data sets read as one, in fixed proportions, by index alone.

Sources take turns by a repeating schedule of at most 100,000 rows, so row `i` is found in constant time. At every row,
among the sources that are behind their share, the one that would first be a whole row behind is next. Then among the
first `n` rows every source has its share to within one row, for every `n` (Tijdeman, "The chairman assignment
problem", Discrete Mathematics 32, 1980). Computing the schedule takes `O(rows * sources)` once, and 16 bytes per row
of it.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch.utils.data import Dataset

from ..array_input import numbers
from ..compilation import compiled
from ..errors import InputError
from ..hmm.integers import integer
from .row_reading import BatchReader, rows_at
from .sequences import EndlessSequences

RESOLUTION = 100_000
"""Weights are rounded to multiples of `1 / RESOLUTION`."""


class InterleavedRows(BatchReader, Dataset):
    """Rows of several sources in fixed proportions.

    Row `i` depends on `i` alone. A source may be a mixture. If one source has `position_ids`, as
    [`~hmm_datasets.data.packing.PackedWindows`] do, rows of the others get `position_ids` that count from 0, so that
    all rows can be in one batch.

    Args:
        sources (sequence of map-style data sets): the data sets to mix.
        weights (sequence of `float`): share of each source; scaled to sum to one, and rounded to 1 in 100,000.
        by (`str`, *optional*, defaults to `"examples"`): unit of the shares: `"examples"` for rows, or `"tokens"`, so
            that a source with longer rows gets fewer of them. For `"tokens"` each source needs an attribute
            `tokens_per_row`, as windows have.
        num_rows (`int`, *optional*): length of the mixture, for which no source may be too short; make one with as
            many epochs as it needs. By default the mixture ends where a source has no more rows.

    Attributes:
        counts (`list[int]`): rows of each source in one period of the schedule.
        has_positions (`bool`): whether rows have `position_ids`.
        tokens_per_row (`float`, *optional*): average over the sources, if all of them have it.

    Raises:
        `InputError`: weights are not positive, or not one per source; a share is less than one row in 100,000; a
            source is empty; a source has no `tokens_per_row`, or ends before `num_rows`; or all are endless.

    ```python
    >>> mixture = InterleavedRows([range(10_000), range(20_000, 30_000)], weights=[0.7, 0.3])
    >>> mixture.counts, len(mixture), [mixture[i] for i in range(5)]
    ([7, 3], 14286, [0, 20000, 1, 2, 3])

    ```
    """

    def __init__(
        self,
        sources: Sequence[Any],
        weights: Sequence[float],
        *,
        by: Literal["examples", "tokens"] = "examples",
        num_rows: int | None = None,
    ):
        shares = numbers("weights", weights)
        if shares.shape != (len(sources),) or len(sources) == 0 or not ((shares > 0) & np.isfinite(shares)).all():
            raise InputError(f"weights are {list(weights)} for {len(sources)} sources; expected one above 0 for each")
        if by not in ("examples", "tokens"):
            raise InputError(f"by={by!r}: expected 'examples' or 'tokens'")
        self.sources = list(sources)
        self.sizes = [_size(source) for source in sources]
        self.has_positions = any(getattr(source, "has_positions", False) for source in sources)
        if by == "tokens":
            shares = shares / [_tokens_per_row(number, source) for number, source in enumerate(sources)]
        with np.errstate(over="ignore"):
            total = shares.sum()
        if np.isinf(total):
            shares = shares / shares.max()
            total = shares.sum()
        self.counts = _rounded_counts(shares / total)
        for number, (size, count) in enumerate(zip(self.sizes, self.counts, strict=True)):
            if size == 0:
                raise InputError(f"source {number} has no rows; leave it out")
            if count == 0:
                raise InputError(f"source {number}: its share is less than a row in {RESOLUTION}; give it more weight")
        self.period = sum(self.counts)
        self.schedule, self.turns = _schedule(np.array(self.counts))
        self.num_rows = self._length(num_rows)

    def __len__(self) -> int:
        return self.num_rows

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the rows at `indices`; the rows of each source are read in one call."""
        sources, rows = self.sources_and_rows(indices)
        items: list[Any] = [None] * len(sources)
        for number in np.unique(sources).tolist():
            chosen = np.flatnonzero(sources == number)
            wanted = rows[chosen].tolist()
            source = self.sources[number]
            read = rows_at(source, wanted)
            if self.has_positions and not getattr(source, "has_positions", False):
                read = [{**row, "position_ids": torch.arange(len(row["input_ids"]))} for row in read]
            for index, item in zip(chosen.tolist(), read, strict=True):
                items[index] = item
        return items

    @property
    def tokens_per_row(self) -> float | None:
        tokens = [getattr(source, "tokens_per_row", None) for source in self.sources]
        return None if None in tokens else float(np.dot(self.counts, np.array(tokens))) / self.period

    def sources_and_rows(self, indices: Sequence[int]) -> tuple[Int[np.ndarray, "B"], Int[np.ndarray, "B"]]:
        """Return for each row the number of its source, and its index in that source."""
        wanted = np.asarray(indices, dtype=np.int64)
        outside = (wanted < 0) | (wanted >= len(self))
        if outside.any():
            raise IndexError(f"index {wanted[outside][0]} is outside a mixture of {len(self)} rows")
        periods, slots = np.divmod(wanted, self.period)
        sources = self.schedule[slots]
        return sources, periods * np.array(self.counts)[sources] + self.turns[slots]

    def realized(self, num_rows: int | None = None) -> list[dict[str, float | None]]:
        """The composition of the first rows of the mixture.

        Args:
            num_rows (`int`, *optional*): number of rows; the whole mixture by default.

        Returns:
            `list[dict]`: for each source `rows`; `row_share`; `tokens` and `token_share`, from the average number of
            tokens per row of the source, or None if unknown; `epochs`, the number of times the source was read.
        """
        num_rows = len(self) if num_rows is None else num_rows
        if not 0 <= num_rows <= len(self):
            raise InputError(f"num_rows={num_rows}: expected 0 to {len(self)}, the length of the mixture")
        periods, slots = divmod(num_rows, self.period)
        rest = np.bincount(self.schedule[:slots], minlength=len(self.sources)).tolist()
        rows = [periods * count + more for count, more in zip(self.counts, rest, strict=True)]
        averages = [getattr(source, "tokens_per_row", None) for source in self.sources]
        known = [row * average for row, average in zip(rows, averages, strict=True) if average is not None]
        total = sum(known) if len(known) == len(rows) else None
        tokens = [None if average is None else row * average for row, average in zip(rows, averages, strict=True)]
        shares = [None if total is None or amount is None else amount / max(1, total) for amount in tokens]
        return [
            {
                "rows": rows[number],
                "row_share": rows[number] / max(1, num_rows),
                "tokens": tokens[number],
                "token_share": shares[number],
                "epochs": rows[number] * getattr(source, "epochs", 1) / self.sizes[number],
            }
            for number, source in enumerate(self.sources)
        ]

    def _length(self, num_rows: int | None) -> int:
        if num_rows is None and all(isinstance(source, EndlessSequences) for source in self.sources):
            raise InputError("the mixture would be endless; pass num_rows=, the number of rows that will be read")
        ends = [self._row_of(number, size) for number, size in enumerate(self.sizes)]
        if num_rows is None:
            return min(ends)
        num_rows = integer("num_rows", num_rows, 1, 63)
        if min(ends) < num_rows:
            number = ends.index(min(ends))
            raise InputError(
                f"source {number} has {self.sizes[number]} rows and ends before row {ends[number]} of {num_rows}; "
                "give it more epochs or a lower weight"
            )
        return num_rows

    def _row_of(self, source: int, turn: int) -> int:
        """The index in the mixture of row `turn` of a source."""
        periods, turn = divmod(turn, self.counts[source])
        return periods * self.period + int(np.flatnonzero(self.schedule == source)[turn])


def _size(source: Any) -> int:
    return source.num_sequences if isinstance(source, EndlessSequences) else len(source)


def _tokens_per_row(number: int, source: Any) -> float:
    average = getattr(source, "tokens_per_row", None)
    if average is None:
        raise InputError(f"source {number} ({type(source).__name__}) has no tokens_per_row; mix by='examples'")
    return average


def _rounded_counts(shares: np.ndarray) -> list[int]:
    """Rows of each source per period: shares are rounded down, the largest remainders up, and fractions reduced."""
    counts = np.floor(shares * RESOLUTION + 1e-6).astype(np.int64)
    by_remainder = np.argsort(counts - shares * RESOLUTION, kind="stable")
    counts[by_remainder[: RESOLUTION - counts.sum()]] += 1
    return (counts // math.gcd(*counts.tolist())).tolist()


@compiled
def _schedule(counts):
    """For each row of a period, the source and the number of its rows before in the period."""
    period = counts.sum()
    taken = np.zeros_like(counts)
    # Tijdeman's margin 1 / (2 S - 2) for S sources. All numbers are multiplied by P (2 S - 2) and thus integers.
    scale = max(1, 2 * len(counts) - 2)
    schedule = np.empty(period, dtype=np.int64)
    turns = np.empty(period, dtype=np.int64)
    for slot in range(period):
        chosen, shortest = -1, 0
        for source in range(len(counts)):
            behind = scale * (counts[source] * (slot + 1) - taken[source] * period)
            if behind < period:
                continue
            # Rows until the source is a whole row behind, times its count; fractions are compared by
            # cross-multiplying.
            wait = (scale - 1) * period - behind
            if chosen < 0 or wait * counts[chosen] < shortest * counts[source]:
                chosen, shortest = source, wait
        schedule[slot], turns[slot] = chosen, taken[chosen]
        taken[chosen] += 1
    return schedule, turns
