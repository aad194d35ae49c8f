"""Steps whose gradient is not finite change no weight.

Clipping multiplies an infinite gradient by zero: one such step would make weights NaN, and with them all that follows.
The loss of that step is finite, so it is most often one batch on which a low precision overflowed, and the weights are
sound. Stopping would cost a cluster its night for a batch in a hundred thousand; leaving the batch out costs the
batch (Chowdhery et al., "PaLM", 2022, section 5.1, left out hundreds at a time to get past spikes). So the step is
left out, told and counted, and the order of rows stays as it is. Twenty in a row are no accident, and end the run;
a loss that is not finite ends it at once (see `trainers.py`).

Under float16 the loss is scaled, and the scaler leaves steps out to find its scale: these are counted alike, without a
line for each. It begins at 2^16 and halves, so that it too has found one, or never will, after twenty. DeepSpeed
checks and steps within the backward pass: what it left out is counted, and what it took ends the run.
"""

import math

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from ..errors import InputError, RankError

_MOST_IN_A_ROW = 20


class Tally(TrainerCallback, ExportableState):
    """What adds up over the starts of a run, saved in `trainer_state.json` beside the Trainer's own counts.

    Attributes:
        skipped_steps (`int`): steps that changed no weight.
        cost (`float`): money, at the price an hour; work lost between a checkpoint and a crash is not in it.
        rows (`int`): rows trained on, in the order of the data set, so the index of the next one.
    """

    def __init__(self):
        self.skipped_steps = 0
        self.cost = 0.0
        self.rows = 0

    def state(self) -> dict:
        """As transformers saves it."""
        attributes = {"skipped_steps": self.skipped_steps, "cost": self.cost, "rows": self.rows}
        return {"args": {}, "attributes": attributes}

    def on_train_begin(self, args, state, control, **kwargs):
        """Go on from what the checkpoint says; one of before this was counted says nothing."""
        saved = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        vars(self).update(saved["attributes"])

    def on_step_end(self, args, state, control, **kwargs):
        """Count the rows of the step."""
        self.rows = args.ramp.rows_before(state.global_step)


class _AfterStep(TrainerCallback):
    def __init__(self, trainer):
        self._trainer = trainer

    def on_optimizer_step(self, args, state, control, **kwargs):
        self._trainer.judge_step()


class FiniteGradients:
    """Mixed into a Trainer that can `say` a line: leaves out steps whose gradient is not finite."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.args.fp16 and self.args.device.type == "cpu":
            raise InputError(
                "fp16 is set, and there is no GPU: accelerate would train in float32; take bf16, or neither"
            )
        self.tally = Tally()
        self._skipped_in_a_row = 0
        self._norm = 0.0
        self.add_callback(self.tally)
        self.add_callback(_AfterStep(self))

    def _get_grad_norm(self, model, grad_norm=None):
        norm = super()._get_grad_norm(model, grad_norm)
        self._norm = float(norm)
        if not math.isfinite(self._norm) and self.accelerator.scaler is None and not self.is_deepspeed_enabled:
            model.zero_grad(set_to_none=True)  # optimizers pass over what has no gradient, weight decay included
        return norm

    def judge_step(self) -> None:
        """Count the step just done if it changed no weight.

        Raises:
            `InputError`: it is one of too many, or DeepSpeed trained on a gradient that is not finite.
        """
        by_library, finite = self.accelerator.optimizer_step_was_skipped, math.isfinite(self._norm)
        step = self.state.global_step + 1
        if finite and not by_library:
            self._skipped_in_a_row = 0
            return
        if self.is_deepspeed_enabled and not by_library:
            raise RankError(
                f"step {step}: the norm of the gradient is {self._norm}, and DeepSpeed trained on it; the newest "
                "checkpoint is from before it: set check_grad_overflow in the DeepSpeed JSON"
            )
        self.tally.skipped_steps += 1
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row == _MOST_IN_A_ROW:
            raise InputError(
                f"step {step}: the gradient was not finite for {_MOST_IN_A_ROW} steps in a row; the newest checkpoint "
                "may be from before them: lower the learning rate, or train in another precision"
            )
        if self.accelerator.scaler is None:
            count = f"{self.tally.skipped_steps:,} so far"
            self.say(f"step {step:,}: the norm of the gradient is {self._norm}; left out ({count})")
