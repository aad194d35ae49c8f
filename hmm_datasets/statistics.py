"""Confidence intervals of ratios of sums, by the percentile bootstrap over documents.

A resample draws as many documents as there are, with replacement, and takes all values of each, so that two models or
two tokenizers are compared on the same documents (the paired bootstrap; Efron and Tibshirani, An Introduction to the
Bootstrap, 1993, chapter 13). Each resample takes one pass over the values and one row of memory.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Num

from .errors import InputError


@dataclass(frozen=True)
class Difference:
    """A difference, second minus first, and the bounds of its confidence interval."""

    value: float
    low: float
    high: float


def check_bootstrap(resamples: int, level: float) -> None:
    """Raise [`InputError`] if settings are out of range."""
    if resamples < 1 or not 0 < level < 1:
        raise InputError(f"resamples={resamples}, level={level}: expected 1 or more, and a level between 0 and 1")


def resampled_sums(figures: Num[np.ndarray, "D C"], resamples: int, seed: int) -> Num[np.ndarray, "R C"]:
    """The sums of `C` values over `D` documents, for `R` resamples."""
    generator = np.random.default_rng(seed)
    documents = len(figures)
    return np.array(
        [
            np.bincount(generator.integers(documents, size=documents), minlength=documents) @ figures
            for _ in range(resamples)
        ]
    )


def interval(values: Float[np.ndarray, "R"], level: float) -> tuple[float, float]:
    """The percentile interval of resampled values."""
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def ratio_interval(
    values: Num[np.ndarray, "D"],
    sizes: Num[np.ndarray, "D"],
    *,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """The confidence interval of `values.sum() / sizes.sum()` over documents.

    Args:
        values (`np.ndarray` of shape `(D,)`): a value of each document, for example its loss.
        sizes (`np.ndarray` of shape `(D,)`): size of each document, for example in tokens or bytes; not all 0.
        resamples (`int`, *optional*, defaults to 2000), level (`float`, *optional*, defaults to 0.95), seed (`int`,
            *optional*, defaults to 0): settings of the bootstrap.

    Returns:
        Two `float`; NaN for a single document, which has no interval.

    ```python
    >>> ratio_interval(np.array([2.0, 4.0]), np.array([1, 2]))
    (2.0, 2.0)

    ```
    """
    check_bootstrap(resamples, level)
    if len(values) < 2:
        return float("nan"), float("nan")
    sums = resampled_sums(np.stack([values, sizes], axis=1).astype(np.float64), resamples, seed)
    sums = sums[sums[:, 1] > 0]  # a resample of only empty documents has no ratio
    return interval(sums[:, 0] / sums[:, 1], level)


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
    first, second, sizes = (np.asarray(values, dtype=np.float64) for values in (first, second, sizes))
    if not len(first) == len(second) == len(sizes) or len(sizes) < 2 or not sizes.sum() > 0:
        raise InputError(
            f"{len(first)} and {len(second)} losses of {len(sizes)} documents with a total size of {sizes.sum():g}; "
            "expected the same two or more documents, not all empty"
        )
    low, high = ratio_interval(second - first, sizes, resamples=resamples, level=level, seed=seed)
    return Difference(float((second - first).sum() / sizes.sum()), low, high)
