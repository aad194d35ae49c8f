"""When a run ends whose number of ranks grows, and which has the machines for a share of each day."""

import math
import re
from collections.abc import Callable, Sequence

from ...errors import InputError


def read_rank_stages(stages: Sequence[str]) -> list[tuple[int, float]]:
    """Numbers of ranks and the days that each is there, the last one to the end of the run.

    Raises:
        `InputError`: a stage that is not written RANKS:DAYS, or a last one with days.

    ```python
    >>> read_rank_stages(["16:7", "64"])
    [(16, 7.0), (64, inf)]

    ```
    """
    parts = [re.fullmatch(r"([1-9]\d*)(?::(\d+(?:\.\d+)?))?", stage) for stage in stages]
    whole = [part is not None and (part[2] is None) == (number == len(parts)) for number, part in enumerate(parts, 1)]
    if not parts or not all(whole):
        raise InputError(
            f"rank_stages is {' '.join(stages)}; expected RANKS:DAYS for each but the last, and RANKS for that, as in "
            "16:7 64:14 128"
        )
    return [(int(part[1]), float(part[2] or math.inf)) for part in parts if part is not None]


def finish(
    tokens: float, stages: Sequence[tuple[int, float]], rate: Callable[[int], float], share_of_day: float
) -> tuple[float, float]:
    """The seconds until a run ends, and the seconds of devices that it takes.

    Args:
        tokens (`float`): tokens of the run.
        stages (sequence of pairs): ranks and days, see [`read_rank_stages`].
        rate (callable): takes a number of ranks, returns the tokens per second of all of them.
        share_of_day (`float`): share of each day in which the run has the machines.

    ```python
    >>> finish(3 * 86400, [(1, 2.0), (4, float("inf"))], lambda ranks: ranks, 0.5)
    (259200.0, 259200.0)

    ```
    """
    if not 0 < share_of_day <= 1:
        raise InputError(f"share_of_day is {share_of_day:g}; expected above 0 and up to 1, such as 0.8")
    seconds = device_seconds = 0.0
    for ranks, days in stages:
        per_second = rate(ranks) * share_of_day
        lasts = min(days * 86400, tokens / per_second)
        tokens -= lasts * per_second
        seconds += lasts
        device_seconds += lasts * share_of_day * ranks
    return seconds, device_seconds
