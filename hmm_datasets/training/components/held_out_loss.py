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

from ...data.windows import IGNORED
from ...errors import InputError
from .component import Component


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


class HeldOutLoss(Component):
    """The loss of an evaluation as a mean over tokens; where `compute_metrics` is set, rows are taken to be alike."""

    def __init__(self, trainer):
        super().__init__(trainer)
        self._rows: list[torch.Tensor] | None = None

    def needs_logits(self, model: torch.nn.Module) -> bool:
        """In such an evaluation."""
        return self._rows is not None

    def before_evaluation(self) -> None:
        """Begin to keep the losses of rows."""
        self._rows = [] if self.trainer.compute_metrics is None else None

    def after_forward(self, model, labels, logits, loss, num_items) -> torch.Tensor:
        """The loss as it is; each row's share is kept."""
        if self._rows is not None and labels is not None:
            rows = row_losses(logits, labels)
            self._rows.append(self.trainer.accelerator.gather_for_metrics(rows).cpu())
        return loss

    def after_evaluation(self, dataset: Dataset, metrics: dict[str, float], prefix: str) -> None:
        """Put the means over tokens in place of the Trainer's loss."""
        rows, self._rows = self._rows, None
        if rows:
            means = _mean_losses(torch.cat(rows), dataset)
            metrics.update({f"{prefix}_{name}": loss for name, loss in means.items()})


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
