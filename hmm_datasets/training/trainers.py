"""The Trainer and TRL's SFTTrainer with whole checkpoints, and a NaN that never trains on."""

import socket

import torch
from transformers import Trainer
from trl import SFTTrainer

from ..errors import InputError
from .accounting import Accounting
from .saving import WholeCheckpoints


class FiniteLoss:
    """Stops at the first loss that is not a finite number, before the optimizer has used it."""

    def training_step(self, *args, **kwargs) -> torch.Tensor:
        """One micro-batch forward and backward; returns its loss."""
        loss = super().training_step(*args, **kwargs)
        if not torch.isfinite(loss).all():
            raise InputError(
                f"step {self.state.global_step + 1}: the loss is {loss.item()} on rank {self.args.process_index} "
                f"({socket.gethostname()}); the newest checkpoint is from before it: lower the learning rate, or look "
                "at the rows of this step"
            )
        return loss


class Pretrainer(FiniteLoss, Accounting, WholeCheckpoints, Trainer):
    """The Trainer for rows of tokens, read in order."""


class FineTuner(FiniteLoss, Accounting, WholeCheckpoints, SFTTrainer):
    """TRL's trainer for conversations."""
