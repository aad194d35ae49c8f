"""Random distributions and tables of distributions, bit-identical on every machine.

A Dirichlet row is a vector of independent Gamma variates divided by its sum. Gamma variates are drawn by rejection
from a cubed normal deviate (Marsaglia and Tsang, ACM Trans. Math. Software 26, 2000), and normal deviates by
Marsaglia's polar method. Three attempts in four succeed, and each takes up to two blocks of 128 random bits, about 0.2
microseconds per entry. A Zipf row has the probabilities `1^-s, 2^-s, ..., n^-s` divided by their sum (Zipf 1949), in a
uniform random order drawn for each row.

A doubly stochastic table is Sinkhorn's limit of a positive one (Ann. Math. Statist. 35, 1964): rows and columns are
alternately scaled to sum to one, at most a thousand times. For very peaked tables that is not enough, and what is
missing is then added in proportion. The stationary distribution is computed by the elimination of Grassmann, Taksar
and Heyman (Operations Research 33, 1985) in `O(n^3)`. It has no subtractions, so that no entry loses digits.

The code uses only additions, products, quotients and square roots of float64, in a fixed order. IEEE 754 defines their
results to the last bit, and numba neither reorders nor fuses them. Logarithms and exponentials are built from these
operations here, because mathematical libraries round them differently. Processors or compilers that do not follow
IEEE 754 may give other results.

Random words are Philox blocks with counter `(number, draw, stream | attempt << 16)`; see `families.family` for the
streams. numba's cache would not notice a change in `draws`. That is safe, because the format fixes the functions
imported from there.
"""

import math

import numpy as np

from ...compilation import compiled
from .draws import block_of, shuffle, shuffle_buffer

MAX_ROUNDS = 1000  # of Sinkhorn's iteration


@compiled
def fill_dirichlet_rows(alpha, number, stream, seed, out):
    """Fill `out` (R, n) with rows from the symmetric Dirichlet distribution of concentration `alpha` per category.

    Rows sum to one up to rounding, and no entry is zero. `R n` must be below `2**31`.
    """
    # Logarithms, because the variates themselves underflow for small alpha. Below 1, Gamma(alpha) is
    # Gamma(alpha + 1) times U^(1 / alpha) (section 6 of the paper).
    shape = alpha + 1 if alpha < 1 else alpha
    d = shape - 1 / 3
    c = 1 / math.sqrt(9 * d)
    log_d = log(d)
    for r in range(out.shape[0]):
        row = out[r]
        largest = -np.inf
        for x in range(len(row)):
            value = log_gamma_variate(d, c, log_d, np.uint64(2 * (r * len(row) + x)), number, stream, seed, alpha)
            row[x] = value
            largest = max(largest, value)
        for x in range(len(row)):
            row[x] = exp(row[x] - largest)
        divide_by_sum(row)


@compiled
def log_gamma_variate(d, c, log_d, draw, number, stream, seed, alpha):
    attempt = np.uint64(0)
    while True:
        counter = stream | (attempt << np.uint64(16))
        attempt += np.uint64(1)
        w0, w1, w2, w3 = block_of(number, draw, counter, seed)
        a, b = 2 * uniform(w0, w1) - 1, 2 * uniform(w2, w3) - 1
        square = a * a + b * b
        if not 0 < square < 1:
            continue
        normal = a * math.sqrt(-2 * log(square) / square)
        v = 1 + c * normal
        if not v > 0:
            continue
        v = v * v * v
        w0, w1, w2, w3 = block_of(number, draw + np.uint64(1), counter, seed)
        if log(uniform(w0, w1)) < 0.5 * normal * normal + d - d * v + d * log(v):
            value = log(v) + log_d
            return value + log(uniform(w2, w3)) / alpha if alpha < 1 else value


@compiled
def fill_zipf_rows(exponent, number, stream, seed, out):
    """Fill `out` (R, n) with rows of probabilities proportional to `rank^-exponent`, each in a random order.

    The order of row `r` is the permutation of stream `stream | r << 16`; `R` is at most `2**16`.
    """
    size = out.shape[1]
    distribution = np.empty(size)
    for x in range(size):
        distribution[x] = exp(-exponent * log(x + 1.0))
    divide_by_sum(distribution)
    order = np.empty(size, np.uint32)
    buffer = shuffle_buffer(size)
    for r in range(out.shape[0]):
        shuffle(order, buffer, number, stream | (np.uint64(r) << np.uint64(16)), seed)
        for x in range(size):
            out[r, x] = distribution[order[x]]


