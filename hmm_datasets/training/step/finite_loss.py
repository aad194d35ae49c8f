"""Ends the run at a loss that is not finite, before the optimizer uses its gradient, and keeps what explains it."""

import math

import torch

from ...errors import InputError
from ...runtime.events import append_event
from ..checkpoints.rollback import go_back
from .component import Component
from .evidence import keep_evidence
from .loss import highest, place_of


class FiniteLoss(Component):
    """Ends training, or with `on_spike: rollback` goes back, at the first loss that is NaN or infinite on any rank."""

    needs = ("StepLoss",)

    def after_gradient(self, model: torch.nn.Module, norm: float) -> None:
        """Check the loss of the step.

        Raises:
            `InputError`: it is not finite; the message names step, rank, host, rows, and the folder with the evidence.
        """
        if math.isfinite(self.trainer.step_loss.loss):
            return
        trainer, step = self.trainer, self.trainer.state.global_step + 1
        ranks = self.trainer.step_loss.of_all_ranks()
        worst = highest(ranks)
        folder = keep_evidence(trainer, model, step, norm, ranks, worst)
        line = f"step {step}: the loss is {worst['loss']} on {place_of(worst)}; see {folder}"
        if trainer.is_world_process_zero():
            event = {"step": step, "highest": worst, "ranks": ranks, "evidence": str(folder)}
            append_event(trainer.args.output_dir, "nan", line, **event, host=worst["host"], rank=worst["rank"])
        refusal = ""
        if trainer.args.on_spike == "rollback":
            trainer.say(line)
            refusal = f"not rolled back: {go_back(trainer, step)}; "
        raise InputError(
            f"{line}; {refusal}the newest checkpoint is from before it: lower the learning rate, look at these rows, "
            "or set on_spike rollback to skip them"
        )
