"""An output layer that computes the losses of labels instead of logits, and the models that it is right for.

The loss is computed in the forward pass of the layer ([`~hmm_datasets.training.output_layer`]), so DDP, ZeRO
and FSDP2 gather its weight as that of any other layer. While it has labels the layer returns the sum of their losses,
where others return logits. The model passes this on to its loss function, which is replaced by one that divides the
sum by the number of labels. Without labels it is the layer that it replaces.

A model whose forward pass changes the logits (by a cap or a scale), or uses the weight elsewhere, would give something
else. Each kind of model is therefore tried once, on tensors without data: its loss function must be given the very
tensor that the layer returned.

Cross-entropy of an output layer without its logits: they exist for a few rows at a time, never for all.

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

The vocabulary of a model: new tokens, and an output layer padded to a multiple of 128 without a change of the loss.

The embeddings of new tokens are the mean of the others (Hewitt, "Initializing new word embeddings for pretrained
language models", 2021): with it a new token is at first as likely as an average one, so the model's distribution over
the other tokens hardly changes. With random rows it may be the most likely token everywhere.

Tensor cores need matrices whose sides are multiples of 8 or more, so with an odd vocabulary the largest product of a
small model does not use them; Shoeybi et al., "Megatron-LM", 2019, section 4.1, pad to 128 per GPU for this reason.
Here the parameters keep their `V` rows, so the saved model is an ordinary one and tied embeddings stay tied. Rows of
zeros are added to the weight only for the product, and the logits are cut back to `V`. This copies the weight in the
forward pass and the gradient of the logits in the backward pass, so on a CPU nothing is padded by default.
"""

import contextlib
import copy
import functools
import logging
import math
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.loss.loss_utils import ForCausalLMLoss

from ..compat.accelerate import has_hook
from ..compat.deepspeed import whole_parameters
from ..compat.torch import add_product, fake_tensors
from ..compat.transformers_models import set_config_attention
from ..data.windows import IGNORED
from ..errors import InputError, first_line
from ..runtime import environment
from .models import default_dtype

_logger = logging.getLogger(__name__)

CHUNKED_VOCABULARY = 4096
"""Vocabulary from which losses are computed in chunks unless the settings say otherwise. Measured on a CPU, this takes
0.8 of the time of all logits at 4,096 tokens, and the same at 1,000."""

CHUNK_BYTES = 64 * 2**20
"""Float32 logits of a chunk on a CPU: 333 rows of a vocabulary of 50,257; 128 to 1,024 rows take the same time."""

GPU_CHUNK_BYTES = 2**30
"""That on a GPU whose chunks are scored by [`~hmm_datasets.training.loss_kernel`], which keeps them in the type of the
product, so half of this in bfloat16. An H200 takes 1.8 times as long with chunks of 64 MiB, and no less with 4 GiB."""


