"""Means of per-token quantities, with standard errors that account for dependence within a sequence.

Sequences are drawn independently, tokens of one sequence are not. So the standard error of the mean over `N T` tokens
is the standard deviation of the `N` sequence means divided by `sqrt(N)`: a cluster-robust error with equal clusters
(Liang and Zeger, Biometrika 73, 1986).
"""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from .array_input import numbers
from .errors import InputError


class ClusteredMean(NamedTuple):
    """A mean over tokens.

    Attributes:
        mean (`float`): mean over all sequences and positions.
        standard_error (`float`, *optional*): standard error of `mean`, clustered by sequence; None for a single
            sequence, and where the mean is infinite.
        by_position (`np.ndarray` of shape `(T,)`): mean at every position.
        by_position_error (`np.ndarray` of shape `(T,)`): standard errors of `by_position`; NaN where there is none.
    """

    mean: float
    standard_error: float | None
    by_position: Float[np.ndarray, "T"]
    by_position_error: Float[np.ndarray, "T"]

    def report(self, name: str) -> dict[str, Any]:
        """The result as numbers and lists, with the mean under the key `name`, and None for errors that it lacks."""
        return {
            name: self.mean,
            "standard_error": self.standard_error,
            "by_position": self.by_position.tolist(),
            "by_position_error": [None if math.isnan(error) else error for error in self.by_position_error.tolist()],
        }


def as_table(name: str, rows: Any, ndim: int = 2) -> Float[np.ndarray, "..."]:
    """Convert nested lists or an array to a float64 array with `ndim` axes.

    Raises:
        `InputError`: rows of unequal length, an entry that is missing or no real number, or another number of axes.
    """
    table = numbers(name, rows, ragged=f"{name} are ragged; expected sequences of equal length")
    if table.ndim != ndim or table.size == 0:
        raise InputError(f"{name} have shape {table.shape}; expected {ndim} axes, none empty")
    return table


def clustered_mean(values: Float[np.ndarray, "N T"], *, padded: bool = False) -> ClusteredMean:
    """Mean of a per-token quantity over `N` sequences of `T` tokens.

    Args:
        values (`np.ndarray` of shape `(N, T)`): the quantity.
        padded (`bool`, *optional*, defaults to `False`): whether NaN marks positions after the end of a sequence,
            which are left out. Those that no sequence reaches are cut off, and the error is that of a ratio of sums.

    Raises:
        `InputError`: an empty array, or a value that is NaN; the message gives its index.
    """
    values = as_table("values", values)
    kept = ~np.isnan(values)
    if not padded and not kept.all():
        row, column = np.argwhere(~kept)[0]
        raise InputError(f"values[{row}, {column}] is NaN; expected a number")
    values, kept = values[:, kept.any(axis=0)], kept[:, kept.any(axis=0)]
    filled, counts = np.where(kept, values, 0.0), kept.sum(axis=0)
    mean, positions = float(filled.sum() / counts.sum()), filled.sum(axis=0) / counts
    with np.errstate(invalid="ignore", divide="ignore"):  # of one value there is no error
        squares = (np.where(kept, values - positions, 0.0) ** 2).sum(axis=0)
        errors = np.where(counts > 1, np.sqrt(squares / (counts - 1) / counts), np.nan)
    if len(values) < 2 or not math.isfinite(mean):
        return ClusteredMean(mean, None, positions, errors)
    beyond = filled.sum(axis=1) - mean * kept.sum(axis=1)
    error = float(beyond.std(ddof=1) * math.sqrt(len(values)) / counts.sum())
    return ClusteredMean(mean, error, positions, errors)


def cross_entropy_figures(nats: Float[np.ndarray, "N T"], *, padded: bool = False) -> dict[str, Any]:
    """The result of the metric `token_cross_entropy` for the losses of `N` sequences of `T` tokens."""
    result = clustered_mean(nats, padded=padded)
    return {**result.report("cross_entropy"), "perplexity": float(np.exp(result.mean))}


def final_token_figures(nats: Float[np.ndarray, "N T"], *, padded: bool = False) -> dict[str, Any]:
    """The result of the metric `final_token_cross_entropy` for the losses of `N` sequences of `T` tokens."""
    if padded:
        lengths = (~np.isnan(nats)).sum(axis=1)
        nats = np.take_along_axis(nats, np.maximum(lengths - 1, 0)[:, None], axis=1)
    result = clustered_mean(nats[:, -1:], padded=padded)
    return {"cross_entropy": result.mean, "standard_error": result.standard_error}


def gap_figures(
    nats: Float[np.ndarray, "N T"], optimum: Float[np.ndarray, "N T"], *, padded: bool = False
) -> dict[str, Any]:
    """The result of the metric `bayes_gap` for losses of a model and of the true distribution on the same tokens."""
    with np.errstate(invalid="ignore"):  # infinity minus infinity is NaN, which `clustered_mean` refuses
        gap = clustered_mean(nats - optimum, padded=padded)
    mean = np.nanmean if padded else np.mean
    return {**gap.report("bayes_gap"), "model": float(mean(nats)), "optimum": float(mean(optimum))}
