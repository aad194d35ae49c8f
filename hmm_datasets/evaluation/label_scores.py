"""Log-probabilities of the token that follows each position of a batch, without the logits of all positions.

Scores are float64. The output layer of the model is asked for the scores of the labels
([`~hmm_datasets.training.linear_cross_entropy`]), so only the logits of some positions with a label exist at a time. A
model that changes its logits after its output layer gives all of them instead; they are then read row by row.
"""

import contextlib
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor
from torch.nn.functional import nll_loss

from ..data.windows import IGNORED
from ..hmm.analysis.divergence import log_probabilities
from ..training.fused_loss import LabelScores, LossOutput, unsupported_reason, without_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ScoredLabels(NamedTuple):
    """Scores of labels by position.

    Attributes:
        nats (`torch.Tensor` of shape `(B, T)`): -log P of each label, 0 where there is none.
        likeliest (`torch.Tensor` of shape `(B, T)`): whether the label is the most likely token, or there is none.
    """

    nats: Float64[Tensor, "B T"]
    likeliest: Bool[Tensor, "B T"]


@torch.no_grad()
def score_labels(model: "PreTrainedModel", labels: Int[Tensor, "B T"], **inputs: Any) -> ScoredLabels:
    """Score the token that each position of a batch predicts.

    Args:
        model ([`~transformers.PreTrainedModel`]): a causal language model in eval mode.
        labels (`torch.Tensor` of shape `(B, T)`): the token after each position; -100 for none.
        **inputs: arguments of the model.
    """
    with _loss_output(model) as layer:
        if layer is None:
            return _from_logits(model, labels, inputs)
        with layer.computing_losses_of(LabelScores(labels, exact=True)) as output:
            model(**inputs)
    nats, likeliest = output.table(output.scores.losses), output.table(output.scores.likeliest)
    return ScoredLabels(nats, likeliest | (labels == IGNORED))


@contextlib.contextmanager
def _loss_output(model: "PreTrainedModel") -> Iterator[LossOutput | None]:
    """A context in which the output layer of the model can be asked; None if it cannot."""
    model = without_adapter(model)
    # Anything may be measured that gives logits for tokens.
    layer = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if isinstance(layer, LossOutput):
        yield layer
        return
    if layer is None or unsupported_reason(model, with_loss=False) is not None:
        yield None
        return
    asked = LossOutput(layer)
    model.set_output_embeddings(asked)
    try:
        yield asked
    finally:
        model.set_output_embeddings(layer)


def _from_logits(model: "PreTrainedModel", labels: Int[Tensor, "B T"], inputs: dict[str, Any]) -> ScoredLabels:
    counted = labels != IGNORED
    nats, likeliest = torch.zeros(labels.shape, dtype=torch.float64, device=labels.device), ~counted
    width = labels.shape[1]
    first = int(counted.any(0).int().argmax())  # 0 if there is no label
    logits = model(**inputs, **logits_to_keep(model, width - first)).logits
    skipped = width - logits.shape[1]
    for row in range(len(labels)):  # since in float64 a batch of logits takes twice the memory or more
        at = counted[row].nonzero().squeeze(1)
        predicted, targets = logits[row, at - skipped], labels[row, at]
        nats[row, at] = nll_loss(log_probabilities(predicted), targets, reduction="none")
        likeliest[row, at] = predicted.argmax(-1) == targets
    return ScoredLabels(nats, likeliest)


def logits_to_keep(model: "PreTrainedModel", count: int) -> dict[str, int]:
    """The argument by which a model computes only the logits of the last `count` positions, if it has one."""
    arguments = inspect.signature(getattr(model, "forward", model)).parameters
    return {"logits_to_keep": count} if "logits_to_keep" in arguments else {}
