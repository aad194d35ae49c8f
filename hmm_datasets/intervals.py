"""Confidence intervals that cover what they say, also of few documents and of accuracies near 0 or 1.

The percentile bootstrap covers 80% at five documents where it says 95%, and has no width where all items agree. So
there is a method for each kind of number:

- a mean over sequences: Student's t, with one degree of freedom less than there are sequences.
- a ratio of sums over documents, for example bits per byte: a few long documents weigh most, so that five documents
  are worth fewer. The statistic is the ratio over its standard error from residuals (HC2 of MacKinnon and White, J.
  Econometrics 29, 1985). Its distribution is that for normal residuals with the sizes of these documents, drawn by a
  parametric bootstrap; from an effective 200 degrees of freedom on (Bell and McCaffrey, Survey Methodology 28, 2002)
  Student's t is the same.
  Where most documents agree and fewer than ten differ, for example rare large losses, there is no interval: it would
  cover 59% to 75% at 3 to 8 documents. Of 3 to 20 documents of very uneven (lognormal) losses it covers 82%.
- an accuracy: Wilson's score interval (J. Am. Stat. Assoc. 22, 1927).
- a mean of shares over runs: Wilson's, for as many questions as would have their variance and with Student's quantile,
  so that it ends at 0 and 1.
- a mean of accuracies over tasks: Wilson's, with the number of questions that would have the same variance (Korn and
  Graubard, Survey Methodology 24, 1998).
- a difference of accuracies on the same questions: Bonett and Price (J. Educ. Behav. Stat. 37, 2012), and for a mean
  over tasks the squares of the half-widths added (MOVER; Zou and Donner, Stat. Med. 27, 2008).

`benchmarks/interval_coverage.py` prints how often each covers the truth.
"""

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Num

_DRAWN = 1 << 20  # residuals that are in memory at once
_LEAST_REST = 1e-3  # with less beside it the largest document decides alone
_LEAST_UNTIED = 10  # documents that differ from a majority of equals, for an interval to be right 19 times in 20
_MANY = 200  # degrees of freedom from which on the sizes of documents make no difference


class Bounds(NamedTuple):
    """The bounds of a confidence interval."""

    low: float
    high: float


