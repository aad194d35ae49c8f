"""The Trainer and TRL's SFTTrainer with two more checks: every rank takes part, and a NaN never trains on."""

import socket

import torch
from transformers import Trainer
from trl import SFTTrainer

from ..errors import InputError


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


class Pretrainer(FiniteLoss, Trainer):
    """The Trainer for rows of tokens, read in order."""


class FineTuner(FiniteLoss, SFTTrainer):
    """TRL's trainer for conversations."""
