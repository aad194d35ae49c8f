"""Products of some rows with a table, which stays in the registers of a processor panel by panel.

A table is in panels: as many columns as there are lanes, row by row, zeros after the last column and the last row.
Four rows go through a product together, with a lane for each column, so that what is read of a table serves all of
them. Rows are in arrays of one dimension, and have a multiple of the number of lanes.
"""

import numpy as np
from jaxtyping import Float

from ...compilation import compiled
from .lanes import fill, lanes_of, load, store

FLUSH = 32
"""Steps whose moves are added in the type of the recursions, before they are added in float64."""


def packed(tables: Float[np.ndarray, "K N M"], dtype: type) -> Float[np.ndarray, "P"]:
    """Tables of blocks in panels."""
    wide = widened(tables, dtype, 2)
    return wide.reshape(*wide.shape[:2], -1, lanes_in(dtype)).transpose(0, 2, 1, 3).reshape(-1)


def unpacked(panels: Float[np.ndarray, "P"], shape: tuple[int, int, int], dtype: type) -> Float[np.ndarray, "K N M"]:
    """Tables of this shape from the panels that [`packed`] would make of them."""
    lanes = lanes_in(dtype)
    blocks, rows, columns = shape
    wide = panels.reshape(blocks, -1, rows + -rows % lanes, lanes).transpose(0, 2, 1, 3)
    return wide.reshape(blocks, wide.shape[1], -1)[:, :rows, :columns]


def widened(table: Float[np.ndarray, "..."], dtype: type, axes: int) -> Float[np.ndarray, "..."]:
    """The table with zeros after the entries of its last axes, up to multiples of the number of lanes."""
    wide = [(0, -size % lanes_in(dtype)) for size in table.shape[table.ndim - axes :]]
    return np.pad(table.astype(dtype), [(0, 0)] * (table.ndim - axes) + wide)


def lanes_in(dtype: type) -> int:
    """Number of lanes of this type."""
    return 64 // np.dtype(dtype).itemsize


@compiled
def times_panels(left, at, count, inner, step, table, begin, width, out):
    """`out[i] = left[i] @ table` for rows `i < count`, a multiple of four.

    Rows of `left` begin at `at`, one every `step` entries, and have `inner` of them; those of `out` have `width`. The
    table is in panels of `step` rows from `begin` on.
    """
    lanes = lanes_of(table)
    zero = fill(table, 0.0)
    for j in range(np.uint64(0), width, lanes):
        for i in range(np.uint64(0), count, np.uint64(4)):
            a, b, c, d = zero, zero, zero, zero
            p = at + i * step
            q, r, s = p + step, p + step + step, p + step + step + step
            entry = begin + j * step
            for n in range(inner):
                column = load(table, entry)
                entry += lanes
                a, b = a + left[p + n] * column, b + left[q + n] * column
                c, d = c + left[r + n] * column, d + left[s + n] * column
            to = i * width + j
            store(out, to, a)
            store(out, to + width, b)
            store(out, to + width + width, c)
            store(out, to + width + width + width, d)


@compiled
def add_outer(left, at, count, inner, step, right, width, table, begin):
    """`table += left.T @ right` of `count` rows.

    Those of `left` begin at `at`, one every `step` entries, and have `inner` of them, up to a multiple of four; those
    of `right` have `width`. The table is in panels of `step` rows from `begin` on.
    """
    lanes = lanes_of(table)
    one, two, three = lanes, lanes + lanes, lanes + lanes + lanes
    for j in range(np.uint64(0), width, lanes):
        for n in range(np.uint64(0), inner, np.uint64(4)):
            entry = begin + j * step + n * lanes
            a, b = load(table, entry), load(table, entry + one)
            c, d = load(table, entry + two), load(table, entry + three)
            for i in range(count):
                row = load(right, i * width + j)
                p = at + i * step + n
                a, b = a + left[p] * row, b + left[p + np.uint64(1)] * row
                c, d = c + left[p + np.uint64(2)] * row, d + left[p + np.uint64(3)] * row
            store(table, entry, a)
            store(table, entry + one, b)
            store(table, entry + two, c)
            store(table, entry + three, d)


@compiled
def take_over(counts, totals):
    """Add the counts to those in float64, and begin again."""
    for n in range(len(counts)):
        totals[n] += counts[n]
        counts[n] = 0