_as_on_gpu = False
GPU_MULTIPLE = 128
_trials: dict[tuple[type, str], str | None] = {}


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

    ```python
    >>> total, scores = summed_loss(torch.zeros(3, 2), torch.zeros(4, 2), None, torch.tensor([1, 2, 3]))
    >>> total.exp(), scores.losses.exp()
    (tensor(64.), tensor([4., 4., 4.]))

    ```
    """
    if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in (hidden, weight, bias)):
        total, *scores = _SummedLoss.apply(hidden, weight, bias, labels, rows, z_loss, multiple)
        return total, TokenScores(*scores)
    scores = _chunked(hidden, weight, bias, labels, rows, multiple)
    return _total(scores, z_loss), scores


def scored_labels(
    hidden: Float[Tensor, "M D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, "V"] | None,
    labels: Int[Tensor, "N"],
    rows: Int[Tensor, "N"] | None = None,
) -> TokenScores:
    """The scores of the labels in float64, for evaluations; the arguments are those of [`summed_loss`]."""
    return _chunked(hidden, weight, bias, labels, rows, precision=torch.float64)


def _total(scores: TokenScores, z_loss: float) -> Tensor:
    total = scores.losses.sum()
    return total + z_loss * scores.log_normalizers.square().sum() if z_loss else total


class _SummedLoss(torch.autograd.Function):
    """[`summed_loss`] with gradients; returns the sum, and the first two fields of [`TokenScores`]."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, labels, rows, z_loss, multiple):
        gradients = _Gradients.zeros(hidden, weight, bias, ctx.needs_input_grad, multiple)
        scores = _chunked(hidden, weight, bias, labels, rows, multiple, torch.float32, z_loss, gradients)
        ctx.gradients = gradients.cut(len(weight))
        ctx.types = [None if one is None else one.dtype for one in (hidden, weight, bias)]
        ctx.mark_non_differentiable(scores.losses, scores.log_normalizers)
        return _total(scores, z_loss), scores.losses, scores.log_normalizers

    @staticmethod
    def backward(ctx, gradient, *_):
        # Given away, so that autograd may keep the tensors as gradients of the parameters without a copy.
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("the gradients of summed_loss were used already; call it again")
        scaled = [
            None if one is None else one.mul_(gradient).to(kind)
            for one, kind in zip(gradients, ctx.types, strict=True)
        ]
        return *scaled, None, None, None, None


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
        given = zip(shapes, needed, strict=False)
        return cls(*(torch.zeros(shape, device=hidden.device) if is_needed else None for shape, is_needed in given))

    def cut(self, size: int) -> "_Gradients":
        """Without the rows by which the weight is padded."""
        return self._replace(weight=None if self.weight is None else self.weight[:size])

    def add(self, of_logits: Tensor, hidden: Tensor, weight: Tensor, rows: Tensor | slice) -> None:
        """Add the share of a chunk, given the gradient of its logits, with zeros where `V` is padded."""
        low = of_logits.to(weight.dtype)
        if self.hidden is not None:
            self.hidden[rows] = (low @ weight).float()
        if self.weight is not None and not _as_on_gpu:  # a GPU adds in place
            add_product(self.weight, (low if low.is_cuda else of_logits).T, hidden)
        if self.bias is not None:
            self.bias.add_(of_logits[:, : len(self.bias)].sum(0, dtype=torch.float32))


