"""The held-out loss as a mean over tokens, independent of batch size and number of ranks.

The Trainer averages the means of batches, so if rows differ in their number of predicted tokens, its result depends on
the batch size. Here each row gives its sum and its count, and the rows that ranks repeat to fill their last batch
count once. For rows in named parts ([`HeldOutParts`]) the loss of each part is reported too.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch.utils.data import ConcatDataset, Dataset

from ...data.windows import IGNORED
from ...errors import InputError
from .component import Component


class HeldOutParts(ConcatDataset):
    """Held-out rows of several sources, concatenated, with a name for the loss of each source.

    Args:
        parts (mapping of `str` to `Dataset`): map-style data sets by name.
    """

    def __init__(self, parts: Mapping[str, Dataset]):
        super().__init__(list(parts.values()))
        self.names = list(parts)


def row_losses(losses: Float[torch.Tensor, "B T"], labels: Int[torch.Tensor, "B T"]) -> Float[torch.Tensor, "B 2"]:
    """The sum of cross-entropies in nats and the number of predicted tokens, for every row.

    Args:
        losses (`torch.Tensor` of shape `(B, T)`): cross-entropy at each position, 0 where none is predicted.
        labels (`torch.Tensor` of shape `(B, T)`): labels, not shifted; -100 is ignored.

    Returns:
        `torch.Tensor` of shape `(B, 2)`: sum and count.

    ```python
    >>> row_losses(torch.tensor([[1.4, 0.0, 0.0]]), torch.tensor([[1, 2, -100]]))
    tensor([[1.4000, 1.0000]], dtype=torch.float64)

    ```
    """
    return torch.stack([losses[:, :-1].double().sum(-1), (labels[:, 1:] != IGNORED).double().sum(-1)], dim=-1)


class HeldOutLoss(Component):
    """The loss of an evaluation as a mean over tokens; with `compute_metrics` set, the Trainer's own loss is kept."""

    def __init__(self, trainer):
        super().__init__(trainer)
        self._rows: list[torch.Tensor] | None = None

    def needs_scores(self, model: torch.nn.Module) -> bool:
        """Whether an evaluation is running that needs them."""
        return self._rows is not None

    def before_evaluation(self) -> None:
        """Start to collect the losses of rows."""
        self._rows = [] if self.trainer.compute_metrics is None else None

    def after_forward(self, model, labels, scores, loss, num_items) -> torch.Tensor:
        """Return the loss unchanged, and keep each row's sum and count."""
        if self._rows is not None and labels is not None:
            rows = row_losses(scores.losses, labels)
            self._rows.append(self.trainer.accelerator.gather_for_metrics(rows).cpu())
        return loss

    def after_evaluation(self, dataset: Dataset, metrics: dict[str, float], prefix: str) -> None:
        """Replace the Trainer's loss by the means over tokens."""
        rows, self._rows = self._rows, None
        if rows:
            means = _mean_losses(torch.cat(rows), dataset)
            metrics.update({f"{prefix}_{name}": loss for name, loss in means.items()})


def _mean_losses(rows: Float[torch.Tensor, "N 2"], dataset: Dataset) -> dict[str, float]:
    """The mean loss over all tokens and over those of each named part; a part without predicted tokens is left out."""
    total, count = rows.sum(0).tolist()
    if count == 0:
        raise InputError(
            "no token of the held-out rows is predicted, since their answers begin after max_length; raise it, or "
            "leave evaluation out"
        )
    losses = {"loss": total / count}
    if isinstance(dataset, HeldOutParts):
        # Ranks take batches in turn, so gathered rows are in the order of the data set.
        for name, part in zip(dataset.names, rows.split([len(part) for part in dataset.datasets]), strict=True):
            total, count = part.sum(0).tolist()
            if count:
                losses[f"{name}_loss"] = total / count
    return losses
