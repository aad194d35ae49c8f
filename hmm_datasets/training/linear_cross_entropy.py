"""Cross-entropy of an output layer without its logits: they exist for a few rows at a time, never for all.

For hidden states `h` (D,), a weight `W` (V, D) and a label `y`, with logits `W h` and the log of their normalizer,
`log Z = log sum exp(W h)`,

    loss = log Z - (W h)[y]        d(loss + c (log Z)^2) / d(W h) = (1 + 2 c log Z) softmax(W h) - onehot(y)

The logits of a chunk of rows are overwritten by this gradient as soon as they are known, and two more products give
the chunk's share of the gradients of `h` and `W`; the backward pass only scales these. So there are three products, as
with all logits, where computing the logits anew in the backward pass takes four (Hsu et al., "Liger Kernel", 2024,
section 3.2). The z-loss, `c (log Z)^2`, costs nothing.

Products are in the type of autocast, or else in that of the hidden states. Everything else is in float32, also the sum
of the gradient of `W` over chunks, which in bfloat16 would bias training. Beyond the inputs and their gradients memory
is that of one chunk, for any `V`.
"""

import functools
import logging
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from ..compat.torch import add_product
from ..errors import first_line
from ..runtime import environment

_logger = logging.getLogger(__name__)
CHUNK_BYTES = 64 * 2**20
"""Float32 logits of a chunk on a CPU: 333 rows of a vocabulary of 50,257; 128 to 1,024 rows take the same time."""

GPU_CHUNK_BYTES = 2**30
"""That on a GPU whose chunks are scored by [`~hmm_datasets.training.loss_kernel`], which keeps them in the type of the
product, so half of this in bfloat16. An H200 takes 1.8 times as long with chunks of 64 MiB, and no less with 4 GiB."""


class TokenScores(NamedTuple):
    """What is known about `N` labels, without gradients.

    Attributes:
        losses (`torch.Tensor` of shape `(N,)`): -log P of each label in nats.
        log_normalizers (`torch.Tensor` of shape `(N,)`): the log of the sum of the exponentials of the logits.
        likeliest (`torch.Tensor` of shape `(N,)`, *optional*): whether no other token has a larger logit, or has the
            same and comes first.
    """

    losses: Float[Tensor, "N"]
    log_normalizers: Float[Tensor, "N"]
    likeliest: Bool[Tensor, "N"] | None = None


def summed_loss(
    hidden: Float[Tensor, "M D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, "V"] | None,
    labels: Int[Tensor, "N"],
    rows: Int[Tensor, "N"] | None = None,
    *,
    z_loss: float = 0.0,
    multiple: int = 1,
    as_on_gpu: bool = False,
) -> tuple[Float[Tensor, ""], TokenScores]:
    """The sum over labels of cross-entropy and z-loss, and the scores of the labels.

    The sum can be differentiated once. Unless gradients are off, they are computed at once.

    Args:
        hidden (`torch.Tensor` of shape `(M, D)`): inputs of the output layer.
        weight (`torch.Tensor` of shape `(V, D)`), bias (`torch.Tensor` of shape `(V,)`, *optional*): its parameters.
        labels (`torch.Tensor` of shape `(N,)`): tokens, from 0 to `V - 1`.
        rows (`torch.Tensor` of shape `(N,)`, *optional*): for each label the row of `hidden` that predicts it, in
            which no row is twice; the other rows cost nothing. By default the label is that of the row, and `N = M`.
        z_loss (`float`, *optional*, defaults to 0): `c`.
        multiple (`int`, *optional*, defaults to 1): products are computed with `V` rounded up to a multiple of this.
        as_on_gpu (`bool`, *optional*, defaults to `False`): take the memory that a GPU would take, whatever the
            device, for tensors without data; nothing is scored.

    ```python
    >>> total, scores = summed_loss(torch.zeros(3, 2), torch.zeros(4, 2), None, torch.tensor([1, 2, 3]))
    >>> total.exp(), scores.losses.exp()
    (tensor(64.), tensor([4., 4., 4.]))

    ```
    """
    if torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (hidden, weight, bias)
    ):
        total, *scores = _SummedLoss.apply(hidden, weight, bias, labels, rows, z_loss, multiple, as_on_gpu)
        return total, TokenScores(*scores)
    scores = _scores(hidden, weight, bias, labels, rows, torch.float32, multiple)
    return _total(scores, z_loss), scores


