import numba
import numpy as np
import pytest

from hmm_datasets.compat.numba_lanes import fill, gather, lanes_of, load, store, where_larger
from hmm_datasets.hmm.inference.fused_filter import multiply

floats = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@numba.njit
def combine(left, right, out):
    a, b = load(left, np.uint64(1)), load(right, np.uint64(0))
    store(out, np.uint64(0), left[0] * a + b / a - fill(left, 0.5))
    store(out, lanes_of(left), where_larger(a, b, a, b))


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
def mix(values, out):
    store(
        out, np.uint64(0), ((load(values, np.uint64(0)) * np.uint64(3) + np.uint64(5)) ^ np.uint64(9)) >> np.uint64(2)
    )
    store(out, np.uint64(8), load(values, np.uint64(0)) & values[1])


def test_lanes_of_integers_wrap_as_unsigned_ones_do():
    values, out = np.random.default_rng(1).integers(0, 2**64, 8, np.uint64), np.zeros(16, np.uint64)
    mix(values, out)
    np.testing.assert_array_equal(out[:8], ((values * np.uint64(3) + np.uint64(5)) ^ np.uint64(9)) >> np.uint64(2))
    np.testing.assert_array_equal(out[8:], values & values[1])


@floats
def test_the_product_is_that_of_matrices_for_every_remainder_of_its_tiles(dtype):
    lanes = 64 // np.dtype(dtype).itemsize
    for states in (*range(1, 14), 50):
        generator = np.random.default_rng(states)
        lefts, table = (generator.random(shape).astype(dtype) for shape in ((states, lanes), (states, states)))
        table.setflags(write=False)
        out = np.empty((states, lanes), dtype)
        multiply(lefts.reshape(-1), table.reshape(-1).copy(), out.reshape(-1))
        np.testing.assert_allclose(out, table.T.astype(np.float64) @ lefts, rtol=states * np.finfo(dtype).eps)
