"""Ends the run at a loss that is not finite, before the optimizer uses its gradient, and keeps what explains it."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from ...errors import InputError
from ...runtime.events import append_event
from ..checkpoints.resuming import before_step
from ..run_context import RunContext
from .component import Component
from .evidence import keep_evidence
from .loss import StepLoss, highest, place_of


class FiniteLoss(Component):
    """Ends training, or with `on_spike: rollback` goes back, at the first loss that is NaN or infinite on any rank.

    Args:
        run ([`~hmm_datasets.training.run_context.RunContext`]): the run.
        step_loss ([`~hmm_datasets.training.step.loss.StepLoss`]): the loss of the step under way.
        go_back (callable): goes back because of a step, see [`~hmm_datasets.training.checkpoints.rollback.go_back`].
        forward_context (callable): gives the context of a forward pass, such as autocast.
    """

    needs = ("StepLoss",)

    def __init__(
        self,
        run: RunContext,
        step_loss: StepLoss,
        go_back: Callable[[int], str],
        forward_context: Callable[[], AbstractContextManager],
    ):
        super().__init__(run)
        self._step_loss, self._go_back, self._forward_context = step_loss, go_back, forward_context

    def after_gradient(self, model: torch.nn.Module, norm: float) -> None:
        """Check the loss of the step.

        Raises:
            `InputError`: it is not finite; the message names step, rank, host, rows, and the folder with the evidence.
        """
        if math.isfinite(self._step_loss.loss):
            return
        run, step = self.run, self.run.state.global_step + 1
        ranks = self._step_loss.of_all_ranks()
        worst = highest(ranks)
        folder = keep_evidence(run, self._step_loss, self._forward_context, model, step, norm, ranks, worst)
        line = f"step {step}: the loss is {worst['loss']} on {place_of(worst)}; see {folder}"
        if run.is_world_process_zero():
            event = {"step": step, "highest": worst, "ranks": ranks, "evidence": str(folder)}
            append_event(run.args.output_dir, "nan", line, **event, host=worst["host"], rank=worst["rank"])
        remedy = "lower the learning rate, look at these rows, or set on_spike rollback to skip them"
        if run.args.on_spike == "rollback":
            run.say(line)
            line = f"{line}; not rolled back: {self._go_back(step)}"
            remedy = "lower the learning rate, or look at these rows"
        raise InputError(f"{line}; {before_step(run.args, step)}: {remedy}")
