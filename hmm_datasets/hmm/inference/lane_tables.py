"""The tables of an HMM as vectors of lanes read them, and products with them.

A table of `H` states is multiplied with a vector of each of the sequences processed together, one lane for each.
"""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from torch import Tensor

from ...compat.numba_lanes import compiled, fill, lanes_of, load, load_fours, load_rows, store

if TYPE_CHECKING:
    from .forward_backward import Parameters

PANEL = 6
"""Columns of a table that a product takes together, and by which what it writes may be too long."""


class Tables:
    """The tables of an HMM as the kernels read them.

    Args:
        hmm ([`~hmm_datasets.hmm.inference.forward_backward.Parameters`]): the tables.
        initial (`torch.Tensor` of shape `(B, H)`, *optional*): beliefs to start from instead of `start`.
    """

    def __init__(self, hmm: "Parameters", initial: Float[Tensor, "B H"] | None = None):
        self.initial = (hmm.start.unsqueeze(0) if initial is None else initial).contiguous().numpy(force=True)
        self.num_states = self.initial.shape[1]
        if hmm.edges is None:
            emission = padded(hmm.emission.T)
            self.emission, self.stride = emission.reshape(-1), np.uint64(emission.shape[1])  # of a symbol
            self.moves = panels(hmm.transition)
        else:
            self.emission, self.stride = None, np.uint64(self.num_states**2)
            self.moves = flat(hmm.edges)
            if self.num_states**2 < _num_lanes(hmm.edges):  # a block ends after the symbol
                self.moves = np.append(self.moves, np.zeros(_num_lanes(hmm.edges), self.moves.dtype))
        self._hmm = hmm

    @property
    def to_previous(self) -> np.ndarray:
        """The transitions with the previous state last; for an edge-emitting HMM the same entries serve both ways."""
        return panels(self._hmm.transition.T) if self._hmm.edges is None else self.moves


def flat(table: Tensor) -> np.ndarray:
    """The entries of a table in order, without a copy where they are in order already."""
    return np.ascontiguousarray(table.numpy(force=True)).reshape(-1)


def padded(table: Float[Tensor, "N M"], multiple: int | None = None) -> Float[np.ndarray, "N M"]:
    """The table with columns of zeros after the last one, up to a multiple: of the number of lanes, unless given."""
    values, multiple = table.numpy(force=True), multiple or _num_lanes(table)
    rows, columns = values.shape
    wide = np.zeros((rows, columns + -columns % multiple), values.dtype)
    wide[:, :columns] = values
    return wide


def panels(table: Float[Tensor, "N M"]) -> Float[np.ndarray, "M*N"]:
    """The entries in the order in which [`multiply`] reads them: columns six at a time, zeros after the last."""
    wide = padded(table, PANEL)
    return np.ascontiguousarray(wide.reshape(len(wide), -1, PANEL).transpose(1, 0, 2)).reshape(-1)


def _num_lanes(table: Tensor) -> int:
    return 64 // table.element_size()


@compiled
def take_emissions(emission, offset, states, out):
    # The entry of each lane's symbol in every state, from a table that is `padded` to the number of lanes.
    lanes = lanes_of(emission)
    for i in range(np.uint64(0), states, lanes):
        if states - i <= np.uint64(4):
            load_fours(emission, offset, i, out, i * lanes)
        else:
            load_rows(emission, offset, i, out, i * lanes)


@compiled
def multiply(lefts, states, table, out):
    """`out[j] = sum over i of lefts[i] * table[i, j]` in every lane, for a table in [`panels`].

    Six sums of 64 bytes fit the 16 registers of AVX2, and are enough to keep the units of AVX-512 busy. `out` has room
    for whole panels.
    """
    lanes = lanes_of(table)
    size = states * lanes
    zero = fill(table, 0.0)
    at, to = np.uint64(0), np.uint64(0)
    while at < np.uint64(len(table)):
        a, b, c, d, e, f = zero, zero, zero, zero, zero, zero
        for i in range(0, size, lanes):
            left = load(lefts, i)
            a, b = a + table[at] * left, b + table[at + np.uint64(1)] * left
            c, d = c + table[at + np.uint64(2)] * left, d + table[at + np.uint64(3)] * left
            e, f = e + table[at + np.uint64(4)] * left, f + table[at + np.uint64(5)] * left
            at += np.uint64(6)
        store(out, to, a)
        store(out, to + lanes, b)
        store(out, to + np.uint64(2) * lanes, c)
        store(out, to + np.uint64(3) * lanes, d)
        store(out, to + np.uint64(4) * lanes, e)
        store(out, to + np.uint64(5) * lanes, f)
        to += np.uint64(6) * lanes


@compiled
def multiply_edges(lefts, edges, offset, block, out):
    # As `multiply`, with a table `T^(x)` for each lane: `out[j] = sum over i of lefts[i] * T^(x)[i, j]`.
    lanes = lanes_of(edges)
    states = np.uint64(len(lefts)) // lanes
    zero = fill(edges, 0.0)
    for j in range(0, states * lanes, lanes):
        store(out, j, zero)
    i, j = np.uint64(0), np.uint64(0)
    for first in range(np.uint64(0), states * states, lanes):
        begin = min(first, states * states - min(lanes, states * states))  # the last block ends with the symbol
        load_rows(edges, offset, begin, block, np.uint64(0))
        for k in range(first - begin, min(lanes, states * states - begin)):
            store(out, j * lanes, load(out, j * lanes) + load(lefts, i * lanes) * load(block, k * lanes))
            j += np.uint64(1)
            if j == states:
                i, j = i + np.uint64(1), np.uint64(0)


@compiled
def multiply_edges_back(values, edges, offset, block, out):
    # `out[i] = sum over j of T^(x)[i, j] * values[j]`.
    lanes = lanes_of(edges)
    states = np.uint64(len(values)) // lanes
    zero = fill(edges, 0.0)
    total = zero
    i, j = np.uint64(0), np.uint64(0)
    for first in range(np.uint64(0), states * states, lanes):
        begin = min(first, states * states - min(lanes, states * states))  # the last block ends with the symbol
        load_rows(edges, offset, begin, block, np.uint64(0))
        for k in range(first - begin, min(lanes, states * states - begin)):
            total = total + load(values, j * lanes) * load(block, k * lanes)
            j += np.uint64(1)
            if j == states:
                store(out, i * lanes, total)
                total = zero
                i, j = i + np.uint64(1), np.uint64(0)
