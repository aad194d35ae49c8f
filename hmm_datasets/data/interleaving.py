"""Several map-style data sets read as one, in fixed proportions, by index alone.

Sources take turns by a schedule of at most 100,000 rows that repeats, and row `i` is found in constant time. At every
row the source goes next that, of those behind their share, would soonest be a row behind: the first `n` rows hold
every source's share to within a row, for every `n` (Tijdeman, "The chairman assignment problem", Discrete Mathematics
32, 1980). The schedule takes `O(rows * sources)` once, and 16 bytes a row of it.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numba
import numpy as np
import torch
from jaxtyping import Int
from torch.utils.data import Dataset

from ..errors import InputError
from .hmm_sequences import EndlessSequences
from .row_access import rows_at

RESOLUTION = 100_000
"""Weights are rounded to one part in this many."""


class InterleavedRows(Dataset):
    """Rows of several sources in fixed proportions.

    Row `i` depends on `i` alone. A source may be a mixture. Where one source tells positions, as
    [`~hmm_datasets.data.packing.PackedWindows`] do, rows of the others get `position_ids` that count from 0, so that
    all go into one batch.

    Args:
        sources (sequence of map-style data sets): what to mix.
        weights (sequence of `float`): share each source gets; scaled to sum to one, and rounded to 1 in 100,000.
        by (`str`, *optional*, defaults to `"examples"`): what the shares are of: `"examples"`, rows; or `"tokens"`,
            where a source of longer rows gets fewer of them. Sources then say their average `tokens_per_row`, as
            windows do.
        exhausted (`str`, *optional*, defaults to `"stop"`): what happens where a source has no more rows. `"stop"`:
            the mixture ends there. `"repeat"`: that source begins again, in the same order, until each has been read
            whole; for epochs in orders of their own give a source as many epochs. `"error"`: refused when made; needs
            `num_rows`.
        num_rows (`int`, *optional*): length of the mixture, where no source ends it before; needed where none would,
            since all are endless.

    Attributes:
        counts (`list[int]`): rows of each source in one period of the schedule.
        has_positions (`bool`): whether rows have `position_ids`.
        tokens_per_row (`float`, *optional*): on average over the sources, where all say theirs.

    Raises:
        `InputError`: weights that are not positive, or not one a source; a share of less than a row in 100,000; an
            empty source; a source that does not say its `tokens_per_row`; one that ends too soon under `"error"`.

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
        exhausted: Literal["stop", "repeat", "error"] = "stop",
        num_rows: int | None = None,
    ):
        shares = np.asarray(weights, dtype=np.float64)
        if shares.shape != (len(sources),) or len(sources) == 0 or not ((shares > 0) & np.isfinite(shares)).all():
            raise InputError(f"weights are {list(weights)} for {len(sources)} sources; expected one above 0 for each")
        if by not in ("examples", "tokens"):
            raise InputError(f"by={by!r}: expected 'examples' or 'tokens'")
        self.sources = list(sources)
        self.sizes = [_size(source) for source in sources]
        self.has_positions = any(getattr(source, "has_positions", False) for source in sources)
        if by == "tokens":
            shares = shares / [_tokens_per_row(number, source) for number, source in enumerate(sources)]
        self.counts = _rounded_counts(shares / shares.sum())
        for number, (size, count) in enumerate(zip(self.sizes, self.counts, strict=True)):
            if size == 0:
                raise InputError(f"source {number} has no rows; leave it out")
            if count == 0:
                raise InputError(f"source {number}: its share is less than a row in {RESOLUTION}; give it more weight")
        self.period = sum(self.counts)
        self.schedule, self.turns = _schedule(np.array(self.counts))
        self.num_rows = self._length(exhausted, num_rows)

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the rows at `indices`; each source is asked once for all of its own."""
        sources, rows = self.places(indices)
        items: list[Any] = [None] * len(sources)
        for number in np.unique(sources).tolist():
            chosen = np.flatnonzero(sources == number)
            wanted = rows[chosen].tolist()
            source = self.sources[number]
            found = rows_at(source, wanted)
            if self.has_positions and not getattr(source, "has_positions", False):
                found = [{**row, "position_ids": torch.arange(len(row["input_ids"]))} for row in found]
            for place, item in zip(chosen.tolist(), found, strict=True):
                items[place] = item
        return items

    @property
    def tokens_per_row(self) -> float | None:
        tokens = [getattr(source, "tokens_per_row", None) for source in self.sources]
        return None if None in tokens else float(np.dot(self.counts, np.array(tokens))) / self.period

    def places(self, indices: Sequence[int]) -> tuple[Int[np.ndarray, "B"], Int[np.ndarray, "B"]]:
        """Return the source that each row comes from, and its index there."""
        wanted = np.asarray(indices, dtype=np.int64)
        outside = (wanted < 0) | (wanted >= len(self))
        if outside.any():
            raise IndexError(f"index {wanted[outside][0]} is outside a mixture of {len(self)} rows")
        periods, slots = np.divmod(wanted, self.period)
        sources = self.schedule[slots]
        rows = periods * np.array(self.counts)[sources] + self.turns[slots]
        return sources, rows % np.array(self.sizes)[sources]

    def realized(self, num_rows: int | None = None) -> list[dict[str, float | None]]:
        """What the first rows are made of, source by source.

        Args:
            num_rows (`int`, *optional*): how many rows; the whole mixture by default.

        Returns:
            `list[dict]`: `rows`; `row_share`; `tokens` and `token_share`, by the source's average tokens per row, None
            where a source does not say it; `epochs`, how often the source was read.
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

    def _length(self, exhausted: str, num_rows: int | None) -> int:
        if exhausted not in ("stop", "repeat", "error"):
            raise InputError(f"exhausted={exhausted!r}: expected 'stop', 'repeat' or 'error'")
        if num_rows is not None and num_rows < 1:
            raise InputError(f"num_rows={num_rows}: expected at least 1")
        endless = [isinstance(source, EndlessSequences) for source in self.sources]
        if num_rows is None and (any if exhausted == "repeat" else all)(endless):
            raise InputError("no source of the mixture ends it; pass num_rows=, the rows that will be read")
        if exhausted == "repeat":
            return num_rows or max(self._row_of(number, size - 1) for number, size in enumerate(self.sizes)) + 1
        ends = [self._row_of(number, size) for number, size in enumerate(self.sizes)]
        if exhausted == "stop":
            return min([*ends, *([num_rows] if num_rows else [])])
        if num_rows is None:
            raise InputError("exhausted='error' needs num_rows, the rows that will be read")
        if min(ends) < num_rows:
            number = ends.index(min(ends))
            raise InputError(
                f"source {number} has {self.sizes[number]} rows and ends before row {ends[number]} of {num_rows}; "
                "give it more epochs or a lower weight, or exhausted='repeat'"
            )
        return num_rows

    def _row_of(self, source: int, turn: int) -> int:
        """The row at which a source has its turn of that number."""
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
    """Rows a period: shares rounded down, the rest to those that lost most, in lowest terms."""
    counts = np.floor(shares * RESOLUTION + 1e-6).astype(np.int64)
    lost = np.argsort(counts - shares * RESOLUTION, kind="stable")
    counts[lost[: RESOLUTION - counts.sum()]] += 1
    return (counts // math.gcd(*counts.tolist())).tolist()


@numba.njit(cache=True, nogil=True)
def _schedule(counts):
    """For each row of a period: the source, and how many rows of it came before in the period."""
    period = counts.sum()
    taken = np.zeros_like(counts)
    # Tijdeman's margin 1 / (2 S - 2) for S sources, with everything times P (2 S - 2), in integers.
    scale = max(1, 2 * len(counts) - 2)
    schedule = np.empty(period, dtype=np.int64)
    turns = np.empty(period, dtype=np.int64)
    for slot in range(period):
        chosen, least = -1, 0
        for source in range(len(counts)):
            behind = scale * (counts[source] * (slot + 1) - taken[source] * period)
            if behind < period:
                continue
            # Rows until it is a row behind, times its count; fractions are compared crosswise.
            wait = (scale - 1) * period - behind
            if chosen < 0 or wait * counts[chosen] < least * counts[source]:
                chosen, least = source, wait
        schedule[slot], turns[slot] = chosen, taken[chosen]
        taken[chosen] += 1
    return schedule, turns
