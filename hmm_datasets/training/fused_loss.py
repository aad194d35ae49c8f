"""An output layer that computes the losses of labels instead of logits, and the models that it is right for.

The loss is computed in the forward pass of the layer ([`~hmm_datasets.training.linear_cross_entropy`]), so DDP, ZeRO
and FSDP2 gather its weight as that of any other layer. While it has labels the layer returns the sum of their losses,
where others return logits. The model passes this on to its loss function, which is replaced by one that divides the
sum by the number of labels. Without labels it is the layer that it replaces.

A model whose forward pass changes the logits (by a cap or a scale), or uses the weight elsewhere, would give something
else. Each kind of model is therefore tried once, on tensors without data: its loss function must be given the very
tensor that the layer returned.
"""

import copy
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.loss.loss_utils import ForCausalLMLoss

from ..compat.accelerate import has_hook
from ..compat.torch import fake_tensors
from ..compat.transformers_models import set_config_attention
from ..data.windows import IGNORED
from .linear_cross_entropy import TokenScores, scored_labels, summed_loss
from .model_configs import default_dtype
from .vocabulary import PaddedOutput

_trials: dict[tuple[type, str], str | None] = {}


class LabelScores:
    """Labels that an output layer is asked for, and their scores once the model has run.

    Args:
        labels (`torch.Tensor` of shape `(B, T)`): the token that each position predicts; -100 for none.
        z_loss (`float`, *optional*, defaults to 0): weight of the z-loss in the sum.
        exact (`bool`, *optional*, defaults to `False`): score in float64, without gradients.
        all_count (`bool`, *optional*, defaults to `False`): no label is -100, so that none is looked for.
        as_on_gpu (`bool`, *optional*, defaults to `False`): see [`summed_loss`].

    Attributes:
        shape (`torch.Size`): `(B, T)`.
        rows (`torch.Tensor` of shape `(N,)`, *optional*): where in the flat table the labels are; None for everywhere.
        total (scalar `torch.Tensor`, *optional*): the sum of their losses, with gradients.
        scores (`TokenScores`): of the labels, after the forward pass.
    """

    def __init__(
        self,
        labels: Int[Tensor, "B T"],
        *,
        z_loss: float = 0.0,
        exact: bool = False,
        all_count: bool = False,
        as_on_gpu: bool = False,
    ):
        self.shape, self.z_loss, self.exact, self.as_on_gpu = labels.shape, z_loss, exact, as_on_gpu
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
                rows,
                weight,
                bias,
                labels,
                self.rows,
                z_loss=self.z_loss,
                multiple=multiple,
                as_on_gpu=self.as_on_gpu,
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

    def computing_losses_of(self, labels: LabelScores) -> AbstractContextManager[LabelScores]:
        """A context in which the layer returns the sum of the losses of these labels."""
        return mock.patch.object(self, "labels", labels)

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


def unsupported_reason(model: PreTrainedModel, *, with_loss: bool = True) -> str | None:
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
    """Replace the output layer and the loss function of a model that has no [`unsupported_reason`], in place.

    ```python
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=101, **sizes))
    >>> tokens = torch.tensor([[1, 2, 3]])
    >>> expected = model(input_ids=tokens, labels=tokens).loss
    >>> with set_loss_output(model).computing_losses_of(LabelScores(next_labels(tokens))) as labels:
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
    gradients: list[Tensor] = []

    def remember(logits: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        gradients.append(logits)
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
            with layer.computing_losses_of(LabelScores(tokens, all_count=True)):
                model(input_ids=tokens, labels=tokens)
    except Exception as error:  # whatever a model refuses here, its logits are computed as ever
        failure = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    if not returned:
        return f"could not be tried without data ({failure or 'its output layer was not called'})"
    if failure or len(gradients) != 1 or gradients[0] is not returned[0]:
        return "does more with its logits than to take the loss of them"
    return None
