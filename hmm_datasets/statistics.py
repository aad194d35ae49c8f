"""Intervals of ratios of sums by the percentile bootstrap over documents.

A resample draws as many documents as there are, with replacement, and takes all figures of each, so that two models
or two tokenizers are compared on the same documents (the paired bootstrap; Efron and Tibshirani, An Introduction to
the Bootstrap, 1993, chapter 13). Each resample is a pass over the figures and one row of memory.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Num

from .errors import InputError


@dataclass(frozen=True)
class Difference:
    """The second's figure less the first's, and the bounds of its interval."""

    value: float
    low: float
    high: float


def check_bootstrap(resamples: int, level: float) -> None:
    """Raise [`InputError`] for settings that cannot be."""
    if resamples < 1 or not 0 < level < 1:
        raise InputError(f"resamples={resamples}, level={level}: expected 1 or more, and a level between 0 and 1")


def resampled_sums(figures: Num[np.ndarray, "D C"], resamples: int, seed: int) -> Num[np.ndarray, "R C"]:
    """The sums of `C` figures over `D` documents, drawn anew `R` times."""
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
    """The interval of `values.sum() / sizes.sum()` over documents.

    Args:
        values (`np.ndarray` of shape `(D,)`): of each document, its loss for instance.
        sizes (`np.ndarray` of shape `(D,)`): what it counts for, in tokens or bytes for instance; not all 0.
        resamples (`int`, *optional*, defaults to 2000), level (`float`, *optional*, defaults to 0.95), seed (`int`,
            *optional*, defaults to 0): of the bootstrap.

    Returns:
        Two `float`, NaN for a single document, which tells nothing of others.

    ```python
    >>> ratio_interval(np.array([2.0, 4.0]), np.array([1, 2]))
    (2.0, 2.0)

    ```
    """
    check_bootstrap(resamples, level)
    if len(values) < 2:
        return float("nan"), float("nan")
    sums = resampled_sums(np.stack([values, sizes], axis=1).astype(np.float64), resamples, seed)
    sums = sums[sums[:, 1] > 0]  # a resample of empty documents alone has no ratio
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
    """What the second loses more than the first, a unit of size, on the same documents.

    Args:
        first (`np.ndarray` of shape `(D,)`), second (`np.ndarray` of shape `(D,)`): loss of each document, in bits for
            instance.
        sizes (`np.ndarray` of shape `(D,)`): what each document counts for, in bytes for instance.
        resamples (`int`, *optional*, defaults to 2000), level (`float`, *optional*, defaults to 0.95), seed (`int`,
            *optional*, defaults to 0): of the bootstrap.

    Returns:
        [`Difference`] of the two ratios of sums.

    Raises:
        `InputError`: arrays of other lengths, fewer than two documents, sizes that sum to nothing.

    ```python
    >>> paired_difference(np.array([2.0, 4.0]), np.array([3.0, 5.0]), np.array([1, 1])).value
    1.0

    ```
    """
    check_bootstrap(resamples, level)
    first, second, sizes = (np.asarray(values, dtype=np.float64) for values in (first, second, sizes))
    if not len(first) == len(second) == len(sizes) or len(sizes) < 2 or not sizes.sum() > 0:
        raise InputError(
            f"{len(first)} and {len(second)} losses of {len(sizes)} documents, {sizes.sum():g} in size; expected the "
            "same two documents or more, not all empty"
        )
    low, high = ratio_interval(second - first, sizes, resamples=resamples, level=level, seed=seed)
    return Difference(float((second - first).sum() / sizes.sum()), low, high)
