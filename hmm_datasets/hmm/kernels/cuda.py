"""The sampler of `hmm_datasets.hmm.sampling` on a CUDA device, as a Triton kernel with identical results.

A lane draws one sequence, token after token. Philox is that of Triton, with the same ten rounds. Everything else is
integer arithmetic and look-ups, so that no device rounds differently. The alias tables are in device memory; those of
some hundred states fit the second-level cache (8 bytes per category, padded to a power of two). A token costs one
Philox block, four gathers and one store.

Triton comes with the CUDA builds of torch. With `TRITON_INTERPRET=1` in the environment before the first import, the
same kernel runs on the CPU at about a thousand tokens per second. The tests use this where there is no GPU.
"""

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from jaxtyping import UInt
from torch import Tensor

from ...errors import InputError
from .draws import START as _START

if TYPE_CHECKING:
    from ..sampling import AliasTable

START = tl.constexpr(int(_START))
_LANES = 128

DeviceTable = tuple[Tensor, Tensor, int]
"""An alias table on a device: `threshold` and `alias`, both uint32 of shape `(R, 2**bits)`, and `bits`."""


def device_table(table: "AliasTable", device: torch.device) -> DeviceTable:
    """Copy an [`~hmm_datasets.hmm.sampling.AliasTable`] to a device."""
    return torch.from_numpy(table.threshold).to(device), torch.from_numpy(table.alias).to(device), table.bits


def sample_tokens(
    start: DeviceTable,
    symbol: DeviceTable,
    transition: DeviceTable | None,
    num_symbols: int,
    seed: int,
    first: int,
    step: int,
    out: UInt[Tensor, "N L"],
) -> None:
    """The same as `draw_tokens` of `sampling`, but into a contiguous tensor on the device of the tables."""
    if not out.is_contiguous():
        raise InputError(f"out has strides {out.stride()}; expected a contiguous tensor on a CUDA device")
    num_sequences, length = out.shape
    if out.numel() == 0:
        return
    # Triton launches on the current device, which need not be that of its tensors.
    with torch.cuda.device_of(out):
        _draw_sequences[(triton.cdiv(num_sequences, _LANES),)](
            *(*start, *symbol, *(transition or symbol)),
            *(num_symbols, seed, first, step, out, num_sequences, length),
            on_edges=transition is None,
            lanes=_LANES,
        )


@triton.jit
def _pick(threshold, alias, row, bits, high, low):
    # A row of one column (bits = 0) would shift 32 bits out of 32, which the hardware leaves undefined.
    column = (high.to(tl.uint64) >> (32 - bits).to(tl.uint64)).to(tl.int64)
    index = (row << bits) + column
    return tl.where(low < tl.load(threshold + index), column, tl.load(alias + index).to(tl.int64))


@triton.jit(do_not_specialize=["s_bits", "e_bits", "t_bits", "num_symbols", "seed", "first", "step", "length"])
def _draw_sequences(
    s_thr,
    s_alias,
    s_bits,
    e_thr,
    e_alias,
    e_bits,
    t_thr,
    t_alias,
    t_bits,
    num_symbols,
    seed,
    first,
    step,
    out,
    num_sequences,
    length,
    on_edges: tl.constexpr,
    lanes: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    exists = n < num_sequences
    index = first.to(tl.uint64) + step.to(tl.uint64) * n.to(tl.uint64)
    i0 = index.to(tl.uint32)
    i1 = (index >> 32).to(tl.uint32)
    zero = tl.zeros([lanes], tl.uint32)  # also the value of TOKENS_STREAM
    w0, w1, w2, w3 = tl.philox(seed, i0, i1, zero + START, zero, 10)
    state = _pick(s_thr, s_alias, tl.zeros([lanes], tl.int64), s_bits, w0, w1)
    target = out + n * length
    position = zero
    for t in range(length):
        w0, w1, w2, w3 = tl.philox(seed, i0, i1, position, zero, 10)
        position += 1
        drawn = _pick(e_thr, e_alias, state, e_bits, w0, w1)
        if on_edges:
            tl.store(target + t, (drawn % num_symbols).to(out.dtype.element_ty), mask=exists)
            state = drawn // num_symbols
        else:
            tl.store(target + t, drawn.to(out.dtype.element_ty), mask=exists)
            state = _pick(t_thr, t_alias, state, t_bits, w2, w3)
