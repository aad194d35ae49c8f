"""The mean of independent runs with its interval, as text for the tables of experiments."""

import math
import statistics
from collections.abc import Sequence

from hmm_datasets.display import format_number
from hmm_datasets.intervals import half_width, wilson


def mean_text(values: Sequence[float], form: str = ".4f", *, is_share: bool = False) -> str:
    """The mean of independent runs with half of its 95% interval, by Student's t; of one run, and where
    all runs agree, the value alone.

    Args:
        values (sequence of `float`): a value of each run.
        form (`str`, *optional*, defaults to ".4f"): how numbers are written.
        is_share (`bool`, *optional*, defaults to `False`): whether values are between 0 and 1. Then it is Wilson's
            interval, written by its bounds.

    ```python
    >>> mean_text([1.0, 2.0, 3.0], ".2f")
    '2.00 ± 2.48'
    >>> mean_text([1.0, 1.0, 0.1], ".2f", is_share=True)
    '0.70 (0.06 .. 0.99)'

    ```
    """
    if len(set(values)) == 1:
        return format_number(values[0], form)
    mean, error = statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values))
    if not is_share:
        return f"{format_number(mean, form)} ± {half_width(error, len(values)):{form.lstrip('+')}}"
    questions = mean * (1 - mean) / error**2
    low, high = wilson(mean * questions, questions, degrees=len(values) - 1)
    return f"{mean:{form}} ({low:{form}} .. {high:{form}})"