def t_quantile(level: float, degrees: float) -> float:
    """The half-width of an interval of Student's distribution, of a whole number of degrees of freedom below 200.

    ```python
    >>> round(t_quantile(0.95, 4), 4), round(t_quantile(0.95, 1), 3), round(t_quantile(0.95, 1e9), 4)
    (2.7764, 12.706, 1.96)

    ```
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    if degrees >= _MANY:
        # Abramowitz and Stegun 26.7.5
        return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    high = 1.0
    while _t_inside(high, int(degrees)) < level:
        high *= 2
    return rising_root(lambda t: _t_inside(t, int(degrees)) - level, 0.0, high)


def rising_root(rising: Callable[[float], float], below: float, above: float) -> float:
    """The root of a function between an argument where it is negative or zero and one where it is not negative.

    Bisection ends when no number lies between the bounds, on every machine alike.
    """
    while (middle := (below + above) / 2) not in (below, above):
        below, above = (middle, above) if rising(middle) < 0 else (below, middle)
    return above


def _t_inside(t: float, degrees: int) -> float:
    # The probability of being nearer to 0 than t; Abramowitz and Stegun 26.7.3 and 26.7.4.
    angle, odd = math.atan(t / math.sqrt(degrees)), degrees % 2
    cosine = math.cos(angle)
    term, total = cosine if odd else 1.0, 0.0
    for number in range(1, degrees - odd, 2):
        total += term
        term *= cosine**2 * (number + odd) / (number + odd + 1)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def half_width(error: "float | Float[np.ndarray, 'T'] | None", count: int, level: float = 0.95):
    """Half of the interval of a mean over `count` sequences from its standard error; None where that is None.

    ```python
    >>> round(half_width(0.1, 5), 4)
    0.2776

    ```
    """
    return None if error is None or count < 2 else t_quantile(level, count - 1) * error


def influence_interval(
    value: float,
    influence: Float[np.ndarray, "D"],
    shares: Float[np.ndarray, "D"],
    *,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Bounds | None:
    """The interval of a number that is a weighted mean over documents.

    Args:
        value (`float`): the number.
        influence (`np.ndarray` of shape `(D,)`): what each document adds to it beyond its share: share times residual,
            which sum to 0.
        shares (`np.ndarray` of shape `(D,)`): the weight of each document in the mean, which sum to 1.
        resamples (`int`), level (`float`), seed (`int`): settings of the bootstrap.

    Returns:
        [`Bounds`], or None where no interval would cover what it says: there are not two documents of a size, one has
        99.9% of it, the value is not finite, or most documents agree (their losses per size differ by less than 1e-9)
        and fewer than ten differ from them.
    """
    sized = shares > 0
    if sized.sum() < 2 or not math.isfinite(value) or not np.isfinite(influence).all():
        return None
    rest, beyond = 1 - shares, influence[sized] / shares[sized]
    median = float(np.median(beyond))
    tied = np.abs(beyond - median) <= 1e-9 * max(abs(value), abs(median))
    if rest.min() < _LEAST_REST or (~tied).sum() < min(_LEAST_UNTIED, tied.sum()):
        return None
    error = math.sqrt(float((influence**2 / rest).sum()))
    half = error * _critical(shares[sized], resamples, level, seed)
    return Bounds(value - half, value + half)


def _critical(shares: Float[np.ndarray, "D"], resamples: int, level: float, seed: int) -> float:
    """The quantile of a weighted mean over its standard error, for normal residuals of one variance."""
    count = len(shares)
    if np.ptp(shares) <= 1e-12 * shares.max():
        return t_quantile(level, count - 1)
    degrees = _effective_degrees(shares)
    if degrees >= _MANY:
        return t_quantile(level, degrees)
    generator, ratios = np.random.default_rng(seed), np.empty(resamples)
    weights = shares**2 / (1 - shares)
    rows = max(1, _DRAWN // count)
    for first in range(0, resamples, rows):
        residuals = generator.standard_normal((min(rows, resamples - first), count))
        means = residuals @ shares
        errors = np.sqrt((residuals - means[:, None]) ** 2 @ weights)
        ratios[first : first + rows] = np.abs(means) / errors
    return float(np.quantile(ratios, level))


def _effective_degrees(shares: Float[np.ndarray, "D"]) -> float:
    # Satterthwaite's: the squared mean over half of the variance of the variance; O(D).
    weights, square = shares**2 / (1 - shares), float((shares**2).sum())
    trace = float((weights * (1 - 2 * shares + square)).sum())
    moments = [float((weights * shares**power).sum()) for power in range(3)]
    off = square**2 * moments[0] ** 2 - 4 * square * moments[0] * moments[1]
    off += 2 * moments[0] * moments[2] + 2 * moments[1] ** 2
    square_sum = (weights**2 * ((1 - 2 * shares + square) ** 2 - (square - 2 * shares) ** 2)).sum()
    return trace**2 / (float(square_sum) + off)


def wilson(right: float, total: float, level: float = 0.95, degrees: float = math.inf) -> Bounds | None:
    """Wilson's interval of a share; None of nothing.

    Args:
        right, total (`float`): questions answered rightly, and all.
        level (`float`, *optional*, defaults to 0.95): how often it covers the truth.
        degrees (`float`, *optional*): degrees of freedom of `total`, if that is estimated.

    ```python
    >>> [round(bound, 3) for bound in wilson(10, 10)]
    [0.722, 1.0]

    ```
    """
    if total <= 0:
        return None
    z, share = t_quantile(level, degrees), right / total
    spread = z**2 / total
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(max(share * (1 - share), 0.0) / total + spread / (4 * total))
    # At 0 and 1 the bounds are those, but for rounding.
    return Bounds(0.0 if share == 0 else max(0.0, centre - half), 1.0 if share == 1 else min(1.0, centre + half))


def mean_of_shares(
    right: Num[Sequence, "K"], totals: Num[Sequence, "K"], weights: Num[Sequence, "K"], level: float = 0.95
) -> Bounds:
    """The interval of a weighted mean over `K` tasks of the share of right answers to the questions of each.

    Args:
        right, totals (sequences of `K` numbers): right answers and questions of each task, one question or more.
        weights (sequence of `K` numbers): of the tasks, above 0; they need not sum to 1.

    ```python
    >>> [round(bound, 3) for bound in mean_of_shares([10, 10], [10, 10], [1, 1])]
    [0.839, 1.0]

    ```
    """
    correct, count, weight = (np.asarray(values, dtype=np.float64) for values in (right, totals, weights))
    weight = weight / weight.sum()
    mean = min(float(weight @ (correct / count)), 1.0)
    # A question more in each task, answered like the mean: a task without a right or a wrong answer varies too.
    share = (correct + mean) / (count + 1)
    variance = float((weight**2 * share * (1 - share) / np.maximum(count - 1, 1)).sum())
    effective = mean * (1 - mean) / variance if variance > 0 else 1 / float((weight**2 / count).sum())
    interval = wilson(mean * effective, effective, level)
    assert interval is not None
    return interval


def mean_of_changes(
    gained: Num[Sequence, "K"],
    lost: Num[Sequence, "K"],
    totals: Num[Sequence, "K"],
    weights: Num[Sequence, "K"],
    level: float = 0.95,
) -> Bounds:
    """The interval of the weighted mean over tasks of the difference of two accuracies on the same questions.

    Args:
        gained, lost (sequences of `K` numbers): questions of each task that only the second, or only the first answers
            rightly.
        totals (sequence of `K` numbers): questions of each task.
        weights (sequence of `K` numbers): of the tasks, as they are in the mean.
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    more, less, count, weight = (np.asarray(values, dtype=np.float64) for values in (gained, lost, totals, weights))
    rises, falls = (more + 1) / (count + 2), (less + 1) / (count + 2)
    centre = rises - falls
    half = z * np.sqrt((rises + falls - centre**2) / (count + 2))
    change = (more - less) / count
    below, above = weight * (change - (centre - half)), weight * (centre + half - change)
    value = float(weight @ change)
    return Bounds(value - float(np.linalg.norm(below)), value + float(np.linalg.norm(above)))
