"""Several map-style data sets read as one, in fixed proportions, by index alone.

Sources take turns by a schedule of 1,000 rows that repeats, and row `i` is found in constant time. At every row
the source goes next that, of those behind their share, would soonest be a row behind: the first `n` rows hold every
source's share to within a row, for every `n` (Tijdeman, "The chairman assignment problem", Discrete Mathematics 32,
1980).
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from ..errors import InputError

PERIOD = 1000


class Mixture(Dataset):
    """Rows of several sources in fixed proportions.

    Row `i` depends on `i` alone. The mixture ends where the first source would; to go over a source several times
    give it as many epochs.

    Args:
        sources (sequence of map-style data sets): what to mix.
        weights (sequence of `float`): share of the rows each source gets; scaled to sum to one, and rounded to
            thousandths.

    Raises:
        `InputError`: weights that are not positive, or not one a source; a share below a thousandth; a source shorter
            than its part of one period.

    ```python
    >>> mixture = Mixture([range(10_000), range(20_000, 30_000)], weights=[0.7, 0.3])
    >>> mixture.counts, len(mixture), [mixture[i] for i in range(5)]
    ([700, 300], 14000, [0, 20000, 1, 2, 3])

    ```
    """

    def __init__(self, sources: Sequence[Any], weights: Sequence[float]):
        shares = np.asarray(weights, dtype=np.float64)
        if shares.shape != (len(sources),) or len(sources) == 0 or not ((shares > 0) & np.isfinite(shares)).all():
            raise InputError(f"weights are {list(weights)} for {len(sources)} sources; expected one above 0 for each")
        self.sources = list(sources)
        self.counts = _rounded_counts(shares / shares.sum())
        self.schedule, self.turns = _schedule(self.counts)
        for number, (source, count) in enumerate(zip(self.sources, self.counts, strict=True)):
            if count == 0 or len(source) < count:
                raise InputError(
                    f"source {number} has {len(source)} rows and a share of {count} in {PERIOD}; give it more epochs "
                    "or another weight"
                )
        self.periods = min(len(source) // count for source, count in zip(self.sources, self.counts, strict=True))

    def __len__(self) -> int:
        return self.periods * PERIOD

    def place(self, index: int) -> tuple[int, int]:
        """Which source row `index` comes from, and its index there."""
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is outside a mixture of {len(self)} rows")
        period, slot = divmod(index, PERIOD)
        source = int(self.schedule[slot])
        return source, period * self.counts[source] + int(self.turns[slot])

    def __getitem__(self, index: int) -> Any:
        source, row = self.place(index)
        return self.sources[source][row]


def _rounded_counts(shares: np.ndarray) -> list[int]:
    """Rows a period: shares in thousandths, rounded down, the rest to those that lost most."""
    counts = np.floor(shares * PERIOD + 1e-9).astype(np.int64)
    lost = np.argsort(counts - shares * PERIOD, kind="stable")
    counts[lost[: PERIOD - counts.sum()]] += 1
    return counts.tolist()


def _schedule(counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """For each row of a period: the source, and how many rows of it came before in the period."""
    taken = [0] * len(counts)
    # Tijdeman's margin 1 / (2 S - 2) for S sources, with everything times P (2 S - 2), in integers.
    scale = max(1, 2 * len(counts) - 2)
    schedule = np.empty(PERIOD, dtype=np.int64)
    turns = np.empty(PERIOD, dtype=np.int64)
    for slot in range(PERIOD):
        behind = [scale * (count * (slot + 1) - rows * PERIOD) for count, rows in zip(counts, taken, strict=True)]
        due = [s for s in range(len(counts)) if behind[s] >= PERIOD]
        source = min(due, key=lambda s: Fraction((scale - 1) * PERIOD - behind[s], counts[s]))
        schedule[slot], turns[slot] = source, taken[source]
        taken[source] += 1
    return schedule, turns
