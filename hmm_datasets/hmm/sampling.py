"""Sequences as a pure function of `(tables, seed, index)`, on every machine and in any order.

Random numbers come from Philox4x32-10, a counter-based generator (Salmon, Moraes, Dror and Shaw, "Parallel random
numbers: as easy as 1, 2, 3", SC 2011, table 2), which passes BigCrush for every key and every way of numbering the
counters tried there. The key is the seed; the counter of token `t` of sequence `i` is `(i, t, stream)`, so no two
tokens share a block, and any token's randomness is had without the ones before it. One block of 128 bits serves one
token: 64 bits for the symbol, 64 for the next state.

Categories are drawn from alias tables (Walker 1977; construction of Vose 1991) held in integers: probabilities are
rounded to multiples of 2^-32 so that each row sums to one exactly, hence no rounding mode or vector unit can change
a draw. A probability of zero stays zero. One token costs one Philox block and two table look-ups, whatever the number
of states; a row of `n` categories takes 8 bytes times the next power of two.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt

from .kernels import draw_sequences, philox_block

_ONE = 1 << 32


@dataclass(frozen=True)
class AliasTable:
    """Alias tables of `R` categorical laws over `n` categories, padded to `2**bits` columns.

    Attributes:
        threshold (`np.ndarray` of shape `(R, 2**bits)`, uint32): a column keeps its own category when the low 32 bits
            of the draw lie below it.
        alias (`np.ndarray` of shape `(R, 2**bits)`, uint32): the category taken otherwise.
        bits (`int`): the high bits of the draw that choose the column.
    """

    threshold: UInt[np.ndarray, "R C"]
    alias: UInt[np.ndarray, "R C"]
    bits: int

    @classmethod
    def from_probabilities(cls, probabilities: Float[np.ndarray, "R n"]) -> "AliasTable":
        """Build the tables of the rows of `probabilities`, each a distribution."""
        weights = integer_weights(probabilities)
        bits = max(int(weights.shape[1] - 1).bit_length(), 0)
        threshold = np.zeros((weights.shape[0], 1 << bits), dtype=np.uint32)
        alias = np.zeros((weights.shape[0], 1 << bits), dtype=np.uint32)
        for row in range(weights.shape[0]):
            _fill_alias_row(weights[row], bits, threshold[row], alias[row])
        return cls(threshold, alias, bits)


def integer_weights(probabilities: Float[np.ndarray, "R n"]) -> UInt[np.ndarray, "R n"]:
    """Round each row to integers that sum to 2^32: round down, then give the rest to the largest entries.

    Every operation is exact in float64 or in integers, so the result is the same on every machine. An entry moves by
    less than `(n + 1) 2^-32`, a zero stays zero.
    """
    weights = np.floor(np.asarray(probabilities, dtype=np.float64) * _ONE).astype(np.int64)
    for row in weights:
        rest = _ONE - int(row.sum())
        order = np.argsort(-row, kind="stable")
        support = order[: max(int((row > 0).sum()), 1)]
        share, extra = divmod(rest, len(support))
        row[support] += share
        row[support[:extra]] += 1
    return weights.astype(np.uint64)


def sample_tokens(
    start: AliasTable,
    symbol: AliasTable,
    transition: AliasTable | None,
    num_symbols: int,
    seed: int,
    first: int,
    step: int,
    out: UInt[np.ndarray, "N L"],
    num_threads: int | None = None,
) -> None:
    """Fill `out` with sequences `first`, `first + step`, ... of the HMM whose tables these are.

    Args:
        start ([`AliasTable`]): one law over the `H` states.
        symbol ([`AliasTable`]): `H` laws over the `E` symbols; or, with `transition=None`, over the `H * E` pairs
            `next_state * E + symbol` of an edge-emitting HMM.
        transition ([`AliasTable`], *optional*): `H` laws over the next state.
        num_symbols (`int`): `E`.
        seed (`int`): the key, in `[0, 2**64)`.
        first, step (`int`): index of the first sequence, and from one to the next; taken modulo `2**64`.
        out (`np.ndarray` of shape `(N, L)`): uint8, uint16 or uint32, written in place.
        num_threads (`int`, *optional*): defaults to the number of usable cores when there is work for them.
    """
    tables = [start.threshold[0], start.alias[0], start.bits, symbol.threshold, symbol.alias, symbol.bits]
    tables += [None] * 3 if transition is None else [transition.threshold, transition.alias, transition.bits]
    symbols64 = np.uint64(num_symbols)
    seed64 = np.uint64(seed)
    if num_threads is None:
        num_threads = _usable_cores() if out.size > 1 << 18 else 1
    num_threads = max(1, min(num_threads, len(out)))
    bounds = [len(out) * part // num_threads for part in range(num_threads + 1)]

    def fill(part: int) -> None:
        rows = out[bounds[part] : bounds[part + 1]]
        origin = np.uint64((first + step * bounds[part]) % (1 << 64))
        draw_sequences(*tables, symbols64, seed64, origin, np.uint64(step), rows)

    if num_threads == 1:
        fill(0)
        return
    # Python threads over a kernel without the GIL: numba's own pools do not survive the fork of a DataLoader worker.
    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(fill, range(num_threads)))


def _usable_cores() -> int:
    # Of this process, where the system tells (Linux): a container may have fewer than the machine.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def smallest_unsigned(num_values: int) -> np.dtype:
    """The smallest unsigned integer type that holds `0 .. num_values - 1`.

    ```python
    >>> smallest_unsigned(256), smallest_unsigned(257)
    (dtype('uint8'), dtype('uint16'))

    ```
    """
    return np.min_scalar_type(max(num_values - 1, 0))


def _fill_alias_row(weights: np.ndarray, bits: int, threshold: np.ndarray, alias: np.ndarray) -> None:
    columns = 1 << bits
    # A column holds 2^32 units and there are `columns` of them, so weights are scaled by `columns`: exact integers.
    scaled = [int(w) << bits for w in weights] + [0] * (columns - len(weights))
    small = [c for c in range(columns) if scaled[c] < _ONE]
    large = [c for c in range(columns) if scaled[c] >= _ONE]
    alias[:] = np.arange(columns, dtype=np.uint32)
    while small:
        low = small.pop()
        high = large[-1]
        threshold[low] = scaled[low]
        alias[low] = high
        scaled[high] -= _ONE - scaled[low]
        if scaled[high] < _ONE:
            small.append(large.pop())
    # The total is exact, so `large` never runs dry first. What remains in it is exactly full: threshold 0 and
    # itself as alias, the same category always.


def philox(counter: UInt[np.ndarray, "M 4"], key: UInt[np.ndarray, "M 2"]) -> UInt[np.ndarray, "M 4"]:
    """Philox4x32-10 of many 128-bit counters under 64-bit keys, as 32-bit words, lowest first."""
    words = [np.asarray(counter, dtype=np.uint64)[:, column] for column in range(4)]
    keys = [np.asarray(key, dtype=np.uint64)[:, column] for column in range(2)]
    with np.errstate(over="ignore"):
        result = philox_block.py_func(*words, *keys)
    return np.stack(result, axis=1).astype(np.uint32)
