"""Ratios of sums over documents, paired differences of them, and means over sequences, with their errors.

Two models are compared by the differences of each document ([`intervals`][hmm_datasets.intervals] says how intervals
are made of them).

Means of per-token quantities, with standard errors that account for dependence within a sequence.

Sequences are drawn independently, tokens of one sequence are not. So the standard error of the mean over `N T` tokens
is the standard deviation of the `N` sequence means divided by `sqrt(N)`: a cluster-robust error with equal clusters
(Liang and Zeger, Biometrika 73, 1986).
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Num

from .array_input import numbers
from .errors import InputError
from .intervals import influence_interval


@dataclass(frozen=True)
class Difference:
    """A difference, second minus first, and the bounds of its confidence interval; None where there is none."""

    value: float
    low: float | None
    high: float | None


def check_bootstrap(resamples: int, level: float) -> None:
    """Raise [`InputError`] if settings are out of range."""
    if resamples < 1 or not 0 < level < 1:
        raise InputError(f"resamples={resamples}, level={level}: expected 1 or more, and a level between 0 and 1")


def ratio_interval(
    values: Num[np.ndarray, "D"],
    sizes: Num[np.ndarray, "D"],
    *,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float] | tuple[None, None]:
    """The confidence interval of `values.sum() / sizes.sum()` over documents.

    Args:
        values (`np.ndarray` of shape `(D,)`): a value of each document, for example its loss.
        sizes (`np.ndarray` of shape `(D,)`): size of each document, for example in tokens or bytes; not all 0.
        resamples (`int`, *optional*, defaults to 2000), level (`float`, *optional*, defaults to 0.95), seed (`int`,
            *optional*, defaults to 0): settings of the bootstrap.

    Returns:
        Two `float`; None twice where fewer than two documents have a size, or a value is infinite.

    Raises:
        `InputError`: a number is NaN or missing.

    ```python
    >>> ratio_interval(np.array([2.0, 4.0]), np.array([1, 2]))
    (2.0, 2.0)

    ```
    """
    check_bootstrap(resamples, level)
    values, sizes = _finite("values", values), _finite("sizes", sizes)
    total = sizes.sum()
    if len(values) < 2 or not total > 0 or not (np.isfinite(values).all() and np.isfinite(total)):
        return None, None
    ratio = float(values.sum() / total)
    influence = (values - ratio * sizes) / total
    bounds = influence_interval(ratio, influence, sizes / total, resamples=resamples, level=level, seed=seed)
    return (None, None) if bounds is None else tuple(bounds)


def _finite(name: str, values: Any) -> Float[np.ndarray, "D"]:
    """Numbers, none of them missing or NaN; infinite losses have no interval."""
    table = as_table(name, values, 1)
    if (lost := np.isnan(table)).any():
        raise InputError(f"{name}[{int(lost.argmax())}] is NaN; expected a number")
    return table


def paired_difference(
    first: Float[np.ndarray, "D"],
    second: Float[np.ndarray, "D"],
    sizes: Num[np.ndarray, "D"],
    *,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Difference:
    """The difference in loss per unit of size, second minus first, on the same documents.

    Args:
        first (`np.ndarray` of shape `(D,)`), second (`np.ndarray` of shape `(D,)`): loss of each document, for example
            in bits.
        sizes (`np.ndarray` of shape `(D,)`): size of each document, for example in bytes.
        resamples (`int`, *optional*, defaults to 2000), level (`float`, *optional*, defaults to 0.95), seed (`int`,
            *optional*, defaults to 0): settings of the bootstrap.

    Returns:
        [`Difference`] of the two ratios of sums.

    Raises:
        `InputError`: arrays have different lengths, there are fewer than two documents, or all sizes are 0.

    ```python
    >>> paired_difference(np.array([2.0, 4.0]), np.array([3.0, 5.0]), np.array([1, 1])).value
    1.0

    ```
    """
    check_bootstrap(resamples, level)
    first, second, sizes = (_finite(n, v) for n, v in (("first", first), ("second", second), ("sizes", sizes)))
    if not len(first) == len(second) == len(sizes) or len(sizes) < 2 or not sizes.sum() > 0:
        raise InputError(
            f"{len(first)} and {len(second)} losses of {len(sizes)} documents with a total size of {sizes.sum():g}; "
            "expected the same two or more documents, not all empty"
        )
    bounds = ratio_interval(second - first, sizes, resamples=resamples, level=level, seed=seed)
    return Difference(float((second - first).sum() / sizes.sum()), *bounds)


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


def clustered_mean(values: Float[np.ndarray, "N T"]) -> ClusteredMean:
    """Mean of a per-token quantity over `N` sequences of `T` tokens.

    Raises:
        `InputError`: an empty array, or a value that is NaN; the message gives its index.
    """
    values = as_table("values", values)
    wrong = np.argwhere(np.isnan(values))
    if len(wrong) > 0:
        raise InputError(f"values[{wrong[0][0]}, {wrong[0][1]}] is NaN; expected a number")
    count = len(values)
    with np.errstate(invalid="ignore"):
        spread = values.std(axis=0, ddof=1) if count > 1 else np.full(values.shape[1], np.nan)
    mean, root = float(values.mean()), np.sqrt(count)
    has_error = count > 1 and math.isfinite(mean)
    error = float(values.mean(axis=1).std(ddof=1) / root) if has_error else None
    return ClusteredMean(mean, error, values.mean(axis=0), spread / root)


def context_spans(length: int) -> list[tuple[int, int]]:
    """Numbers of symbols of context that are averaged together: from one power of two to the next.

    ```python
    >>> context_spans(9)
    [(1, 2), (2, 4), (4, 8), (8, 9)]

    ```
    """
    edges = [1]
    while edges[-1] * 2 < length:
        edges.append(edges[-1] * 2)
    return list(zip(edges, [*edges[1:], length], strict=True))


def cross_entropy_figures(nats: Float[np.ndarray, "N T"]) -> dict[str, Any]:
    """The result of the metric `token_cross_entropy` for the losses of `N` sequences of `T` tokens."""
    result = clustered_mean(nats)
    return {**result.report("cross_entropy"), "perplexity": float(np.exp(result.mean))}


def final_token_figures(nats: Float[np.ndarray, "N T"]) -> dict[str, Any]:
    """The result of the metric `final_token_cross_entropy` for the losses of `N` sequences of `T` tokens."""
    result = clustered_mean(nats[:, -1:])
    return {"cross_entropy": result.mean, "standard_error": result.standard_error}


def gap_figures(nats: Float[np.ndarray, "N T"], optimum: Float[np.ndarray, "N T"]) -> dict[str, Any]:
    """The result of the metric `bayes_gap` for losses of a model and of the true distribution on the same tokens."""
    with np.errstate(invalid="ignore"):  # infinity minus infinity is NaN, which `clustered_mean` refuses
        gap = clustered_mean(nats - optimum)
    return {**gap.report("bayes_gap"), "model": float(nats.mean()), "optimum": float(optimum.mean())}