@compiled
def make_doubly_stochastic(table):
    """Scale rows and columns of a positive `table` (n, n), in place, until all sum to one up to rounding."""
    size = len(table)
    total = np.empty(size)
    for _ in range(MAX_ROUNDS):
        for r in range(size):
            divide_by_sum(table[r])
        sum_columns(table, total)
        worst = 0.0
        for x in range(size):
            worst = max(worst, abs(total[x] - 1))
        if worst <= 1e-12:
            break
        for r in range(size):
            for x in range(size):
                # Never subnormal, because some programs flush subnormal numbers to zero.
                table[r, x] = max(table[r, x] / total[x], 1e-300)
    # The remaining error is removed as in Altschuler, Weed and Rigollet (NIPS 2017, algorithm 2): rows and columns
    # with sums above one are scaled down, and what is then missing is added in proportion to what row and column lack.
    for r in range(size):
        scale_down(table[r])
    for x in range(size):
        scale_down(table[:, x])
    sum_columns(table, total)
    missing = 0.0
    for x in range(size):
        missing += max(1 - total[x], 0.0)
    for r in range(size):
        lacks = 1.0
        for x in range(size):
            lacks -= table[r, x]
        if lacks > 0 and missing > 0:
            for x in range(size):
                table[r, x] += lacks * max(1 - total[x], 0.0) / missing


@compiled
def sum_columns(table, total):
    total[:] = 0
    for r in range(len(table)):
        for x in range(table.shape[1]):
            total[x] += table[r, x]


@compiled
def scale_down(distribution):
    total = 0.0
    for x in range(len(distribution)):
        total += distribution[x]
    if total > 1:
        divide_by_sum(distribution)


@compiled
def stationary_distribution(transition):
    """The stationary distribution (n,) of a chain with positive `transition` (n, n)."""
    rest = transition.copy()
    size = len(rest)
    for last in range(size - 1, 0, -1):
        # Remove state `last` from the chain: paths through it are added to the direct transitions.
        leaving = 0.0
        for x in range(last):
            leaving += rest[last, x]
        for r in range(last):
            rest[r, last] /= leaving
            for x in range(last):
                rest[r, x] += rest[r, last] * rest[last, x]
    distribution = np.zeros(size)
    distribution[0] = 1.0
    for last in range(1, size):
        for r in range(last):
            distribution[last] += distribution[r] * rest[r, last]
        # Without this, entries could overflow for chains with states that are almost never left.
        divide_by_sum(distribution[: last + 1])
    return distribution


@compiled
def divide_by_sum(distribution):
    total = 0.0
    for x in range(len(distribution)):
        total += distribution[x]
    for x in range(len(distribution)):
        distribution[x] /= total


@compiled
def uniform(high, low):
    # A uniform number of 53 bits from two words, never 0.
    return (np.float64((high << np.uint64(21)) ^ (low >> np.uint64(11))) + 0.5) * 2.0**-53


@compiled
def log(x):
    """The natural logarithm of a positive number."""
    # log(m 2^e) = e log 2 + 2 artanh((m - 1) / (m + 1)), m in [1/sqrt 2, sqrt 2). Eleven terms are exact to 2^-53.
    mantissa, exponent = math.frexp(x)
    if mantissa < 0.7071067811865476:
        mantissa, exponent = 2 * mantissa, exponent - 1
    s = (mantissa - 1) / (mantissa + 1)
    z = s * s
    series = 0.0
    for k in range(10, -1, -1):
        series = series * z + 1 / (2 * k + 1)
    return exponent * 0.6931471805599453 + 2 * s * series


@compiled
def exp(x):
    """The exponential of a number that is 0 or less."""
    # exp(k log 2 + r) = 2^k exp(r), |r| <= log(2) / 2. Fourteen terms are exact to 2^-53. x is clipped before the
    # result would be subnormal, because some programs flush subnormal numbers to zero; so no probability is zero.
    x = max(x, -700.0)
    k = math.floor(x * 1.4426950408889634 + 0.5)
    r = x - k * 0.6931471805599453
    series = 1.0
    for n in range(14, 0, -1):
        series = 1 + series * r / n
    return math.ldexp(series, int(k))
