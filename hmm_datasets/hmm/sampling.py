"""Sequences as a pure function of `(tables, seed, index)`, on every machine and in any order.

Random numbers come from Philox4x32-10, a counter-based generator (Salmon, Moraes, Dror and Shaw, "Parallel random
numbers: as easy as 1, 2, 3", SC 2011, table 2), which passes BigCrush in all the ways of keying and counting tried
there. The key is the seed; the counter of token `t` of sequence `i` is `(i, t, stream)`. Under one key the generator
is a bijection of counters, so no two tokens share a block, sequences never overlap, and the random bits of any token
are computed without those before it. One block of 128 bits serves one token: 64 bits for the symbol, 64 for the next
state.

Categories are drawn from alias tables of integers (Walker 1977; construction of Vose 1991). Probabilities are rounded
to multiples of 2^-32 so that each row sums to exactly one, and no rounding mode or vector unit can change a draw. A
probability of zero stays zero. One token costs one Philox block and two table look-ups, whatever the number of states.
A row of `n` categories takes 8 bytes times the next power of two, and twice that after the first draw.

Part `k` of a process that is made of others draws its sequences with a seed of its own: the first 64 bits of the
Philox block with the seed of the whole as key and the counter `(k, 0, 0, DERIVED_SEEDS)`. So sequence `i` of the part
still depends on the seed and `i` alone, and parts that are themselves made of others may be nested. Two different keys
give independent streams as far as any test of Philox shows. Only by chance, with probability `2^-64`, does a derived
seed equal another one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt

from ..errors import InputError
from ..runtime.environment import usable_cores
from .integers import integer
from .kernels.draws import draw_sequences, fill_alias_rows, fill_blocks, share_rest
from .kernels.structured import DERIVED_SEEDS
from .kernels.threads import in_parallel

_ALL_ROWS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class AliasTable:
    """Alias tables of `R` categorical distributions over `n` categories, padded to `2**bits` columns.

    Attributes:
        threshold (`np.ndarray` of shape `(R, 2**bits)`, uint32): a column keeps its own category when the low 32 bits
            of the draw lie below it.
        alias (`np.ndarray` of shape `(R, 2**bits)`, uint32): the category taken otherwise.
        bits (`int`): number of high bits of the draw that choose the column.
    """

    threshold: UInt[np.ndarray, "R C"]
    alias: UInt[np.ndarray, "R C"]
    bits: int

    @classmethod
    def from_probabilities(cls, probabilities: Float[np.ndarray, "R n"]) -> "AliasTable":
        """Build the tables of the rows of `probabilities`, each a distribution."""
        weights = integer_weights(probabilities).astype(np.int64)
        bits = max(int(weights.shape[1] - 1).bit_length(), 0)
        threshold = np.empty((weights.shape[0], 1 << bits), dtype=np.uint32)
        alias = np.empty((weights.shape[0], 1 << bits), dtype=np.uint32)
        fill_alias_rows(weights, bits, threshold, alias)
        return cls(threshold, alias, bits)

    @property
    def flat(self) -> tuple[UInt[np.ndarray, "M"], np.uint64]:
        """`entries` in one row, and `bits`, as the kernels take them."""
        return self.entries.reshape(-1), np.uint64(self.bits)

    @cached_property
    def entries(self) -> UInt[np.ndarray, "R C"]:
        """`alias` in the high half and `threshold` in the low half of a uint64, so that a draw needs one load."""
        return self.alias.astype(np.uint64) << np.uint64(32) | self.threshold


def integer_weights(probabilities: Float[np.ndarray, "R n"]) -> UInt[np.ndarray, "R n"]:
    """Scale each row to integers that sum to 2^32: round down, then share the rest among the positive entries.

    Every operation is exact in float64 or in integers, so the result is the same on every machine. A probability
    changes by less than `(n + 1) 2^-32`, and zero stays zero.
    """
    weights = np.floor(np.asarray(probabilities, dtype=np.float64) * 2.0**32).astype(np.int64)
    share_rest(weights, np.argsort(-weights, axis=1, kind="stable"))
    return weights.astype(np.uint64)


def draw_tokens(
    start: AliasTable,
    symbol: AliasTable,
    transition: AliasTable | None,
    num_symbols: int,
    seed: np.uint64,
    first: np.uint64,
    step: np.uint64,
    out: UInt[np.ndarray, "N L"],
    states: UInt[np.ndarray, "N L"] | None = None,
    *,
    group: int | None = None,
    rows: Int[np.ndarray, "M"] | None = None,
) -> None:
    """Fill `out` with sequences `first`, `first + step`, ... of the HMM whose tables these are, in one thread.

    Args:
        start ([`AliasTable`]): one distribution over the `H` states.
        symbol ([`AliasTable`]): `H` distributions over the `E` symbols; or, with `transition=None`, over the `H * E`
            pairs `next_state * E + symbol` of an edge-emitting HMM.
        transition ([`AliasTable`], *optional*): `H` distributions over the next state.
        num_symbols (`int`): `E`.
        seed (`np.uint64`): the key.
        first, step (`np.uint64`): index of the first sequence, and difference to the next; taken modulo `2**64`.
        out (`np.ndarray` of shape `(N, L)`): uint8, uint16 or uint32, written in place.
        states (`np.ndarray` of shape `(N, L)`, *optional*): gets the state that emits each symbol.
        group (`int`, *optional*): shuffle the rows of `symbol` among the states, with another permutation for every
            `group` sequences (see [`~hmm_datasets.hmm.families.PermutedEmissions`]).
        rows (`np.ndarray` of shape `(M,)`, *optional*): fill only these rows.
    """
    moves = (None, None) if transition is None else transition.flat
    numbers = np.uint64(num_symbols), None if group is None else np.uint64(group), seed, first, step
    shape = len(out) if rows is None else len(rows), np.uint64(out.shape[1])
    is_indexed_forwards = all(stride >= 0 and stride % out.itemsize == 0 for stride in out.strides)
    entries = out if out.flags.c_contiguous or is_indexed_forwards else out.copy()
    if 0 not in shape:
        rows = _ALL_ROWS if rows is None else rows
        draw_sequences(*start.flat, *symbol.flat, *moves, *numbers, rows, *shape, *_in_one_dimension(entries), states)
    if entries is not out:
        out[...] = entries


def _in_one_dimension(array: UInt[np.ndarray, "N L"]) -> tuple[UInt[np.ndarray, "M"], np.uint64, np.uint64]:
    """The memory from the first entry to the last, and by how many entries the next row and the next column follow."""
    if array.flags.c_contiguous:
        return array.reshape(-1), np.uint64(array.shape[1]), np.uint64(1)
    row_step, column_step = (step // array.itemsize for step in array.strides)
    size = (len(array) - 1) * row_step + (array.shape[1] - 1) * column_step + 1
    flat = np.lib.stride_tricks.as_strided(array, (size,), (array.itemsize,))
    return flat, np.uint64(row_step), np.uint64(column_step)


def fill_in_parallel(
    fill: Callable[[int, slice], None], first: int, step: int, out: np.ndarray, num_threads: int | None = None
) -> None:
    """Call `fill(index of the first row, rows)` for parts of `out`, each in its own thread.

    Args:
        fill (`Callable`): writes these rows in place; kernels that release the GIL run in parallel.
        first, step (`int`): index of row 0, and difference to the next row; taken modulo `2**64`.
        out (`np.ndarray` of shape `(N, L)`): the array whose rows are filled.
        num_threads (`int`, *optional*): defaults to the number of usable cores when there is work for them.
    """
    if num_threads is not None:
        num_threads = integer("num_threads", num_threads, 1, 31)
    else:
        num_threads = usable_cores() if out.size > 1 << 18 else 1
    num_threads = min(num_threads, len(out))
    if num_threads <= 1:  # at once, since a row may take less time than what follows
        return fill(first, slice(None))
    bounds = [len(out) * part // num_threads for part in range(num_threads + 1)]

    def run(part: int) -> None:
        fill((first + step * bounds[part]) % (1 << 64), slice(bounds[part], bounds[part + 1]))

    in_parallel(run, range(num_threads), num_threads)


def checked_draw(
    num_symbols: int,
    num_sequences: Any,
    length: Any,
    seed: Any,
    first: Any,
    step: Any = 1,
    out: UInt[Any, "N L"] | None = None,
) -> tuple[int, int, int, UInt[Any, "N L"]]:
    """Check the arguments of `sample`; return `seed`, `first` and `step` as Python integers, and `out`.

    Raises:
        `InputError`: an argument is out of range, or `out` has another type, shape or device.
    """
    num_sequences, length = integer("num_sequences", num_sequences, 0, 63), integer("length", length, 0, 32)
    seed, first, step = checked_indices(seed, first, step)
    dtype = smallest_unsigned(num_symbols)
    if out is None:
        out = np.empty((num_sequences, length), dtype=dtype)
        return seed, first, step, out
    kind = str(out.dtype).removeprefix("torch.")
    wide = kind in ("uint8", "uint16", "uint32", "uint64") and np.dtype(kind).itemsize >= dtype.itemsize
    if tuple(out.shape) != (num_sequences, length) or not wide:
        raise InputError(
            f"out is {out.dtype} of shape {tuple(out.shape)}; expected unsigned, at least {dtype}, "
            f"of shape {(num_sequences, length)}"
        )
    if not isinstance(out, np.ndarray) and out.device.type not in ("cpu", "cuda"):
        raise InputError(f"out is on {out.device}; expected the CPU or a CUDA device")
    return seed, first, step, out


def checked_indices(seed: Any, first: Any, step: Any) -> tuple[int, int, int]:
    """The arguments that say which sequences are meant, as Python integers: sums of NumPy's overflow beyond 2**63."""
    return integer("seed", seed, 0, 64), integer("first", first, 0, 64), integer("step", step, 1, 64)


