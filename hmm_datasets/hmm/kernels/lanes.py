"""Vectors of lanes for numba: one lane for each of the sequences that a kernel processes together.

LLVM vectorizes a loop over lanes only where it can prove that nothing overlaps, and keeps no sums in registers across
an inner loop. Here a lane vector is a value of its own, an LLVM vector of 64 bytes: 16 lanes of float32, or 8 of
float64 or uint64. LLVM splits it into the registers that the processor has (one of AVX-512, two of AVX2, four of
NEON). `+ - * /` are defined for lanes of floats, `+ * ^ & >>` for those of uint64, also with a number on one side.

Arrays are one-dimensional, and indices unsigned, because numba checks whether signed ones are negative. Entry `i` of
lane `l` is at `i * lanes + l`. Sums may be fused with products (`contract`), so that results are bit-identical only on
processors of one kind.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from ...compilation import compiled

_BYTES = 64
_KINDS = {types.float32: ir.FloatType(), types.float64: ir.DoubleType(), types.uint64: ir.IntType(64)}


class Lanes(types.Type):
    """numba's type of a vector of 64 bytes of `dtype`: float32, float64 or uint64."""

    def __init__(self, dtype: Any):
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")

    @property
    def count(self) -> int:
        """Number of lanes."""
        return _BYTES * 8 // self.dtype.bitwidth


def _instruction(function: Callable) -> Any:
    # An intrinsic is called without its first parameter, which type checkers do not know.
    return intrinsic(function)


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, lanes):
        super().__init__(manager, lanes, ir.VectorType(_KINDS[lanes.dtype], lanes.count))


@_instruction
def lanes_of(context, array):
    """Number of lanes of vectors from `array`, as a constant."""

    def generate(context, builder, signature, arguments):
        return context.get_constant(types.uintp, Lanes(array.dtype).count)

    return types.uintp(array), generate


