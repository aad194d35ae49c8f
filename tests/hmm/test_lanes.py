import numba
import numpy as np
import pytest
import torch

from hmm_datasets.hmm.kernels.filter import multiply, panels
from hmm_datasets.hmm.kernels.lanes import (
    fill,
    gather,
    lanes_of,
    load,
    load_fours,
    load_rows,
    store,
    store_rows,
    where_larger,
)

floats = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@numba.njit
def combine(left, right, out):
    a, b = load(left, np.uint64(1)), load(right, np.uint64(0))
    store(out, np.uint64(0), left[0] * a + b / a - fill(left, 0.5))
    store(out, lanes_of(left), where_larger(a, b, a, b))


@pytest.mark.thorough
@floats
def test_lanes_compute_as_arrays_do(dtype):
    count = 64 // np.dtype(dtype).itemsize
    generator = np.random.default_rng(0)
    left, right = generator.random(count + 1).astype(dtype), generator.random(count).astype(dtype)
    out = np.zeros(2 * count, dtype)
    combine(left, right, out)
    expected = left[0] * left[1:] + right / left[1:] - 0.5
    np.testing.assert_allclose(out[:count], expected, rtol=1e-5 if dtype == np.float32 else 1e-14)
    np.testing.assert_array_equal(out[count:], np.maximum(left[1:], right))


@numba.njit
def take(table, offset, index, out, places):
    store(out, np.uint64(0), gather(table, offset, index))
    store(places, np.uint64(0), fill(table, 7.9))


@floats
def test_lanes_gather_and_are_stored_as_whole_numbers(dtype):
    count = 64 // np.dtype(dtype).itemsize
    table, offset = np.arange(100, dtype=dtype), np.arange(count, dtype=np.uint64)[::-1] * np.uint64(5)
    out, places = np.zeros(count, dtype), np.zeros(count, np.uint16)
    take(table, offset.copy(), np.uint64(3), out, places)
    np.testing.assert_array_equal(out, offset + 3)
    np.testing.assert_array_equal(places, 7)


@numba.njit
def turn(table, offset, vectors, out, fours):
    load_fours(table, offset, np.uint64(3), fours, np.uint64(1))
    load_rows(table, offset, np.uint64(3), vectors, np.uint64(1))
    store_rows(vectors, np.uint64(1), out, offset, np.uint64(2), np.uint64(lanes_of(table) - np.uint64(1)))


@pytest.mark.thorough
@floats
def test_blocks_of_rows_are_transposed_and_back(dtype):
    count = 64 // np.dtype(dtype).itemsize
    table, offset = np.arange(1000, dtype=dtype), np.random.default_rng(0).permutation(count).astype(np.uint64) * 33
    vectors, out = np.zeros(count**2 + 2, dtype), np.full(1000, -1, dtype)
    fours = np.zeros(4 * count + 2, dtype)
    turn(table, offset, vectors, out, fours)
    rows = offset[:, None] + np.arange(count, dtype=np.uint64)
    np.testing.assert_array_equal(vectors[1:-1].reshape(count, count).T, table[rows + np.uint64(3)])
    np.testing.assert_array_equal(fours[1:-1].reshape(4, count).T, table[rows + np.uint64(3)][:, :4])
    assert vectors[0] == vectors[-1] == fours[0] == fours[-1] == 0
    expected = np.full(1000, -1, dtype)
    rows = rows[:-1]  # the last lane is not stored
    expected[rows + np.uint64(2)] = table[rows + np.uint64(3)]
    np.testing.assert_array_equal(out, expected)


@numba.njit
def mix(values, out):
    store(
        out, np.uint64(0), ((load(values, np.uint64(0)) * np.uint64(3) + np.uint64(5)) ^ np.uint64(9)) >> np.uint64(2)
    )
    store(out, np.uint64(8), load(values, np.uint64(0)) & values[1])


@pytest.mark.thorough
def test_lanes_of_integers_wrap_as_unsigned_ones_do():
    values, out = np.random.default_rng(1).integers(0, 2**64, 8, np.uint64), np.zeros(16, np.uint64)
    mix(values, out)
    np.testing.assert_array_equal(out[:8], ((values * np.uint64(3) + np.uint64(5)) ^ np.uint64(9)) >> np.uint64(2))
    np.testing.assert_array_equal(out[8:], values & values[1])


@floats
def test_the_product_is_that_of_matrices_for_every_remainder_of_its_panels(dtype):
    lanes = 64 // np.dtype(dtype).itemsize
    for states, columns in [(number, number) for number in (*range(1, 14), 50)] + [(3, 20), (20, 3)]:
        generator = np.random.default_rng(states)
        lefts, table = (generator.random(shape).astype(dtype) for shape in ((states, lanes), (states, columns)))
        packed = panels(torch.from_numpy(table))
        out = np.empty((len(packed) // states, lanes), dtype)
        multiply(lefts.reshape(-1), np.uint64(states), packed, out.reshape(-1))
        np.testing.assert_allclose(
            out[:columns], table.T.astype(np.float64) @ lefts, rtol=states * np.finfo(dtype).eps
        )