def scored_labels(
    hidden: Float[Tensor, "M D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, "V"] | None,
    labels: Int[Tensor, "N"],
    rows: Int[Tensor, "N"] | None = None,
) -> TokenScores:
    """The scores of the labels in float64, for evaluations; the arguments are those of [`summed_loss`]."""
    return _scores(hidden, weight, bias, labels, rows, torch.float64)


def _total(scores: TokenScores, z_loss: float) -> Tensor:
    total = scores.losses.sum()
    return total + z_loss * scores.log_normalizers.square().sum() if z_loss else total


class _SummedLoss(torch.autograd.Function):
    """[`summed_loss`] with gradients; returns the sum, and the first two fields of [`TokenScores`]."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, labels, rows, z_loss, multiple, as_on_gpu):
        vocab_size, device = len(weight), hidden.device
        gradients = _Gradients.zeros(hidden, weight, bias, ctx.needs_input_grad, multiple)
        losses, log_normalizers = torch.empty(2, len(labels), device=device)
        padded, kernel = _of_products(weight, hidden, multiple), _kernel(device, as_on_gpu)
        score, precision = (kernel, padded.dtype) if kernel else (_losses_and_gradients, torch.float32)
        size = (GPU_CHUNK_BYTES if kernel else CHUNK_BYTES) // (4 * vocab_size)
        for chunk, of_chunk, inputs, logits in _logits(hidden, padded, rows, len(labels), size, precision):
            score(logits, vocab_size, bias, labels[chunk], z_loss, losses[chunk], log_normalizers[chunk])
            with torch.autocast(device.type, enabled=False):
                gradients.add(logits, inputs, padded, of_chunk, as_on_gpu)
        scores = TokenScores(losses, log_normalizers)
        ctx.gradients = gradients.cut(vocab_size)
        ctx.types = [None if tensor is None else tensor.dtype for tensor in (hidden, weight, bias)]
        ctx.mark_non_differentiable(scores.losses, scores.log_normalizers)
        return _total(scores, z_loss), scores.losses, scores.log_normalizers

    @staticmethod
    def backward(ctx, gradient, *_):
        # Given away, so that autograd may keep the tensors as gradients of the parameters without a copy.
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("the gradients of summed_loss were used already; call it again")
        scaled = [
            None if part is None else part.mul_(gradient).to(kind)
            for part, kind in zip(gradients, ctx.types, strict=True)
        ]
        return *scaled, None, None, None, None, None


class _Gradients(NamedTuple):
    """Gradients of the sum in float32, to which chunks add theirs; None where none is needed."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    @classmethod
    def zeros(
        cls, hidden: Tensor, weight: Tensor, bias: Tensor | None, needed: tuple[bool, ...], multiple: int
    ) -> "_Gradients":
        """Zeros, also in the rows by which the weight is padded."""
        size, width = weight.shape
        shapes = (hidden.shape, (size + -size % multiple, width), (size,))
        buffers = zip(shapes, needed, strict=False)
        return cls(*(torch.zeros(shape, device=hidden.device) if is_needed else None for shape, is_needed in buffers))

    def cut(self, size: int) -> "_Gradients":
        """Without the rows by which the weight is padded."""
        return self._replace(weight=None if self.weight is None else self.weight[:size])

    def add(self, of_logits: Tensor, hidden: Tensor, weight: Tensor, rows: Tensor | slice, as_on_gpu: bool) -> None:
        """Add the share of a chunk, given the gradient of its logits, with zeros where `V` is padded."""
        low = of_logits.to(weight.dtype)
        if self.hidden is not None:
            self.hidden[rows] = (low @ weight).float()
        if self.weight is not None and not as_on_gpu:  # a GPU adds in place
            add_product(self.weight, (low if low.is_cuda else of_logits).T, hidden)
        if self.bias is not None:
            self.bias.add_(of_logits[:, : len(self.bias)].sum(0, dtype=torch.float32))


@torch.no_grad()
def _scores(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    rows: Tensor | None,
    precision: torch.dtype,
    multiple: int = 1,
) -> TokenScores:
    """Score the labels in `precision`, without gradients."""
    vocab_size, padded = len(weight), _of_products(weight, hidden, multiple)
    losses, log_normalizers = torch.empty(2, len(labels), dtype=precision, device=hidden.device)
    likeliest = torch.empty(len(labels), dtype=torch.bool, device=hidden.device)
    size = CHUNK_BYTES // (4 * vocab_size)
    for chunk, _, _, logits in _logits(hidden, padded, rows, len(labels), size, precision):
        logits = logits[:, :vocab_size]
        if bias is not None:
            logits += bias
        likeliest[chunk] = logits.argmax(1) == labels[chunk]
        losses[chunk], log_normalizers[chunk], _ = _cross_entropies(logits, labels[chunk])
    return TokenScores(losses, log_normalizers, likeliest)


def _of_products(weight: Tensor, hidden: Tensor, multiple: int = 1) -> Tensor:
    """The weight in the type of products with the hidden states, with `V` rounded up to a multiple."""
    device, padding = hidden.device.type, -len(weight) % multiple
    weight = weight.to(torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype)
    return functional.pad(weight, (0, 0, 0, padding)) if padding else weight


def _logits(
    hidden: Tensor, weight: Tensor, rows: Tensor | None, count: int, size: int, precision: torch.dtype
) -> Iterator[tuple[slice, Tensor | slice, Tensor, Tensor]]:
    """Slices of `size` labels, the rows that predict them, their inputs, and their logits without a bias, which are
    valid until the next chunk."""
    size = min(count, max(1, size))
    # Written over by every chunk, since new memory of this size would cost a page fault for each of its pages.
    product = torch.empty(size, len(weight), dtype=weight.dtype, device=weight.device)
    buffer = product if weight.dtype == precision else torch.empty_like(product, dtype=precision)
    for first in range(0, count, max(1, size)):
        chunk = slice(first, min(first + size, count))
        of_chunk = chunk if rows is None else rows[chunk]
        inputs = hidden[of_chunk].to(weight.dtype)
        with torch.autocast(hidden.device.type, enabled=False):
            logits = torch.mm(inputs, weight.T, out=product[: len(inputs)])
        yield chunk, of_chunk, inputs, logits if buffer is product else buffer[: len(inputs)].copy_(logits)


def _cross_entropies(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Losses, log-normalizers, and the sums of the exponentials by which the logits are overwritten."""
    largest = logits.amax(1, keepdim=True)
    of_target = logits.sub_(largest).gather(1, targets.unsqueeze(1))
    sums = logits.exp_().sum(1, keepdim=True)
    log_sums = sums.log()
    return (log_sums - of_target).squeeze(1), (log_sums + largest).squeeze(1), sums


def _losses_and_gradients(
    logits: Tensor, size: int, bias: Tensor | None, targets: Tensor, z_loss: float, losses: Tensor, normalizers: Tensor
) -> None:
    """By torch what [`~hmm_datasets.training.loss_kernel.losses_and_gradients`] does."""
    logits = logits[:, :size]
    if bias is not None:
        logits += bias
    losses[:], normalizers[:], sums = _cross_entropies(logits, targets)
    logits.mul_((1 + 2 * z_loss * normalizers.unsqueeze(1)) / sums)
    logits.scatter_add_(1, targets.unsqueeze(1), -torch.ones_like(sums))


def _kernel(device: torch.device, as_on_gpu: bool) -> Callable[..., object] | None:
    """What scores the rows of a chunk on this device, if it is a GPU on which Triton works."""
    if as_on_gpu:
        return _scores_nothing
    return _tried_kernel(device) if device.type == "cuda" else None


@functools.cache
def _tried_kernel(device: torch.device) -> Callable[..., object] | None:
    reason = "its loss is wrong"
    try:
        from .loss_kernel import losses_and_gradients

        logits, targets = torch.zeros(1, 16, device=device), torch.zeros(1, dtype=torch.int64, device=device)
        losses, log_normalizers = torch.empty(2, 1, device=device)
        losses_and_gradients(logits, 16, None, targets, 0.0, losses, log_normalizers)
        if abs(losses.item() - math.log(16)) < 1e-3:
            return losses_and_gradients
    except Exception as error:  # no Triton, no compiler of C for it, or a GPU that it does not know
        reason = f"{type(error).__name__}: {first_line(error)}"
    if environment.rank() == 0:
        _logger.warning(
            "Triton does not work here (%s): the loss takes about twice as long as with it; a compiler of C may be "
            "missing",
            reason,
        )
    return None


def _scores_nothing(*_: object) -> None:
    """In place of the kernel, for tensors without data."""
