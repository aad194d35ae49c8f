"""Ends the run at a loss that is not finite, before the optimizer uses its gradient."""

import torch

from ...errors import RankError
from .component import Component


class FiniteLoss(Component):
    """Ends training at the first loss that is NaN or infinite."""

    def after_micro_batch(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss unchanged.

        Raises:
            `RankError`: the loss is not finite; the message names the step.
        """
        if not torch.isfinite(loss).all():
            raise RankError(
                f"step {self.trainer.state.global_step + 1}: the loss is {loss.item()}; the newest checkpoint is from "
                "before it: lower the learning rate, or look at the rows of this step"
            )
        return loss
