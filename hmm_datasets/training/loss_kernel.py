"""Cross-entropy and its gradient for rows of logits on a CUDA device, in one Triton kernel.

By torch alone the chunks of `hmm_datasets.training.linear_cross_entropy` take ten passes over float32 logits. Here a
row is read once from memory and written once, in the type of the product: its normalizer is summed as its largest
logit is found (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018), and the second reading
finds the row in the cache. Arithmetic is in float32.

Triton comes with the CUDA builds of torch. With `TRITON_INTERPRET=1` in the environment before the first import the
kernel runs on the CPU, for tests.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

_BLOCK = 2048


def losses_and_gradients(
    logits: Float[Tensor, "N P"],
    size: int,
    bias: Float[Tensor, "V"] | None,
    targets: Int[Tensor, "N"],
    z_loss: float,
    losses: Float[Tensor, "N"],
    log_normalizers: Float[Tensor, "N"],
) -> None:
    """Overwrite logits without their bias by the gradient of the sum of cross-entropy and z-loss.

    Args:
        logits (`torch.Tensor` of shape `(N, P)`): rows that follow each other in memory, with `P >= V`; columns from
            `V` on become zero.
        size (`int`): `V`.
        bias (`torch.Tensor` of shape `(V,)`, *optional*): added to the logits.
        targets (`torch.Tensor` of shape `(N,)`): the label of each row, from 0 to `V - 1`.
        z_loss (`float`): weight of the squared log-normalizer.
        losses (`torch.Tensor` of shape `(N,)`), log_normalizers (`torch.Tensor` of shape `(N,)`): float32, written.
    """
    # Triton launches on the current device, which need not be that of its tensors.
    with torch.cuda.device_of(logits):
        _score_rows[(len(logits),)](
            *(logits, logits if bias is None else bias, targets, losses, log_normalizers),
            *(logits.shape[1], size, z_loss),
            has_bias=bias is not None,
            block=_BLOCK,
            num_warps=4,
        )


@triton.jit
def _read(row, bias, columns, width, size, has_bias: tl.constexpr):
    # The mask is that of the padded width, a multiple of 16 for Triton to read 16 bytes at a time.
    values = tl.load(row + columns, mask=columns < width, other=0.0).to(tl.float32)
    if has_bias:
        values += tl.load(bias + columns, mask=columns < size, other=0.0).to(tl.float32)
    return tl.where(columns < size, values, float("-inf"))


@triton.jit(do_not_specialize=["size", "z_loss"])
def _score_rows(
    logits,
    bias,
    targets,
    losses,
    log_normalizers,
    width,
    size,
    z_loss,
    has_bias: tl.constexpr,
    block: tl.constexpr,
):
    number = tl.program_id(0).to(tl.int64)
    row = logits + number * width
    target = tl.load(targets + number)
    of_target = tl.load(row + target).to(tl.float32)
    if has_bias:
        of_target += tl.load(bias + target).to(tl.float32)
    offsets = tl.arange(0, block)
    # Each lane has a largest logit and a sum of its own, which are joined after the loop.
    largest = tl.full([block], float("-inf"), tl.float32)
    sums = tl.zeros([block], tl.float32)
    for first in range(0, width, block):
        values = _read(row, bias, first + offsets, width, size, has_bias)
        higher = tl.maximum(largest, values)
        # Lanes that have seen nothing yet: minus infinity from itself is NaN.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        sums = sums * tl.exp(largest - base) + tl.exp(values - base)
        largest = higher
    top = tl.max(largest, 0)
    log_sum = tl.log(tl.sum(sums * tl.exp(largest - top), 0))
    tl.store(losses + number, log_sum - (of_target - top))
    tl.store(log_normalizers + number, log_sum + top)
    scale = 1.0 + 2.0 * z_loss * (log_sum + top)
    for first in range(0, width, block):
        columns = first + offsets
        share = tl.exp(_read(row, bias, columns, width, size, has_bias) - top - log_sum)
        slope = scale * share - tl.where(columns == target, 1.0, 0.0)
        tl.store(row + columns, slope.to(logits.dtype.element_ty), mask=columns < width)
