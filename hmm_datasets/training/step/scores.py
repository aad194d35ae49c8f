"""What a training step computes of the labels of a micro-batch in addition to its loss."""

from collections.abc import Callable
from functools import cached_property
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...data.windows import IGNORED


class Scores(Protocol):
    """Scores of the labels of a micro-batch.

    Attributes:
        has_z_loss (`bool`): whether the loss of the micro-batch already has the z-loss in it.
    """

    has_z_loss: bool

    @property
    def losses(self) -> Float[Tensor, "B T"]:
        """The cross-entropy in nats of the label that each position predicts, and 0 where there is none."""
        ...

    @property
    def log_normalizers(self) -> Float[Tensor, "N"]:
        """The log of the sum of the exponentials of the logits, at the `N` positions that predict a label."""
        ...


class LogitScores:
    """[`Scores`] from logits, each computed when it is asked for.

    Args:
        logits (callable): gives the logits of a causal model (B, T, V); those at `t` predict label `t + 1`.
        labels (`torch.Tensor` of shape `(B, T)`): labels, not shifted; -100 is ignored.

    ```python
    >>> scores = LogitScores(lambda: torch.zeros(1, 3, 4), torch.tensor([[1, 2, -100]]))
    >>> scores.losses, scores.log_normalizers.exp()
    (tensor([[1.3863, 0.0000, 0.0000]]), tensor([4.]))

    ```
    """

    has_z_loss = False

    def __init__(self, logits: Callable[[], Float[Tensor, "B T V"]], labels: Int[Tensor, "B T"]):
        self._compute, self._labels = logits, labels

    @cached_property
    def _logits(self) -> Tensor:
        return self._compute()[:, :-1]

    @cached_property
    def losses(self) -> Float[Tensor, "B T"]:
        """Cross-entropies in float32."""
        losses = torch.nn.functional.cross_entropy(
            self._logits.float().transpose(1, 2), self._labels[:, 1:], ignore_index=IGNORED, reduction="none"
        )
        return torch.nn.functional.pad(losses, (0, 1))

    @cached_property
    def log_normalizers(self) -> Float[Tensor, "N"]:
        """Log-normalizers in float32."""
        return torch.logsumexp(self._logits[self._labels[:, 1:] != IGNORED].float(), dim=-1)
