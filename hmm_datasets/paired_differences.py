"""Ratios of sums over documents, paired differences of them, and means over sequences, with their errors.

Two models are compared by the differences of each document ([`intervals`][hmm_datasets.intervals] says how intervals
are made of them).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Num

from .errors import InputError
from .intervals import influence_interval
from .statistics import as_table


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
        Two `float`; None twice where no interval covers the ratio: see [`~hmm_datasets.intervals.influence_interval`].

    Raises:
        `InputError`: a number is NaN or missing.

    ```python
    >>> low, high = ratio_interval(np.array([2.0, 5.0, 7.0]), np.array([1, 2, 3]))
    >>> round(low, 2), round(high, 2)
    (1.9, 2.77)

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
    first, second, sizes = (_finite(n, v) for n, v in (("first", first), ("second", second), ("sizes", sizes)))
    if not len(first) == len(second) == len(sizes) or len(sizes) < 2 or not sizes.sum() > 0:
        raise InputError(
            f"{len(first)} and {len(second)} losses of {len(sizes)} documents with a total size of {sizes.sum():g}; "
            "expected the same two or more documents, not all empty"
        )
    bounds = ratio_interval(second - first, sizes, resamples=resamples, level=level, seed=seed)
    return Difference(float((second - first).sum() / sizes.sum()), *bounds)