@_instruction
def load(context, array, index):
    """The lanes at `array[index:]`."""

    def generate(context, builder, signature, arguments):
        return builder.load(_address(context, builder, array, *arguments), align=array.dtype.bitwidth // 8)

    return Lanes(array.dtype)(array, types.uintp), generate


@_instruction
def store(context, array, index, lanes):
    """Write the lanes to `array[index:]`; floats are rounded down for an array of integers."""

    def generate(context, builder, signature, arguments):
        *place, vector = arguments
        if isinstance(array.dtype, types.Integer) and isinstance(lanes.dtype, types.Float):
            vector = builder.fptoui(vector, ir.VectorType(ir.IntType(array.dtype.bitwidth), lanes.count))
        address = _address(context, builder, array, *place, count=lanes.count)
        builder.store(vector, address, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.uintp, lanes), generate


@_instruction
def accumulate(context, array, index, lanes):
    """Add the lanes to `array[index:]`, of float64."""

    def generate(context, builder, signature, arguments):
        *place, vector = arguments
        if lanes.dtype != types.float64:
            vector = builder.fpext(vector, ir.VectorType(ir.DoubleType(), lanes.count))
        address = _address(context, builder, array, *place, count=lanes.count)
        total = builder.fadd(builder.load(address, align=8), vector)
        builder.store(total, address, align=8)
        return context.get_dummy_value()

    return types.void(array, types.uintp, lanes), generate


@_instruction
def gather(context, array, offset, index):
    """Lane `l` is `array[offset[l] + index]`."""

    def generate(context, builder, signature, arguments):
        base = builder.gep(_data(context, builder, array, arguments[0]), [arguments[2]])
        offsets = _data(context, builder, offset, arguments[1])
        vector = ir.Constant(context.get_value_type(Lanes(array.dtype)), ir.Undefined)
        for lane in range(Lanes(array.dtype).count):
            place = builder.load(_entry(builder, offsets, lane))
            entry = builder.load(builder.gep(base, [place]))
            vector = builder.insert_element(vector, entry, ir.Constant(ir.IntType(32), lane))
        return vector

    return Lanes(array.dtype)(array, offset, types.uintp), generate


@_instruction
def load_rows(context, array, offset, index, out, at):
    """Lane `l` of the vectors at `out[at:]`, as many as there are lanes, is `array[offset[l] + index:]` in order.

    It reads as many entries for each lane as there are lanes, so a table needs as many entries after its last.
    """
    return _rows_loader(array, offset, out, Lanes(array.dtype).count)


@_instruction
def load_fours(context, array, offset, index, out, at):
    """As [`load_rows`], for four vectors and entries alone."""
    return _rows_loader(array, offset, out, 4)


def _rows_loader(array, offset, out, width: int):
    lanes = Lanes(array.dtype)

    def generate(context, builder, signature, arguments):
        array_value, offset_value, index, out_value, at = arguments
        base = builder.gep(_data(context, builder, array, array_value), [index])
        offsets = _data(context, builder, offset, offset_value)
        rows = []
        for lane in range(lanes.count):
            place = builder.gep(base, [builder.load(_entry(builder, offsets, lane))])
            rows.append(_load_vector(builder, lanes, place, width))
        # Vector `k` begins as the rows of the lanes `k`, `k + width` and so on, one after the other.
        vectors = _transposed(builder, [_joined(builder, rows[k::width]) for k in range(width)])
        first = builder.gep(_data(context, builder, out, out_value), [at])
        for number, vector in enumerate(vectors):
            _store_vector(builder, lanes, vector, _entry(builder, first, number * lanes.count))
        return context.get_dummy_value()

    return types.void(array, offset, types.uintp, out, types.uintp), generate


@_instruction
def store_rows(context, array, at, out, offset, index, count):
    """The inverse of [`load_rows`], for the first `count` lanes: `out[offset[l] + index:]` is lane `l` of the vectors
    at `array[at:]` in order."""

    def generate(context, builder, signature, arguments):
        array_value, at, out_value, offset_value, index, count = arguments
        lanes = Lanes(array.dtype)
        first = builder.gep(_data(context, builder, array, array_value), [at])
        vectors = [
            _load_vector(builder, lanes, _entry(builder, first, number * lanes.count), lanes.count)
            for number in range(lanes.count)
        ]
        base = builder.gep(_data(context, builder, out, out_value), [index])
        offsets = _data(context, builder, offset, offset_value)
        for lane, row in enumerate(_transposed(builder, vectors)):
            with builder.if_then(builder.icmp_unsigned("<", ir.Constant(count.type, lane), count), likely=True):
                place = builder.gep(base, [builder.load(_entry(builder, offsets, lane))])
                _store_vector(builder, lanes, row, place)
        return context.get_dummy_value()

    return types.void(array, types.uintp, out, offset, types.uintp, types.uintp), generate


def _transposed(builder, vectors: list) -> list:
    # Exchange, for one bit of the lane's number after the other, the lanes that have it with the vectors that have it.
    vectors, lanes = list(vectors), range(vectors[0].type.count)
    distance = 1
    while distance < len(vectors):
        low = [len(lanes) + lane - distance if lane & distance else lane for lane in lanes]
        high = [len(lanes) + lane if lane & distance else lane + distance for lane in lanes]
        for number in range(len(vectors)):
            if not number & distance:
                pair = vectors[number], vectors[number + distance]
                vectors[number] = _shuffled(builder, *pair, low)
                vectors[number + distance] = _shuffled(builder, *pair, high)
        distance *= 2
    return vectors


def _joined(builder, vectors: list):
    while len(vectors) > 1:
        entries = list(range(2 * vectors[0].type.count))
        vectors = [_shuffled(builder, *pair, entries) for pair in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]


def _shuffled(builder, left, right, entries: list[int]):
    return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(ir.IntType(32), len(entries)), entries))


def _data(context, builder, array, value):
    return cgutils.create_struct_proxy(array)(context, builder, value=value).data


def _entry(builder, pointer, number: int):
    return builder.gep(pointer, [ir.Constant(ir.IntType(64), number)])


