"""Spikes in a series that changes slowly, such as the loss of a run: found at once, as each value arrives.

A value is a spike if it rises above the median of the few values before it by much more than recent values did. Rises
are measured in robust standard deviations: 1.4826 times their median absolute deviation from their median (Hampel,
Journal of the American Statistical Association 69, 1974), above that median if it is positive. So neither the fall of
a loss nor earlier spikes hide a spike, the end of a steep fall is none, and a level that lasts is no longer one after
a few values. Rows of a history are judged in the same way as the steps of a running one. Each value costs two medians
of at most `window` numbers, some microseconds.
"""

import math
import statistics
from collections import deque
from typing import Any, NamedTuple

_NORMAL = 1.4826  # times the median absolute deviation is the standard deviation of a normal distribution


class Deviation(NamedTuple):
    """How far a value is from those before it.

    Attributes:
        value (`float`): the value.
        level (`float`): median of the values before it.
        deviations (`float`): how far it rises above that level, in robust standard deviations of recent rises.
    """

    value: float
    level: float
    deviations: float


class SpikeDetector:
    """Finds spikes in a series, value by value.

    Args:
        deviations (`float`, *optional*, defaults to 8.0): number of robust standard deviations from which a rise is a
            spike.
        window (`int`, *optional*, defaults to 50): number of latest rises from which the usual deviation is computed.
        least_share (`float`, *optional*, defaults to 0.005): the standard deviation of rises is taken to be at least
            this share of the level, for series that hardly change, where any change would be many deviations.
        least (`float`, *optional*, defaults to 0.0): minimum of the standard deviation, in units of the series.

    ```python
    >>> detector = SpikeDetector()
    >>> spikes = [detector.add(loss) for loss in [2.0, 2.1, 1.9, 2.0, 2.1, 1.9] * 2 + [4.0, 2.0]]
    >>> spikes[-2].level, spikes[-1]
    (2.0, None)

    ```
    """

    LEVEL = 9
    """Number of values whose median is the level."""

    MINIMUM = 5
    """Number of values that are needed for a level, and of rises that are needed for a usual deviation."""

    def __init__(self, deviations: float = 8.0, window: int = 50, *, least_share: float = 0.005, least: float = 0.0):
        self._deviations, self._least_share, self._least = deviations, least_share, least
        self._values: deque[float] = deque(maxlen=self.LEVEL)
        self._rises: deque[float] = deque(maxlen=window)

    def add(self, value: float) -> Deviation | None:
        """Take the next value; returns how far it deviates if it is a spike. A value that is not finite is ignored."""
        if not math.isfinite(value):
            return None
        before, usual = list(self._values), list(self._rises)
        self._values.append(value)
        if len(before) < self.MINIMUM:
            return None
        level = statistics.median(before)
        self._rises.append(value - level)
        if len(usual) < self.MINIMUM:
            return None
        center = statistics.median(usual)
        spread = _NORMAL * statistics.median(abs(rise - center) for rise in usual)
        deviation = max(spread, self._least_share * abs(level), self._least)
        rise = value - level - max(center, 0.0)  # where a steep fall ends, the loss is above its trend, but no spike
        if rise <= self._deviations * deviation:
            return None
        return Deviation(value, level, rise / deviation if deviation else math.inf)

    def state(self) -> dict[str, Any]:
        """What it has seen, for a checkpoint."""
        return {"values": list(self._values), "rises": list(self._rises)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self._values = deque(state["values"], maxlen=self._values.maxlen)
        self._rises = deque(state["rises"], maxlen=self._rises.maxlen)
