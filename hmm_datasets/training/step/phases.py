"""The phases of a training step, reported in the heartbeat of this process."""

import functools
from typing import Any

import torch

from ...compat.torch import on_compilations
from ...runtime import heartbeats
from ..run_context import RunContext
from .component import Component


@functools.cache
def _track_compilations() -> None:
    on_compilations(heartbeats.compiling)


class PhaseReporter(Component):
    """Enters the phases of a step. It is the first component, so that its phases include the work of the others."""

    def __init__(self, run: RunContext):
        super().__init__(run)
        _track_compilations()

    def before_batches(self) -> None:
        """The step begins, and waits for its rows."""
        heartbeats.enter("data", self.run.state.global_step + 1)

    def before_micro_batch(self, inputs: dict[str, Any]) -> None:
        """Count the tokens of this process."""
        if "input_ids" in inputs:
            heartbeats.count(inputs["input_ids"].numel())

    def before_forward(self, inputs: dict[str, Any]) -> None:
        """The forward pass of a micro-batch begins."""
        if self.run.model.training:
            heartbeats.enter("forward")

    def after_forward(self, model, labels, scores, loss, num_items) -> torch.Tensor:
        """The backward pass of a micro-batch begins."""
        if model.training:
            heartbeats.enter("backward")
        return loss

    def before_optimizer(self) -> None:
        """All that is left of the step, up to the rows of the next."""
        heartbeats.enter("optimizer")