def _chunked(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    rows: Tensor | None,
    multiple: int = 1,
    precision: torch.dtype = torch.float32,
    z_loss: float = 0.0,
    gradients: _Gradients | None = None,
) -> TokenScores:
    """Score the labels in `precision`, and add to the gradients."""
    device, vocab_size, count = hidden.device, len(weight), len(labels)
    products = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else hidden.dtype
    losses, log_normalizers = torch.empty(2, count, dtype=precision, device=device)
    likeliest = torch.empty(count, dtype=torch.bool, device=device) if gradients is None else None
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        weight = weight.to(products)
        if vocab_size % multiple:
            weight = functional.pad(weight, (0, 0, 0, -vocab_size % multiple))
        kernel = _kernel(device) if gradients is not None else None
        size = min(count, max(1, (GPU_CHUNK_BYTES if kernel else CHUNK_BYTES) // (4 * vocab_size)))
        # Written over by every chunk, since new memory of this size would cost a page fault for each of its pages.
        product = torch.empty(size, len(weight), dtype=products, device=device)
        buffer = product if products == precision or kernel else torch.empty_like(product, dtype=precision)
        for first in range(0, count, max(1, size)):
            chunk = slice(first, min(first + size, count))
            of_chunk, targets = chunk if rows is None else rows[chunk], labels[chunk].unsqueeze(1)
            inputs = hidden[of_chunk].to(products)
            wide = torch.mm(inputs, weight.T, out=product[: len(targets)])
            if kernel:
                kernel(wide, vocab_size, bias, labels[chunk], z_loss, losses[chunk], log_normalizers[chunk])
                gradients.add(wide, inputs, weight, of_chunk)
                continue
            if buffer is not product:
                wide = buffer[: len(targets)].copy_(wide)
            logits = wide[:, :vocab_size]
            if bias is not None:
                logits += bias
            if likeliest is not None:
                likeliest[chunk] = logits.argmax(1) == targets.squeeze(1)
            largest = logits.amax(1, keepdim=True)
            own = logits.sub_(largest).gather(1, targets)
            sums = logits.exp_().sum(1, keepdim=True)
            log_sums = sums.log()
            losses[chunk] = (log_sums - own).squeeze(1)
            log_normalizers[chunk] = (log_sums + largest).squeeze(1)
            if gradients is not None:
                logits.mul_((1 + 2 * z_loss * (log_sums + largest)) / sums)
                logits.scatter_add_(1, targets, -torch.ones_like(sums))
                gradients.add(wide, inputs, weight, of_chunk)
    return TokenScores(losses, log_normalizers, likeliest)


def _kernel(device: torch.device) -> Callable[..., object] | None:
    """What scores the rows of a chunk on this device, if it is a GPU on which Triton works."""
    if _as_on_gpu:
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


@contextlib.contextmanager
def as_on_gpu() -> Iterator[None]:
    """A context in which tensors without data take the memory that they would take on a GPU, whatever their device."""
    global _as_on_gpu
    _as_on_gpu = True
    try:
        yield
    finally:
        _as_on_gpu = False


def _scores_nothing(*_: object) -> None:
    """In place of the kernel, for tensors without data."""


class PaddedOutput(nn.Linear):
    """A linear layer from `D` to `V` features, computed with `V` rounded up to a multiple.

    Args:
        layer (`nn.Linear`): the layer to replace; its parameters are shared, so that tied weights stay tied.
        multiple (`int`): `V` is rounded up to a multiple of this.
    """

    def __init__(self, layer: nn.Linear, multiple: int):
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.multiple = multiple
        self.train(layer.training)

    def forward(self, hidden: Float[torch.Tensor, "*B D"]) -> Float[torch.Tensor, "*B V"]:
        """The logits, a view of those of the padded vocabulary."""
        more = -self.out_features % self.multiple
        if more == 0:
            return super().forward(hidden)
        weight = functional.pad(self.weight, (0, 0, 0, more))
        bias = None if self.bias is None else functional.pad(self.bias, (0, more))
        return functional.linear(hidden, weight, bias)[..., : self.out_features]


def add_embeddings(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, new: Collection[str]) -> None:
    """Give a model embeddings of tokens that were added to its tokenizer: the mean of those of all other tokens.

    The model keeps the rows it has beyond its tokenizer's tokens, if any. Under ZeRO 3 all ranks take part.

    Args:
        model ([`~transformers.PreTrainedModel`]): a language model; changed in place.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): its tokenizer, with the new tokens.
        new (collection of `str`): the new tokens.
    """
    if not new:
        return
    if len(tokenizer) > model.config.get_text_config().vocab_size:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    rows = sorted(tokenizer.convert_tokens_to_ids(list(new)))
    layers = [model.get_input_embeddings(), model.get_output_embeddings()]
    tables = {id(table): table for layer in layers if layer is not None
              for table in (layer.weight, getattr(layer, "bias", None)) if table is not None}  # fmt: skip
    known = [row for row in range(len(tokenizer)) if row not in set(rows)]
    with whole_parameters(tables.values()), torch.no_grad():
        for table in tables.values():
            table[rows] = table[known].double().mean(0).to(table.dtype)


def pad_output(model: PreTrainedModel, multiple: int) -> None:
    """Compute the output layer of a model for a vocabulary that is a multiple of `multiple`.

    Nothing happens if it is such a multiple already, or if the output layer is not an `nn.Linear`.

    Args:
        model ([`~transformers.PreTrainedModel`]): a language model; changed in place.
        multiple (`int`): 128 for GPUs; 1 leaves the model as it is.

    ```python
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=101, **sizes))
    >>> pad_output(model, 128)
    >>> logits = model(torch.tensor([[1, 2, 3]])).logits
    >>> tuple(logits.shape), logits.stride(), tuple(model.lm_head.weight.shape)
    ((1, 3, 101), (384, 128, 1), (101, 8))

    ```
    """
    layer = model.get_output_embeddings()
    if type(layer) is nn.Linear and layer.out_features % multiple != 0:
        model.set_output_embeddings(PaddedOutput(layer, multiple))


def vocabulary_multiple(asked: int | None, device: torch.device) -> int:
    """The multiple to pad to: `asked` if set, else 128 on a GPU, and 1 (no padding) on a CPU.

    Raises:
        `InputError`: `asked` is below 1.
    """
    if asked is not None and asked < 1:
        raise InputError(f"pad_vocabulary_to is {asked}; expected 1 (no padding) or more")
    if asked is None:
        return 1 if device.type == "cpu" else GPU_MULTIPLE
    return asked


class LabelScores:
    """Labels that an output layer is asked for, and their scores once the model has run.

    Args:
        labels (`torch.Tensor` of shape `(B, T)`): the token that each position predicts; -100 for none.
        z_loss (`float`, *optional*, defaults to 0): weight of the z-loss in the sum.
        exact (`bool`, *optional*, defaults to `False`): score in float64, without gradients.
        all_count (`bool`, *optional*, defaults to `False`): no label is -100, so that none is looked for.

    Attributes:
        shape (`torch.Size`): `(B, T)`.
        rows (`torch.Tensor` of shape `(N,)`, *optional*): where in the flat table the labels are; None for everywhere.
        total (scalar `torch.Tensor`, *optional*): the sum of their losses, with gradients.
        scores (`TokenScores`): of the labels, after the forward pass.
    """

    def __init__(
        self, labels: Int[Tensor, "B T"], *, z_loss: float = 0.0, exact: bool = False, all_count: bool = False
    ):
        self.shape, self.z_loss, self.exact = labels.shape, z_loss, exact
        self.rows: Tensor | None = None
        self.total: Tensor | None = None
        self.scores: TokenScores
        self._labels, self._all_count = labels.flatten(), all_count

    def compute(self, hidden: Float[Tensor, "B T D"], weight: Tensor, bias: Tensor | None, multiple: int) -> Tensor:
        """The sum of the losses; called by the output layer."""
        labels = self._labels.to(hidden.device)
        if not self._all_count:
            # Looked for here, where a GPU has the whole forward pass to do while the CPU waits for the answer.
            self.rows = (labels != IGNORED).nonzero().squeeze(1)
            labels = labels[self.rows]
        rows = hidden.flatten(0, -2)
        if self.exact:
            self.scores = scored_labels(rows, weight, bias, labels, self.rows)
            self.total = self.scores.losses.sum()
        else:
            self.total, self.scores = summed_loss(
                rows, weight, bias, labels, self.rows, z_loss=self.z_loss, multiple=multiple
            )
        return self.total

    has_z_loss = True

    @property
    def losses(self) -> Float[Tensor, "B T"]:
        """Cross-entropies in nats, 0 where there is no label."""
        return self.table(self.scores.losses)

    @property
    def log_normalizers(self) -> Float[Tensor, "N"]:
        """Log-normalizers where there are labels."""
        return self.scores.log_normalizers

    def table(self, values: Tensor) -> Float[Tensor, "B T"]:
        """One field of the scores by position, with zeros where there is no label."""
        if self.rows is None:
            return values.view(self.shape)
        return values.new_zeros(self.shape.numel()).index_put((self.rows,), values).view(self.shape)


class LossOutput(PaddedOutput):
    """A linear output layer that may be asked for the losses of labels.

    Args:
        layer (`nn.Linear`): the layer to replace; its parameters are shared, so that tied weights stay tied.
    """

    def __init__(self, layer: nn.Linear):
        super().__init__(layer, getattr(layer, "multiple", 1))
        self.labels: LabelScores | None = None

    @contextlib.contextmanager
    def asked(self, labels: LabelScores) -> Iterator[LabelScores]:
        """A context in which the layer returns the sum of the losses of these labels."""
        self.labels = labels
        try:
            yield labels
        finally:
            self.labels = None

    def forward(self, hidden: Float[Tensor, "*B D"]) -> Tensor:
        """The logits, or the sum of the losses."""
        return super().forward(hidden) if self.labels is None else self._losses(hidden)

    @torch.compiler.disable
    def _losses(self, hidden: Tensor) -> Tensor:
        return self.labels.compute(hidden, self.weight, self.bias, self.multiple)


class CausalLoss:
    """The loss function of a model whose output layer is a [`LossOutput`].

    Args:
        layer ([`LossOutput`]): the output layer.
    """

    def __init__(self, layer: LossOutput):
        self._layer = layer

    @torch.compiler.disable
    def __call__(self, logits: Tensor, labels: Tensor, *args: Any, num_items_in_batch: Any = None, **kwargs: Any):
        """The sum of the losses divided by a number of items, or else by that of the labels."""
        asked = self._layer.labels
        if asked is None:
            return ForCausalLMLoss(logits, labels, *args, num_items_in_batch=num_items_in_batch, **kwargs)
        if torch.is_tensor(num_items_in_batch):
            num_items_in_batch = num_items_in_batch.to(logits.device)
        return logits / (len(asked.scores.losses) if num_items_in_batch is None else num_items_in_batch)


def obstacle(model: PreTrainedModel, *, with_loss: bool = True) -> str | None:
    """Why the output layer of a model cannot give losses, in words that follow its class; None if it can.

    Args:
        model ([`~transformers.PreTrainedModel`]): a model without the wrapper of an adapter, see [`without_adapter`].
        with_loss (`bool`, *optional*, defaults to `True`): whether the loss function of the model will be called.
    """
    layer = model.get_output_embeddings()
    if type(layer) not in (nn.Linear, PaddedOutput, LossOutput):
        return f"has {'no output layer' if layer is None else f'an output layer of type {type(layer).__name__}'}"
    if with_loss and model.loss_function is not ForCausalLMLoss and not isinstance(model.loss_function, CausalLoss):
        return "has a loss function of its own"
    if "forward" in vars(model) or has_hook(layer):
        return "has had its forward pass replaced"
    return _found_in_trial(type(model), model.config)


def without_adapter(model: Any) -> PreTrainedModel:
    """The model of transformers in which the layers of an adapter are, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def set_loss_output(model: PreTrainedModel) -> LossOutput:
    """Replace the output layer and the loss function of a model that has no [`obstacle`], in place.

    ```python
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=101, **sizes))
    >>> tokens = torch.tensor([[1, 2, 3]])
    >>> expected = model(input_ids=tokens, labels=tokens).loss
    >>> with set_loss_output(model).asked(LabelScores(next_labels(tokens))) as labels:
    ...     loss = model(input_ids=tokens, labels=tokens).loss
    >>> torch.allclose(loss, expected), tuple(labels.scores.losses.shape)
    (True, (2,))

    ```
    """
    layer = LossOutput(model.get_output_embeddings())
    model.set_output_embeddings(layer)
    model.loss_function = CausalLoss(layer)
    return layer


def next_labels(labels: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """For each position the label that it predicts, that of the next; -100 at the end.

    ```python
    >>> next_labels(torch.tensor([[1, 2, 3]]))
    tensor([[   2,    3, -100]])

    ```
    """
    return nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)


def _found_in_trial(kind: type[PreTrainedModel], config: Any) -> str | None:
    """Whether models of a kind do anything with what the output layer returns but to pass it to the loss function.

    A new model of one layer is tried, because some models keep tensors of a forward pass, which have no data here. Its
    attention is the plain one, whatever the model's own, so the answer is the same for all implementations.
    """
    key = kind, config.to_json_string()
    if key not in _trials:
        _trials[key] = _trial(kind, copy.deepcopy(config))
    return _trials[key]


def _trial(kind: type[PreTrainedModel], config: Any) -> str | None:
    returned: list[Tensor] = []
    given: list[Tensor] = []

    def remember(logits: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        given.append(logits)
        return logits

    config.get_text_config().num_hidden_layers = 1
    config.use_cache = False
    set_config_attention(config, "eager")  # the kernels of others read memory, which is not there
    failure = ""
    try:
        # Experts are grouped in bfloat16 alone.
        with fake_tensors(), default_dtype(torch.bfloat16), torch.no_grad():
            model: Any = kind(config)
            layer = set_loss_output(model)
            layer.register_forward_hook(lambda module, inputs, output: returned.append(output))
            model.loss_function = remember
            tokens = torch.zeros(1, 2, dtype=torch.int64)
            with layer.asked(LabelScores(tokens, all_count=True)):
                model(input_ids=tokens, labels=tokens)
    except Exception as error:  # whatever a model refuses here, its logits are computed as ever
        failure = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    if not returned:
        return f"could not be tried without data ({failure or 'its output layer was not called'})"
    if failure or len(given) != 1 or given[0] is not returned[0]:
        return "does more with its logits than to take the loss of them"
    return None
