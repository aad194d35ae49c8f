"""Steps whose gradient is not finite change no weight.

Clipping multiplies an infinite gradient by zero: one such step would make weights NaN, and with them all that follows.
The loss of that step is finite, so it is most often one batch on which a low precision overflowed, and the weights are
sound. Stopping would cost a cluster its night for a batch in a hundred thousand; leaving the batch out costs the
batch (Chowdhery et al., "PaLM", 2022, section 5.1, left out hundreds at a time to get past spikes). So the step is
left out, told and counted, and the order of rows stays as it is. Twenty in a row are no accident, and end the run;
a loss that is not finite ends it at once (see `finite_loss`).

Under float16 the loss is scaled, and the scaler leaves steps out to find its scale: these are counted alike, without a
line for each. It begins at 2^16 and halves, so that it too has found one, or never will, after twenty. DeepSpeed
checks and steps within the backward pass: what it left out is counted, and what it took ends the run.
"""

import math

import torch

from ...errors import InputError, RankError
from .component import Component

_MOST_IN_A_ROW = 20


class SkippedSteps(Component):
    """Leaves out steps whose gradient is not finite."""

    def __init__(self, trainer):
        super().__init__(trainer)
        if trainer.args.fp16 and trainer.args.device.type == "cpu":
            raise InputError(
                "fp16 is set, and there is no GPU: accelerate would train in float32; take bf16, or neither"
            )
        self._in_a_row = 0
        self._norm = 0.0

    def after_gradient(self, model: torch.nn.Module, norm: float) -> None:
        """Take the gradient away if it is not finite."""
        self._norm = norm
        trainer = self.trainer
        if not math.isfinite(norm) and trainer.accelerator.scaler is None and not trainer.is_deepspeed_enabled:
            model.zero_grad(set_to_none=True)  # optimizers pass over what has no gradient, weight decay included

    def after_optimizer(self) -> None:
        """Count the step just done if it changed no weight.

        Raises:
            `InputError`: it is one of too many, or DeepSpeed trained on a gradient that is not finite.
        """
        trainer = self.trainer
        by_library, finite = trainer.accelerator.optimizer_step_was_skipped, math.isfinite(self._norm)
        step = trainer.state.global_step + 1
        if finite and not by_library:
            self._in_a_row = 0
            return
        if trainer.is_deepspeed_enabled and not by_library:
            raise RankError(
                f"step {step}: the norm of the gradient is {self._norm}, and DeepSpeed trained on it; the newest "
                "checkpoint is from before it: set check_grad_overflow in the DeepSpeed JSON"
            )
        trainer.totals.skipped_steps += 1
        self._in_a_row += 1
        if self._in_a_row == _MOST_IN_A_ROW:
            raise InputError(
                f"step {step}: the gradient was not finite for {_MOST_IN_A_ROW} steps in a row; the newest checkpoint "
                "may be from before them: lower the learning rate, or train in another precision"
            )
        if trainer.accelerator.scaler is None:
            count = f"{trainer.totals.skipped_steps:,} so far"
            trainer.say(f"step {step:,}: the norm of the gradient is {self._norm}; left out ({count})")