def smallest_unsigned(num_values: int) -> np.dtype:
    """The smallest unsigned integer type that can store `0 .. num_values - 1`.

    ```python
    >>> smallest_unsigned(256), smallest_unsigned(257)
    (dtype('uint8'), dtype('uint16'))

    ```
    """
    return np.min_scalar_type(max(num_values - 1, 0))


def philox(counter: UInt[np.ndarray, "M 4"], key: UInt[np.ndarray, "M 2"]) -> UInt[np.ndarray, "M 4"]:
    """Philox4x32-10 of many 128-bit counters under 64-bit keys, as 32-bit words, lowest first."""
    counter, key = np.asarray(counter, dtype=np.uint64), np.asarray(key, dtype=np.uint64)
    out = np.empty(counter.shape, dtype=np.uint32)
    fill_blocks(counter, key, out)
    return out


def random_words(
    stream: np.uint64, numbers: UInt[np.ndarray, "N"], seed: np.uint64, draws: Int[np.ndarray, "N"] | int = 0
) -> UInt[np.ndarray, "N 4"]:
    """For one purpose a block of each number (of a group or of a sequence): four words of 32 bits.

    Args:
        stream (`np.uint64`): Philox stream of this purpose.
        numbers (`np.ndarray` of shape `(N,)`): which groups or sequences.
        seed (`np.uint64`): the key.
        draws (`np.ndarray` of shape `(N,)` or `int`, *optional*, defaults to 0): which block of each number.
    """
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    counter = np.empty((len(numbers), 4), dtype=np.uint64)
    counter[:, 0], counter[:, 1], counter[:, 2], counter[:, 3] = numbers & mask, numbers >> shift, draws, stream
    key = np.empty((len(numbers), 2), dtype=np.uint64)
    key[:] = seed & mask, seed >> shift
    return philox(counter, key)