def _load_vector(builder, lanes: Lanes, place, width: int):
    kind = ir.VectorType(_KINDS[lanes.dtype], width).as_pointer()
    return builder.load(builder.bitcast(place, kind), align=lanes.dtype.bitwidth // 8)


def _store_vector(builder, lanes: Lanes, vector, place) -> None:
    builder.store(vector, builder.bitcast(place, vector.type.as_pointer()), align=lanes.dtype.bitwidth // 8)


@_instruction
def fill(context, array, value):
    """Every lane is `value`, in the type of `array`."""

    def generate(context, builder, signature, arguments):
        value = context.cast(builder, arguments[1], signature.args[1], array.dtype)
        return _splat(builder, value, Lanes(array.dtype).count)

    return Lanes(array.dtype)(array, value), generate


@_instruction
def where_larger(context, left, right, yes, no):
    """Lane by lane `yes` where `left > right`, else `no`."""

    def generate(context, builder, signature, arguments):
        left, right, yes, no = arguments
        return builder.select(builder.fcmp_ordered(">", left, right), yes, no)

    return yes(left, right, yes, no), generate


def _define(operation, instruction: str, kind: type) -> None:
    # `operation` of two vectors whose lanes are of this kind, or of a vector and a number.
    flags = ("contract",) if kind is types.Float else ()

    @_instruction
    def binary(context, left, right):
        lanes = left if isinstance(left, Lanes) else right

        def generate(context, builder, signature, arguments):
            operands = [
                value if isinstance(given, Lanes) else _splat(builder, value, lanes.count)
                for given, value in zip((left, right), arguments, strict=True)
            ]
            return getattr(builder, instruction)(*operands, flags=flags)

        return lanes(left, right), generate

    @overload(operation)
    def of_lanes(left, right):
        lanes = left if isinstance(left, Lanes) else right
        if isinstance(lanes, Lanes) and isinstance(lanes.dtype, kind) and {left, right} <= {lanes, lanes.dtype}:
            return lambda left, right: binary(left, right)
        return None


_define(operator.add, "fadd", types.Float)
_define(operator.sub, "fsub", types.Float)
_define(operator.mul, "fmul", types.Float)
_define(operator.truediv, "fdiv", types.Float)
_define(operator.add, "add", types.Integer)
_define(operator.mul, "mul", types.Integer)
_define(operator.xor, "xor", types.Integer)
_define(operator.and_, "and_", types.Integer)
_define(operator.rshift, "lshr", types.Integer)


def _address(context, builder, array, value, index, count: int | None = None):
    kind = ir.VectorType(context.get_data_type(array.dtype), count or Lanes(array.dtype).count)
    return builder.bitcast(builder.gep(_data(context, builder, array, value), [index]), kind.as_pointer())


def _splat(builder, value, count: int):
    vector = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
    first = builder.insert_element(vector, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, vector, ir.Constant(ir.VectorType(ir.IntType(32), count), [0] * count))


@compiled
def lower(values, begin, end, lowest, at):
    """Lower the vector at `at` of `lowest` to the entries above 0 of each lane, from `begin` to `end` of `values`.

    It stays in memory, where it costs the steps between nothing.
    """
    zero, low = fill(values, 0.0), load(lowest, at)
    for j in range(begin, end, lanes_of(values)):
        here = load(values, j)
        low = where_larger(here, zero, where_larger(low, here, here, low), low)
    store(lowest, at, low)


@compiled
def sum_of_logs(scale, lane, lanes, end):
    """The logarithm of the product of the first `end` probabilities of a lane, taken before it underflows.

    A product of four numbers of float32 does not underflow in float64.
    """
    total, product, t = 0.0, 1.0, np.uint64(0)
    together = np.uint64(4 if scale.itemsize == 4 else 1)
    while t < end:
        factor = np.float64(scale[t * lanes + lane])
        if t + together <= end:
            for further in range(np.uint64(1), together):
                factor *= np.float64(scale[(t + further) * lanes + lane])
            t += together
        else:
            t += np.uint64(1)
        following = product * factor
        if following < 1e-100:
            total += np.log(product)
            following = factor
        product = following
    return total + np.log(product)
