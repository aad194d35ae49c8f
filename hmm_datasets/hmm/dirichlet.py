"""Dirichlet laws drawn from given random words, the same to the last bit on every machine.

A row is a vector of independent Gamma variates over its sum. The variates are by rejection from a cubed normal
deviate (Marsaglia and Tsang, ACM Trans. Math. Software 26, 2000), the normals by Marsaglia's polar method; three
attempts in four succeed, and each takes two blocks of 128 random bits.

Additions, products, quotients and square roots of float64 are all there is: IEEE 754 fixes their results to the last
bit. Logarithms and exponentials, which every mathematical library rounds in its own way, are built from them here.
What is not guaranteed: processors or compilers that do not keep to that standard.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, UInt

Blocks = Callable[[UInt[np.ndarray, "M"], int], UInt[np.ndarray, "M 4"]]
"""Random words: `blocks(draws, attempt)` gives four 32-bit words for each number in `draws` and each attempt."""

_MOST_ATTEMPTS = 1 << 12


def dirichlet_rows(alpha: float, num_rows: int, size: int, blocks: Blocks) -> Float[np.ndarray, "R n"]:
    """Draw `num_rows` laws over `size` categories from the symmetric Dirichlet law of concentration `alpha`.

    Args:
        alpha (`float`): concentration a category, positive.
        num_rows (`int`): `R`.
        size (`int`): `n`; `R n` is below `2**31`.
        blocks (`Blocks`): the random words; draws `0 .. 2 R n - 1` of every attempt.

    Returns:
        `np.ndarray` of shape `(R, n)`: rows that sum to one up to rounding, no entry zero.
    """
    log_gamma = _log_gamma_variates(alpha, num_rows * size, blocks).reshape(num_rows, size)
    weight = _exp(log_gamma - log_gamma.max(axis=1, keepdims=True))
    # A running sum has one order of additions everywhere; that of np.sum depends on the vector unit.
    return weight / weight.cumsum(axis=1)[:, -1:]


def _log_gamma_variates(alpha: float, count: int, blocks: Blocks) -> Float[np.ndarray, "M"]:
    # Logarithms, since for small alpha the variates themselves underflow. Below 1, Gamma(alpha) is
    # Gamma(alpha + 1) times U^(1 / alpha) (section 6 of the paper).
    shape = alpha + 1 if alpha < 1 else alpha
    d = shape - 1 / 3
    c = 1 / np.sqrt(9 * d)
    log_d = _log(np.array([d]))
    result = np.empty(count)
    pending = np.arange(count, dtype=np.uint64)
    for attempt in range(_MOST_ATTEMPTS):
        words = blocks(np.concatenate([2 * pending, 2 * pending + 1]), attempt).astype(np.uint64)
        # Two words make a uniform number of 53 bits, never 0.
        bits = (words[:, 0::2] << np.uint64(21)) ^ (words[:, 1::2] >> np.uint64(11))
        uniform = (bits.astype(np.float64) + 0.5) * 2.0**-53
        (a, b), (accept, boost) = uniform[: len(pending)].T, uniform[len(pending) :].T
        a, b = 2 * a - 1, 2 * b - 1
        square = a * a + b * b
        inside = (square < 1) & (square > 0)
        square = np.where(inside, square, 0.5)
        normal = a * np.sqrt(-2 * _log(square) / square)
        v = 1 + c * normal
        inside &= v > 0
        v = np.where(inside, v * v * v, 1.0)
        good = inside & (_log(accept) < 0.5 * normal * normal + d - d * v + d * _log(v))
        value = _log(v) + log_d
        if alpha < 1:
            value = value + _log(boost) / alpha
        result[pending[good]] = value[good]
        pending = pending[~good]
        if len(pending) == 0:
            return result
    raise RuntimeError(f"{_MOST_ATTEMPTS} attempts at one variate failed: the words given are not random")


def _log(x: Float[np.ndarray, "M"]) -> Float[np.ndarray, "M"]:
    # log(m 2^e) = e log 2 + 2 artanh((m - 1) / (m + 1)), m in [1/sqrt 2, sqrt 2): eleven terms reach 2^-53.
    mantissa, exponent = np.frexp(x)
    low = mantissa < 0.7071067811865476
    mantissa, exponent = np.where(low, 2 * mantissa, mantissa), exponent - low
    s = (mantissa - 1) / (mantissa + 1)
    z = s * s
    series = np.zeros_like(s)
    for k in range(10, -1, -1):
        series = series * z + 1 / (2 * k + 1)
    return exponent * 0.6931471805599453 + 2 * s * series


def _exp(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    # exp(k log 2 + r) = 2^k exp(r), |r| <= log(2) / 2: fourteen terms reach 2^-53. Clipped above where numbers become
    # subnormal, which not every program keeps; so no probability is zero.
    x = np.maximum(x, -700.0)
    k = np.floor(x * 1.4426950408889634 + 0.5)
    r = x - k * 0.6931471805599453
    series = np.ones_like(r)
    for n in range(14, 0, -1):
        series = 1 + series * r / n
    return np.ldexp(series, k.astype(np.int32))