def derived_seed(seed: int, part: int) -> int:
    """The seed with which part `part` draws, in `[0, 2**64)`.

    ```python
    >>> derived_seed(0, 0) != derived_seed(0, 1)
    True

    ```
    """
    low, high, _, _ = random_words(DERIVED_SEEDS, np.array([part], np.uint64), np.uint64(seed))[0].tolist()
    return high << 32 | low


def components_of(
    bounds: Int[np.ndarray, "C"], stream: np.uint64, seed: int, first: int, step: int, count: int, group: int = 1
) -> Int[np.ndarray, "N"]:
    """The component of each of `count` sequences `first`, `first + step`, ..., modulo `2**64`.

    Args:
        bounds (`np.ndarray` of shape `(C,)`): running sums of the integer weights of the components, the last `2^32`.
        stream (`np.uint64`): Philox stream of this choice.
        seed, first, step, count (`int`): which sequences.
        group (`int`, *optional*, defaults to 1): number of consecutive sequences of one component.
    """
    with np.errstate(over="ignore"):
        indices = np.uint64(first) + np.uint64(step) * np.arange(count, dtype=np.uint64)
    if group > 1:
        indices //= np.uint64(group)
    return np.searchsorted(bounds, random_words(stream, indices, np.uint64(seed))[:, 0], side="right")
