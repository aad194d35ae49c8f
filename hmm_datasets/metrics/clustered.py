"""Means of per-token quantities, with standard errors that know that tokens of one sequence hang together.

The sequence is the unit that was drawn independently, so the error of the mean over `N T` tokens is the standard
deviation of the `N` sequence means over `sqrt(N)` (a cluster-robust error with equal clusters; Liang and Zeger,
Biometrika 73, 1986).
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ..errors import InputError


class ClusteredMean(NamedTuple):
    """A mean over tokens.

    Attributes:
        mean (`float`): over all sequences and places.
        standard_error (`float`): of `mean`, clustered by sequence; NaN for a single sequence.
        by_position (`np.ndarray` of shape `(T,)`): mean at every place.
        by_position_error (`np.ndarray` of shape `(T,)`): its standard errors.
    """

    mean: float
    standard_error: float
    by_position: Float[np.ndarray, "T"]
    by_position_error: Float[np.ndarray, "T"]


def as_table(name: str, rows: Any, ndim: int = 2) -> Float[np.ndarray, "..."]:
    """Nested lists as an array of float64 with `ndim` axes.

    Raises:
        `InputError`: rows of unequal length, or another number of axes.
    """
    try:
        table = np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} are ragged, or no numbers; expected sequences of equal length") from None
    if table.ndim != ndim or table.size == 0:
        raise InputError(f"{name} have shape {table.shape}; expected {ndim} axes, none empty")
    return table


def clustered_mean(values: Float[np.ndarray, "N T"]) -> ClusteredMean:
    """Mean of a per-token quantity over `N` sequences of `T` tokens.

    Raises:
        `InputError`: an empty array, or a value that is NaN; it names the place.
    """
    values = as_table("values", values)
    wrong = np.argwhere(np.isnan(values))
    if len(wrong) > 0:
        raise InputError(f"values[{wrong[0][0]}, {wrong[0][1]}] is NaN; expected a number")
    count = len(values)
    with np.errstate(invalid="ignore"):
        spread = values.std(axis=0, ddof=1) if count > 1 else np.full(values.shape[1], np.nan)
        whole = values.mean(axis=1).std(ddof=1) if count > 1 else np.nan
    root = np.sqrt(count)
    return ClusteredMean(float(values.mean()), float(whole / root), values.mean(axis=0), spread / root)
