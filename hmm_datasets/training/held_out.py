"""The held-out loss as a mean over tokens, whatever the batches and ranks.

The Trainer takes the mean over rows of the means of batches: where rows hold unequally many predicted tokens, its
figure moves with the batch size. Here each row gives its sum and its count, and repeated rows, with which ranks fill
their last batch, count once. It costs one more pass over the logits in float32. Of rows in named parts
([`HeldOutParts`]) each part's loss is told beside that of all, from the same pass.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch.utils.data import ConcatDataset, Dataset

from ..data.windows import IGNORED
from ..errors import InputError


class HeldOutParts(ConcatDataset):
    """Held-out rows of several sources, end to end, with a name for the loss of each.

    Args:
        parts (mapping of `str` to `Dataset`): map-style data sets by name.
    """

    def __init__(self, parts: Mapping[str, Dataset]):
        super().__init__(list(parts.values()))
        self.names = list(parts)


def row_losses(logits: Float[torch.Tensor, "B T V"], labels: Int[torch.Tensor, "B T"]) -> Float[torch.Tensor, "B 2"]:
    """Of every row the sum of the cross-entropies in nats, and how many tokens are predicted.

    Args:
        logits (`torch.Tensor` of shape `(B, T, V)`): of a causal model; those at `t` predict label `t + 1`.
        labels (`torch.Tensor` of shape `(B, T)`): not shifted; -100 counts not.

    ```python
    >>> row_losses(torch.zeros(1, 3, 4), torch.tensor([[1, 2, -100]]))
    tensor([[1.3863, 1.0000]], dtype=torch.float64)

    ```
    """
    shifted = labels[:, 1:]
    losses = torch.nn.functional.cross_entropy(
        logits[:, :-1].float().transpose(1, 2), shifted, ignore_index=IGNORED, reduction="none"
    )
    return torch.stack([losses.double().sum(-1), (shifted != IGNORED).double().sum(-1)], dim=-1)


class HeldOutLoss:
    """Mixed into a Trainer; where `compute_metrics` is set, rows are taken to be alike, and nothing changes."""

    loss_has_logits = True
    """Whether the Trainer's loss comes with its logits; else they take one more forward pass."""

    _held_out: list[torch.Tensor] | None = None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """The loss; in an evaluation each row's share of it is kept."""
        if self._held_out is None or "labels" not in inputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        labels = inputs["labels"]
        if self.loss_has_logits:
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        else:
            loss = super().compute_loss(model, inputs, False, num_items_in_batch)
            outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
        rows = row_losses(outputs.logits, labels)
        self._held_out.append(self.accelerator.gather_for_metrics(rows).cpu())
        return (loss, outputs) if return_outputs else loss

    def evaluation_loop(self, dataloader, *args, metric_key_prefix: str = "eval", **kwargs):
        """Evaluate; the loss is the mean over tokens."""
        self._held_out = [] if self.compute_metrics is None else None
        try:
            output = super().evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)
            if self._held_out:
                losses = _mean_losses(torch.cat(self._held_out), dataloader.dataset)
                output.metrics.update({f"{metric_key_prefix}_{name}": loss for name, loss in losses.items()})
        finally:
            self._held_out = None
        return output


def _mean_losses(rows: Float[torch.Tensor, "N 2"], dataset: Dataset) -> dict[str, float]:
    """The mean loss of all tokens, and of those of each named part; a part without any has none."""
    total, count = rows.sum(0).tolist()
    if count == 0:
        raise InputError(
            "no token of the held-out rows is predicted: their answers begin after max_length; raise it, or leave "
            "evaluation out"
        )
    losses = {"loss": total / count}
    if isinstance(dataset, HeldOutParts):
        # Ranks take batches in turn, so gathered rows come in the order of the data set.
        for name, part in zip(dataset.names, rows.split([len(part) for part in dataset.datasets]), strict=True):
            total, count = part.sum(0).tolist()
            if count:
                losses[f"{name}_loss"] = total / count
    return losses
