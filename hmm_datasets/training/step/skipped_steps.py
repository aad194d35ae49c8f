"""Skips steps whose gradient is not finite, and counts them.

Clipping multiplies an infinite gradient by zero, so one such step would turn weights into NaN. If the loss of the step
is finite, the usual cause is an overflow of a low precision on one batch, and the weights are sound. Skipping costs
one batch, while stopping could cost a cluster a night (Chowdhery et al., "PaLM", 2022, section 5.1, skipped hundreds
of batches at a time to get past loss spikes). So the step is skipped, logged and counted, and the order of rows does
not change. Twenty skipped steps in a row end the run. A loss that is not finite ends it at once (see `finite_loss`).

Under float16 the loss is scaled, and the scaler skips steps until it has found its scale. These are counted too, but
not logged one by one. The scale starts at 2^16 and is halved, so twenty steps are enough to find it. DeepSpeed checks
the gradient and steps within the backward pass: a step that it skipped is counted, and a step that it took on a
gradient that is not finite ends the run.
"""

import math

import torch

from ...errors import InputError, RankError
from ..checkpoints.resuming import before_step
from ..run_context import RunContext
from .component import Component

_MAX_IN_A_ROW = 20


class SkippedSteps(Component):
    """Skips steps whose gradient is not finite."""

    needs = ("LossSpikes",)

    def __init__(self, run: RunContext):
        super().__init__(run)
        if run.args.fp16 and run.args.device.type == "cpu":
            raise InputError(
                "fp16 is set, but there is no GPU, and accelerate would train in float32; use bf16, or neither"
            )
        self._in_a_row = 0
        self._norm = 0.0

    def after_gradient(self, model: torch.nn.Module, norm: float) -> None:
        """Remove the gradient if it is not finite."""
        self._norm = norm
        run = self.run
        if not math.isfinite(norm) and run.accelerator.scaler is None and not run.is_deepspeed_enabled:
            model.zero_grad(set_to_none=True)  # without a gradient, optimizers skip a weight and its weight decay too

    def after_optimizer(self) -> None:
        """Count the step just done if it changed no weight.

        Raises:
            `InputError`: too many steps in a row were skipped.
            `RankError`: DeepSpeed trained on a gradient that is not finite.
        """
        run = self.run
        by_library, finite = run.accelerator.optimizer_step_was_skipped, math.isfinite(self._norm)
        step = run.state.global_step + 1
        if finite and not by_library:
            self._in_a_row = 0
            return
        if run.is_deepspeed_enabled and not by_library:
            raise RankError(
                f"step {step}: the norm of the gradient is {self._norm}, and DeepSpeed trained on it; "
                f"{before_step(run.args, step)}: set check_grad_overflow in the DeepSpeed JSON"
            )
        run.totals.skipped_steps += 1
        self._in_a_row += 1
        if self._in_a_row == _MAX_IN_A_ROW:
            first = step - _MAX_IN_A_ROW + 1
            raise InputError(
                f"step {step}: the gradient was not finite for {_MAX_IN_A_ROW} steps in a row since step {first}; "
                f"{before_step(run.args, first)}: lower the learning rate, or train in another precision"
            )
        if run.accelerator.scaler is None:
            count = f"{run.totals.skipped_steps:,} so far"
            run.say(f"step {step:,}: the norm of the gradient is {self._norm}; skipped ({count})")
